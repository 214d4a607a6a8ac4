"""A call's arrays as the emulator takes them: numpy arrays on the arguments' own memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilecc.codegen.program import DeviceKernel, Parameter
from tilecc.emulator.spaces import alignment_offset
from tilecc.errors import CompileError
from tilecc.ir.core import Value
from tilecc.ir.interp_expr import integer
from tilecc.runtime.arguments import Bound, Held

Array = np.ndarray[Any, Any]

# What a tensor of no elements points to: a kernel may read there, though nothing depends on it.
_LENT = 4096
_UNWRITTEN = 0xFF
"""Of this byte outputs are made, so that it shows what was not written: a NaN in every type of
floats, and not the one that GPUs compute, which is positive."""


def array_of(held: Held, v: Value) -> Array:
    """An argument as a numpy array, without a copy."""
    if isinstance(held.source, np.ndarray):
        return held.source
    dtype = np.dtype(v.type.dtype.numpy)
    if 0 in held.shape:
        return np.zeros(held.shape, dtype)
    low, high = held.span(dtype.itemsize)
    start = held.tensor.data_ptr()
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
    strides = [s * dtype.itemsize for s in held.strides]
    found: Array = np.ndarray(held.shape, dtype, memory, start - low, strides)
    return found


def arrays(bound: Bound, params: tuple[Value, ...] | list[Value]) -> dict[Value, Any]:
    """The arguments of a call: arrays, and numbers for scalars."""
    found: dict[Value, Any] = {}
    for p, x, held in zip(params, bound.values, bound.held, strict=True):
        found[p] = x if held is None else array_of(held, p)
    return found


def unwritten(v: Value, extents: Mapping[str, int]) -> Array:
    """A new array for a tensor, recognisable as never written."""
    shape = [integer(a.extent, extents) for a in v.type.axes]
    dtype = np.dtype(v.type.dtype.numpy)
    octets = np.full(math.prod(shape) * dtype.itemsize, _UNWRITTEN, np.uint8)
    return octets.view(dtype).reshape(shape)


def was_written(x: Array) -> Array:
    """Which elements of an array from `unwritten` have been written since."""
    octets = np.ascontiguousarray(x)[..., None].view(np.uint8)
    return np.asarray((octets != _UNWRITTEN).any(axis=-1))


def arguments(kernel: DeviceKernel, values: Mapping[Value, Any]) -> list[Any]:
    """What a kernel is launched with, in the order of its signature."""
    return [_argument(p, values) for p in kernel.params]


def _argument(p: Parameter, values: Mapping[Value, Any]) -> Any:
    assert p.value is not None
    x = values[p.value]
    if p.kind == "scalar":
        return x
    if p.kind == "tensor":
        return x if x.size else np.zeros(_LENT, np.uint8)[_LENT // 2 :]
    assert p.axis is not None
    if p.kind == "extent":
        return x.shape[p.axis]
    return x.strides[p.axis] // x.itemsize if x.size else 0


def fitting(kernel: DeviceKernel, values: Mapping[Value, Any]) -> DeviceKernel:
    """The kernel, or what stands in for it where an array is not aligned as it relies on.

    Raises:
        CompileError: nothing stands in for it.
    """
    tensors = {p.name: p.value for p in kernel.params if p.kind == "tensor"}
    for name, unit in kernel.alignment:
        v = tensors[name]
        assert v is not None
        if not _is_aligned(values[v], unit):
            if kernel.relaxed is None:
                raise CompileError(f"{v.name or name} is not aligned to {unit} bytes: pass a copy")
            return fitting(kernel.relaxed, values)
    return kernel


def _is_aligned(x: Array, unit: int) -> bool:
    if not x.size:
        return True
    steps = [s for s, n in zip(x.strides[:-1], x.shape[:-1], strict=True) if n > 1]
    return alignment_offset(x) % unit == 0 and not any(s % unit for s in steps)

"""A program's CUDA kernels, ready to be called: outputs, choice of binaries, launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilecc.codegen.program import DeviceKernel, DeviceProgram, Parameter
from tilecc.errors import ArgumentError, Diagnostic
from tilecc.ir.core import Func, Value
from tilecc.runtime.arguments import Bound, Held, Refused
from tilecc.runtime.cuda.arrays import allocate, current_stream, device_of, device_tensor
from tilecc.runtime.cuda.driver import Driver
from tilecc.runtime.cuda.images import Image, check_room, choose
from tilecc.runtime.outputs import given_outputs, grid_size, shapes_of

# C types of kernels' parameters that are no pointers.
_CTYPES: Mapping[str, Callable[[Any], Any]] = {
    "bool": ctypes.c_bool,
    "signed char": ctypes.c_int8,
    "unsigned char": ctypes.c_uint8,
    "short": ctypes.c_int16,
    "unsigned short": ctypes.c_uint16,
    "int": ctypes.c_int32,
    "long long": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
# Behind a tensor of no elements: a row of it, and room around for what is read and not used.
_ROOM = 128


class DeviceExecutable:
    """The host's part of a tile-level function whose kernels run on GPUs."""

    def __init__(
        self,
        func: Func,
        program: DeviceProgram,
        images: Callable[[DeviceKernel], Sequence[Image]],
        driver: Driver,
    ) -> None:
        """`images` gives the binaries of a kernel when one is first launched."""
        self.params = func.params
        self.allocs = [op.result for op in func.body.ops if op.name == "alloc"]
        self.returns = func.returns
        self.kernels = program.kernels
        self.images, self.driver = images, driver
        self._loaded: dict[tuple[int, str], int] = {}
        self._most_blocks: dict[int, int] = {}

    def __call__(self, bound: Bound, out: Any, threads: int) -> Any:
        """Start the kernels on the current stream of the arguments' library, and do not wait.

        Raises:
            ArgumentError: arguments on several GPUs, wrong `out`, or too many blocks.
            CompileError: the GPU cannot run the kernels.
        """
        device, like = self._device(bound)
        shapes = dict(zip(self.allocs, shapes_of(self.allocs, bound.extents), strict=True))
        given = given_outputs(out, self.params, self.returns, bound, shapes, device_tensor)
        functions = [self._function(k, device) for k in self.kernels]  # before anything is made
        held: dict[Value, Held] = {
            p: h for p, h in zip(self.params, bound.held, strict=True) if h is not None
        }
        scalars = dict(zip(self.params, bound.values, strict=True))
        for v in self.allocs:
            held[v] = given[v] if v in given else self._allocate(v, shapes[v], like, device)
        stream = current_stream(like, device)
        keep: list[Any] = []
        for kernel, function in zip(self.kernels, functions, strict=True):
            grid = grid_size(kernel.grid, bound.extents, [scalars[v] for v in kernel.grid_reads])
            if grid:
                chosen = self._aligned(kernel, held)
                if chosen is not kernel:
                    function = self._function(chosen, device)
                args = [self._argument(p, held, scalars, like, device, keep) for p in chosen.params]
                self._check_grid(kernel, grid, device)
                self.driver.launch(
                    device, function, grid, chosen.threads, chosen.shared, stream, args
                )
        if out is not None:
            return out
        outputs = [held[v].source if v in held else scalars[v] for v in self.returns]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _device(self, bound: Bound) -> tuple[int, Any]:
        """The GPU that all arrays are on, and the first of them."""
        places = {p.name: h for p, h in zip(self.params, bound.held, strict=True) if h is not None}
        if not places:
            message = "no argument is an array, so there is no telling which GPU to run on"
            raise ArgumentError(Diagnostic(message, None, "compile for the CPU"))
        names = list(places)
        first = device_of(places[names[0]])
        for name in names[1:]:
            other = device_of(places[name])
            if other != first:
                message = f"argument {name} is on GPU {other}, and {names[0]} on GPU {first}"
                raise ArgumentError(message)
        return first, places[names[0]].source

    def _function(self, kernel: DeviceKernel, device: int) -> int:
        key = device, kernel.name
        if key not in self._loaded:
            check_room(kernel, device, self.driver)
            image = choose(self.images(kernel), kernel.name, device, self.driver)
            self._loaded[key] = self.driver.load(device, image.data, kernel.name, kernel.shared)
        return self._loaded[key]

    def _allocate(self, v: Value, shape: tuple[int, ...], like: Any, device: int) -> Held:
        try:
            made = allocate(like, shape, v.type.dtype, device)
            return device_tensor(made, v.type.dtype, v.type.names)
        except Refused as e:
            raise ArgumentError(Diagnostic(f"an output {e.message}", None, e.hint)) from e

    def _aligned(self, kernel: DeviceKernel, held: Mapping[Value, Held]) -> DeviceKernel:
        """The kernel, or what stands in for it where an array is not as it relies on."""
        values = {p.name: p.value for p in kernel.params if p.kind == "tensor"}
        for name, unit in kernel.alignment:
            v = values[name]
            assert v is not None
            if not _is_aligned(held[v], unit, v.type.dtype.bytes):
                if kernel.relaxed is None:
                    message = f"{v.name or name} is not aligned to {unit} bytes, nor has it such"
                    raise ArgumentError(Diagnostic(f"{message} strides", None, "pass a copy"))
                return self._aligned(kernel.relaxed, held)
        return kernel

    def _argument(
        self,
        p: Parameter,
        held: Mapping[Value, Held],
        scalars: Mapping[Value, Any],
        like: Any,
        device: int,
        keep: list[Any],
    ) -> Any:
        v = p.value
        if p.kind == "scalar":
            assert v is not None
            return _CTYPES[p.ctype](scalars[v])
        assert v is not None
        h = held[v]
        if p.kind == "tensor":
            if 0 in h.shape:
                return ctypes.c_void_p(_lend(v, h, like, device, keep))
            return ctypes.c_void_p(h.tensor.data_ptr())
        assert p.axis is not None
        if p.kind == "extent":
            return _CTYPES[p.ctype](h.shape[p.axis])
        return _CTYPES[p.ctype](0 if 0 in h.shape else h.strides[p.axis])

    def _check_grid(self, kernel: DeviceKernel, grid: int, device: int) -> None:
        if device not in self._most_blocks:
            self._most_blocks[device] = self.driver.limits(device)[2]
        limit = self._most_blocks[device]
        if grid > limit:
            message = f"kernel {kernel.name} takes {grid} blocks, and a grid has {limit} at most"
            raise ArgumentError(Diagnostic(message, None, "compile with larger tiles"))


def _is_aligned(h: Held, unit: int, size: int) -> bool:
    """Whether the address and all strides that matter are multiples of `unit` bytes."""
    if 0 in h.shape:
        return True
    steps = [s for s, n in zip(h.strides[:-1], h.shape[:-1], strict=True) if n > 1]
    return h.tensor.data_ptr() % unit == 0 and not any(s * size % unit for s in steps)


def _lend(v: Value, h: Held, like: Any, device: int, keep: list[Any]) -> int:
    """An address with zeros behind it, for a tensor of no elements, all of whose strides are 0.

    A kernel may read there through a table, though no result depends on it.
    """
    count = max(h.shape[-1], 1) + 2 * _ROOM
    try:
        zeros = allocate(like, (count,), v.type.dtype, device, zero=True)
    except Refused:  # the library makes none: nothing is read that a mask does not void
        return int(h.tensor.data_ptr())
    keep.append(zeros)
    made = device_tensor(zeros, v.type.dtype, ("x",))
    return int(made.tensor.data_ptr()) + _ROOM * v.type.dtype.bytes

"""A compiled program, ready to be called: outputs, workspaces, launches."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilecc.codegen.program import KernelEntry, Program
from tilecc.errors import ArgumentError, Diagnostic
from tilecc.ir.core import Func, Value
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Env, Expr, evaluate
from tilecc.runtime.arguments import Bound, Held, Refused, tensor
from tilecc.runtime.dlpack import Array, numpy_tensor
from tilecc.runtime.pool import POOL
from tilecc.runtime.scratch import Scratch

_REMEMBERED = 256  # extents whose plans are kept
_WORK: Any = 1000  # candidates that the test for shared elements may look at

Plan = tuple[list[tuple[int, ...]], list[int | None]]
"""Shapes of the allocated tensors, and each kernel's number of tasks (None: it reads scalars)."""


class Executable:
    """The host's part of a tile-level function whose kernels are compiled."""

    def __init__(self, func: Func, program: Program, functions: Mapping[str, Any]) -> None:
        self.params = func.params
        self.allocs = [op.result for op in func.body.ops if op.name == "alloc"]
        self.returns = func.returns
        self.kernels = [_Kernel(k, functions[k.name]) for k in program.kernels]
        self._plans: dict[tuple[tuple[int, ...], ...], Plan] = {}

    def __call__(self, bound: Bound, out: Any, threads: int) -> Any:
        """Run on checked arguments; the outputs are of the inputs' kind, or are those in `out`."""
        plan = self._plans.get(bound.shapes)
        if plan is None:
            plan = self._plan(bound.extents)
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            self._plans[bound.shapes] = plan
        shapes, tasks = plan
        values: dict[Value, Any] = dict(zip(self.params, bound.values, strict=True))
        results: dict[Value, Any] = {}
        keep: list[Held] = []  # until the kernels are done
        given = self._given(out, bound, dict(zip(self.allocs, shapes, strict=True)))
        for v, shape in zip(self.allocs, shapes, strict=True):
            if v in given:
                values[v], results[v] = given[v].tensor, given[v].source
                continue
            array: Array = np.empty(shape, v.type.dtype.numpy)
            h = tensor(array, v.type.dtype, v.type.names)
            values[v], results[v] = h.tensor, array
            keep.append(h)
        for kernel, n in zip(self.kernels, tasks, strict=True):
            if n is None:
                n = kernel.tasks(bound.extents, values)
            if n:
                kernel.run(values, n, threads)
        if out is not None:
            return out
        wrap = _wrapper(bound)
        outputs = []
        for v in self.returns:
            if v in results:
                outputs.append(wrap(results[v], v.type.dtype) if wrap else results[v])
            else:  # a parameter, returned as it came
                k = self.params.index(v)
                source = bound.held[k]
                outputs.append(bound.values[k] if source is None else source.source)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _plan(self, extents: Mapping[str, int]) -> Plan:
        shapes = [tuple(_integer(a.extent, extents, ()) for a in v.type.axes) for v in self.allocs]
        tasks = [None if k.entry.grid_reads else k.tasks(extents, {}) for k in self.kernels]
        return shapes, tasks

    def _given(
        self, out: Any, bound: Bound, shapes: Mapping[Value, tuple[int, ...]]
    ) -> dict[Value, Held]:
        """The tensors in `out`, checked, by the value that is to be written there."""
        if out is None:
            return {}
        outs = list(out) if isinstance(out, tuple | list) else [out]
        n = len(self.returns)
        if len(outs) != n:
            raise ArgumentError(f"out= holds {len(outs)} arrays, and there are {n} outputs")
        found: dict[Value, Held] = {}
        taken = [
            (f"argument {p.name}", h, p.type.dtype)
            for p, h in zip(self.params, bound.held, strict=True)
            if h is not None
        ]
        problems = []
        for k, (v, x) in enumerate(zip(self.returns, outs, strict=True)):
            name = "out" if n == 1 else f"out[{k}]"
            try:
                found[v] = _output(x, v, shapes, taken)
                taken.append((name, found[v], v.type.dtype))
            except Refused as e:
                problems.append(Diagnostic(f"{name} {e.message}", None, e.hint))
        if problems:
            raise ArgumentError(problems)
        return found


class _Kernel:
    """One compiled function, its calling order and its scratch."""

    def __init__(self, entry: KernelEntry, function: Callable[..., Any]) -> None:
        self.entry, self.function = entry, function
        self.scratch = Scratch(entry)

    def tasks(self, extents: Mapping[str, int], values: Mapping[Value, Any]) -> int:
        """The number of work items, which is 0 when a grid dimension is."""
        reads = [values[v] for v in self.entry.grid_reads]
        return math.prod(max(0, _integer(e, extents, reads)) for e in self.entry.grid)

    def run(self, values: Mapping[Value, Any], tasks: int, threads: int) -> None:
        """All tasks, on up to `threads` threads."""
        args = [values[v] for v in self.entry.args]
        function, scratch = self.function, self.scratch
        if not scratch.buffers:
            if threads == 1 or tasks == 1:
                function(*args, 0, tasks)
            else:
                POOL.run(lambda begin, end: function(*args, begin, end), tasks, threads)
            return
        if threads == 1 or tasks == 1:
            function(*args, *scratch.tensors(), 0, tasks)
        else:
            POOL.run(
                lambda begin, end: function(*args, *scratch.tensors(), begin, end), tasks, threads
            )


def _integer(e: Expr, extents: Mapping[str, int], reads: Sequence[Any]) -> int:
    return int(evaluate(e, Env(arg=reads.__getitem__, extent=extents.__getitem__)))


def _output(
    x: Any,
    v: Value,
    shapes: Mapping[Value, tuple[int, ...]],
    taken: Sequence[tuple[str, Held, DType]],
) -> Held:
    if v not in shapes:
        raise Refused("is given for an output that is an argument as it came")
    h = tensor(x, v.type.dtype, v.type.names, writable=True)
    if h.shape != shapes[v]:
        for a, have, want in zip(v.type.names, h.shape, shapes[v], strict=False):
            if len(h.shape) == len(shapes[v]) and have != want:
                raise Refused(f"has {have} along axis {a}, where the output has {want}")
        raise Refused(f"has shape {h.shape}, and the output {shapes[v]}")
    repeats = any(s == 0 and n > 1 for s, n in zip(h.strides, h.shape, strict=True))
    if repeats and 0 not in h.shape:
        raise Refused("repeats elements (a stride is 0), so it cannot be written")
    for name, other, t in taken:
        if _overlap(h, v.type.dtype, other, t):
            raise Refused(f"overlaps {name} in memory", "pass another array, or leave out= out")
    return h


def _overlap(a: Held, a_type: DType, b: Held, b_type: DType) -> bool:
    a_low, a_high = a.span(a_type.bytes)
    b_low, b_high = b.span(b_type.bytes)
    if a_low >= b_high or b_low >= a_high:
        return False
    if isinstance(a.source, np.ndarray) and isinstance(b.source, np.ndarray):
        try:  # interleaved arrays share a range, and no element
            return np.shares_memory(a.source, b.source, max_work=_WORK)
        except np.exceptions.TooHardError:
            return True
    return True


def _wrapper(bound: Bound) -> Callable[[Array, DType], Any] | None:
    """What makes an output of the kind of the inputs; None: they are numpy's."""
    for h in bound.held:
        if h is not None and not isinstance(h.source, np.ndarray):
            space = _array_namespace(h.source)
            if space is None:
                return None
            return lambda array, t: space.from_dlpack(numpy_tensor(array, t))
    return None


def _array_namespace(x: Any) -> Any:
    """The module that an array belongs to, if that can take a tensor through DLPack."""
    if hasattr(x, "__array_namespace__"):
        found = x.__array_namespace__()
    else:
        found = sys.modules.get(type(x).__module__.partition(".")[0])
    return found if hasattr(found, "from_dlpack") else None

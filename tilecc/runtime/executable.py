"""A compiled program, ready to be called: outputs, workspaces, launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilecc.codegen.program import KernelEntry, Program
from tilecc.ir.core import Func, Value
from tilecc.ir.dtypes import DType
from tilecc.runtime.arguments import Bound, Held, array_namespace, tensor
from tilecc.runtime.dlpack import Array, numpy_tensor
from tilecc.runtime.outputs import given_outputs, grid_size, shapes_of
from tilecc.runtime.pool import POOL
from tilecc.runtime.scratch import Scratch

_REMEMBERED = 256  # extents whose plans are kept

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
        given: dict[Value, Held] = {}
        if out is not None:
            allocated = dict(zip(self.allocs, shapes, strict=True))
            given = given_outputs(out, self.params, self.returns, bound, allocated, tensor)
        for v, shape in zip(self.allocs, shapes, strict=True):
            if v in given:
                values[v], results[v] = given[v].tensor, given[v].source
                continue
            t = v.type.dtype
            array: Array = np.empty(shape, t.numpy)
            results[v] = array
            if array.size:  # nothing about it needs a check
                values[v] = numpy_tensor(array, t)
                continue
            h = tensor(array, t, v.type.names)
            values[v] = h.tensor
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
        shapes = shapes_of(self.allocs, extents)
        tasks = [None if k.entry.grid_reads else k.tasks(extents, {}) for k in self.kernels]
        return shapes, tasks


class _Kernel:
    """One compiled function, its calling order and its scratch."""

    def __init__(self, entry: KernelEntry, function: Callable[..., Any]) -> None:
        self.entry, self.function = entry, function
        self.scratch = Scratch(entry)

    def tasks(self, extents: Mapping[str, int], values: Mapping[Value, Any]) -> int:
        """The number of work items, which is 0 when a grid dimension is."""
        reads = [values[v] for v in self.entry.grid_reads]
        return grid_size(self.entry.grid, extents, reads)

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


def _wrapper(bound: Bound) -> Callable[[Array, DType], Any] | None:
    """What makes an output of the kind of the inputs; None: they are numpy's."""
    for h in bound.held:
        if h is not None and not isinstance(h.source, np.ndarray):
            space = array_namespace(h.source)
            if space is None:
                return None
            return lambda array, t: space.from_dlpack(numpy_tensor(array, t))
    return None

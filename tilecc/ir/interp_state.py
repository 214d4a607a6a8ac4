"""What the interpreter keeps while it runs: values, chunks of axes, plans per operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilecc.errors import Diagnostic, IRError
from tilecc.ir.core import Block, Func, Op, TensorType, Value
from tilecc.ir.dtypes import F32, DType
from tilecc.ir.expr import Expr
from tilecc.ir.interp_expr import Code, Frame, Numbers, compile_expr, integer

Array = NDArray[Any]
T = TypeVar("T")


@dataclass
class Chunk:
    """The part of a streamed axis that is being worked on, and the states of its stream."""

    axis: str
    start: int = 0
    stop: int = 0
    states: dict[Value, Array] = field(default_factory=dict)
    previous: dict[Value, Array] = field(default_factory=dict)


@dataclass
class Run:
    """One execution of a function.

    Reads by `at` outside of an extent give 0, and `outside` collects the operations that had such
    reads; those in `poisoned` give `poison` instead (the extreme integer of its sign, in tables).
    """

    func: Func
    extents: Mapping[str, int]
    numbers: Numbers
    chunk: int
    handlers: Mapping[str, Callable[[Run, Op], None]]
    poisoned: frozenset[Op] = frozenset()
    poison: float = 0.0
    outside: set[Op] = field(default_factory=set)
    values: dict[Value, Array] = field(default_factory=dict)
    written: dict[Value, NDArray[np.bool_]] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    _depth: dict[Value, int] = field(default_factory=dict)
    _plans: dict[tuple[Op, str], Any] = field(default_factory=dict)
    _dims: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def block(self, block: Block) -> list[Array]:
        """Execute the operations of `block`; the operands of its terminator."""
        for op in block.ops:
            if op.name in ("yield", "return"):
                return [self.read(v) for v in op.operands]
            self.handlers[op.name](self, op)
        return []

    def set(self, v: Value, x: Any) -> None:
        """Give `v` its value."""
        self.values[v] = x
        self._depth[v] = len(self.chunks)

    def read(self, v: Value, keep: Sequence[str] = ()) -> Array:
        """The value of `v`: of streamed axes the present chunk, except for those in `keep`."""
        x = self.values[v]
        for chunk in self.chunks[self._depth[v] :]:
            if chunk.axis in v.type.names and chunk.axis not in keep:
                where = v.type.names.index(chunk.axis)
                x = x[(slice(None),) * where + (slice(chunk.start, chunk.stop),)]
        return x

    def span(self, axis: str) -> tuple[int, int] | None:
        """The chunk of `axis` being worked on, None if it is not streamed here."""
        for chunk in reversed(self.chunks):
            if chunk.axis == axis:
                return chunk.start, chunk.stop
        return None

    def shape(self, t: TensorType) -> tuple[int, ...]:
        """Lengths of the axes of `t`, streamed ones by chunk."""
        dims = self._dims.get(id(t))
        if dims is None:
            dims = tuple(integer(a.extent, self.extents) for a in t.axes)
            self._dims[id(t)] = dims
        if not self.chunks:
            return dims
        spans = [self.span(name) for name in t.names]
        return tuple(n if s is None else s[1] - s[0] for n, s in zip(dims, spans, strict=True))

    def length(self, axis: str, block: Block | None = None) -> int:
        """The length of a whole axis by its name: as `block` has it, or else the function."""
        for body in (block, self.func.body):
            ops = list(body.walk()) if body else []
            for v in [
                *(r for op in ops for r in op.results),
                *(x for op in ops for x in op.operands),
            ]:
                if v.type.has(axis):
                    return integer(v.type.axis(axis).extent, self.extents)
        raise KeyError(axis)

    def plan(self, op: Op, key: str, make: Callable[[], T]) -> T:
        """What depends on the operation but not on values; made once in a run."""
        found = self._plans.get((op, key))
        if found is None:
            found = self._plans[op, key] = make()
        plan: T = found
        return plan

    def code(self, op: Op, key: str, e: Expr, to: DType | None = None, acc: DType = F32) -> Code:
        """`e` compiled; its arguments are the operands of `op`."""
        types = [v.type.dtype for v in op.operands]
        return self.plan(
            op, key, lambda: compile_expr(e, types, self.extents, self.numbers, to=to, acc=acc)
        )

    def frame(self, op: Op, axes: tuple[str, ...], shape: tuple[int, ...]) -> Frame:
        """Operands of `op` aligned to `axes` (those with other axes are left out), and indices."""
        views = self.plan(
            op, "views " + " ".join(axes), lambda: [_view(v.type.names, axes) for v in op.operands]
        )
        args = [
            None if view is None else self.read(v).transpose(view[0])[view[1]]
            for v, view in zip(op.operands, views, strict=True)
        ]

        def index(axis: str) -> Array:
            where = axes.index(axis)
            span = self.span(axis)
            start = 0 if span is None else span[0]
            x: Array = np.arange(start, start + shape[where], dtype=np.int64)
            return x.reshape([-1 if k == where else 1 for k in range(len(axes))])

        return Frame(args, index)

    def scalar(self, op: Op, key: str, e: Expr) -> Any:
        """`e` over rank-0 operands of `op`."""
        return self.code(op, key, e)(self.frame(op, (), ()))


def _view(names: tuple[str, ...], axes: tuple[str, ...]) -> tuple[Any, Any] | None:
    """How to align an array with axes `names` to `axes`: a permutation, then new axes."""
    if not set(names) <= set(axes):
        return None
    order = [names.index(a) for a in axes if a in names]
    return order, (*(slice(None) if a in names else None for a in axes), ...)


def align(x: Array, names: tuple[str, ...], axes: tuple[str, ...]) -> Array:
    """`x` with axes `names`, transposed and with axes of length 1 put in, so that it has `axes`."""
    view = _view(names, axes)
    assert view is not None, f"{names} do not fit {axes}"
    out: Array = x.transpose(view[0])[view[1]]
    return out


def fail(op: Op, message: str) -> IRError:
    """An IRError at the line of `op`."""
    return IRError(Diagnostic(f"{op.name}: {message}", op.loc))

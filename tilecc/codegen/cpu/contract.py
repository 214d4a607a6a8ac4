"""Contractions: a block of the result in registers, in one of two forms.

- **broadcast**: lanes along an axis of the result that one factor has innermost; each element of
  the other factor is broadcast. A block is `mr` rows by `nr` vectors.
- **horizontal**: no factor has the result's axis innermost, but all have the summed axis there;
  lanes along that axis, and the lanes are added up at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.casts import cast, register_name
from tilecc.codegen.cpu.explicit import qualifies
from tilecc.codegen.cpu.layout import inputs, register_dtype
from tilecc.codegen.cpu.prefetch import Prefetch
from tilecc.codegen.cpu.scalars import Prim, const
from tilecc.ir.core import Op, Range, Value
from tilecc.ir.dtypes import I64

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter
    from tilecc.codegen.cpu.registers import Position


class Contraction:
    """What both forms share: factors, accumulators, and where a ragged axis ends."""

    def __init__(self, em: Emitter, op: Op) -> None:
        self.em, self.op = em, op
        self.factors = inputs(op)
        self.dtype = op.result.type.dtype
        self.acc = em.accumulators[register_name(self.dtype)]
        self.order = em.layout.order(op.result.type)
        self.anything: tuple[str, ...] = ()
        """Axes beyond whose end a form reads any element, and takes the sum for 0 afterwards."""

    def limit(self, axis: str) -> Prim:
        """How many elements of a summed axis there are: fewer than the tile's at a ragged end."""
        em, size = self.em, self.em.sizes[axis]
        out: Prim | None = None
        for v in self.factors:
            load = v.owner
            if load is None or load.name != "load" or axis not in load.attrs.get("pad", ()):
                continue
            for n, c in enumerate(load.attrs["coords"]):
                if isinstance(c, Range) and c.axis == axis:
                    base = em.uniform(c.base, load.operands, I64)
                    left = em.tensors[load.operands[0]].shape[n] - base
                    out = left if out is None else tirx.min(out, left)
        if out is None:
            return size
        out = tirx.max(tirx.min(out, tirx.const(size, "int64")), tirx.const(0, "int64"))
        return tirx.Cast("int32", out)

    def in_place(self, v: Value) -> bool:
        """Whether a factor is a load that is read from the tensor itself."""
        return v.owner is not None and v.owner.name == "load" and v not in self.em.storage.slots

    def factor(self, v: Value, pos: Position) -> Prim:
        """A factor's element in the type of the sum."""
        em = self.em
        t = register_dtype(v.type.dtype)
        if v.owner is not None and self.in_place(v):
            x = em.memory.read(v.owner, pos, inside=self.op.over, anything=self.anything)
        else:
            x = em.read(v, pos)
        return cast(x, t, self.dtype)

    def product(self, pos: Position) -> Prim:
        """The product of the factors' elements."""
        out: Prim | None = None
        for v in self.factors:
            x = self.factor(v, pos)
            out = x if out is None else out * x
        return out

    def start(self, pos: Position) -> Prim:
        """What the sum starts from."""
        if self.op.attrs.get("acc"):
            return self.em.read(self.op.operands[-1], pos)
        return const(0, self.dtype)


class Broadcast(Contraction):
    """Blocks of `mr` rows by `nr` vectors; `rest` is applied to each block as it leaves."""

    def __init__(self, em: Emitter, op: Op, rest: Sequence[Op]) -> None:
        super().__init__(em, op)
        self.rest = rest
        self.x = self.order[-1] if self.order else None
        self.y = self._row_axis()
        self.anything = () if self.y is None else (self.y,)

    def _row_axis(self) -> str | None:
        """The axis to block beside the lanes: one that only the broadcast factor has."""
        across = [v for v in self.factors if self.x is not None and v.type.has(self.x)]
        for a in reversed(self.order[:-1]):
            if not any(v.type.has(a) for v in across):
                return a
        return None

    def emit(self) -> None:
        """All blocks of the result."""
        em = self.em
        outer = [a for a in self.order[:-1] if a != self.y]
        count, width = em.split(self.x, em.sizes.get(self.x or "", 1))
        rows = em.sizes[self.y] if self.y else 1
        high, wide = em.isa.mr, em.isa.nr
        across = -(-count // wide)
        ahead = Prefetch(em, self.op, -(-rows // high) * across)
        with em.nest_loops(outer, em.sizes) as pos:
            for y0, mr in blocks(rows, high):
                for x0, nr in blocks(count, wide):
                    ahead.emit(tirx.floordiv(y0, high) * across + tirx.floordiv(x0, wide))
                    self.block(dict(pos), y0, mr, x0, nr, width)

    def at(
        self, pos: Position, y0: Prim, x0: Prim, width: int, body: Callable[[Position, Prim], None]
    ) -> Callable[[Prim, Prim, int], None]:
        """`body` on vector (i, j) of the block, vectorised over its lanes."""
        em = self.em

        def run(i: Prim, j: Prim, nr: int) -> None:
            here = dict(pos)
            if self.y is not None:
                here[self.y] = y0 + i
            with em.lanes(((x0 + j) * width, width), here, self.x):
                body(here, em.at_lane((i * nr + j) * width))
                em.temps.release()

        return run

    def block(self, pos: Position, y0: Prim, mr: int, x0: Prim, nr: int, width: int) -> None:
        """One block: start, sum, and what is applied as it leaves."""
        em, acc = self.em, self.acc

        def each(body: Callable[[Position, Prim], None], where: Position) -> None:
            run = self.at(where, y0, x0, width, body)
            with T.unroll(0, mr) as i, T.unroll(0, nr) as j:
                run(i, j, nr)

        each(lambda p, n: T.buffer_store(acc, em.bind(self.start(p), self.dtype), [n]), pos)
        self.accumulate(pos, y0, mr, x0, nr, width)
        if any(self._row_ends(v) for v in self.factors):
            each(lambda p, n: T.buffer_store(acc, self.ended(p, acc[n]), [n]), pos)

        def leave(p: Position, n: Prim) -> None:
            em.local[self.op.result] = acc[n]
            em.element_body([self.op, *self.rest], p)

        em.explicit = width if qualifies(em, [self.op, *self.rest], self.x, width) else 0
        each(leave, pos)
        em.explicit = 0

    def _row_ends(self, v: Value) -> bool:
        """Whether a factor is read where it lies, and its rows may be beyond the tensor's end."""
        return v.owner is not None and self.in_place(v) and self.y in v.owner.attrs.get("pad", ())

    def ended(self, pos: Position, x: Prim) -> Prim:
        """The sum `x`, of which nothing is added in rows beyond the end of a factor.

        To ask that of each product would keep the factor from being an operand in memory.
        """
        for v in filter(self._row_ends, self.factors):
            assert v.owner is not None and self.y is not None
            fits = self.em.memory.inside(v.owner, self.y, pos)
            if fits is not None:
                x = tirx.Select(fits, x, self.start(pos))
        return x

    def accumulate(self, pos: Position, y0: Prim, mr: int, x0: Prim, nr: int, width: int) -> None:
        """Add the products of a block, one element of the summed axes a step."""
        acc = self.acc
        with ExitStack() as stack:
            inner = dict(pos)
            for k in self.op.over:
                inner[k] = stack.enter_context(T.serial(0, self.limit(k)))
            step = self.at(
                inner,
                y0,
                x0,
                width,
                lambda p, n: T.buffer_store(acc, acc[n] + self.product(p), [n]),
            )
            with T.unroll(0, mr) as i, T.unroll(0, nr) as j:
                step(i, j, nr)


def blocks(size: int, most: int) -> Iterator[tuple[Any, int]]:
    """(start, length) of blocks of `most`, in an emitted loop, then of what is left."""
    full = size // most
    if full == 1:
        yield tirx.const(0, "int32"), most
    elif full:
        with T.serial(0, full) as n:
            yield n * most, most
    if size % most:
        yield tirx.const(full * most, "int32"), size % most

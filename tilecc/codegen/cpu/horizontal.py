"""Contractions whose lanes lie along the summed axis: few rows, each a product of two long vectors.

One key after the other is multiplied with all rows: memory is read in order, since hardware
fetches ahead of that and of few other patterns. The lanes of a key's sums are added up by a tree of
shuffles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.contract import Contraction
from tilecc.codegen.cpu.dot import LANES as DOT_LANES
from tilecc.codegen.cpu.dot import contiguous
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.cpu.layout import Layout, inputs, is_horizontal
from tilecc.codegen.cpu.scalars import Prim, const
from tilecc.codegen.cpu.vectors import SUM_COUNTS, dot2, horizontal_sums
from tilecc.ir.core import Op, Value
from tilecc.ir.dtypes import BF16, F32

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter
    from tilecc.codegen.cpu.registers import Position


def rows_at_once(rows: int, isa: Isa) -> int:
    """How many rows a key is multiplied with while its vectors are in registers."""
    parts = -(-rows // (isa.registers // 4))
    return -(-rows // parts)


def uses_horizontal_dot(op: Op, layout: Layout, isa: Isa) -> bool:
    """Whether a horizontal contraction multiplies pairs of bf16, as they lie in memory."""
    factors = inputs(op)
    if not (isa.has_bf16_dot and layout.width == DOT_LANES and is_horizontal(op, layout)):
        return False
    if op.result.type.dtype is not F32 or len(factors) != 2:
        return False
    k = op.over[-1]
    whole = all(
        v.owner is not None and v.owner.name == "load" and contiguous(v.owner, k) for v in factors
    )
    whole = whole and all(v.type.dtype is BF16 for v in factors)
    return whole and factors[0].type.axis(k).size % 8 == 0


class Horizontal(Contraction):
    """Emits one contraction in horizontal form; its result goes to scratch."""

    def __init__(self, em: Emitter, op: Op) -> None:
        super().__init__(em, op)
        self.k = op.over[-1]
        self.pairs = op in em.storage.dots

    def emit(self) -> None:
        """All results; rows innermost."""
        em = self.em
        outer = list(self.order)
        b = outer.pop() if outer else None
        a = outer.pop() if outer else None
        rows, keys = em.sizes[a] if a else 1, em.sizes[b] if b else 1
        high = rows_at_once(rows, em.isa)
        with em.nest_loops(outer, em.sizes) as pos, T.serial(0, keys) as key:
            here = dict(pos)
            if b is not None:
                here[b] = key
            for start in range(0, rows, high):
                self.block(here, a, range(start, min(start + high, rows)))

    def block(self, pos: Position, a: str | None, rows: range) -> None:
        """Products of a few rows with one key, from nothing to scratch."""
        acc, width = self.acc, self.em.layout.width
        at = [dict(pos) if a is None else {**pos, a: tirx.const(i, "int32")} for i in rows]
        for n in range(len(rows)):
            with T.vectorized(0, width) as v:
                T.buffer_store(acc, const(0, self.dtype), [n * width + v])
        with ExitStack() as stack:
            inner: Position = {}
            for o in self.op.over[:-1]:
                inner[o] = stack.enter_context(T.serial(0, self.limit(o)))
            for start, lanes in self._vectors():
                for n, here in enumerate(at):
                    self._multiply({**here, **inner, self.k: start}, n * width, lanes)
        self._add_lanes(len(rows))
        slot = self.em.storage.slots[self.op.result]
        target = self.em.buffers[slot.buffer.name]
        for n, here in enumerate(at):
            total = acc[n]
            if self.op.attrs.get("acc"):
                total = total + self.start(here)
            T.buffer_store(target, total, self.em.slot_index(slot, here))

    def _vectors(self) -> Iterator[tuple[Prim, int]]:
        """(first index, lanes) along the summed axis: whole vectors, then ever shorter ones."""
        width, limit = self.em.layout.width, self.limit(self.k)
        if not isinstance(limit, int):
            whole = tirx.truncdiv(limit, width)
            with T.serial(0, whole) as n:
                yield n * width, width
            with T.serial(whole * width, limit) as n:
                yield n, 1
            return
        pair = 2 if self.pairs else 1
        with T.serial(0, limit // (pair * width)) as n:
            yield n * (pair * width), width
        at = limit // (pair * width) * (pair * width)
        while at < limit:
            lanes = 1 << (((limit - at) // pair).bit_length() - 1)
            yield tirx.const(at, "int32"), lanes
            at += pair * lanes

    def _multiply(self, pos: Position, n: int, lanes: int) -> None:
        em, acc = self.em, self.acc
        if self.pairs:
            a, b = (self._pairs(v, pos, lanes) for v in self.factors)
            at = tirx.Ramp(tirx.const(n, "int32"), 1, DOT_LANES)
            T.buffer_store(acc, dot2(acc[at], a, b), [at])
            return
        with em.lanes((pos[self.k], lanes), pos, self.k):
            assert em.lane is not None
            T.buffer_store(acc, acc[n + em.lane] + self.product(pos), [n + em.lane])
            em.temps.release()

    def _pairs(self, v: Value, pos: Position, lanes: int) -> Prim:
        """Pairs of neighbours from `pos` on, zero in the lanes beyond."""
        em = self.em
        slot = em.storage.pairs.get((v, self.k))
        zero = tirx.const(0, "int32")
        if slot is not None:
            (first,) = em.slot_index(slot, {**pos, self.k: tirx.truncdiv(pos[self.k], 2)})
            x = em.buffers[slot.buffer.name][tirx.Ramp(first, 1, lanes)]
        else:
            assert v.owner is not None
            coords, valid = em.memory.address(v.owner, pos)
            ramp = tirx.Ramp(coords[-1], tirx.const(1, "int64"), 2 * lanes)
            index = (*coords[:-1], ramp)
            raw = em.tensors[v.owner.operands[0]].buffer[index]
            x = tirx.reinterpret(f"int32x{lanes}", raw)
            if valid is not None:
                x = tirx.Select(tirx.Broadcast(valid, lanes), x, tirx.Broadcast(zero, lanes))
        if lanes == DOT_LANES:
            return x
        rest = tirx.Broadcast(zero, DOT_LANES - lanes)
        return tirx.Shuffle([x, rest], [tirx.const(i, "int32") for i in range(DOT_LANES)])

    def _add_lanes(self, count: int) -> None:
        """Accumulator n's lanes are added up into element n of the accumulators."""
        acc, width = self.acc, self.em.layout.width
        if self.dtype is not F32 or width != self.em.isa.lanes32:
            self._fold(count)
            return
        for first in range(0, count, width):
            here = min(width, count - first)
            takes = next(n for n in SUM_COUNTS if n >= here)
            # Beyond the last one, the last again: nobody reads those sums.
            at = [first + min(n, here - 1) for n in range(takes)]
            vectors = [acc[tirx.Ramp(tirx.const(n * width, "int32"), 1, width)] for n in at]
            sums = horizontal_sums(vectors, self.em.isa)
            # Results never reach an accumulator that is still to be read.
            index = tirx.Ramp(tirx.const(first, "int32"), 1, takes) if takes > 1 else first
            T.buffer_store(acc, sums, [index])

    def _fold(self, count: int) -> None:
        acc, width = self.acc, self.em.layout.width
        for n in range(count):
            half = width // 2
            while half:
                with T.vectorized(0, half) as v:
                    low, high = acc[n * width + v], acc[n * width + half + v]
                    T.buffer_store(acc, low + high, [n * width + v])
                half //= 2
            T.buffer_store(acc, acc[n * width], [n])

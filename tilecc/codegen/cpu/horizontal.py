"""Contractions whose lanes lie along the summed axis: few rows, each a product of two long vectors.

One key after the other is multiplied with all rows: memory is read in order, since hardware
fetches ahead of that and of few other patterns. The lanes of sums wait on the stack until those of
several keys are added up in one tree of shuffles, whose result is a vector over keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.casts import register_name
from tilecc.codegen.cpu.contract import Contraction, blocks
from tilecc.codegen.cpu.dot import LANES as DOT_LANES
from tilecc.codegen.cpu.dot import contiguous
from tilecc.codegen.cpu.halves import Halves
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.cpu.layout import LINE, Layout, inputs, is_horizontal
from tilecc.codegen.cpu.registers import i32, local
from tilecc.codegen.cpu.scalars import Prim, const
from tilecc.codegen.cpu.vectors import SUM_COUNTS, dot2, horizontal_sums
from tilecc.ir.core import Op, Value
from tilecc.ir.dtypes import BF16, F32

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter
    from tilecc.codegen.cpu.registers import Position


# Of the stack, for the lanes of sums that wait to be added up.
SUMS_BYTES = 4096


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
        group = self._together(rows, keys)
        sums = local(rows * group * em.layout.width, register_name(self.dtype))
        self.halves = Halves.of(em, self.op, self.limit(self.k), a, b)
        with em.nest_loops(outer, em.sizes) as pos:
            if self.halves is not None:
                self.halves.prepare(pos)
            for first, count in blocks(keys, group):
                with T.serial(0, count) as key:
                    here = dict(pos) if b is None else {**pos, b: first + key}
                    self._fetch_ahead(here, b)
                    for rows_here in self._rows(rows):
                        self.block(here, a, rows_here, sums, group, key)
                with T.serial(0, rows) as row:
                    here = dict(pos) if a is None else {**pos, a: row}
                    self._leave(here, b, (first, count), sums, row * group)

    def _together(self, rows: int, keys: int) -> int:
        """How many keys are added up at once: as many as come out as a vector, if they fit."""
        width = self.em.layout.width
        if self.dtype is not F32 or width != self.em.isa.lanes32:
            return 1
        fitting = max(1, SUMS_BYTES // (rows * width * 4))
        return 1 << (min(8, width, keys, fitting).bit_length() - 1)

    def _rows(self, rows: int) -> list[range]:
        high = rows_at_once(rows, self.em.isa)
        return [range(n, min(n + high, rows)) for n in range(0, rows, high)]

    def _fetch_ahead(self, pos: Position, b: str | None) -> None:
        """Ask for what a later key will read where it lies."""
        size = self.em.sizes[self.k]
        for v in self.factors:
            op = v.owner
            if b is None or op is None or op.name != "load" or not v.type.has(b):
                continue
            if not set(v.type.names) <= {*pos, self.k}:
                continue  # each row has keys of its own
            if v in self.em.planner.kept or not contiguous(op, self.k):
                continue
            elements = max(1, LINE // v.type.dtype.bytes)
            # Half as far as where chunks are copied: a row is used as soon as it is read.
            rows = -(self.em.isa.ahead // 2 // (size * v.type.dtype.bytes))
            for first in range(0, size, elements):
                here = {**pos, self.k: i32(first)}
                self.em.memory.fetch_ahead(op, here, b, size, i32(rows))

    def block(
        self, pos: Position, a: str | None, rows: range, sums: Any, group: int, key: Prim
    ) -> None:
        """Products of a few rows with one key; their lanes go to `sums`."""
        acc, width = self.acc, self.em.layout.width
        at = [dict(pos) if a is None else {**pos, a: i32(i)} for i in rows]
        for n in range(len(rows)):
            with T.vectorized(0, width) as v:
                T.buffer_store(acc, const(0, self.dtype), [n * width + v])
        if self.halves is not None:
            with T.serial(0, self.halves.whole // (2 * width)) as step:
                for n, (i, here) in enumerate(zip(rows, at, strict=True)):
                    lanes = tirx.Ramp(i32(n * width), 1, width)
                    for x, y in self.halves.products({**here, self.k: step * (2 * width)}, i):
                        T.buffer_store(acc, acc[lanes] + x * y, [lanes])
        with ExitStack() as stack:
            inner: Position = {}
            for o in self.op.over[:-1]:
                inner[o] = stack.enter_context(T.serial(0, self.limit(o)))
            for start, lanes in self._vectors():
                for n, here in enumerate(at):
                    self._multiply({**here, **inner, self.k: start}, n * width, lanes)
        for n, i in enumerate(rows):
            with T.vectorized(0, width) as v:
                T.buffer_store(sums, acc[n * width + v], [(key + i * group) * width + v])

    def _leave(
        self, pos: Position, b: str | None, keys: tuple[Prim, int], sums: Any, at: Prim
    ) -> None:
        """Add up the lanes of a row's sums, from number `at` on, and write the results."""
        em, acc, (first, count) = self.em, self.acc, keys
        self._add_lanes(sums, at, count)
        slot = em.storage.slots[self.op.result]
        target = em.buffers[slot.buffer.name]
        with em.lanes((first, count), pos, b):
            total = acc[em.lane]
            if self.op.attrs.get("acc"):
                total = total + self.start(pos)
            T.buffer_store(target, total, em.slot_index(slot, pos))
            em.temps.release()

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
        at = self.halves.whole if self.halves is not None else 0
        if not at:
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

    def _add_lanes(self, sums: Any, at: Prim, count: int) -> None:
        """The lanes of `count` vectors of `sums`, added up into the first accumulators."""
        acc, width = self.acc, self.em.layout.width
        if self.dtype is not F32 or width != self.em.isa.lanes32:
            half = width // 2  # one vector
            while half:
                with T.vectorized(0, half) as v:
                    low, high = sums[at * width + v], sums[at * width + half + v]
                    T.buffer_store(sums, low + high, [at * width + v])
                half //= 2
            T.buffer_store(acc, sums[at * width], [0])
            return
        takes = next(n for n in SUM_COUNTS if n >= count)
        # Beyond the last one, the last again: nobody reads those sums.
        places = [(at + min(n, count - 1)) * width for n in range(takes)]
        vectors = [sums[tirx.Ramp(place, 1, width)] for place in places]
        index = tirx.Ramp(i32(0), 1, takes) if takes > 1 else i32(0)
        T.buffer_store(acc, horizontal_sums(vectors, self.em.isa), [index])

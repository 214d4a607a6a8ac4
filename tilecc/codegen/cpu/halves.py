"""Rows of bf16 in memory as vectors of f32: elements in even places, and those in odd places.

A vector of pairs becomes two of f32 by a shift and a mask, half of what it takes to spread elements
in order. Where a sum runs along the row, the order is free: the other factor, which is used again
for each row, is put in the same order once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.dot import contiguous
from tilecc.codegen.cpu.registers import i32, local
from tilecc.codegen.cpu.scalars import Prim
from tilecc.ir.core import Op, Value
from tilecc.ir.dtypes import BF16, F32

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter
    from tilecc.codegen.cpu.registers import Position

# Of the stack, for the factor that is put in another order.
COPY_BYTES = 16 * 1024


class Halves:
    """Products of one contraction along `k`, of a factor of rows in memory and one in scratch.

    `a` is the axis of rows of the result, which the factor in scratch may have.
    """

    def __init__(self, em: Emitter, rows: Value, other: Value, k: str, a: str | None) -> None:
        self.em, self.rows, self.other, self.k = em, rows, other, k
        self.a = a if a is not None and other.type.has(a) else None
        self.width = em.layout.width
        step = 2 * self.width
        self.whole = em.sizes[k] // step * step
        """Elements of a row that are taken in this way, from its beginning on."""
        count = em.sizes[self.a] if self.a else 1
        self.copy = local(count * self.whole, "float32")

    @staticmethod
    def of(em: Emitter, op: Op, limit: Any, a: str | None, b: str | None) -> Halves | None:
        """The products of a contraction whose sums have axes `a`, rows, and `b`; None: not so.

        `limit`: how many elements are summed, if that is known.
        """
        factors = op.operands[:-1] if op.attrs.get("acc") else op.operands
        layout, k = em.layout, op.over[-1]
        if op in em.storage.dots or len(factors) != 2 or len(op.over) != 1:
            return None
        if op.result.type.dtype is not F32 or layout.width != em.isa.lanes32:
            return None
        for rows, other in (factors, factors[::-1]):
            slot = em.storage.slots.get(other)
            load = rows.owner
            if slot is None or slot.buffer.dtype is not F32 or dict(slot.strides).get(k) != 1:
                continue
            if load is None or load.name != "load" or rows in em.storage.slots:
                continue
            if rows.type.dtype is not BF16 or not contiguous(load, k):
                continue
            if b is not None and (other.type.has(b) or not rows.type.has(b)):
                continue  # it would be put in order for one row only
            count = em.sizes[a] if a is not None and other.type.has(a) else 1
            fits = 4 * count * em.sizes[k] <= COPY_BYTES
            if limit == em.sizes[k] >= 2 * layout.width and fits:
                return Halves(em, rows, other, k, a)
        return None

    def prepare(self, pos: Position) -> None:
        """Put the factor in scratch in order, even places before odd ones in each two vectors."""
        em, width = self.em, self.width
        slot = em.storage.slots[self.other]
        count = em.sizes[self.a] if self.a else 1
        with T.serial(0, count) as row, T.serial(0, self.whole // (2 * width)) as n:
            here = {**pos, self.k: n * (2 * width)}
            if self.a is not None:
                here[self.a] = row
            (first,) = em.slot_index(slot, here)
            source = em.buffers[slot.buffer.name]
            pair = [source[tirx.Ramp(first + half * width, 1, width)] for half in (0, 1)]
            for half in (0, 1):
                order = [i32(half + 2 * lane) for lane in range(width)]
                at = row * self.whole + n * (2 * width) + half * width
                T.buffer_store(self.copy, tirx.Shuffle(pair, order), [tirx.Ramp(at, 1, width)])

    def products(self, pos: Position, row: int) -> list[tuple[Prim, Prim]]:
        """The factors of the two vectors of products from `pos` on, of a row of the result."""
        start = pos[self.k]
        found = []
        for half, x in enumerate(self._spread(pos)):
            first = (row if self.a else 0) * self.whole + start + half * self.width
            found.append((x, self.copy[tirx.Ramp(first, 1, self.width)]))
        return found

    def _spread(self, pos: Position) -> list[Prim]:
        em, load, width = self.em, self.rows.owner, self.width
        assert load is not None
        coords, valid = em.memory.address(load, pos)
        ramp = tirx.Ramp(coords[-1], tirx.const(1, "int64"), 2 * width)
        raw = em.tensors[load.operands[0]].buffer[(*coords[:-1], ramp)]
        pairs = tirx.reinterpret(f"int32x{width}", raw)
        if valid is not None:
            zeros = tirx.Broadcast(i32(0), width)
            pairs = tirx.Select(tirx.Broadcast(valid, width), pairs, zeros)
        even = pairs << tirx.Broadcast(i32(16), width)
        odd = pairs & tirx.Broadcast(i32(-0x10000), width)
        return [tirx.reinterpret(f"float32x{width}", x) for x in (even, odd)]

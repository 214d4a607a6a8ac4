"""Contractions that read a large factor once, straight from the user's tensor.

The summed axis is walked in chunks that stay in the first cache, all blocks of the result for each:
memory is read nearly in order, whatever the blocks. The result waits in scratch between chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.contract import Broadcast, blocks
from tilecc.codegen.cpu.layout import Layout, inputs, natural_axis
from tilecc.codegen.cpu.scalars import Prim
from tilecc.codegen.cpu.vectors import dot2
from tilecc.ir.core import Op, Value

if TYPE_CHECKING:
    from tilecc.codegen.cpu.registers import Position


def is_streamed(op: Op, layout: Layout, kept: Collection[Value]) -> bool:
    """Whether a contraction has lanes along an axis of a factor that is read where it lies."""
    x = natural_axis(op)
    if layout.lane_axis is not None or x is None or len(op.over) != 1:
        return False
    (large,) = (v for v in inputs(op) if v.type.has(x))
    loaded = large.owner is not None and large.owner.name == "load"
    return loaded and large not in kept and large.type.has(op.over[0])


class Streamed(Broadcast):
    """Emits one contraction chunk by chunk; its result goes to scratch."""

    together = 1  # vectors that are multiplied at once

    def emit(self) -> None:
        """The result's start to scratch, all chunks, then what is applied to the result."""
        em, k = self.em, self.op.over[0]
        slot = em.storage.slots[self.op.result]
        target = em.buffers[slot.buffer.name]
        em.over(
            self.op.result,
            lambda p: T.buffer_store(target, self.start(p), em.slot_index(slot, p)),
        )
        limit = self.limit(k)
        if not isinstance(limit, int):
            # Through memory: TVM would reason about the bounds of nested loops, and get them wrong.
            cell = next(em.cells)
            T.buffer_store(cell, tirx.Cast("int64", limit), [0])
            limit = tirx.Cast("int32", cell[0])
        self.stream(limit)
        if self.rest:
            em.elementwise_nest(self.rest, self.op.result)

    def stream(self, limit: Prim) -> None:
        """Add the products of the first `limit` elements of the summed axis, chunk by chunk."""
        em, k = self.em, self.op.over[0]
        (large,) = (v for v in self.factors if v.type.has(str(self.x)))
        line = (em.sizes[self.x] if self.x else 1) * large.type.dtype.bytes
        step = max(8, min(em.isa.chunk // line, em.sizes[k]) // 2 * 2)
        with T.serial(0, tirx.truncdiv(limit + (step - 1), step)) as chunk:
            end = tirx.min(chunk * step + step, limit)
            self._chunk((chunk * step, end))

    def _chunk(self, part: tuple[Prim, Prim]) -> None:
        em = self.em
        outer = [a for a in self.order[:-1] if a != self.y]
        rows = em.sizes[self.y] if self.y else 1
        most = em.isa.registers * 3 // 4
        high = min(rows, em.isa.mr)
        wide = most // high // self.together * self.together
        with em.nest_loops(outer, em.sizes) as pos:
            for y0, mr in blocks(rows, high):
                for x0, count, width in self._vectors():
                    for first, nr in blocks(count, wide):
                        self._block(dict(pos), part, (y0, mr), (x0 + first, nr), width)

    def _vectors(self) -> Iterator[tuple[int, int, int]]:
        """(first, count, lanes) of the vectors along the lanes; the first one in such vectors."""
        width = self.em.layout.width
        size = self.em.sizes[self.x] if self.x else 1
        if size >= width:
            yield 0, size // width, width
        at = size // width * width
        while at < size:
            lanes = 1 << ((size - at).bit_length() - 1)
            yield at // lanes, 1, lanes
            at += lanes

    def _block(
        self,
        pos: Position,
        part: Any,
        y: tuple[Prim, int],
        x: tuple[Prim, int],
        width: int,
    ) -> None:
        em, acc = self.em, self.acc
        (y0, mr), (x0, nr) = y, x
        slot = em.storage.slots[self.op.result]
        target = em.buffers[slot.buffer.name]

        def load(p: Position, n: Prim) -> None:
            T.buffer_store(acc, target[tuple(em.slot_index(slot, p))], [n])

        def store(p: Position, n: Prim) -> None:
            T.buffer_store(target, acc[n], em.slot_index(slot, p))

        def each(body: Callable[[Position, Prim], None]) -> None:
            run = self.at(pos, y0, x0, width, body)
            with T.unroll(0, mr) as i, T.unroll(0, nr) as j:
                run(i, j, nr)

        each(load)
        self.multiply(pos, part, y, x, width)
        each(store)

    def multiply(
        self,
        pos: Position,
        part: Any,
        y: tuple[Prim, int],
        x: tuple[Prim, int],
        width: int,
    ) -> None:
        """Add a chunk's products to the accumulators of a block; `part`: its (first, end)."""
        with T.serial(*part) as k:
            self.add_products({**pos, self.op.over[0]: k}, y, x, width)

    def add_products(
        self, pos: Position, y: tuple[Prim, int], x: tuple[Prim, int], width: int
    ) -> None:
        """Add the products of one element of the summed axis."""
        acc = self.acc

        def step(p: Position, n: Prim) -> None:
            T.buffer_store(acc, acc[n] + self.product(p), [n])

        run = self.at(pos, y[0], x[0], width, step)
        with T.unroll(0, y[1]) as i, T.unroll(0, x[1]) as j:
            run(i, j, x[1])


# Lanes of two vectors of 16, and where the halves of two vectors of 32 half-words end up when
# neighbours of both are put side by side within each 128 bits, as one instruction does.
_LOW = [8 * n + i for n in range(4) for i in range(4)]
_HIGH = [i + 4 for i in _LOW]


class StreamedDot(Streamed):
    """The same with the dot instruction, for pairs of rows of bf16.

    Two rows are interleaved within 128 bits, so accumulators hold their elements in another order,
    32 at a time; they are put in order as they leave.
    """

    together = 2

    def multiply(
        self,
        pos: Position,
        part: Any,
        y: tuple[Prim, int],
        x: tuple[Prim, int],
        width: int,
    ) -> None:
        """Add a chunk's products to the accumulators of a block."""
        em, k = self.em, self.op.over[0]
        (y0, mr), (x0, nr) = y, x
        (large,) = (v for v in self.factors if v.type.has(str(self.x)))
        (small,) = (v for v in self.factors if v is not large)
        slot = em.storage.pairs[small, k]
        halves = [(i * nr + j, i * nr + j + 1) for i in range(mr) for j in range(0, nr, 2)]
        self._reorder(halves, _LOW, _HIGH)
        inverse = [(_LOW + _HIGH).index(e) for e in range(32)]
        first, last = (tirx.truncdiv(p + n, 2) for n, p in enumerate(part))
        with T.serial(first, last) as pair:
            for j in range(0, nr, 2):
                at = {**pos, str(self.x): (x0 + j) * width}
                rows = [self._row(large, {**at, k: pair * 2 + n}) for n in (0, 1)]
                for side, order in enumerate((_LOW, _HIGH)):
                    zipped = [n + half for n in order for half in (0, 32)]
                    v = tirx.reinterpret("int32x16", tirx.Shuffle(rows, _indices(zipped)))
                    for i in range(mr):
                        here = {**pos, k: pair}
                        if self.y is not None:
                            here[self.y] = y0 + i
                        (index,) = em.slot_index(slot, here)
                        p = tirx.Broadcast(em.buffers[slot.buffer.name][index], 16)
                        n = _lanes(i * nr + j + side)
                        T.buffer_store(self.acc, dot2(self.acc[n], p, v), [n])
        self._reorder(halves, inverse[:16], inverse[16:])

    def _row(self, large: Value, pos: Position) -> Prim:
        """32 elements of a row, as they lie in memory."""
        em, op = self.em, large.owner
        assert op is not None
        coords, valid = em.memory.address(op, pos)
        ramp = tirx.Ramp(coords[-1], tirx.const(1, "int64"), 32)
        index = (*coords[:-1], ramp)
        raw = em.tensors[op.operands[0]].buffer[index]
        row = tirx.reinterpret("uint16x32", raw)
        if valid is None:
            return row
        zero = tirx.Broadcast(tirx.const(0, "uint16"), 32)
        return tirx.Select(tirx.Broadcast(valid, 32), row, zero)

    def _reorder(self, halves: list[tuple[int, int]], low: list[int], high: list[int]) -> None:
        """Permute the 32 lanes of pairs of accumulators."""
        acc, moved = self.acc, self.em.temps.buffers["float32"]
        for a, b in halves:
            both = [acc[_lanes(a)], acc[_lanes(b)]]
            for t, order in enumerate((low, high)):
                T.buffer_store(moved[t], tirx.Shuffle(both, _indices(order)), [_lanes(0)])
            for t, n in enumerate((a, b)):
                T.buffer_store(acc, moved[t][_lanes(0)], [_lanes(n)])


def _lanes(n: int) -> Prim:
    return tirx.Ramp(tirx.const(n * 16, "int32"), tirx.const(1, "int32"), 16)


def _indices(order: list[int]) -> list[Prim]:
    return [tirx.const(n, "int32") for n in order]

"""Contractions of bf16 factors by the dot instruction: two products an f32 lane at a time.

The instruction wants pairs of neighbours along the summed axis side by side in 32 bits. Factors are
brought into that form once a tile: loads as they are copied to scratch, computed factors by the
nest that computes them, two rows at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.contract import Broadcast
from tilecc.codegen.cpu.elementary import bits
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.cpu.layout import Layout, Slot, inputs, make_slot
from tilecc.codegen.cpu.scalars import Prim, const
from tilecc.codegen.cpu.vectors import dot2
from tilecc.ir.core import Axis, Op, Range, TensorType, Value
from tilecc.ir.dtypes import BF16, F32, I32
from tilecc.ir.expr import Const

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter
    from tilecc.codegen.cpu.registers import Position

LANES = 16


def uses_dot(op: Op, layout: Layout, isa: Isa) -> bool:
    """Whether a contraction goes through the dot instruction."""
    factors = inputs(op)
    if not (isa.has_bf16_dot and layout.width == LANES and len(factors) == 2 and op.over):
        return False
    if op.result.type.dtype is not F32 or any(v.type.dtype is not BF16 for v in factors):
        return False
    order = layout.order(op.result.type)
    k = op.over[-1]
    if not order or any(v.owner is None or not v.type.has(k) for v in factors):
        return False
    across = [v for v in factors if v.type.has(order[-1])]
    if len(across) != 1 or factors[0].type.axis(k).size % 2:
        return False
    x = order[-1]
    if x != layout.lane_axis and across[0].type.axis(x).size % LANES:
        return False
    return layout.order(across[0].type)[-1] == x


def pair_slot(name: str, v: Value, k: str, layout: Layout) -> Slot:
    """Scratch for pairs of `v` along `k`; the index along `k` counts pairs."""
    axes = tuple(Axis(a.name, Const(a.size // 2)) if a.name == k else a for a in v.type.axes)
    return make_slot(name, TensorType(I32, axes), layout)


def pack(low: Prim, high: Prim) -> Prim:
    """Two f32 that hold bf16 numbers as one i32."""
    upper = bits(high) & const(-0x10000, I32)
    return upper | ((bits(low) >> 16) & const(0xFFFF, I32))


def copy_pairs(em: Emitter, op: Op, k: str, slot: Slot) -> None:
    """Bring a loaded tile into scratch as pairs along `k`."""
    v = op.result
    order = em.layout.order(v.type)
    sizes = {a.name: a.size for a in v.type.axes}
    sizes[k] //= 2
    if order[-1] == k and sizes[k] % LANES == 0 and contiguous(op, k):
        _copy_contiguous(em, op, k, slot, sizes)
        return
    with em.nest_loops(order[:-1], sizes) as pos:
        for x in em.vectors(order[-1], sizes):
            with em.lanes(x, pos, order[-1]):
                pair = [em.memory.read(op, {**pos, k: pos[k] * 2 + n}) for n in (0, 1)]
                T.buffer_store(em.buffers[slot.buffer.name], pack(*pair), em.slot_index(slot, pos))


def contiguous(op: Op, k: str) -> bool:
    """Whether neighbours along `k` are neighbours in memory, all of them in the tensor."""
    last = op.attrs["coords"][-1]
    return isinstance(last, Range) and last.axis == k and k not in op.attrs.get("pad", ())


def _copy_contiguous(em: Emitter, op: Op, k: str, slot: Slot, sizes: dict[str, int]) -> None:
    """Pairs lie side by side already: copy them as 32-bit elements, a vector at a time."""
    order = em.layout.order(op.result.type)
    target = em.buffers[slot.buffer.name]

    def index(pos: Position, n: Prim) -> list[Prim]:
        (first,) = em.slot_index(slot, {**pos, k: n * LANES})
        return [tirx.Ramp(first, tirx.const(1, "int32"), LANES)]

    with em.nest_loops(order[:-1], sizes) as pos:
        coords, valid = em.memory.address(op, {**pos, k: tirx.const(0, "int32")})
        buffer = em.tensors[op.operands[0]].buffer

        def row() -> None:
            with T.serial(0, sizes[k] // LANES) as n:
                start = coords[-1] + tirx.Cast("int64", n * (2 * LANES))
                ramp = tirx.Ramp(start, tirx.const(1, "int64"), 2 * LANES)
                raw = buffer[(*coords[:-1], ramp)]
                T.buffer_store(target, tirx.reinterpret("int32x16", raw), index(pos, n))

        if valid is None:
            row()
            return
        with T.If(valid):
            with T.Then():
                row()
            with T.Else(), T.serial(0, sizes[k] // LANES) as n:
                zero = tirx.Broadcast(tirx.const(0, "int32"), LANES)
                T.buffer_store(target, zero, index(pos, n))


def repack(em: Emitter, v: Value, k: str, slot: Slot) -> None:
    """Pairs of a computed factor, from scratch that holds its elements."""
    order = em.layout.order(v.type)
    sizes = {a.name: a.size for a in v.type.axes}
    sizes[k] //= 2
    inner = order[-1]
    with em.nest_loops(order[:-1], sizes) as pos:
        for x in em.vectors(inner, sizes):
            with em.lanes(x, pos, inner):
                pair = [em.read(v, {**pos, k: pos[k] * 2 + n}) for n in (0, 1)]
                T.buffer_store(em.buffers[slot.buffer.name], pack(*pair), em.slot_index(slot, pos))


class Dot(Broadcast):
    """A broadcast-form contraction whose inner step is the dot instruction."""

    def accumulate(self, pos: Position, y0: Prim, mr: int, x0: Prim, nr: int, width: int) -> None:
        """Add the products of a block, a pair of the summed axis a step."""
        em, k = self.em, self.op.over[-1]
        slots = [em.storage.pairs[v, k] for v in self.factors]
        across = [v.type.has(str(self.x)) for v in self.factors]
        with ExitStack() as stack:
            inner = dict(pos)
            for o in self.op.over[:-1]:
                inner[o] = stack.enter_context(T.serial(0, self.limit(o)))
            limit = self.limit(k)
            pairs = limit // 2 if isinstance(limit, int) else tirx.truncdiv(limit + 1, 2)
            inner[k] = stack.enter_context(T.serial(0, pairs))
            with T.unroll(0, mr) as i, T.unroll(0, nr) as j:
                here = dict(inner)
                if self.y is not None:
                    here[self.y] = y0 + i
                assert self.x is not None
                here[self.x] = (x0 + j) * width
                n = tirx.Ramp((i * nr + j) * width, tirx.const(1, "int32"), LANES)
                a, b = (self._operand(s, here, v) for s, v in zip(slots, across, strict=True))
                call = dot2(self.acc[n], a, b)
                T.buffer_store(self.acc, call, [n])

    def _operand(self, slot: Slot, pos: Position, across: bool) -> Prim:
        em = self.em
        buffer = em.buffers[slot.buffer.name]
        (first,) = em.slot_index(slot, pos)
        if across:
            return buffer[tirx.Ramp(first, tirx.const(1, "int32"), LANES)]
        return tirx.Broadcast(buffer[first], LANES)

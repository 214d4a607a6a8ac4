"""Copies between memory and lanes where rows of memory lie across the lanes: turned in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.casts import storage_name
from tilecc.codegen.cpu.registers import Position, Tensor, i32, local
from tilecc.codegen.cpu.scalars import Prim
from tilecc.codegen.cpu.turn import is_turned, turn
from tilecc.ir.core import Op, Range, Value
from tilecc.ir.dtypes import I64
from tilecc.ir.expr import Expr, arg_numbers, indices

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter
    from tilecc.codegen.cpu.layout import Slot


@dataclass(frozen=True)
class Turned:
    """A load or store whose tile is turned: `lane` is in lanes, and along `row` elements are
    neighbours in memory. `step`: elements of memory from lane to lane."""

    em: Emitter
    op: Op
    lane: str
    row: str
    step: Prim

    def whole(self) -> Prim | None:
        """The condition for all of the tile to be in the tensor; None: it is."""
        em, op = self.em, self.op
        tensor = _tensor(em, op)
        conditions: list[Prim] = []
        for n, c in enumerate(op.attrs["coords"]):
            if not isinstance(c, Range):
                continue
            base = em.uniform(c.base, op.operands, I64)
            if em.bounds.may_be_high(op, n):
                conditions.append(base + em.sizes[c.axis] <= tensor.shape[n])
            if em.bounds.may_be_low(op, n):
                conditions.append(base >= 0)
        out: Prim | None = None
        for x in conditions:
            out = x if out is None else tirx.And(out, x)
        return out

    def memory(self, pos: Position) -> Prim:
        """The address of the element at `pos`."""
        op, ranges = self.op, [c.axis for c in self.op.attrs["coords"] if isinstance(c, Range)]
        if op.name == "store":
            coords = self.em.memory.coordinates(op, pos)
        else:
            coords, _ = self.em.memory.address(op, pos, inside=ranges)
        buffer = _tensor(self.em, op).buffer
        return T.address_of(buffer[tuple(coords)])

    def blocks(self, outer: Sequence[str], body: Callable[[Position], None]) -> None:
        """`body` for each block of as many rows as lanes."""
        em, width = self.em, self.em.layout.width
        rows, vectors = (em.sizes[a] // width for a in (self.row, self.lane))
        with em.nest_loops(outer, em.sizes) as pos, T.grid(rows, vectors) as (y, x):
            body({**pos, self.row: y * width, self.lane: x * width})


def turned(em: Emitter, op: Op) -> Turned | None:
    """How a load or store is turned; None if it is not."""
    v = op.operands[0] if op.name == "store" else op.result
    lane, width, coords = str(em.layout.lane_axis), em.layout.width, op.attrs["coords"]
    last = coords[-1] if coords else None
    if not isinstance(last, Range) or not v.type.has(lane) or last.axis == lane:
        return None
    if any(v.type.axis(a).size % width or not v.type.axis(a).size for a in (lane, last.axis)):
        return None
    found = [n for n, c in enumerate(coords) if isinstance(c, Range) and c.axis == lane]
    others = [c for n, c in enumerate(coords[:-1]) if n not in found]
    if len(found) != 1 or not all(_rests(c, op, {lane, last.axis}) for c in others):
        return None
    buffer = _tensor(em, op).buffer
    return Turned(em, op, lane, last.axis, buffer.strides[found[0]])


def _tensor(em: Emitter, op: Op) -> Tensor:
    """What a load reads or a store writes."""
    return em.tensors[op.operands[1 if op.name == "store" else 0]]


def _rests(c: object, op: Op, axes: set[str]) -> bool:
    """Whether a coordinate is the same for all elements along these axes."""
    if isinstance(c, Range):
        return c.axis not in axes
    assert isinstance(c, Expr)
    read = {a for k in arg_numbers(c) for a in op.operands[k].type.names}
    return not (indices(c) | read) & axes


def load_turned(em: Emitter, op: Op, slot: Slot, by_element: Callable[[], None]) -> bool:
    """Bring a tile into scratch in blocks, what reaches beyond the tensor by elements; False where
    it cannot be turned."""
    found = turned(em, op)
    t = op.operands[0].type.dtype
    if found is None or not is_turned(t, em.isa):
        return False
    scratch, column = em.buffers[slot.buffer.name], dict(slot.strides)[found.row]
    outer = [a.name for a in op.result.type.axes if a.name not in (found.lane, found.row)]

    def block(pos: Position) -> None:
        target = T.address_of(scratch[tuple(em.slot_index(slot, pos))])
        turn(t.name, em.layout.width, found.memory(pos), found.step, target, column)

    _either(found.whole(), lambda: found.blocks(outer, block), by_element)
    return True


def store_turned(
    em: Emitter, ops: Sequence[Op], shape: Value, by_element: Callable[[], None]
) -> bool:
    """Run a nest whose stores are turned; False where one cannot be."""
    stores = [op for op in ops if op.name == "store"]
    found = [turned(em, op) for op in stores]
    if not stores or len(stores) > 1 or found[0] is None:
        return False
    one, width = found[0], em.layout.width
    t = stores[0].operands[1].type.dtype
    own = local(width * width, storage_name(t))
    outer = [a.name for a in shape.type.axes if a.name not in (one.lane, one.row)]

    def block(pos: Position) -> None:
        with T.serial(0, width) as k:
            here = {**pos, one.row: pos[one.row] + k}
            em.memory.blocks[stores[0]] = own, k * width
            with em.lanes((pos[one.lane], width), here, one.lane):
                em.element_body(ops, here)
        del em.memory.blocks[stores[0]]
        source = T.address_of(own[i32(0)])
        turn(f"raw{t.bytes}", width, source, width, one.memory(pos), one.step)

    _either(one.whole(), lambda: one.blocks(outer, block), by_element)
    return True


def _either(cond: Prim | None, then: Callable[[], None], other: Callable[[], None]) -> None:
    if cond is None:
        then()
        return
    with T.If(cond):
        with T.Then():
            then()
        with T.Else():
            other()

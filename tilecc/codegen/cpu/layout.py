"""Where tile values live on a CPU: in vector lanes, in scratch memory, or in the user's tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilecc.codegen.cpu.diagonals import diagonal
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.program import ScratchBuffer
from tilecc.ir.core import Block, Op, Range, TensorType, Value
from tilecc.ir.dtypes import BF16, BOOL, DTYPES, F32, F64, I32, I64, DType
from tilecc.ir.expr import Expr, arg_numbers, indices

LINE = 64
"""Bytes that memory is read in (128 on some machines, where every other request is for nothing)."""


@dataclass(frozen=True)
class Layout:
    """How a kernel uses vectors. `lane_axis`: values that have it keep it innermost, in lanes.

    Without one, each value is vectorised along its own last axis (decode, plain products).
    """

    lane_axis: str | None
    width: int  # elements in a vector
    block: int = 0  # elements in a row of a register tile

    def order(self, t: TensorType) -> tuple[str, ...]:
        """Axes of a value as scratch memory holds them, outermost first."""
        names = t.names
        if self.lane_axis in names:
            return (*(a for a in names if a != self.lane_axis), str(self.lane_axis))
        return names


@dataclass(frozen=True)
class Slot:
    """A value's place in a scratch buffer: element strides by axis, from element `first` on."""

    buffer: ScratchBuffer
    strides: tuple[tuple[str, int], ...]
    first: int = 0


def contractions(kernel: Op) -> list[Op]:
    """The contractions of a kernel, nested blocks included."""
    return [op for op in kernel.body.walk() if op.name == "contract"]


def inputs(op: Op) -> list[Value]:
    """The factors of a contraction (not its accumulator)."""
    return op.operands[:-1] if op.attrs.get("acc") else op.operands


def register_dtype(t: DType) -> DType:
    """The type in which a value of type `t` is computed and kept in scratch."""
    if t.kind == "float":
        return F64 if t is F64 else F32
    if t is BOOL or t is I64:
        return t
    return I32 if t.bits <= 32 else DTYPES["i64"]


def choose_layout(kernel: Op, isa: Isa) -> Layout:
    """Lanes along the query rows where contractions need it, else along each value's last axis."""
    wide = any(v.type.dtype is F64 for op in kernel.body.walk() for v in op.results)
    width = isa.lanes32 // 2 if wide else isa.lanes32
    block = isa.nr * width
    ops = contractions(kernel)
    if not ops or all(natural_axis(op) for op in ops):
        return Layout(None, width, block)
    reduced = {a for op in kernel.body.walk() if "over" in op.attrs for a in op.attrs["over"]}
    best: tuple[int, str] | None = None
    for a in ops[0].result.type.axes:
        everywhere = all(
            op.result.type.has(a.name) and sum(v.type.has(a.name) for v in inputs(op)) == 1
            for op in ops
        )
        size = a.static or 0
        if everywhere and a.name not in reduced and size >= width:
            best = max(best, (size, a.name)) if best else (size, a.name)
    return Layout(best[1] if best else None, width, block)


def natural_axis(op: Op) -> str | None:
    """The last axis of a contraction's result, if one factor has it last and no other has it."""
    names = op.result.type.names
    if not names:
        return None
    x = names[-1]
    having = [v for v in inputs(op) if v.type.has(x)]
    return x if len(having) == 1 and having[0].type.names[-1] == x else None


def is_horizontal(op: Op, layout: Layout) -> bool:
    """Whether a contraction's lanes lie along the axis that it sums over."""
    if layout.lane_axis is not None and op.result.type.has(layout.lane_axis):
        return False
    if natural_axis(op) is not None or not op.over:
        return False
    return all(layout.order(v.type)[-1:] == (op.over[-1],) for v in inputs(op))


def kept_loads(kernel: Op, layout: Layout, isa: Isa) -> set[Value]:
    """Loads to copy into scratch: those that lie across the lanes, and those to convert once.

    A factor of a contraction is read again for each block of the result, so it pays to transpose
    or to convert it first. What few rows are multiplied with is read once, and stays where it is.
    Of what maps read, a tile across the lanes is turned as it is copied, faster than its elements
    could be gathered, and what a map reads anew for each row (the ids of queries) is read once. So
    is what it reads anew through a table (the scales of keys in pages), and what a table has along
    the diagonals of a tile.
    """
    kept: set[Value] = set()
    for op in contractions(kernel):
        for v in inputs(op):
            if v.owner is None or v.owner.name != "load":
                continue
            across = layout.lane_axis is not None and v.type.has(layout.lane_axis)
            narrow = register_dtype(v.type.dtype) is not v.type.dtype
            if across or (narrow and not _converted_in_place(kernel, op, v, layout, isa)):
                kept.add(v)
    for op in kernel.body.walk():
        if op.name in ("map", "reduce"):
            shape = op.result if op.name == "map" else op.operands[0]
            kept |= {v for v in op.operands if _is_read_again(v, shape)}
            kept |= {v for v in op.operands if is_diagonal(v)}
            if layout.lane_axis is not None:
                kept |= {v for v in op.operands if _pays(v, shape, layout.lane_axis)}
    return kept


def is_diagonal(v: Value) -> bool:
    """Whether a value is a load that is the same along diagonals."""
    return v.owner is not None and v.owner.name == "load" and diagonal(v.owner) is not None


def _is_read_again(v: Value, shape: Value) -> bool:
    """Whether a load through a table is read along axes that it lacks, each time by way of it."""
    if v.owner is None or v.owner.name != "load" or not set(v.type.names) < set(shape.type.names):
        return False
    points = [c for c in v.owner.attrs["coords"] if isinstance(c, Expr)]
    moving = {a for c in points for k in arg_numbers(c) for a in v.owner.operands[k].type.names}
    moving |= {a for c in points for a in indices(c)}
    return bool(moving & set(v.type.names))


def _pays(v: Value, shape: Value, lane_axis: str) -> bool:
    """Whether a load that is read for each element of `shape` is better copied."""
    if v.owner is None or v.owner.name != "load" or not v.type.has(lane_axis):
        return False
    if set(v.type.names) < set(shape.type.names):
        return True
    last = v.owner.attrs["coords"][-1]
    return len(v.type.names) > 1 and isinstance(last, Range) and last.axis != lane_axis


def _converted_in_place(kernel: Op, op: Op, v: Value, layout: Layout, isa: Isa) -> bool:
    """Whether a narrow factor is converted as it is read: few rows, and another tile each time."""
    if layout.lane_axis is not None or _block_of(kernel, op) is not _block_of(kernel, v.owner):
        return False
    if is_horizontal(op, layout):
        return True
    rows = math.prod(a.size for a in op.result.type.axes if not v.type.has(a.name))
    x = natural_axis(op)
    if v.type.names[-1:] != (x,) or len(op.over) != 1:
        return False
    by_dot = isa.has_bf16_dot and all(f.type.dtype is BF16 for f in inputs(op))
    # What is staged is converted once, however many rows there are.
    staged = not by_dot and set(v.type.names) == {x, *op.over}
    if rows > isa.mr and not staged:
        return False
    return not by_dot or (_rows_in_memory(v) and v.type.axis(str(x)).size % 32 == 0)


def _rows_in_memory(v: Value) -> bool:
    """Whether the last axis is the last in memory too, and stays within the tensor."""
    assert v.owner is not None
    last, axis = v.owner.attrs["coords"][-1], v.type.names[-1]
    inside = axis not in v.owner.attrs.get("pad", ())
    return isinstance(last, Range) and last.axis == axis and inside


def _block_of(within: Op, op: Op | None) -> Block | None:
    """The block that holds `op`."""
    for region in within.regions:
        for inner in region.ops:
            if inner is op:
                return region
            found = _block_of(inner, op)
            if found is not None:
                return found
    return None


def round_up(n: int, to: int) -> int:
    """The least multiple of `to` that is at least `n`."""
    return -(-n // to) * to


def make_slot(name: str, t: TensorType, layout: Layout) -> Slot:
    """Scratch for a value of type `t`, lanes innermost, the innermost axis padded to a vector.

    Where a register tile takes a part of each row, rows are an odd number of cache lines apart:
    with a power of two, those parts would fall into a few sets of the cache.
    """
    strides: list[tuple[str, int]] = []
    step = 1
    line = LINE // register_dtype(t.dtype).bytes
    for n, a in enumerate(reversed(layout.order(t))):
        strides.append((a, step))
        size = t.axis(a).size
        step *= round_up(size, layout.width) if n == 0 else size
        if n == 0 and len(t.axes) > 1 and 0 < layout.block < size and step % (2 * line) == 0:
            step += line
    buffer = ScratchBuffer(name, max(step, 1), register_dtype(t.dtype))
    return Slot(buffer, tuple(reversed(strides)))


def diagonal_slot(name: str, v: Value, layout: Layout) -> Slot:
    """Scratch for the diagonals of a load that is the same along each; lanes go up by one."""
    assert v.owner is not None
    found = diagonal(v.owner)
    assert found is not None
    *_, sign = found
    other, lanes = layout.order(v.type)
    count = v.type.axis(lanes).size + v.type.axis(other).size - 1
    buffer = ScratchBuffer(name, round_up(count, layout.width), register_dtype(v.type.dtype))
    first = v.type.axis(other).size - 1 if sign < 0 else 0
    return Slot(buffer, ((other, sign), (lanes, 1)), first)


def sizes(values: Iterable[Value] | Sequence[Value]) -> dict[str, int]:
    """Sizes of the axes of tile values."""
    return {a.name: a.size for v in values for a in v.type.axes}

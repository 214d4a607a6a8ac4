"""Rows of a tensor that a table picks: where each of them lies is worked out once a tile.

A tile of a paged cache is rows that lie anywhere, each in one piece:

    %k = load K[%page, (%t * 48 + index(j)) % 16, %g, 0 :+ d] : f32[j:48, d:128]

To go through the table and the divisions for every element of a row would take longer than the
row itself. So where a contraction or a nest of maps begins, the offset of each row goes to a small
array, in which rows that follow are looked up as well: memory is asked for them ahead of time, as
it is for rows that lie one after the other. Nothing here knows of pages: it serves all coordinates
that are one number for a whole row. Rows of a page follow each other, so the table is read once for
each run of them that a page and a tile have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.layout import round_up
from tilecc.codegen.cpu.registers import Position, i32, i64, local
from tilecc.codegen.cpu.scalars import Prim
from tilecc.ir.core import Axis, Op, Range, Value
from tilecc.ir.expr import Arg, Call, Const, Expr, Index, arg_numbers, indices, walk

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter


def row_axis(op: Op) -> str | None:
    """The axis of a load's tile along which computed coordinates pick rows; None if there is no
    such axis, or coordinates differ from element to element of a row."""
    coords = op.attrs["coords"]
    ranges = [c for c in coords if isinstance(c, Range)]
    axes = {a for c in coords if isinstance(c, Expr) for a in _axes(op, c)}
    based = {a for c in ranges for a in _axes(op, c.base)}
    if len(axes) != 1 or axes & {c.axis for c in ranges} or based:
        return None
    return axes.pop()


def _axes(op: Op, e: Expr) -> set[str]:
    """The axes of the tile along which an expression moves."""
    read = {a for k in arg_numbers(e) for a in op.operands[k].type.names}
    return read | (indices(e) & set(op.result.type.names))


def _goes_on(em: Emitter, v: Value, axis: str) -> bool:
    """Whether a value can be read beyond its tile's end along an axis: none of it is in scratch."""
    if not v.type.has(axis):
        return True
    op = v.owner
    if v in em.storage.slots or op is None or op.name not in ("load", "map"):
        return False
    return all(_goes_on(em, x, axis) for x in op.operands[op.name == "load" :])


@dataclass(frozen=True)
class Rows:
    """Offsets, in elements, of the rows of one load: those of its tile, then some that follow."""

    op: Op
    axis: str
    count: int
    buffer: Any

    @staticmethod
    def of(em: Emitter, op: Op) -> Rows | None:
        """Where the rows of a load lie, if they are picked; emits what works it out."""
        axis, coords = row_axis(op), op.attrs["coords"]
        if axis is None or any(
            isinstance(c, Range) and em.bounds.may_leave(op, n) for n, c in enumerate(coords)
        ):
            return None
        t = op.result.type
        runs = runs_of(op, axis)
        columns = t.axis(coords[-1].axis).size if isinstance(coords[-1], Range) else 1
        ahead = round_up(-(-em.isa.ahead // (columns * t.dtype.bytes)), runs.length)
        # Elements that lie alone are not asked for ahead, nor is what cannot be looked up.
        goes_on = columns > 1 and all(_goes_on(em, x, axis) for x in op.operands[1:])
        count = t.axis(axis).size + (ahead if goes_on else 0)
        rows = Rows(op, axis, count, local(count, "int64"))
        rows._fill(em, runs, t.axis(axis).size)
        return rows

    def _fill(self, em: Emitter, runs: Runs, tile: int) -> None:
        """Emit the look-up of all rows. Those beyond the tile may be beyond the table's end, too:
        there it is read at its end."""
        zero: Position = {a: i32(0) for a in self.op.result.type.names}
        strides = self._tensor(em).strides
        step: Prim = tirx.const(0, "int64")
        for slope, stride in zip(runs.slopes, strides, strict=True):
            step = step + stride * slope
        for first, number in ((0, tile), (tile, self.count - tile)):
            with (
                em.memory.kept_inside(first > 0),
                T.serial(0, number // runs.length) as run,
            ):
                at = run * runs.length + i32(first)
                coords, _ = em.memory.address(self.op, {**zero, self.axis: at})
                offset: Prim = tirx.const(0, "int64")
                for x, stride in zip(coords, strides, strict=True):
                    offset = offset + x * stride
                T.buffer_store(self.buffer, offset, [at])
                with T.serial(1, runs.length) as n:
                    T.buffer_store(self.buffer, self.buffer[at] + i64(n) * step, [at + n])

    def _tensor(self, em: Emitter) -> Any:
        return em.tensors[self.op.operands[0]].buffer

    def coordinates(self, em: Emitter, pos: Position) -> list[Prim]:
        """Coordinates of the element at `pos`: its offset along the last axis, of stride 1."""
        offset = self.buffer[pos[self.axis]]
        coords = self.op.attrs["coords"]
        for c, stride in zip(coords, self._tensor(em).strides, strict=True):
            if isinstance(c, Range):
                offset = offset + i64(pos[c.axis]) * stride
        # No bound is known of it, and none is asked for.
        return [*[tirx.const(0, "int64")] * (len(coords) - 1), offset]


@dataclass(frozen=True)
class Runs:
    """Rows that follow each other `length` by `length`: from one to the next, coordinate n moves by
    `slopes[n]`."""

    length: int
    slopes: tuple[int, ...]


def runs_of(op: Op, axis: str) -> Runs:
    """The runs of rows that a load picks: within a page, a table is read once.

    A tile begins at a multiple of its size, and r divides that and every divisor c. So in each run
    of r positions x // c stays what it is, and x % c goes up by one.
    """
    divisors = _divisors(op.attrs["coords"], op.operands, axis)
    length = gcd(op.result.type.axis(axis).size, *divisors) if divisors else 1
    shape = op.operands[0].type.axes
    slopes = []
    for c, a in zip(op.attrs["coords"], shape, strict=True):
        slope = 0 if isinstance(c, Range) else _slope(c, op.operands, axis, length)
        if slope is None or (slope and not _fits(c, a)):
            return Runs(1, (0,) * len(shape))
        slopes.append(slope)
    return Runs(length, tuple(slopes))


def _fits(c: Expr, a: Axis) -> bool:
    """Whether a coordinate is a remainder that is less than its axis is long: no row of a run is
    outside where the first is not."""
    match c, a.extent:
        case Call("mod", (_, Const(by))), Const(size):
            return 0 < by <= size
    return False


def _divisors(coords: Sequence[object], operands: Sequence[Value], axis: str) -> set[int]:
    """What positions along an axis are divided by, in coordinates and in those of their tables."""
    found: set[int] = set()
    for e in (c for c in coords if isinstance(c, Expr)):
        for n in walk(e):
            match n:
                case Call("floordiv" | "mod", (_, Const(by))):
                    found.add(int(by))
                case Arg(k) if operands[k].type.has(axis):
                    source = operands[k].owner
                    if source is not None and source.name == "load":
                        found |= _divisors(source.attrs["coords"], source.operands, axis)
    return found


def _slope(e: Expr, operands: Sequence[Value], axis: str, run: int) -> int | None:
    """By how much an expression goes up with a position in a run; None: not by the same each."""
    match e:
        case Index(a) if a == axis:
            return 1
        case Arg(k) if operands[k].type.has(axis):
            op = operands[k].owner
            if op is None or op.name != "load":
                return None
            coords = [c.base if isinstance(c, Range) else c for c in op.attrs["coords"]]
            ranges = {c.axis for c in op.attrs["coords"] if isinstance(c, Range)}
            rests = all(_slope(c, op.operands, axis, run) == 0 for c in coords)
            return 0 if rests and axis not in ranges else None
        case Call("add" | "sub" as fn, (a, b)):
            x, y = (_slope(p, operands, axis, run) for p in (a, b))
            return None if x is None or y is None else x + y if fn == "add" else x - y
        case Call("floordiv" | "mod" as fn, (x, Const(by))) if int(by) % run == 0:
            if _is_aligned(x, axis, run):
                return int(fn == "mod")
    moves = axis in indices(e) or any(operands[k].type.has(axis) for k in arg_numbers(e))
    return None if moves else 0


def _is_aligned(e: Expr, axis: str, run: int) -> bool:
    """Whether an expression is a position along an axis, from a multiple of `run` on."""
    match e:
        case Index(a):
            return a == axis
        case Call("add", (Call("mul", (_, Const(by))), Index(a))):
            return a == axis and int(by) % run == 0
    return False

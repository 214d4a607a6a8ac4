"""Which tiles of a streamed axis a kernel visits, and which of them need no mask.

The live predicate of a stream and the end of its axis are one condition. Its closed-form bounds
(analysis.affine) give up to three loops: masked, unmasked, masked. Where the live positions are not
one interval, one loop over their hull asks of each tile whether it is live and whether it is full.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilecc.analysis import affine
from tilecc.analysis.interval import Ends
from tilecc.ir.core import Op, TensorType, Value
from tilecc.ir.expr import Call, Const, Expr, add, call, ceildiv, mul, transform
from tilecc.passes.tiling.access import tile_of
from tilecc.passes.tiling.coordinates import name_divisions
from tilecc.passes.tiling.plan import AxisPlan
from tilecc.passes.tiling.scope import Operands, Scope

ALWAYS = Const(True)


@dataclass(frozen=True)
class Segment:
    """Tiles lo .. hi of a streamed axis, all needing the mask or none."""

    lo: Value
    hi: Value
    masked: bool


def ranges_of(scope: Scope, streamed: str, operands: Operands) -> dict[str | int, Ends]:
    """First and last coordinate of the current tile along every axis but the streamed one."""
    ranges: dict[str | int, Ends] = {}
    for name, p in scope.plan.items():
        if name == streamed or (p.role == "streamed" and name not in scope.scalars):
            continue
        base = scope.base(name, operands)
        ranges[name] = (base, base if p.size is None else last_position(p, base, p.size))
    return ranges


def predicate(scope: Scope, stream: Op, operands: Operands) -> tuple[Expr, dict[int, Value]]:
    """The stream's predicate, and those of its operands that differ from element to element.

    Scalars are loaded or computed where they are needed; the others stand for whole tensors.
    """
    where = stream.attrs.get("where")
    if where is None:
        return ALWAYS, {}
    values = [v if _differs(scope, v) else _scalar(scope, v) for v in stream.operands]
    e = operands.adopt(where, values)
    data = {operands.ref(v).k: v for v in values if _differs(scope, v)}
    return e, data


def _differs(scope: Scope, v: Value) -> bool:
    """Whether the tile of `v` has more than one element."""
    return any(a.name in scope.plan and scope.plan[a.name].size is not None for a in v.type.axes)


def _scalar(scope: Scope, v: Value) -> Value:
    """The value of what is one number for the whole tile."""
    if v in scope.values and not scope.values[v].type.axes:
        return scope.values[v]
    if v.owner is not None and v.owner.name == "map":  # of scalars, once more in another kernel
        values = [_scalar(scope, x) for x in v.owner.operands]
        return scope.map(v.owner.expr, values, TensorType(v.type.dtype), v.name)
    return tile_of(scope, v, ())


def _where(scope: Scope, stream: Op, operands: Operands) -> Expr:
    return predicate(scope, stream, operands)[0]


def is_hull(scope: Scope, stream: Op) -> bool:
    """Whether live tiles of the stream must be told one by one."""
    operands = Operands()
    where = _where(scope, stream, operands)
    if where == ALWAYS:
        return False
    return not affine.is_convex(
        where, stream.attrs["axis"], ranges_of(scope, stream.attrs["axis"], operands)
    )


def floor_tiles(e: Expr, size: int) -> Expr:
    """Whole tiles before position `e`."""
    return _readable(affine.simplify(call("floordiv", e, Const(size))))


def ceil_tiles(e: Expr, size: int) -> Expr:
    """Tiles before position `e`, the one that it is in included."""
    return _readable(affine.simplify(ceildiv(e, size)))


def _readable(e: Expr) -> Expr:
    """(x + 63) // 64 written as ceildiv(x, 64), the way the grid is."""

    def f(n: Expr) -> Expr | None:
        match n:
            case Call("floordiv", (Call("add", (x, Const(rest))), Const(size))) if rest == size - 1:
                return ceildiv(x, int(size))
        return None

    return transform(e, f)


def segments(scope: Scope, stream: Op) -> list[Segment]:
    """The loops of a stream whose live positions are one interval, in order.

    Their bounds are scalars of `scope`; a loop that is empty for every tile is left out.
    """
    axis = stream.attrs["axis"]
    p = scope.plan[axis]
    size = p.size or 1
    operands = Operands()
    where = _where(scope, stream, operands)
    ranges = ranges_of(scope, axis, operands)
    extent = p.axis.extent
    if where == ALWAYS:
        live: tuple[Expr, Expr] = (Const(0), extent)
        full = live
    else:
        live = affine.live_bounds(where, axis, ranges, extent)
        full = affine.full_bounds(where, axis, ranges, extent)
    lo, hi = floor_tiles(live[0], size), ceil_tiles(live[1], size)

    def scalar(e: Expr, name: str) -> Value:
        return scope.scalar(name_divisions(scope, e, operands), operands.values, name)

    start, end = scalar(lo, f"{axis}_start"), scalar(hi, f"{axis}_end")
    s, t = operands.ref(start), operands.ref(end)
    if where == ALWAYS:
        if not p.ragged:
            return [Segment(start, end, False)]
        split = scalar(floor_tiles(extent, size), f"{axis}_split")
        return [Segment(start, split, False), Segment(split, end, True)]
    inner = ceil_tiles(full[0], size)
    first = call("minimum", call("maximum", inner, s), call("maximum", t, s))
    leading = inner not in (Const(0), lo)  # else the first live tile is full, or none is
    begin = scalar(first, f"{axis}_full") if leading else start
    f = operands.ref(begin)
    last = call("maximum", call("minimum", floor_tiles(full[1], size), t), f)
    split = scalar(last, f"{axis}_split")
    out = [Segment(start, begin, True)] if leading else []
    return [*out, Segment(begin, split, False), Segment(split, end, True)]


def live_hull(scope: Scope, stream: Op) -> tuple[Value, Value]:
    """The first tile that may be live and the one after the last, as far as scalars tell."""
    axis = stream.attrs["axis"]
    p = scope.plan[axis]
    operands = Operands()
    where, data = predicate(scope, stream, operands)
    if data:
        where = affine.without(where, data)
    lo, hi = affine.live_bounds(where, axis, ranges_of(scope, axis, operands), p.axis.extent)
    ends = (floor_tiles(lo, p.size or 1), "start"), (ceil_tiles(hi, p.size or 1), "end")
    start, end = (
        scope.scalar(name_divisions(scope, e, operands), operands.values, f"{axis}_{name}")
        for e, name in ends
    )
    return start, end


def last_position(p: AxisPlan, first: Expr, size: int) -> Expr:
    """The last coordinate of a tile that begins at `first`."""
    if p.ragged:
        return call("sub", call("minimum", add(first, size), p.axis.extent), Const(1))
    return add(first, size - 1)


def conditions(scope: Scope, stream: Op, operands: Operands) -> tuple[Expr, Expr]:
    """(may be live, is full) of the current tile; inside the loop, where its counter is defined."""
    axis = stream.attrs["axis"]
    p = scope.plan[axis]
    size = p.size or 1
    where = _where(scope, stream, operands)
    ranges = ranges_of(scope, axis, operands)
    first = mul(operands.ref(scope.scalars[axis]), size)
    ranges[axis] = (first, last_position(p, first, size))
    live, full = affine.tile_live(where, ranges), affine.tile_full(where, ranges)
    if p.ragged:
        inside = call("le", add(first, size), p.axis.extent)
        full = inside if full == ALWAYS else call("and", full, inside)
    return name_divisions(scope, live, operands), name_divisions(scope, full, operands)

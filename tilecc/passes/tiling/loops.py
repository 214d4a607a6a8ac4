"""Which tiles of a streamed axis a kernel visits, and which of them need no mask.

The live predicate of a stream and the end of its axis are one condition. Its closed-form bounds
(analysis.affine) give up to three loops: masked, unmasked, masked. Where the live positions are not
one interval, one loop over their hull asks of each tile whether it is live and whether it is full.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilecc.analysis import affine
from tilecc.ir.core import Op, Value
from tilecc.ir.expr import Call, Const, Expr, add, call, ceildiv, mul, transform
from tilecc.passes.tiling.coordinates import name_divisions
from tilecc.passes.tiling.scope import Operands, Scope

ALWAYS = Const(True)


@dataclass(frozen=True)
class Segment:
    """Tiles lo .. hi of a streamed axis, all needing the mask or none."""

    lo: Value
    hi: Value
    masked: bool


@dataclass(frozen=True)
class Hull:
    """Tiles lo .. hi of which `live` holds for those to visit and `full` for those with no mask."""

    lo: Value
    hi: Value


def _ranges(scope: Scope, streamed: str, operands: Operands) -> dict[str, tuple[Expr, Expr]]:
    """First and last coordinate of the current tile along every axis but the streamed one."""
    ranges: dict[str, tuple[Expr, Expr]] = {}
    for name, p in scope.plan.items():
        if name == streamed or (p.role == "streamed" and name not in scope.scalars):
            continue
        base = scope.base(name, operands)
        if p.size is None:
            ranges[name] = (base, base)
        elif p.ragged:
            end = call("minimum", add(base, p.size), p.axis.extent)
            ranges[name] = (base, call("sub", end, Const(1)))
        else:
            ranges[name] = (base, add(base, p.size - 1))
    return ranges


def _where(scope: Scope, stream: Op, operands: Operands) -> Expr:
    where = stream.attrs.get("where")
    if where is None:
        return ALWAYS
    return operands.adopt(where, [scope.values.get(v, v) for v in stream.operands])


def is_hull(scope: Scope, stream: Op) -> bool:
    """Whether live tiles of the stream must be told one by one."""
    operands = Operands()
    where = _where(scope, stream, operands)
    if where == ALWAYS:
        return False
    return not affine.is_convex(
        where, stream.attrs["axis"], _ranges(scope, stream.attrs["axis"], operands)
    )


def _floordiv(e: Expr, size: int) -> Expr:
    return _readable(affine.simplify(call("floordiv", e, Const(size))))


def _ceildiv(e: Expr, size: int) -> Expr:
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
    ranges = _ranges(scope, axis, operands)
    extent = p.axis.extent
    if where == ALWAYS:
        live: tuple[Expr, Expr] = (Const(0), extent)
        full = live
    else:
        live = affine.live_bounds(where, axis, ranges, extent)
        full = affine.full_bounds(where, axis, ranges, extent)
    lo, hi = _floordiv(live[0], size), _ceildiv(live[1], size)

    def scalar(e: Expr, name: str) -> Value:
        return scope.scalar(name_divisions(scope, e, operands), operands.values, name)

    start, end = scalar(lo, f"{axis}_start"), scalar(hi, f"{axis}_end")
    s, t = operands.ref(start), operands.ref(end)
    if where == ALWAYS:
        if not p.ragged:
            return [Segment(start, end, False)]
        split = scalar(_floordiv(extent, size), f"{axis}_split")
        return [Segment(start, split, False), Segment(split, end, True)]
    inner = _ceildiv(full[0], size)
    first = call("minimum", call("maximum", inner, s), call("maximum", t, s))
    leading = inner not in (Const(0), lo)  # else the first live tile is full, or none is
    begin = scalar(first, f"{axis}_full") if leading else start
    f = operands.ref(begin)
    last = call("maximum", call("minimum", _floordiv(full[1], size), t), f)
    split = scalar(last, f"{axis}_split")
    out = [Segment(start, begin, True)] if leading else []
    return [*out, Segment(begin, split, False), Segment(split, end, True)]


def hull(scope: Scope, stream: Op) -> Hull:
    """The bounds of the loop over tiles of which some may be dead."""
    axis = stream.attrs["axis"]
    size = scope.plan[axis].size or 1
    operands = Operands()
    where = _where(scope, stream, operands)
    extent = scope.plan[axis].axis.extent
    lo, hi = affine.live_bounds(where, axis, _ranges(scope, axis, operands), extent)
    start = name_divisions(scope, _floordiv(lo, size), operands)
    end = name_divisions(scope, _ceildiv(hi, size), operands)
    return Hull(
        scope.scalar(start, operands.values, f"{axis}_start"),
        scope.scalar(end, operands.values, f"{axis}_end"),
    )


def conditions(scope: Scope, stream: Op, operands: Operands) -> tuple[Expr, Expr]:
    """(may be live, is full) of the current tile; inside the loop, where its counter is defined."""
    axis = stream.attrs["axis"]
    p = scope.plan[axis]
    where = _where(scope, stream, operands)
    ranges = _ranges(scope, axis, operands)
    first = mul(operands.ref(scope.scalars[axis]), p.size or 1)
    last: Expr = add(first, (p.size or 1) - 1)
    if p.ragged:
        last = call("sub", call("minimum", add(first, p.size or 1), p.axis.extent), Const(1))
    ranges[axis] = (first, last)
    live, full = affine.tile_live(where, ranges), affine.tile_full(where, ranges)
    if p.ragged:
        inside = call("le", add(first, p.size or 1), p.axis.extent)
        full = inside if full == ALWAYS else call("and", full, inside)
    return name_divisions(scope, live, operands), name_divisions(scope, full, operands)

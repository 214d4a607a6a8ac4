"""Loop bounds of a streamed axis in closed form, from the predicate that says what is live.

    j <= i           i in [i0, i1]   live [0, minimum(N, i1 + 1))       full [0, i0 + 1)
    0 <= i - j < w                   live [maximum(0, i0 - w + 1), ..)  full [i1 - w + 1, i0 + 1)

`pred` is an expression over coordinates (`Index`), extents, and integer or boolean scalars (`Arg`).
`ranges` gives for every other axis its first and last coordinate in the tile, expressions whose
`Arg`s are numbered as in `pred`; the tile is not empty. Bounds are half-open, over coordinates of
the streamed axis; a result with hi <= lo is the empty interval.

Live bounds never leave out a position that some row of the tile needs; full bounds hold only
positions that every row needs. Where the live positions are not one interval (`is_convex`), or to
be more precise than a hull, `tile_live` and `tile_full` judge one tile of the streamed axis.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tilecc.analysis.attained import decides
from tilecc.analysis.convex import contiguous
from tilecc.analysis.forms import Linear
from tilecc.analysis.interval import Box, Ranges, bounds, box, may, must
from tilecc.analysis.linear import at_most, ceildiv, floordiv, linear, maximum, minimum, select
from tilecc.analysis.predicate import (
    Atom,
    Bool,
    Conj,
    Disj,
    Pred,
    compare,
    every,
    normalize,
    reads,
    to_expr,
    weaken,
)
from tilecc.analysis.solve import isolate
from tilecc.ir.expr import Const, Expr, Index, as_expr

ALWAYS = Const(True)


@dataclass(frozen=True)
class Span:
    """Positions lo <= j < hi, none of them unless `gate` (a condition free of j) holds.

    0 and the extent stand where there is no bound; the others are not clamped to them.
    """

    lo: Linear
    hi: Linear
    gate: Expr = ALWAYS

    def closed(self, empty: Linear) -> Span:
        """The gate written into the bounds; a shut one leaves `empty` .. `empty`."""
        if self.gate == ALWAYS:
            return self
        return Span(select(self.gate, self.lo, empty), select(self.gate, self.hi, empty))


def live_bounds(pred: Expr, axis: str, ranges: Ranges, extent: Expr | int) -> tuple[Expr, Expr]:
    """The hull [lo, hi) of the positions j that satisfy `pred` for some row of the tile.

    0 <= lo and hi <= extent; hi may be less than lo, and negative, when nothing is live.
    """
    return _bounds(pred, axis, ranges, extent, live=True)


def full_bounds(pred: Expr, axis: str, ranges: Ranges, extent: Expr | int) -> tuple[Expr, Expr]:
    """An interval [lo, hi) of positions that satisfy `pred` for every row of the tile.

    0 <= lo and hi <= extent; hi <= lo when there is none.
    """
    return _bounds(pred, axis, ranges, extent, live=False)


def simplify(e: Expr) -> Expr:
    """An integer expression in its normal form: (64 * q + 63) // 64 is q."""
    return linear(e).expr()


def is_convex(pred: Expr, axis: str, ranges: Ranges) -> bool:
    """Whether the hull of `live_bounds` has no holes: what it covers is live.

    True when it is proved for every tile. Conditions free of the streamed axis (a negative window)
    may still leave a tile without live positions.
    """
    ends = box(ranges).items()
    points = {a for a, (lo, hi) in ends if isinstance(a, str) and lo is not None and lo == hi}
    return contiguous(isolate(normalize(pred), axis), axis, points)


def tile_live(pred: Expr, ranges: Ranges) -> Expr:
    """A condition over tile bounds, false only if no position of the tile satisfies `pred`.

    Here `ranges` includes the streamed axis. An operand that differs from position to position has
    its least and greatest value there, under its number.
    """
    return may(normalize(pred), box(ranges))


def is_exact(pred: Expr, ranges: Ranges) -> bool:
    """Whether `tile_live` holds only for tiles with a position that satisfies `pred`."""
    return decides(normalize(pred), box(ranges))


def tile_full(pred: Expr, ranges: Ranges) -> Expr:
    """A condition over tile bounds, true only if every position of the tile satisfies `pred`.

    Here `ranges` includes the streamed axis.
    """
    return must(normalize(pred), box(ranges))


def without(pred: Expr, operands: Collection[int]) -> Expr:
    """What follows from `pred` when nothing is known of the conditions that read `operands`."""
    return to_expr(weaken(normalize(pred), lambda x: not reads(x)[1] & set(operands)))


def _bounds(
    pred: Expr, axis: str, ranges: Ranges, extent: Expr | int, live: bool
) -> tuple[Expr, Expr]:
    n = linear(as_expr(extent))
    rows = {**box(ranges), axis: (Linear(), n + -1)}
    span = _span(isolate(normalize(pred), axis), axis, rows, n, live)
    lo, hi = maximum([Linear(), span.lo]), minimum([n, span.hi])
    if span.gate != ALWAYS:
        hi = select(span.gate, hi, Linear())
    return lo.expr(), hi.expr()


def _span(p: Pred, axis: str, rows: Box, n: Linear, live: bool) -> Span:
    """The live hull, or a full interval, of `p`, within [0, n) or beyond it."""
    everything = Span(Linear(), n)
    match p:
        case Bool(value):
            return everything if value else Span(Linear(), Linear())
        case Atom(form) if (a := form.coefficient(Index(axis))) != 0:
            rest = bounds(form.without(Index(axis)), rows)[1 if live else 0]
            if rest is None:  # no bound known: all may be live, none is surely full
                return everything if live else Span(Linear(), Linear())
            if a > 0:
                return Span(ceildiv(-rest, a), n)
            return Span(Linear(), floordiv(rest, -a) + 1)
        case Conj(parts):
            return _intersection([_span(q, axis, rows, n, live) for q in parts])
        case Disj(parts):
            spans = [_span(q, axis, rows, n, live) for q in parts]
            return _hull(spans, n) if live else _largest(spans)
    if axis in reads(p)[0]:  # a remainder of j, say: `tile_live` and `tile_full` know more
        return everything if live else Span(Linear(), Linear())
    gate = (may if live else must)(p, rows)
    return everything if gate == ALWAYS else Span(Linear(), n, gate)


def _intersection(spans: list[Span]) -> Span:
    return Span(
        maximum([s.lo for s in spans]),
        minimum([s.hi for s in spans]),
        every(*(s.gate for s in spans)),
    )


def _hull(spans: list[Span], n: Linear) -> Span:
    # A shut gate must not widen the hull: its lower end goes to n, its upper end to 0.
    lo = [s.lo if s.gate == ALWAYS else select(s.gate, s.lo, n) for s in spans]
    hi = [s.hi if s.gate == ALWAYS else select(s.gate, s.hi, Linear()) for s in spans]
    return Span(minimum(lo), maximum(hi))


def _largest(spans: list[Span]) -> Span:
    """One interval inside the union: joined where two are known to touch, else the longer."""
    out, *others = [s.closed(Linear()) for s in spans]
    for s in others:
        if out.lo == s.lo or (at_most(out.lo, s.lo) and at_most(s.lo, out.hi)):
            out = Span(out.lo, maximum([out.hi, s.hi]))
        elif at_most(s.lo, out.lo) and at_most(out.lo, s.hi):
            out = Span(s.lo, maximum([out.hi, s.hi]))
        elif out.hi == s.hi:
            out = Span(minimum([out.lo, s.lo]), out.hi)
        else:
            longer = compare((out.hi - out.lo) - (s.hi - s.lo))
            out = Span(select(longer, out.lo, s.lo), select(longer, out.hi, s.hi))
    return out

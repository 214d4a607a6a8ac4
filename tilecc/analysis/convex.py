"""Whether the live positions of a tile of rows are one interval, without holes.

Each row has lower bounds l(i) <= j and upper bounds j <= u(i). If all of them move the same way
as i grows, each row's interval is not empty and begins at most one past the end of the row before
it, then the rows' intervals together are the interval from the first row's to the last row's.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

from tilecc.analysis.forms import Linear, axes_of
from tilecc.analysis.linear import at_most, ceildiv, floordiv, linear, maximum, minimum
from tilecc.analysis.predicate import Atom, Bool, Conj, Disj, Pred, reads
from tilecc.ir.expr import Call, Const, Expr, Index, call, transform


def contiguous(p: Pred, axis: str, points: Collection[str] = ()) -> bool:
    """Whether the live set of `p`, solved for `axis`, has no holes; `points`: axes at a point."""
    points = frozenset(points)
    lower: list[Linear] = []
    upper: list[Linear] = []
    for q in p.parts if isinstance(p, Conj) else () if p == Bool(True) else (p,):
        if not reads(q)[0] - points:
            continue  # the same for the whole tile
        side = _side(q, axis)
        if side is None:
            return False
        (lower if side[0] == "lower" else upper).append(side[1])
    moving = [f for f in lower + upper if f.axes - points]
    axes = frozenset().union(*(f.axes for f in moving)) - points
    if len(moving) <= 1:  # rays one way, the longest of which is at a corner of the box
        return all(_direction(f, x) for f in moving for x in axes)
    if len(axes) > 1:
        return False
    (row,) = axes
    steps = {_direction(f, row) for f in moving}
    if len(steps) > 1 or (step := steps.pop()) is None:
        return False
    pairs = ((l, u) for l, u in product(lower, upper) if l in moving and u in moving)
    return all(_adjacent(l, u, row, step, points) for l, u in pairs)


def _side(p: Pred, axis: str) -> tuple[str, Linear] | None:
    """`p` as one bound of j: ("lower", l) for l <= j, ("upper", u) for j <= u."""
    match p:
        case Atom(form):
            a, rest = form.coefficient(Index(axis)), form.without(Index(axis))
            if a == 0 or axis in rest.axes:
                return None
            return ("lower", ceildiv(-rest, a)) if a > 0 else ("upper", floordiv(rest, -a))
        case Conj(parts) | Disj(parts):
            sides = [_side(q, axis) for q in parts]
            known = [s for s in sides if s is not None]
            kinds = {s[0] for s in known}
            if len(known) < len(sides) or len(kinds) > 1:
                return None
            (kind,) = kinds
            least = (kind == "upper") == isinstance(p, Conj)
            return kind, (minimum if least else maximum)([s[1] for s in known])
    return None


def _adjacent(low: Linear, high: Linear, row: str, step: int, points: frozenset[str]) -> bool:
    # The next row in the order in which the bounds grow is the one after or the one before.
    following = linear(transform(low.expr(), lambda e: _moved(e, row, step)))
    # A width that no row changes (a window's) is the whole tile's: where it is negative, nothing
    # is live, and else it is enough that the bounds move by no more than one from row to row.
    same_width = not (high - low).axes - points
    if not same_width and not _at_most(low, high):
        return False
    return _at_most(following, high + 1) or (same_width and _at_most(following, low + 1))


def _moved(e: Expr, row: str, by: int) -> Expr | None:
    return call("add", e, Const(by)) if e == Index(row) else None


def _at_most(a: Linear, b: Linear) -> bool:
    return at_most(a, b) or at_most(Linear(), _with_remainders(b - a))


def _with_remainders(form: Linear) -> Linear:
    """d * (x // d) written as x - x % d, whose bounds are known better."""
    out = Linear((), form.const)
    for s, c in form.terms:
        match s:
            case Call("floordiv", (x, Const(d))) if c % int(d) == 0:
                rest = Linear(((call("mod", x, Const(d)), -c // int(d)),))
                out = out + linear(x) * (c // int(d)) + rest
            case _:
                out = out + Linear(((s, c),))
    return out


def _direction(form: Linear, row: str) -> int | None:
    """+1 where `form` never falls as `row` grows, -1 where it never rises, None if unknown."""
    signs: set[int | None] = set()
    for s, c in form.terms:
        sign = 1 if c > 0 else -1
        if row not in axes_of(s):
            continue
        match s:
            case Index():
                signs.add(sign)
            case Call("floordiv", (x, Const(d))) if int(d) > 0:
                signs.add(_times(sign, _direction(linear(x), row)))
            case Call("minimum" | "maximum", args):
                moving = [linear(x) for x in args if row in axes_of(x)]
                signs |= {_times(sign, _direction(x, row)) for x in moving}
            case _:
                return None
    return signs.pop() if len(signs) == 1 else None


def _times(sign: int, direction: int | None) -> int | None:
    return None if direction is None else sign * direction

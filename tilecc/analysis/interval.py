"""Interval arithmetic on expressions: what an integer or a condition can be over a tile.

Each axis has a range of coordinates, given by expressions, and so has each operand that differs
from position to position (its least and greatest element in the tile). An integer form gets an
interval whose ends are forms over those expressions; a condition gets two expressions, `may` (false
only where no position of the tile satisfies it) and `must` (true only where all do).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilecc.analysis.forms import Linear, axes_of, factors, product, symbol
from tilecc.analysis.linear import (
    constant_range,
    divide,
    linear,
    maximum,
    minimum,
    nonnegative,
    remainder,
    select,
)
from tilecc.analysis.predicate import Atom, Bool, Conj, Disj, Opaque, Pred, compare, every, some
from tilecc.ir.expr import Arg, Call, Const, Expr, Index, arg_numbers, call

Bound = Linear | None  # None: no bound is known
Ends = tuple[Expr | int | None, Expr | int | None]
Ranges = Mapping[str | int, Ends]
"""First and last coordinate by axis; least and greatest element by the number of the operand."""
Box = Mapping[str | int, tuple[Bound, Bound]]


def box(ranges: Ranges) -> dict[str | int, tuple[Bound, Bound]]:
    """The ranges with their ends in normal form."""
    return {a: (_form(lo), _form(hi)) for a, (lo, hi) in ranges.items()}


def _form(e: Expr | int | None) -> Bound:
    if e is None:
        return None
    return Linear((), e) if isinstance(e, int) else linear(e)


def moves(e: Expr, ranges: Box) -> bool:
    """Whether `e` differs from position to position."""
    return bool(axes_of(e)) or any(k in ranges for k in arg_numbers(e))


def bounds(form: Linear, ranges: Box) -> tuple[Bound, Bound]:
    """The least and the greatest value of `form` over the box (over a larger set at worst)."""
    if not any(moves(s, ranges) for s, _ in form.terms):
        return form, form
    low: Bound = Linear((), form.const)
    high: Bound = low
    for s, c in form.terms:
        lo, hi = _symbol(s, ranges)
        if c < 0:
            lo, hi = hi, lo
        low = None if low is None or lo is None else low + lo * c
        high = None if high is None or hi is None else high + hi * c
    return low, high


def _symbol(s: Expr, ranges: Box) -> tuple[Bound, Bound]:
    if not moves(s, ranges):
        return symbol(s), symbol(s)
    match s:
        case Index(axis):
            return ranges.get(axis, (Linear(), None))
        case Arg(k):
            return ranges[k]
        case Call("floordiv" | "mod" as fn, (a, b)) if not moves(b, ranges):
            x = bounds(linear(a), ranges)
            return (_quotient if fn == "floordiv" else _remainder)(x, linear(b))
        case Call("mul"):
            return _monomial(s, ranges)
        case Call("abs", (a,)):
            lo, hi = bounds(linear(a), ranges)
            ends = [Linear(), *([lo] if lo else []), *([-hi] if hi else [])]
            return maximum(ends), None if lo is None or hi is None else maximum([-lo, hi])
        case Call("minimum" | "maximum" | "where" as fn, args):
            los, his = zip(*(bounds(linear(x), ranges) for x in args[-2:]), strict=True)
            if fn == "where" and not moves(args[0], ranges):
                return tuple(_both(args[0], *ends) for ends in (los, his))  # type: ignore[return-value]
            # Of a minimum every upper end bounds it, of a maximum every lower one.
            sure_lo = list(los) if fn != "maximum" else [x for x in los if x is not None]
            sure_hi = list(his) if fn != "minimum" else [x for x in his if x is not None]
            low = (maximum if fn == "maximum" else minimum, sure_lo)
            high = (minimum if fn == "minimum" else maximum, sure_hi)
            return tuple(None if not xs or None in xs else f(xs) for f, xs in (low, high))  # type: ignore[return-value]
    lo_n, hi_n = constant_range(symbol(s))
    return _number(lo_n), _number(hi_n)


def _number(n: int | None) -> Bound:
    return None if n is None else Linear((), n)


def _both(cond: Expr, a: Bound, b: Bound) -> Bound:
    return None if a is None or b is None else select(cond, a, b)


def _corners(points: list[Bound]) -> tuple[Bound, Bound]:
    known = [p for p in points if p is not None]
    if len(known) < len(points):
        return None, None
    return minimum(known), maximum(known)


def _quotient(x: tuple[Bound, Bound], d: Linear) -> tuple[Bound, Bound]:
    ends = [None if e is None else divide(e, d) for e in x]
    low, _ = constant_range(d)
    if low is not None and low >= 0:  # zero would be an error of the program
        return ends[0], ends[1]
    return _corners(ends)  # monotone in x, whatever the sign of d


def _remainder(x: tuple[Bound, Bound], d: Linear) -> tuple[Bound, Bound]:
    # Within one block of d the remainder grows with x; over more blocks it takes every value.
    low, high = minimum([Linear(), d + 1]), maximum([Linear(), d - 1])
    if x[0] is None or x[1] is None:
        return low, high
    span = x[1] - x[0] + 1
    if not d.terms and nonnegative(span - d):
        return low, high
    q = divide(x[0], d), divide(x[1], d)
    if q[0] == q[1]:
        return remainder(x[0], d), remainder(x[1], d)
    same = compare(q[1] - q[0], fn="eq")
    return select(same, remainder(x[0], d), low), select(same, remainder(x[1], d), high)


def _monomial(s: Expr, ranges: Box) -> tuple[Bound, Bound]:
    low: Bound
    high: Bound
    low = high = Linear((), 1)
    for f in factors(s):
        lo, hi = _symbol(f, ranges)
        if low is None or high is None or lo is None or hi is None:
            return None, None
        if lo == hi and nonnegative(lo):
            low, high = product(low, lo), product(high, lo)
        elif low == high and nonnegative(low):
            low, high = product(low, lo), product(low, hi)
        else:
            low, high = _corners([product(a, b) for a in (low, high) for b in (lo, hi)])
    return low, high


def may(p: Pred, ranges: Box) -> Expr:
    """False only where no position of the box satisfies `p`."""
    return _judge(p, ranges, possible=True)


def must(p: Pred, ranges: Box) -> Expr:
    """True only where every position of the box satisfies `p`."""
    return _judge(p, ranges, possible=False)


def _judge(p: Pred, ranges: Box, possible: bool) -> Expr:
    match p:
        case Bool(value):
            return Const(value)
        case Atom(form):
            end = bounds(form, ranges)[1 if possible else 0]
            return Const(possible) if end is None else compare(end)
        case Opaque(e, sense):
            if not moves(e, ranges):
                return e if sense else call("not", e)
            ends = ranges.get(e.k, (None, None)) if isinstance(e, Arg) else (None, None)
            end = ends[1 if possible == sense else 0]  # of truth values, 0 or 1
            if end is None:
                return Const(possible)
            return compare(end - 1) if sense else compare(-end)
        case Conj(parts):
            return every(*(_judge(q, ranges, possible) for q in parts))
        case Disj(parts):
            return some(*(_judge(q, ranges, possible) for q in parts))
    raise TypeError(f"not a predicate: {p!r}")

"""Exponents that are differences: of an element's number and of a reference that a map computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tilecc.ir.core import Op, Value
from tilecc.ir.expr import Acc, Arg, Call, Const, Expr, Index, Old, call, walk

_ORDER = ("eq", "ne", "lt", "le", "gt", "ge")
_FIXED = tuple(map(Const, (0.0, math.inf, -math.inf)))  # what a positive scale leaves as it is
_EXTREMA = {"max": "maximum", "min": "minimum"}


@dataclass(frozen=True)
class Difference:
    """The exponent `of - reference`, or `reference - of` if `flipped`, and `rest`, with its signs.

    reference: a map that computes it; or None, and then it is `inline`.
    """

    of: Expr
    reference: Op | None
    inline: Expr
    flipped: bool
    rest: tuple[tuple[str, Expr], ...]

    def written(self, of: Expr, reference: Expr, scale: Expr | None = None) -> Expr:
        """The exponent with other parts, their difference times `scale`."""
        e: Expr = call("sub", *((reference, of) if self.flipped else (of, reference)))
        e = e if scale is None else call("mul", e, scale)
        for sign, x in self.rest:
            e = call(sign, e, x)
        return e


def is_constant(e: Expr) -> bool:
    """Whether `e` is a number once extents are known."""
    return not any(isinstance(n, Arg | Old | Acc | Index) for n in walk(e))


def scaled(e: Expr) -> tuple[Expr, Expr]:
    """x and c of x * c, where c is constant and x is not; or `e` and 1."""
    match e:
        case Call("mul", (x, c)) if is_constant(c) and not is_constant(x):
            return x, c
    return e, Const(1.0)


def ratio(a: Expr, b: Expr) -> float | None:
    """a / b of two constants; 1 where they differ by rounding alone, None if it is not known."""
    if a == b:
        return 1.0
    if not (isinstance(a, Const) and isinstance(b, Const)) or 0 in (a.value, b.value):
        return None
    q = float(a.value) / float(b.value)
    nearest = float(round(q))
    return nearest if math.isclose(q, nearest, rel_tol=1e-14) and nearest else q


def _addends(e: Expr, sign: int = 1) -> list[tuple[int, Expr]]:
    match e:
        case Call("add", (a, b)):
            return _addends(a, sign) + _addends(b, sign)
        case Call("sub", (a, b)):
            return _addends(a, sign) + _addends(b, -sign)
    return [(sign, e)]


def differences(e: Expr, operands: Sequence[Value]) -> Iterator[Difference]:
    """The ways to see `e`, an exponent over `operands`, as a difference."""
    addends = _addends(e)
    if len(addends) < 2:
        return
    for m, (s, b) in enumerate(addends):
        source = operands[b.k].owner if isinstance(b, Arg) else None
        source = source if source is not None and source.name == "map" else None
        for n, (other, a) in enumerate(addends):
            if other == -s and not is_constant(a):
                rest = tuple(
                    ("add" if x > 0 else "sub", r)
                    for k, (x, r) in enumerate(addends)
                    if k not in (n, m)
                )
                yield Difference(a, source, b, s > 0, rest)


def leaves_to(
    y: Expr,
    leaf: Callable[[Expr, Expr], Expr | None],
    condition: Callable[[Expr], Expr] = lambda c: c,
) -> Expr | None:
    """`y` in which `leaf(x, c)` stands for each x * c below `where`, `maximum` and `minimum`."""

    def go(y: Expr) -> Expr | None:
        match y:
            case Call("where", (cond, a, b)) if _is_test(cond):
                parts = go(a), go(b)
                if parts[0] is None or parts[1] is None:
                    return None
                return call("where", condition(cond), parts[0], parts[1])
            case Call("maximum" | "minimum" as fn, (a, b)):
                parts = go(a), go(b)
                if parts[0] is None or parts[1] is None:
                    return None
                return call(fn, parts[0], parts[1])
        x, c = scaled(y)
        if c != Const(1.0) and is_choice(x):
            return go(_spread(x, c))
        return y if y in _FIXED else leaf(x, c)

    return go(y)


def scales(y: Expr) -> list[Expr]:
    """The c of all x * c below `where`, `maximum` and `minimum`."""
    found: list[Expr] = []

    def leaf(x: Expr, c: Expr) -> Expr:
        found.append(c)
        return x

    leaves_to(y, leaf)
    return found


def is_choice(y: Expr) -> bool:
    """Whether `y` is one of several numbers, and the same one where all are scaled alike."""
    match y:
        case Call("where", (cond, _, _)):
            return _is_test(cond)
        case Call("maximum" | "minimum"):
            return True
    return False


def _spread(y: Expr, c: Expr) -> Expr:
    """y * c with c at the leaves."""
    if c == Const(1.0) or y in _FIXED:
        return y
    match y:
        case Call("where", (cond, a, b)):
            return call("where", cond, _spread(a, c), _spread(b, c))
        case Call("maximum" | "minimum" as fn, (a, b)):
            return call(fn, _spread(a, c), _spread(b, c))
    x, inner = scaled(y)
    if isinstance(inner, Const) and isinstance(c, Const):
        return call("mul", x, Const(inner.value * c.value))
    return call("mul", y, c)


def _is_test(cond: Expr) -> bool:
    """Whether a condition compares a value with what a positive scale leaves as it is."""
    return isinstance(cond, Call) and cond.fn in _ORDER and cond.args[1] in _FIXED


def is_extreme(y: Expr, operands: Sequence[Value], kind: str) -> bool:
    """Whether `y` is a running or final extreme of that kind, or passes it."""
    y, _ = scaled(y)
    match y:
        case Arg(k):
            return _reducer(operands[k]) == kind
        case Call("where", (cond, a, b)) if _is_test(cond):
            return any(is_extreme(x, operands, kind) for x in (a, b))
        case Call(fn, args) if fn == _EXTREMA[kind]:
            return any(is_extreme(x, operands, kind) for x in args)
    return False


def _reducer(v: Value) -> str:
    op = v.owner
    if op is not None and op.name == "stream":
        op = op.body.terminator.operands[op.results.index(v)].owner
    return str(op.attrs["kind"]) if op is not None and op.name in ("update", "reduce") else ""

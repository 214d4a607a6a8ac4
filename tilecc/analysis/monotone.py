"""In which direction an expression moves with one of its leaves, and its inverse in that leaf."""

from __future__ import annotations

from collections.abc import Callable, Container

from tilecc.analysis.signs import NEG, POS, ZERO, SignEnv, signs, within
from tilecc.ir.expr import Acc, Arg, Call, Cast, Const, Expr, Old, call, walk

_INCREASING = {"exp", "exp2", "log", "log2", "sqrt", "tanh", "sigmoid", "floor"}


def depends(e: Expr, leaf: Expr) -> bool:
    """Whether `leaf` occurs in `e`."""
    return any(n == leaf for n in walk(e))


def _sign(e: Expr, positive: Container[int]) -> int | None:
    """1 if `e` cannot be negative, -1 if it cannot be positive, None if it may be both."""
    ks = {n.k for n in walk(e) if isinstance(n, Arg | Old)}
    finite = NEG | ZERO | POS
    known = {k: POS if k in positive else finite for k in ks}
    s = signs(e, SignEnv(known, known, finite, floats=False))
    return 1 if within(s, ZERO | POS) else -1 if within(s, NEG | ZERO) else None


def monotone(e: Expr, leaf: Expr, positive: Container[int] = ()) -> int | None:
    """1 if `e` never falls as `leaf` grows, -1 if it never rises, 0 if free of it, else None."""
    if e == leaf:
        return 1
    if not depends(e, leaf):
        return 0
    if isinstance(e, Cast):
        return monotone(e.arg, leaf, positive)
    if not isinstance(e, Call):
        return None
    d = [monotone(a, leaf, positive) for a in e.args]
    if e.fn == "where":
        return None if d[0] != 0 else _join(d[1], d[2])
    if e.fn in ("add", "maximum", "minimum"):
        return _join(d[0], d[1])
    if e.fn == "sub":
        return _join(d[0], _scale(d[1], -1))
    if e.fn == "neg":
        return _scale(d[0], -1)
    if e.fn in _INCREASING:
        return d[0]
    if e.fn == "rsqrt":
        return _scale(d[0], -1)
    if e.fn in ("mul", "div"):
        by = [_sign(a, positive) for a in e.args]
        over = -1 if e.fn == "div" else 1
        return _join(_scale(d[0], by[1]), _scale(d[1], None if by[0] is None else by[0] * over))
    return None


def _scale(d: int | None, by: int | None) -> int | None:
    if d == 0:
        return 0
    return None if d is None or by is None else d * by


def _join(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return None
    if a == 0 or b == 0 or a == b:
        return a or b
    return None


# t = f(y, c) solved for y. Functions that saturate (tanh, sigmoid) are left out: in floats they
# have no inverse.
_LEFT: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda t, c: call("sub", t, c),
    "sub": lambda t, c: call("add", t, c),
    "mul": lambda t, c: call("div", t, c),
    "div": lambda t, c: call("mul", t, c),
}
_RIGHT: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda t, c: call("sub", t, c),
    "sub": lambda t, c: call("sub", c, t),
    "mul": lambda t, c: call("div", t, c),
    "div": lambda t, c: call("div", c, t),
}
_UNARY: dict[str, Callable[[Expr], Expr]] = {
    "neg": lambda t: call("neg", t),
    "exp": lambda t: call("log", t),
    "exp2": lambda t: call("log2", t),
    "log": lambda t: call("exp", t),
    "log2": lambda t: call("exp2", t),
    "sqrt": lambda t: call("pow", t, Const(2.0)),
}


def inverse(f: Expr, x: int) -> Expr | None:
    """y with f = Acc() at Arg(x) = y, if Arg(x) occurs once in `f`, under invertible functions."""
    if sum(n == Arg(x) for n in walk(f)) != 1:
        return None
    e = f
    t: Expr = Acc()
    while e != Arg(x):
        if isinstance(e, Cast) and e.to.kind == "float":
            e = e.arg
            continue
        if not isinstance(e, Call):
            return None
        side = next(k for k, a in enumerate(e.args) if depends(a, Arg(x)))
        if len(e.args) == 1 and e.fn in _UNARY:
            t = _UNARY[e.fn](t)
        elif len(e.args) == 2 and e.fn in _LEFT:
            t = (_LEFT if side == 0 else _RIGHT)[e.fn](t, e.args[1 - side])
        else:
            return None
        e = e.args[side]
    return t

"""Which of -inf, negative, zero, positive, inf and NaN an expression can be.

Expressions are evaluated over sets of these six classes. That is enough to prove what happens at a
reducer's identity: `exp2(-inf - finite)` is zero and nothing else, `0 * inf` shows up as NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from tilecc.ir.expr import Acc, Arg, Call, Cast, Const, Expr, Extent, Index, Old

Signs = int
"""A set of classes: a sum of the bits below."""

NEG_INF, NEG, ZERO, POS, POS_INF, NAN = (1 << k for k in range(6))
FINITE = NEG | ZERO | POS
NOT_NAN = NEG_INF | FINITE | POS_INF
ANY = NOT_NAN | NAN
# Predicates are evaluated to sets of truth values.
FALSE, TRUE = 64, 128
EITHER = FALSE | TRUE

_ORDER = {NEG_INF: 0, NEG: 1, ZERO: 2, POS: 3, POS_INF: 4}
_MIRROR = {NEG_INF: POS_INF, NEG: POS, ZERO: ZERO, POS: NEG, POS_INF: NEG_INF, NAN: NAN}


@dataclass(frozen=True)
class SignEnv:
    """Classes of the leaves.

    floats: exponentials of finite numbers may underflow and, unless `overflow` is off, overflow.
    """

    args: dict[int, Signs] = field(default_factory=dict)
    old: dict[int, Signs] = field(default_factory=dict)
    acc: Signs = ANY
    floats: bool = True
    overflow: bool = True


def of_number(x: bool | int | float) -> Signs:
    """The class of a number."""
    if isinstance(x, bool):
        return TRUE if x else FALSE
    if math.isnan(x):
        return NAN
    if math.isinf(x):
        return POS_INF if x > 0 else NEG_INF
    return ZERO if x == 0 else POS if x > 0 else NEG


def single(s: Signs) -> bool:
    """Whether `s` is one class only."""
    return s != 0 and s & (s - 1) == 0


def within(s: Signs, bound: Signs) -> bool:
    """Whether `s` has classes of `bound` only."""
    return s & ~bound == 0


def signs(e: Expr, env: SignEnv) -> Signs:
    """The classes that `e` can have."""
    match e:
        case Const(value):
            return of_number(value)
        case Arg(k):
            return env.args.get(k, ANY)
        case Old(k):
            return env.old.get(k, ANY)
        case Acc():
            return env.acc
        case Index():
            return ZERO | POS
        case Extent():
            return POS  # over an empty axis there is nothing to prove
        case Cast(arg, to):
            s = _counted(signs(arg, env))
            # Towards 0: what is less than 1 becomes 0, and what is no finite number anything.
            return s if to.kind == "float" else s | ZERO if within(s, FINITE) else ANY
        case Call(fn, args):
            return _call(fn, tuple(signs(a, env) for a in args), args, env)
    raise TypeError(f"not an expression: {e!r}")


def _call(fn: str, args: tuple[Signs, ...], exprs: tuple[Expr, ...], env: SignEnv) -> Signs:
    if fn == "where":
        cond, a, b = args
        return (a if cond & TRUE else 0) | (b if cond & FALSE else 0) or (a | b)
    if fn in ("or", "xor", "and", "not"):
        return _logic(fn, args)
    args = tuple(map(_counted, args))
    if fn in _LOGIC:
        return _logic(fn, args)
    if fn in ("sub", "maximum", "minimum") and exprs[0] == exprs[1] and within(args[0], FINITE):
        return ZERO if fn == "sub" else args[0]
    if fn == "pow":
        base = exprs[0]
        if isinstance(base, Const) and 1 < base.value < math.inf:
            return _exponential(args[1], env)
        return _power(args[0], exprs[1])
    if fn in ("exp", "exp2"):
        return _exponential(args[0], env)
    if fn in _UNARY:
        out = 0
        for bit in _bits(args[0]):
            out |= _UNARY[fn].get(bit, NAN)
        return out
    if fn in _BINARY:
        return _lift(fn, *args)
    return ANY


def _counted(s: Signs) -> Signs:
    """Truth values as the numbers that they count as, 0 and 1."""
    return s & ANY | (ZERO if s & FALSE else 0) | (POS if s & TRUE else 0)


def _exponential(s: Signs, env: SignEnv) -> Signs:
    out = ZERO if s & NEG_INF else 0
    out |= (POS if s & FINITE else 0) | (POS_INF if s & POS_INF else 0) | (s & NAN)
    if env.floats:
        out |= (ZERO if s & NEG else 0) | (POS_INF if s & POS and env.overflow else 0)
    return out


@lru_cache(maxsize=4096)
def _lift(fn: str, a: Signs, b: Signs) -> Signs:
    f = _BINARY[fn]
    out = 0
    for x in _bits(a):
        for y in _bits(b):
            out |= NAN if NAN in (x, y) else f(x, y)
    return out


def _bits(s: Signs) -> list[Signs]:
    return [1 << k for k in range(6) if s >> k & 1]


def _add(x: Signs, y: Signs) -> Signs:
    if {x, y} == {NEG_INF, POS_INF}:
        return NAN
    for inf in (NEG_INF, POS_INF):
        if inf in (x, y):
            return inf
    if ZERO in (x, y):
        return x | y if x == y else (x | y) & ~ZERO
    return x if x == y else FINITE


def _mul(x: Signs, y: Signs) -> Signs:
    infinite = x in (NEG_INF, POS_INF) or y in (NEG_INF, POS_INF)
    if ZERO in (x, y):
        return NAN if infinite else ZERO
    negative = (x in (NEG_INF, NEG)) != (y in (NEG_INF, NEG))
    if infinite:
        return NEG_INF if negative else POS_INF
    return NEG if negative else POS


def _div(x: Signs, y: Signs) -> Signs:
    if y in (NEG_INF, POS_INF):
        return NAN if x in (NEG_INF, POS_INF) else ZERO
    if y == ZERO:  # of either sign
        return NAN if x == ZERO else NEG_INF | POS_INF
    return _mul(x, y)


def _max(x: Signs, y: Signs) -> Signs:
    return x if _ORDER[x] >= _ORDER[y] else y


def _min(x: Signs, y: Signs) -> Signs:
    return x if _ORDER[x] <= _ORDER[y] else y


_BINARY: dict[str, Callable[[Signs, Signs], Signs]] = {
    "add": _add,
    "sub": lambda x, y: _add(x, _MIRROR[y]),
    "mul": _mul,
    "div": _div,
    "maximum": _max,
    "minimum": _min,
}
_ODD = {NEG_INF: NEG_INF, NEG: NEG, ZERO: ZERO, POS: POS, POS_INF: POS_INF}
_UNARY: dict[str, dict[Signs, Signs]] = {
    "neg": _MIRROR,
    "abs": {NEG_INF: POS_INF, NEG: POS, ZERO: ZERO, POS: POS, POS_INF: POS_INF},
    "log": {ZERO: NEG_INF, POS: FINITE, POS_INF: POS_INF},
    "log2": {ZERO: NEG_INF, POS: FINITE, POS_INF: POS_INF},
    "sqrt": {ZERO: ZERO, POS: POS, POS_INF: POS_INF},
    "rsqrt": {ZERO: POS_INF, POS: POS, POS_INF: ZERO},
    "tanh": _ODD | {NEG_INF: NEG, POS_INF: POS},
    "sigmoid": {NEG_INF: ZERO, NEG: ZERO | POS, ZERO: POS, POS: POS, POS_INF: POS},
    "sin": {NEG: FINITE, ZERO: ZERO, POS: FINITE},
    "cos": {NEG: FINITE, ZERO: POS, POS: FINITE},
    "floor": _ODD | {POS: ZERO | POS},
}
_LOGIC = {"or", "xor", "and", "not", "eq", "ne", "lt", "le", "gt", "ge"}


def _power(base: Signs, exponent: Expr) -> Signs:
    if not isinstance(exponent, Const) or not math.isfinite(exponent.value):
        return ANY
    n = exponent.value
    if n == 0:
        return POS
    out = 0
    for bit in _bits(base):
        if bit == NAN or (bit == NEG and n != int(n)):
            out |= NAN
        elif bit in (NEG, NEG_INF) and n % 2 != 1:
            bit = _MIRROR[bit]
        if bit != NAN:
            out |= bit if n > 0 else _div(POS, bit)
    return out


def _logic(fn: str, args: tuple[Signs, ...]) -> Signs:
    if fn == "not":
        return (TRUE if args[0] & FALSE else 0) | (FALSE if args[0] & TRUE else 0) or EITHER
    if fn in ("or", "and", "xor"):
        return _connective(fn, *args)
    out = 0
    for x in _bits(args[0]):
        for y in _bits(args[1]):
            out |= _compare(fn, x, y)
    return out or EITHER


def _compare(fn: str, x: Signs, y: Signs) -> Signs:
    if NAN in (x, y):
        return TRUE if fn == "ne" else FALSE
    if x == y and x in (NEG, POS):
        return EITHER
    a, b = _ORDER[x], _ORDER[y]
    truth = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[fn]
    return TRUE if truth else FALSE


def _connective(fn: str, a: Signs, b: Signs) -> Signs:
    out = 0
    for x in (FALSE, TRUE):
        for y in (FALSE, TRUE):
            if a & x and b & y:
                p, q = x == TRUE, y == TRUE
                truth = {"or": p or q, "and": p and q, "xor": p != q}[fn]
                out |= TRUE if truth else FALSE
    return out or EITHER

"""Ranges of floating-point expressions, with infinities: enough to see what a masked score becomes.

A span (lo, hi) says that a value lies between two numbers unless it is NaN for other reasons. BIG
stands for "some finite number": tensors that come from outside are taken to be finite here, since
what infinities and NaN at a masked position do is left open (a tile may be skipped).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilecc.ir.expr import FUNCTIONS

Span = tuple[float, float]
BIG = 1e300
ALL: Span = (-math.inf, math.inf)
FINITE: Span = (-BIG, BIG)
TRUTH: Span = (0.0, 1.0)

_RISING = {"exp", "exp2", "log", "log2", "sqrt", "tanh", "sigmoid", "floor"}
_FALLING = {"neg", "rsqrt"}
_DOMAIN = {"log": 0.0, "log2": 0.0, "sqrt": 0.0, "rsqrt": 0.0}


def union(a: Span, b: Span) -> Span:
    """The least span around both."""
    return min(a[0], b[0]), max(a[1], b[1])


def apply(fn: str, args: tuple[Span, ...]) -> Span:
    """The span of `fn` over spans; ALL where it may be NaN or nothing is known."""
    if FUNCTIONS[fn].kind == "bool":
        return TRUTH
    if fn in _RISING | _FALLING and args[0][0] < _DOMAIN.get(fn, -math.inf):
        return ALL
    corners = _CORNERS.get(fn)
    if corners is None and fn not in _RISING | _FALLING:
        return ALL
    points = corners(*args) if corners else [_number(fn, x) for x in args[0]]
    if any(math.isnan(p) for p in points):
        return ALL
    if all(math.isfinite(e) for a in args for e in a) and fn not in ("log", "log2", "rsqrt"):
        points = [min(max(p, -BIG), BIG) for p in points]
    return min(points), max(points)


def _number(fn: str, *xs: float) -> float:
    with np.errstate(all="ignore"):
        return float(FUNCTIONS[fn].numpy(*map(np.float64, xs)))


def _each(f: Callable[[float, float], float]) -> Callable[[Span, Span], list[float]]:
    return lambda a, b: [f(x, y) for x in a for y in b]


def _divide(a: Span, b: Span) -> list[float]:
    if b[0] <= 0.0 <= b[1]:
        return [math.nan]
    return [_number("div", x, y) for x in a for y in b]


def _power(a: Span, b: Span) -> list[float]:
    # Rising in a positive base for a fixed positive exponent; nothing else is needed.
    if b[0] != b[1] or b[0] <= 0 or a[0] < 0:
        return [math.nan]
    return [_number("pow", x, b[0]) for x in a]


def _absolute(a: Span) -> list[float]:
    inside = [0.0] if a[0] <= 0.0 <= a[1] else []
    return [abs(a[0]), abs(a[1]), *inside]


def _wave(a: Span) -> list[float]:
    return [-1.0, 1.0] if math.isfinite(a[0] + a[1]) else [math.nan]


_CORNERS: dict[str, Callable[..., list[float]]] = {
    "add": _each(lambda x, y: x + y),
    "sub": _each(lambda x, y: x - y),
    # A number times 0 is 0, an infinity times 0 is NaN: corners that meet 0 with an infinity.
    "mul": _each(lambda x, y: x * y),
    "div": _divide,
    "maximum": lambda a, b: [max(a[0], b[0]), max(a[1], b[1])],
    "minimum": lambda a, b: [min(a[0], b[0]), min(a[1], b[1])],
    "pow": _power,
    "abs": _absolute,
    "sin": _wave,
    "cos": _wave,
}

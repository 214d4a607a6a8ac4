"""Arithmetic that numpy does not have: fused multiply-add, directed rounding, flush to zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilecc.emulator.types import Array

_LEAST_EXPONENT: tuple[tuple[Any, int], ...] = (
    (np.float16, -14),
    (ml_dtypes.bfloat16, -126),
    (np.float32, -126),
    (np.float64, -1022),
)
_SMALLEST_NORMAL = {
    np.dtype(t): np.array(2.0**exponent).astype(t) for t, exponent in _LEAST_EXPONENT
}


def flush(x: Array) -> Array:
    """Subnormal numbers to zero of their sign (.ftz)."""
    small = np.abs(x) < _SMALLEST_NORMAL[x.dtype]
    if small.any():
        return np.where(small, np.copysign(x.dtype.type(0), x), x)
    return x


def saturate(x: Array) -> Array:
    """To [0, 1], NaN to 0 (.sat)."""
    out: Array = np.fmin(np.fmax(x, x.dtype.type(0)), x.dtype.type(1))
    return out


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum, and what rounding left out (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded product of doubles, and what rounding left out (Dekker)."""
    split = np.float64(134217729)  # 2**27 + 1
    p = a * b
    ah = a * split - (a * split - a)
    bh = b * split - (b * split - b)
    al, bl = a - ah, b - bh
    error = ((ah * bh - p) + ah * bl + al * bh) + al * bl
    return p, np.where(np.isfinite(error), error, 0.0)


def to_odd(total: Array, error: Array) -> Array:
    """A double rounded to odd: rounding it again to fewer bits rounds as if once."""
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + step, bits).view(np.float64)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in double; the last bit may be off where three terms nearly cancel."""
    p, low = two_product(a, b)
    total, error = two_sum(p, c)
    out = total + (error + low)
    return np.where(np.isfinite(out), out, a * b + c)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in single, rounded once."""
    p = a.astype(np.float64) * b
    total = np.asarray(p + c)
    bits = total.view(np.int64)
    halfway = bits & 0x1FFFFFFF == 0x10000000  # a second rounding could go the other way
    tiny = np.abs(total) < 2.0**-125
    if halfway.any() or (tiny & (total != 0)).any():
        total = to_odd(*two_sum(p, c.astype(np.float64)))
    return total.astype(np.float32)


def narrow(x: Array, dtype: np.dtype[Any]) -> Array:
    """Doubles to a 16-bit type (to nearest even)."""
    if dtype == np.float16:
        return x.astype(np.float16)
    single = x.astype(np.float32)
    bits = single.view(np.uint32)
    inexact = np.isfinite(single) & (single != x) & (bits & 1 == 0)
    away = np.abs(x) > np.abs(single)
    odd = np.where(inexact, np.where(away, bits + np.uint32(1), bits - np.uint32(1)), bits)
    return odd.view(np.float32).astype(dtype)


def fma16(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of a 16-bit type, rounded once."""
    wide = np.float64
    total = to_odd(*two_sum(a.astype(wide) * b.astype(wide), c.astype(wide)))
    return narrow(total, a.dtype)


Rounder = Callable[[Array, Array], Array]
"""(nearest value, sign of exact minus nearest) to the value that a mode rounds to."""


def _towards(x: Array, goal: float, where: Array) -> Array:
    return np.where(where, np.nextafter(x, x.dtype.type(goal)), x)


def _to_zero(x: Array, rest: Array) -> Array:
    past = np.where(x > 0, rest < 0, (x < 0) & (rest > 0))
    return np.where(past, np.nextafter(x, x.dtype.type(0)), x)


DIRECTED: dict[str, Rounder] = {
    "rm": lambda x, rest: _towards(x, -np.inf, rest < 0),
    "rp": lambda x, rest: _towards(x, np.inf, rest > 0),
    "rz": _to_zero,
}


def add_directed(a: Array, b: Array, mode: str) -> Array:
    """a + b in single, rounded as `mode` says."""
    total, error = two_sum(a.astype(np.float64), b.astype(np.float64))
    return directed(total, error, mode)


def multiply_directed(a: Array, b: Array, mode: str) -> Array:
    """a * b in single, rounded as `mode` says."""
    exact = a.astype(np.float64) * b
    return directed(exact, np.zeros_like(exact), mode)


def fma_directed(a: Array, b: Array, c: Array, mode: str) -> Array:
    """a * b + c in single, rounded as `mode` says."""
    total, error = two_sum(a.astype(np.float64) * b, c.astype(np.float64))
    return directed(total, error, mode)


def divide_directed(a: Array, b: Array, mode: str) -> Array:
    """a / b in single, rounded as `mode` says."""
    nearest = a / b
    rest = (a.astype(np.float64) - nearest.astype(np.float64) * b) * np.sign(b)
    return np.where(np.isfinite(nearest) & (b != 0), DIRECTED[mode](nearest, rest), nearest)


def root_directed(a: Array, mode: str) -> Array:
    """Square root in single, rounded as `mode` says."""
    nearest = np.sqrt(a)
    rest = a.astype(np.float64) - nearest.astype(np.float64) ** 2
    return np.where(np.isfinite(nearest), DIRECTED[mode](nearest, rest), nearest)


def directed(total: Array, error: Array, mode: str) -> Array:
    """total + error (exact, doubles) in single."""
    nearest = total.astype(np.float32)
    rest = (total - nearest.astype(np.float64)) + np.where(np.isfinite(error), error, 0.0)
    rest = np.where(np.isinf(nearest) & np.isfinite(total), -np.sign(total), rest)
    return DIRECTED[mode](nearest, rest)

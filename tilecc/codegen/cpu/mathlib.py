"""The functions of the expression table as TIR: one entry point, `lower`, and tables by type.

Arithmetic follows numpy where TVM's does not: NaN goes through comparisons and `maximum`, a product
with a constant zero stays NaN for NaN and infinity, and integer division rounds down, gives 0 for a
divisor of 0 and does not trap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu import elementary
from tilecc.codegen.cpu.casts import cast, from_memory, to_memory
from tilecc.codegen.cpu.elementary import const, dtype_of, equal, let, not_, ordered, select
from tilecc.codegen.cpu.isa import Isa
from tilecc.ir import philox
from tilecc.ir.dtypes import DType

__all__ = ["cast", "from_memory", "lower", "to_memory"]

PrimExpr = Any
Lowering = Callable[..., PrimExpr]


def lower(fn: str, args: Sequence[PrimExpr], t: DType, isa: Isa) -> PrimExpr:
    """A function of the expression table applied to arguments of the register type of `t`.

    Comparisons and logic give a bool, `where` takes one first, and everything else gives the
    arguments' type. An argument may stand in the result more than once: where the function needs
    that, it is bound by a `Let`.

    Raises:
        KeyError: the table has no such function for that type.
    """
    if fn in _LOGIC:
        return _LOGIC[fn](*args)
    if t.kind != "float":
        return _INTEGER[fn](*args)
    if fn in _FLOAT:
        return _FLOAT[fn](*args)
    if fn == "pow":
        base, exponent = args
        return _pow(base, exponent, isa)
    if t.bits == 64:
        return _F64[fn](*args)
    return _F32[fn](*args, isa)


def _same(a: PrimExpr, b: PrimExpr) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))


def _is(x: PrimExpr, value: float) -> bool:
    return isinstance(x, tirx.FloatImm) and float(x.value) == value


def _finite_else_nan(x: PrimExpr, value: PrimExpr) -> PrimExpr:
    return select(T.abs(x) < const(math.inf, x), value, const(math.nan, x))


def _eq(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    # TVM folds x == x, which is how people ask for NaN.
    return ordered(a) if _float(a) and _same(a, b) else equal(a, b)


def _float(x: PrimExpr) -> bool:
    return dtype_of(x).startswith("float")


def _sub(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return _finite_else_nan(a, const(0.0, a)) if _same(a, b) else a - b


def _mul(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    for x, y in ((a, b), (b, a)):
        if _is(x, 0.0) and not isinstance(y, tirx.FloatImm):
            return _finite_else_nan(y, const(0.0, y))
    return a * b


def _div(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    if _is(b, 0.0):
        return a * const(math.copysign(math.inf, float(b.value)), a)
    if _is(a, 0.0) and not isinstance(b, tirx.FloatImm):
        return select(T.abs(b) > const(0.0, b), a, const(math.nan, b))
    return a / b


def _divisor(b: PrimExpr) -> PrimExpr:
    """`b`, but 1 for 0 and -1: dividing by those traps (the least integer by -1 does, on x86).

    The division must not stand in a branch of a Select: there TVM knows the condition, and puts `b`
    back.
    """
    return select(tirx.And(b <= const(0, b), b >= const(-1, b)), const(1, b), b)


def _floordiv(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    if isinstance(b, tirx.IntImm):
        return tirx.floordiv(a, b) if int(b.value) else const(0, a)

    def by(b: PrimExpr) -> PrimExpr:
        sign = select(equal(b, const(-1, b)), const(-1, b), const(1, b))
        return tirx.floordiv(a, _divisor(b)) * select(equal(b, const(0, b)), const(0, b), sign)

    return let(b, by)


def _mod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    if isinstance(b, tirx.IntImm):
        return tirx.floormod(a, b) if int(b.value) else const(0, a)
    return let(b, lambda b: tirx.floormod(a, _divisor(b)))


def _ceildiv(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return const(0, a) - _floordiv(const(0, a) - a, b)


def _philox(seed: PrimExpr, *counters: PrimExpr) -> PrimExpr:
    """The first word of Philox4x32-10: words are kept in 64 bits, which hold their products."""
    wide = elementary.retype(seed, "uint64")
    mask, shift = tirx.const(philox.WORD, wide), tirx.const(32, wide)
    multipliers = [tirx.const(m, wide) for m in philox.MULTIPLIERS]

    def word(x: PrimExpr) -> PrimExpr:
        return T.cast(x, wide) & mask

    def rounds(n: int, c: Sequence[PrimExpr], keys: Sequence[PrimExpr]) -> PrimExpr:
        if n == philox.ROUNDS:
            return T.cast(c[0], dtype_of(seed))
        steps = (tirx.const(n * w & philox.WORD, wide) for w in philox.WEYL)
        k0, k1 = ((k + step) & mask for k, step in zip(keys, steps, strict=True))

        def after(p0: PrimExpr, p1: PrimExpr) -> PrimExpr:
            high = (p1 >> shift) ^ c[1] ^ k0, (p0 >> shift) ^ c[3] ^ k1
            return rounds(n + 1, (high[0], p1 & mask, high[1], p0 & mask), keys)

        first, second = c[0] * multipliers[0], c[2] * multipliers[1]
        return let(first, lambda p0: let(second, lambda p1: after(p0, p1)))

    key = T.cast(seed, wide)
    words = [word(c) for c in counters]
    return let(key & mask, lambda k0: let(key >> shift, lambda k1: rounds(0, words, (k0, k1))))


def _pow(a: PrimExpr, b: PrimExpr, isa: Isa) -> PrimExpr:
    """Products or roots for some constant exponents, `exp2`, else the C library lane by lane."""
    if isinstance(b, tirx.FloatImm) and float(b.value) in _POWERS:
        return let(a, _POWERS[float(b.value)])
    if _is(a, 2.0) and dtype_of(a) == "float32":
        return elementary.exp2(b, isa)
    return T.pow(a, b)


def _libm(name: str) -> Lowering:
    """A function of the C library in f64, one call per lane."""
    return lambda *args: tirx.call_pure_extern(dtype_of(args[0]), name, *args)


_POWERS: Mapping[float, Lowering] = {
    -1.0: lambda x: const(1.0, x) / x,
    -0.5: lambda x: const(1.0, x) / T.sqrt(x),
    0.5: lambda x: T.sqrt(x),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    4.0: lambda x: let(x * x, lambda y: y * y),
}
_LOGIC: Mapping[str, Lowering] = {
    "and": lambda a, b: tirx.And(a, b),
    "or": lambda a, b: tirx.Or(a, b),
    "xor": lambda a, b: a ^ b,
    "not": not_,
    "eq": _eq,
    "ne": lambda a, b: not_(_eq(a, b)) if _float(a) else tirx.NE(a, b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: ordered(a) if _float(a) and _same(a, b) else a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: ordered(a) if _float(a) and _same(a, b) else a >= b,
    "where": select,
}
_INTEGER: Mapping[str, Lowering] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: const(0, a) - a,
    "abs": lambda a: let(a, lambda a: select(a < const(0, a), const(0, a) - a, a)),
    "maximum": lambda a, b: tirx.max(a, b),
    "minimum": lambda a, b: tirx.min(a, b),
    "floordiv": _floordiv,
    "mod": _mod,
    "ceildiv": _ceildiv,
    "philox": _philox,
}
_FLOAT: Mapping[str, Lowering] = {
    "add": lambda a, b: a + b,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": lambda a: a * const(-1.0, a),
    "abs": lambda a: T.abs(a),
    "maximum": elementary.maximum,
    "minimum": elementary.minimum,
    "floor": lambda a: T.floor(a),
    "sqrt": lambda a: T.sqrt(a),
    "rsqrt": lambda a: const(1.0, a) / T.sqrt(a),
}
_F32: Mapping[str, Lowering] = {
    "exp": elementary.exp,
    "exp2": elementary.exp2,
    "log": elementary.log,
    "log2": elementary.log2,
    "tanh": elementary.tanh,
    "sigmoid": elementary.sigmoid,
    "sin": elementary.sin,
    "cos": elementary.cos,
}
_F64: Mapping[str, Lowering] = {
    "exp": _libm("exp"),
    "exp2": _libm("exp2"),
    "log": _libm("log"),
    "log2": _libm("log2"),
    "tanh": _libm("tanh"),
    "sigmoid": lambda x: const(1.0, x) / (const(1.0, x) + _libm("exp")(x * const(-1.0, x))),
    "sin": _libm("sin"),
    "cos": _libm("cos"),
}

"""Elementary functions in f32 as TIR expressions that become vector code.

TVM turns exp, log, tanh and so on into one call of the C library per lane. The functions here are
arithmetic, selects, shifts and rounding alone, so the same expression serves a scalar, one lane of
a vectorised loop (`with T.vectorized(0, 16) as v`) and an explicit vector. Range reductions and the
shape of log, sin and cos are those of Cephes (Moshier, single precision); coefficients of 2**x and
e**x are minimax fits with p(0) = 1 exactly.

Products feeding a sum become fused multiply-adds where the target has them; nothing here depends
on that for its accuracy. Two of TVM's rules want care: it folds `x != x` to false and turns the
negation of `a < b` into `b <= a`, so a test for NaN is `ordered(x)` and negation is `not_`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.isa import Isa

PrimExpr = Any

# 2**f for f in [0, 1] and e**f for f in [0, ln 2]: relative error 8.3e-8 each, lowest power first.
_EXP2 = (1.0, 0.6931512951850891, 0.2401645928621292, 0.05579951405525207,
         0.009017480537295341, 0.0018669525161385536)  # fmt: skip
_EXP = (1.0, 1.0000059604644775, 0.49987083673477173, 0.16755488514900208,
        0.039062704890966415, 0.011669319123029709)  # fmt: skip
# (log(1 + f) - f + f**2 / 2) / f**3 for 1 + f in [sqrt(1/2), sqrt(2)] (Cephes logf).
_LOG = (3.3333331174e-1, -2.4999993993e-1, 2.0000714765e-1, -1.6668057665e-1, 1.4249322787e-1,
        -1.2420140846e-1, 1.1676998740e-1, -1.1514610310e-1, 7.0376836292e-2)  # fmt: skip
# (sin(f) / f - 1) / f**2 and (cos(f) - 1 + f**2 / 2) / f**4 for |f| <= pi / 4, in f**2 (Cephes).
_SIN = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
_COS = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
# tanh(x) / x as a ratio of polynomials in x**2 for |x| <= 7.905 (Eigen's ptanh).
_TANH_P = (4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08,
           -8.60467152213735e-11, 2.00018790482477e-13, -2.76076847742355e-16)  # fmt: skip
_TANH_Q = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04,
           1.19825839466702e-06)  # fmt: skip
_TANH_MAX = 7.90531110763549805

_LOG2E = math.log2(math.e)
# ln 2 in two parts, the first short enough for exact products with exponents.
_LN2_HI, _LN2_LO = 0.693359375, math.log(2) - 0.693359375
_MIN_NORMAL = 2.0**-126
_SQRT_HALF_BITS = 0x3F3504F3


def dtype_of(x: PrimExpr) -> str:
    """TVM's name of an expression's type, with lanes: `float32`, `float32x16`."""
    return str(x.ty)


def const(value: float | int | bool, like: PrimExpr) -> PrimExpr:
    """A constant of the type of `like`."""
    return tirx.const(value, dtype_of(like))


def retype(like: PrimExpr, scalar: str) -> str:
    """The type of `like` with another scalar type and as many lanes."""
    _, x, lanes = dtype_of(like).partition("x")
    return scalar + x + lanes


def let(value: PrimExpr, body: Callable[[PrimExpr], PrimExpr]) -> PrimExpr:
    """`body(value)` with the value computed once."""
    if isinstance(value, tirx.Var | tirx.IntImm | tirx.FloatImm):
        return body(value)
    var = tirx.Var("t", dtype_of(value))
    return tirx.Let(var, value, body(var))


def bits(x: PrimExpr) -> PrimExpr:
    """The bits of an f32 as an i32."""
    return T.reinterpret(retype(x, "int32"), x)


def from_bits(x: PrimExpr) -> PrimExpr:
    """The f32 that has the bits of an i32."""
    return T.reinterpret(retype(x, "float32"), x)


def horner(coefficients: Sequence[float], x: PrimExpr) -> PrimExpr:
    """A polynomial, lowest power first."""
    value = const(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        value = value * x + const(c, x)
    return value


def ordered(x: PrimExpr) -> PrimExpr:
    """Whether a float is not NaN."""
    return x >= const(-math.inf, x)


def equal(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """a == b, as an expression from the start."""
    return tirx.EQ(a, b)


def not_(c: PrimExpr) -> PrimExpr:
    """Negation, also of comparisons that are false because of a NaN."""
    return c ^ const(True, c)


def select(c: PrimExpr, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """`a` where `c`, else `b`; both are computed."""
    return tirx.Select(c, a, b)


def fast_maximum(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The larger one; `b` if either is NaN. One instruction."""
    return tirx.Select(a > b, a, b)


def fast_minimum(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The smaller one; `b` if either is NaN. One instruction."""
    return tirx.Select(a < b, a, b)


def maximum(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The larger one; NaN if either is NaN."""
    return let(a, lambda a: select(ordered(a), fast_maximum(a, b), a))


def minimum(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The smaller one; NaN if either is NaN."""
    return let(a, lambda a: select(ordered(a), fast_minimum(a, b), a))


def _clamp(x: PrimExpr, low: float, high: float) -> PrimExpr:
    """`x` within bounds; NaN stays."""
    return fast_maximum(const(low, x), fast_minimum(const(high, x), x))


def _to_int(x: PrimExpr) -> PrimExpr:
    return T.cast(x, retype(x, "int32"))


def _to_float(x: PrimExpr) -> PrimExpr:
    return T.cast(x, retype(x, "float32"))


def _x86(name: str, like: PrimExpr, *args: PrimExpr) -> PrimExpr:
    """An AVX-512 instruction on a whole register: no lane masked, rounding as set."""
    mask, rounding = tirx.const(-1, "int16"), tirx.const(4, "int32")
    name = f"llvm.x86.avx512.mask.{name}.ps.512"
    return tirx.call_llvm_pure_intrin(dtype_of(like), name, *args, like, mask, rounding)


def exp2(x: PrimExpr, isa: Isa) -> PrimExpr:
    """2**x: relative error 2e-7; 0 at -inf, inf from 128; results under 2**-126 lose precision.

    12 instructions, or 7 on explicit AVX-512 vectors.
    """
    if isa.has_scalef and dtype_of(x) == "float32x16":
        # vreduceps with rounding down is x - floor(x), and 0 at infinities; vscalefps floors.
        down = tirx.const(1, "int32")

        def scalef(x: PrimExpr) -> PrimExpr:
            return _x86("scalef", x, horner_let(_EXP2, _x86("reduce", x, x, down)), x)

        return let(x, scalef)

    def scaled(x: PrimExpr) -> PrimExpr:
        def at(n: PrimExpr) -> PrimExpr:
            # Adding n to the exponent's bits multiplies by 2**n, and gives 0 for 1 * 2**-127.
            return from_bits(bits(horner_let(_EXP2, x - n)) + (_to_int(n) << 23))

        return let(T.floor(x), at)

    return let(_clamp(x, -127.0, 128.0), scaled)


def horner_let(coefficients: Sequence[float], x: PrimExpr) -> PrimExpr:
    """`horner` of an expression that is computed once."""
    return let(x, lambda x: horner(coefficients, x))


def exp(x: PrimExpr, isa: Isa) -> PrimExpr:
    """e**x: relative error 3e-7; 0 at -inf, inf from 88.73; results under 2**-126 are 0."""
    vector = isa.has_scalef and dtype_of(x) == "float32x16"

    def reduced(x: PrimExpr) -> PrimExpr:
        def at(n: PrimExpr) -> PrimExpr:
            f = (x - n * const(_LN2_HI, x)) - n * const(_LN2_LO, x)
            p = horner_let(_EXP, f)
            if vector:
                return _x86("scalef", x, p, n)
            return p * from_bits((_to_int(n) + const(127, _to_int(n))) << 23)

        return let(T.floor(x * const(_LOG2E, x)), at)

    # e**-87.8 has exponent -127, whose scale is 0.
    return let(_clamp(x, -110.0 if vector else -87.8, 88.8), reduced)


def _log(x: PrimExpr, finish: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]) -> PrimExpr:
    """`finish(f, y, e)` for x = 2**e * (1 + f) and log(1 + f) = f + y, and the special values."""

    def split(x: PrimExpr) -> PrimExpr:
        small = x < const(_MIN_NORMAL, x)
        scaled = select(small, x * const(2.0**23, x), x)

        def mantissa(i: PrimExpr) -> PrimExpr:
            e = _to_float(i >> 23) - select(small, const(23.0, x), const(0.0, x))
            m = (i & const(0x7FFFFF, i)) + const(_SQRT_HALF_BITS, i)

            def value(f: PrimExpr) -> PrimExpr:
                z = f * f
                y = (f * horner(_LOG, f)) * z - const(0.5, f) * z
                return finish(f, y, e)

            return let(from_bits(m) - const(1.0, x), value)

        r = let(bits(scaled) - const(_SQRT_HALF_BITS, bits(scaled)), mantissa)
        inf, nan = const(math.inf, x), const(math.nan, x)
        positive = select(x < inf, r, x)
        return select(x > const(0.0, x), positive, select(x < const(0.0, x), nan, x - inf))

    return let(x, split)


def log(x: PrimExpr, isa: Isa) -> PrimExpr:
    """The natural logarithm: relative error 2e-7; -inf at 0, NaN below, denormals right."""

    def finish(f: PrimExpr, y: PrimExpr, e: PrimExpr) -> PrimExpr:
        return e * const(_LN2_HI, f) + (f + (y + e * const(_LN2_LO, f)))

    return _log(x, finish)


def log2(x: PrimExpr, isa: Isa) -> PrimExpr:
    """The logarithm to base 2: relative error 4e-7; special values as `log`."""

    def finish(f: PrimExpr, y: PrimExpr, e: PrimExpr) -> PrimExpr:
        # log2(e) = 1 + 0.4427: the part with 1 is exact.
        tail = const(_LOG2E - 1, f)
        return e + (f + (y + (f * tail + y * tail)))

    return _log(x, finish)


def tanh(x: PrimExpr, isa: Isa) -> PrimExpr:
    """tanh(x): relative error 5e-7, within [-1, 1]."""

    def ratio(x: PrimExpr) -> PrimExpr:
        z = x * x
        return let(z, lambda z: x * (horner(_TANH_P, z) / horner(_TANH_Q, z)))

    return let(_clamp(x, -_TANH_MAX, _TANH_MAX), ratio)


def sigmoid(x: PrimExpr, isa: Isa) -> PrimExpr:
    """1 / (1 + e**-x): relative error 5e-7; nothing overflows; results under 2**-128 are 0."""
    one = const(1.0, x)
    return one / (one + exp(const(-1.0, x) * x, isa))


def _quarter_turns(
    x: PrimExpr, value: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]
) -> PrimExpr:
    """`value(q, s, c)` for x = n * pi/2 + f, |f| <= pi/4, q = n mod 4, s = sin(f), c = cos(f).

    The reduction is in f64: f is right to f32's last bit or so while n * pi/2 is exact to 1e-9.
    """
    wide = retype(x, "float64")
    w = T.cast(x, wide)

    def d(v: float) -> PrimExpr:
        return tirx.const(v, wide)

    def at(n: PrimExpr) -> PrimExpr:
        f = T.cast((w - n * d(math.pi / 2)) - n * d(6.123233995736766e-17), dtype_of(x))
        q = T.cast(n - d(4.0) * T.floor(n * d(0.25)), dtype_of(x))

        def of(f: PrimExpr, q: PrimExpr) -> PrimExpr:
            f = _clamp(f, -0.7854, 0.7854)  # only where n * pi/2 is not right any more

            def polynomials(z: PrimExpr) -> PrimExpr:
                s = f + (f * z) * horner(_SIN, z)
                c = (const(1.0, z) - const(0.5, z) * z) + (z * z) * horner(_COS, z)
                return value(q, s, c)

            return let(f * f, polynomials)

        return let(f, lambda f: let(q, lambda q: of(f, q)))

    n = tirx.call_llvm_pure_intrin(wide, "llvm.roundeven", w * d(2 / math.pi))
    return let(n, at)


def sin(x: PrimExpr, isa: Isa) -> PrimExpr:
    """sin(x): absolute error 1e-7 for |x| up to 1e6; NaN at infinities."""

    def value(q: PrimExpr, s: PrimExpr, c: PrimExpr) -> PrimExpr:
        odd = equal(q, const(1.0, q)) | equal(q, const(3.0, q))
        sign = select(q >= const(2.0, q), const(-1.0, q), const(1.0, q))
        return sign * select(odd, c, s)

    return let(x, lambda x: _quarter_turns(x, value))


def cos(x: PrimExpr, isa: Isa) -> PrimExpr:
    """cos(x): as `sin`."""

    def value(q: PrimExpr, s: PrimExpr, c: PrimExpr) -> PrimExpr:
        odd = equal(q, const(1.0, q)) | equal(q, const(3.0, q))
        minus = equal(q, const(1.0, q)) | equal(q, const(2.0, q))
        return select(minus, const(-1.0, q), const(1.0, q)) * select(odd, s, c)

    return let(x, lambda x: _quarter_turns(x, value))

"""Element types in memory and in registers, and roundings between them, as TIR for vector loops.

A value is computed in its register type: f32 for floats below 32 bits, i32 for integers below. A
narrower value is one that the narrower type has, so that storing it loses nothing. Written out
because TVM's conversion to bf16 turns some NaNs into zero, and its conversions of 8-bit floats
drop zero, denormals and infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.elementary import (
    bits,
    const,
    equal,
    from_bits,
    let,
    not_,
    ordered,
    retype,
    select,
)
from tilecc.ir.dtypes import DType

PrimExpr = Any


@dataclass(frozen=True)
class _Format:
    """An 8-bit float: its name in TVM, mantissa bits, exponent bias, largest number.

    `special`: magnitudes from here on are not numbers; `overflow` is what a sum too large is.
    """

    name: str
    mantissa: int
    bias: int
    largest: float
    special: int
    overflow: float

    @property
    def drop(self) -> int:
        """Mantissa bits that f32 has more."""
        return 23 - self.mantissa

    @property
    def min_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def rebias(self) -> float:
        """What turns an exponent of this bias into one of f32's."""
        return 2.0 ** (127 - self.bias)


# float8_e4m3fn has no infinity: what overflows is NaN.
_FP8 = {
    "f8e4m3": _Format("float8_e4m3fn", 3, 7, 448.0, 0x7F, float("nan")),
    "f8e5m2": _Format("float8_e5m2", 2, 15, 57344.0, 0x7C, float("inf")),
}
_REGISTER = {"bool": "bool", "i64": "int64", "f64": "float64"}
_INF_BITS, _SIGN = 0x7F800000, -0x80000000


def register_name(t: DType) -> str:
    """TVM's name of the type in which values of type `t` are computed."""
    return _REGISTER.get(t.name, "float32" if t.kind == "float" else "int32")


def from_memory(x: PrimExpr, t: DType) -> PrimExpr:
    """An element of type `t`, as loaded, in its register type."""
    if t.name in _FP8:
        return decode_fp8(T.reinterpret(retype(x, "uint8"), x), t)
    if t.name == "bf16":
        raw = T.cast(T.reinterpret(retype(x, "uint16"), x), retype(x, "int32"))
        return from_bits(raw << 16)
    name = register_name(t)
    return x if name == str(x.ty).partition("x")[0] else T.cast(x, retype(x, name))


def to_memory(x: PrimExpr, t: DType) -> PrimExpr:
    """A value that type `t` has, in its register type, as the element to store."""
    if t.name in _FP8:
        return T.reinterpret(retype(x, _FP8[t.name].name), encode_fp8(x, t))
    if t.name == "bf16":
        half = T.cast(bits(x) >> 16, retype(x, "uint16"))
        return T.reinterpret(retype(x, "bfloat16"), half)
    if t.name == "f16":
        return T.cast(x, retype(x, "float16"))
    if t.kind == "int" and t.bits < 32:
        return T.cast(x, retype(x, f"{'uint' if t.name == 'u8' else 'int'}{t.bits}"))
    return x


def storage_name(t: DType) -> str:
    """The type of a buffer of our own whose bytes are those of elements of type `t`.

    TVM makes buffers of bf16 and fp8 wider to compute on them, wherever it can see all their uses:
    behind an address it cannot.
    """
    return f"uint{8 * t.bytes}" if t.name in {"bf16", *_FP8} else t.numpy.name


def stored(x: PrimExpr, t: DType) -> PrimExpr:
    """An element of type `t`, as `to_memory` gives it, as one of a buffer of `storage_name`."""
    name = storage_name(t)
    return x if name == t.numpy.name else T.reinterpret(retype(x, name), x)


def cast(x: PrimExpr, source: DType, to: DType) -> PrimExpr:
    """`x` of type `source` rounded to `to`, from register type to register type.

    Floats round to nearest even and become integers towards zero; integers wrap. NaN stays NaN.
    An f64 on its way below 32 bits rounds to f32 first.
    """
    if source is to:
        return x
    if to.name == "bool":
        return not_(equal(x, const(0, x)))
    name = register_name(to)
    if source.name == "bool":
        one = tirx.const(1, retype(x, name))
        return select(x, one, const(0, one))
    if name != register_name(source):
        x = T.cast(x, retype(x, name))
    if to.kind == "int" and to.bits < 32:
        small = f"{'uint' if to.name == 'u8' else 'int'}{to.bits}"
        return T.cast(T.cast(x, retype(x, small)), retype(x, name))
    if to.name == "bf16":
        return let(x, _round_bf16)
    if to.name == "f16":
        return T.cast(T.cast(x, retype(x, "float16")), retype(x, "float32"))
    if to.name in _FP8:
        form = _FP8[to.name]
        return let(x, lambda x: _round_fp8(x, form))
    return x


def _round_bf16(x: PrimExpr) -> PrimExpr:
    def at(i: PrimExpr) -> PrimExpr:
        rounded = i + (((i >> 16) & const(1, i)) + const(0x7FFF, i))
        quiet = i | const(0x400000, i)
        return from_bits(select(ordered(x), rounded, quiet) & const(-0x10000, i))

    return let(bits(x), at)


def _round_fp8(x: PrimExpr, form: _Format) -> PrimExpr:
    i = bits(x)
    sign = i & const(_SIGN, i)

    def at(a: PrimExpr) -> PrimExpr:
        last = const(1, a)
        half = const((1 << (form.drop - 1)) - 1, a)
        normal = (a + ((a >> form.drop) & last) + half) & const(-1 << form.drop, a)

        def of(rounded: PrimExpr) -> PrimExpr:
            # A step of the denormals is the smallest number: round in units of it.
            step = form.min_normal / 2**form.mantissa
            units = T.round(from_bits(a) * const(1 / step, x))
            denormal = units * const(step, x)
            normal_or_not = select(
                rounded <= const(form.largest, x), rounded, const(form.overflow, x)
            )
            magnitude = select(from_bits(a) < const(form.min_normal, x), denormal, normal_or_not)
            return select(ordered(x), from_bits(bits(magnitude) | sign), x)

        return let(from_bits(normal), of)

    return let(i & const(0x7FFFFFFF, i), at)


def encode_fp8(x: PrimExpr, t: DType) -> PrimExpr:
    """The byte of an f32 that the 8-bit float `t` has."""
    form = _FP8[t.name]

    def at(i: PrimExpr) -> PrimExpr:
        a = i & const(0x7FFFFFFF, i)
        # Numbers, denormals too, have their bits in the upper end once the exponent is rebiased.
        number = bits(from_bits(a) * const(1 / form.rebias, x)) >> form.drop
        nan = const(0x7F if form.special == 0x7F else 0x7E, i)
        other = select(a > const(_INF_BITS, i), nan, const(form.special, i))
        code = select(a < const(_INF_BITS, i), number, other)
        return T.cast(code | ((i >> 24) & const(0x80, i)), retype(x, "uint8"))

    return let(bits(x), at)


def decode_fp8(byte: PrimExpr, t: DType) -> PrimExpr:
    """The f32 that a byte stands for in the 8-bit float `t`."""
    form = _FP8[t.name]
    raw = T.cast(byte, retype(byte, "int32"))

    def at(i: PrimExpr) -> PrimExpr:
        magnitude = i & const(0x7F, i)
        shifted = magnitude << form.drop
        number = bits(from_bits(shifted) * tirx.const(form.rebias, retype(byte, "float32")))
        # e4m3's only special value is NaN, all ones; e5m2's keep their mantissas.
        special = shifted | const(_INF_BITS, i)
        value = select(magnitude < const(form.special, i), number, special)
        return from_bits(value | ((i & const(0x80, i)) << 24))

    return let(raw, at)

"""Scalar functions and casts as CUDA C++: what differs from the shared table, by name.

Meant for a compiler without fast math: infinities and NaN go through, division is IEEE's. exp2 is
one instruction (ex2.approx: 2 ulp, exp2(-inf) is 0, results below 2^-126 are 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu import casts as shared_casts
from tilecc.codegen.cpu import mathlib as shared
from tilecc.codegen.cpu.elementary import const, dtype_of, select
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.cuda.intrinsics import Intrinsics
from tilecc.ir.dtypes import DType

Prim = Any
"""A TIR expression."""

MEMORY = {
    "bool": "uint8",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f8e4m3": "uint8",
    "f8e5m2": "uint8",
    "bf16": "uint16",
    "f16": "uint16",
    "f32": "float32",
    "f64": "float64",
}
"""What elements are in memory, to TVM."""
HALVES = ("f16", "bf16")


def register_type(t: DType) -> str:
    """TVM's name of the type in which a value of type `t` is computed."""
    if t.name == "bool":
        return "bool"
    if t.bits == 64:
        return "float64" if t.kind == "float" else "int64"
    return "float32" if t.kind == "float" else "int32"


def _extern(name: str) -> Callable[..., Prim]:
    return lambda x: tirx.call_pure_extern(dtype_of(x), name, x)


_F32: Mapping[str, Callable[..., Prim]] = {
    "exp": _extern("expf"),
    "log": _extern("logf"),
    "log2": _extern("log2f"),
    "tanh": _extern("tanhf"),
    "sin": _extern("sinf"),
    "cos": _extern("cosf"),
    "sigmoid": lambda x: const(1.0, x) / (const(1.0, x) + _extern("expf")(x * const(-1.0, x))),
    "rsqrt": _extern("rsqrtf"),
}


class Math:
    """Functions and casts for one architecture."""

    def __init__(self, intrinsics: Intrinsics) -> None:
        self.call = intrinsics

    def lower(self, fn: str, args: Sequence[Prim], t: DType) -> Prim:
        """A function of the expression table on arguments of the register type of `t`."""
        if t.kind == "float" and t.bits < 64:
            if fn == "exp2":
                return self.call("exp2", args[0])
            if fn in ("maximum", "minimum"):
                return self.call("max_nan" if fn == "maximum" else "min_nan", *args)
            if fn in _F32:
                return _F32[fn](*args)
            if fn == "pow" and isinstance(args[0], tirx.FloatImm) and args[0].value == 2.0:
                return self.call("exp2", args[1])
            if fn == "pow" and not isinstance(args[1], tirx.FloatImm):
                return tirx.call_pure_extern("float32", "powf", *args)
        return shared.lower(fn, args, t, _NO_ISA)

    def from_memory(self, x: Prim, t: DType) -> Prim:
        """An element as loaded, in its register type."""
        if t.name in HALVES:
            return self.call(f"f32_from_{t.name}", x)
        if t.name == "bool":
            return x != const(0, x)
        if t.name.startswith("f8"):
            return shared_casts.decode_fp8(x, t)
        return x if dtype_of(x) == register_type(t) else tirx.Cast(register_type(t), x)

    def to_memory(self, x: Prim, t: DType) -> Prim:
        """A value that type `t` has, in its register type, as the element to store."""
        if t.name in HALVES:
            return self.call(f"{t.name}_from_f32", x)
        if t.name == "bool":
            return select(x, tirx.const(1, "uint8"), tirx.const(0, "uint8"))
        if t.name.startswith("f8"):
            return shared_casts.encode_fp8(x, t)
        return x if dtype_of(x) == MEMORY[t.name] else tirx.Cast(MEMORY[t.name], x)

    def cast(self, x: Prim, source: DType, to: DType) -> Prim:
        """`x` of type `source` rounded to `to`, from register type to register type."""
        if source is to:
            return x
        if to.name in HALVES and source.name != "bool":
            if source.name in HALVES and source.name == to.name:
                return x
            if register_type(source) != "float32":
                x = tirx.Cast("float32", x)
            return self.call(f"f32_from_{to.name}", self.call(f"{to.name}_from_f32", x))
        return shared_casts.cast(x, source, to)

    def pack(self, low: Prim, high: Prim, t: DType) -> Prim:
        """Two f32 rounded to a pair of 16-bit floats."""
        return self.call(f"pack_{t.name}", low, high)

    def unpack(self, pair: Prim, half: Prim, t: DType) -> Prim:
        """One of a pair of 16-bit floats as f32."""
        return self.call(f"f32_from_{t.name}", self.call("half_of", pair, half))


_NO_ISA = Isa.__new__(Isa)  # what is left to the shared table asks for no instruction of a CPU


def infinity(t: str, sign: int = 1) -> Prim:
    """An infinity of a float type."""
    return tirx.const(sign * math.inf, t)


def barrier() -> None:
    """__syncthreads."""
    T.evaluate(T.cuda.cta_sync())

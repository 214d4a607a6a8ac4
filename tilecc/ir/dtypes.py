"""Element types: names, sizes, numpy equivalents and the rules of promotion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

Kind = Literal["bool", "int", "float"]


@dataclass(frozen=True)
class DType:
    """An element type. `bits` is the storage size; `name` is what IR text and signatures use."""

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return self.bits // 8

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


def _table(*rows: tuple[str, Kind, int, Any]) -> dict[str, DType]:
    return {name: DType(name, kind, bits, np.dtype(np_type)) for name, kind, bits, np_type in rows}


DTYPES = _table(
    ("bool", "bool", 8, np.bool_),
    ("i8", "int", 8, np.int8),
    ("u8", "int", 8, np.uint8),
    ("i16", "int", 16, np.int16),
    ("i32", "int", 32, np.int32),
    ("i64", "int", 64, np.int64),
    ("f8e4m3", "float", 8, ml_dtypes.float8_e4m3fn),
    ("f8e5m2", "float", 8, ml_dtypes.float8_e5m2),
    ("bf16", "float", 16, ml_dtypes.bfloat16),
    ("f16", "float", 16, np.float16),
    ("f32", "float", 32, np.float32),
    ("f64", "float", 64, np.float64),
)

BOOL, I32, I64 = DTYPES["bool"], DTYPES["i32"], DTYPES["i64"]
BF16, F16, F32, F64 = DTYPES["bf16"], DTYPES["f16"], DTYPES["f32"], DTYPES["f64"]

# The long names of numpy and torch, and the usual abbreviations.
ALIASES = {
    "float64": "f64",
    "double": "f64",
    "float32": "f32",
    "float": "f32",
    "fp32": "f32",
    "float16": "f16",
    "half": "f16",
    "fp16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool_": "bool",
}


def dtype(name: str | DType | np.dtype[Any] | type) -> DType:
    """The DType called `name` (short, numpy or torch name, or a numpy dtype).

    Raises:
        ValueError: no such element type; the message lists those there are.
    """
    if isinstance(name, DType):
        return name
    if not isinstance(name, str):
        name = "None" if name is None else np.dtype(name).name  # numpy takes None for float64
    key = ALIASES.get(name.removeprefix("torch."), name.removeprefix("torch."))
    if key not in DTYPES:
        known = ", ".join([*DTYPES, *ALIASES])
        raise ValueError(f"unknown dtype {name!r}; known are {known}")
    return DTYPES[key]


def accumulator(*operands: DType) -> DType:
    """The type in which contractions and reductions of these operands accumulate."""
    if all(t.kind != "float" for t in operands):
        return I64
    return F64 if any(t is F64 for t in operands) else F32


def promote(a: DType, b: DType) -> DType:
    """The type of arithmetic between two tensors: storage floats below 32 bits compute in f32."""
    if a is b and (a.kind != "float" or a.bits >= 32):
        return a if a is not BOOL else I64
    if "float" in (a.kind, b.kind):
        return F64 if F64 in (a, b) else F32
    return I64 if a.bits > 32 or b.bits > 32 or BOOL in (a, b) else I32

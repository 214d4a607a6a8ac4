"""PTX's types: widths, kinds, and the numpy types that hold and compute them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilecc.errors import TileccError

Array = np.ndarray[Any, Any]


class EmulatorError(TileccError):
    """PTX that the emulator does not execute, or arguments that do not fit the kernel."""


@dataclass(frozen=True)
class Type:
    """A PTX type. `kind`: u, s (integers), b (bits), f (floats), x2 (pairs of floats), p."""

    name: str
    bits: int
    kind: str
    dtype: np.dtype[Any]
    """What values are computed in."""

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return self.bits // 8

    @property
    def storage(self) -> np.dtype[Any]:
        """What a register that is declared with this type is kept as."""
        if self.kind == "p" or (self.kind == "f" and self.bits >= 32):
            return self.dtype
        return UNSIGNED[self.bits]

    @property
    def half(self) -> Type:
        """The element of a pair."""
        return TYPES[self.name[:-2]]


UNSIGNED = {n: np.dtype(f"uint{n}") for n in (8, 16, 32, 64)}
SIGNED = {n: np.dtype(f"int{n}") for n in (8, 16, 32, 64)}

_FLOATS: dict[str, tuple[int, Any]] = {
    "f16": (16, np.float16),
    "bf16": (16, ml_dtypes.bfloat16),
    "tf32": (32, np.float32),
    "f32": (32, np.float32),
    "f64": (64, np.float64),
}

TYPES: dict[str, Type] = {
    **{f"u{n}": Type(f"u{n}", n, "u", UNSIGNED[n]) for n in UNSIGNED},
    **{f"s{n}": Type(f"s{n}", n, "s", SIGNED[n]) for n in SIGNED},
    **{f"b{n}": Type(f"b{n}", n, "b", UNSIGNED[n]) for n in UNSIGNED},
    **{name: Type(name, bits, "f", np.dtype(t)) for name, (bits, t) in _FLOATS.items()},
    "f16x2": Type("f16x2", 32, "x2", UNSIGNED[32]),
    "bf16x2": Type("bf16x2", 32, "x2", UNSIGNED[32]),
    "pred": Type("pred", 8, "p", np.dtype(bool)),
}


def integer_range(t: Type) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    if t.kind == "s":
        return -(1 << (t.bits - 1)), (1 << (t.bits - 1)) - 1
    return 0, (1 << t.bits) - 1

"""tensor: lets tensor cores do products of f32 factors, which they round to tf32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Cloner, Func
from tilecc.ir.dtypes import F32
from tilecc.passes.base import Remarks

FACTORS = ("tf32",)
"""What f32 factors may be rounded to."""


@dataclass(frozen=True)
class Tensor:
    """Allow the factors of each contraction of f32 to be rounded to tf32: 8 bits of exponent, as
    f32 has, and 10 of the fraction, as f16 has. Sums stay in f32.

        %s = contract %q, %k over d    -->    %s = contract %q, %k over d in tf32
    """

    name: ClassVar[str] = "tensor"
    factors: str = "tf32"

    def apply(self, func: Func, remarks: Remarks) -> Func:
        """`func` (of any level) with its contractions so marked."""
        if self.factors not in FACTORS:
            hint = f"there is {', '.join(FACTORS)}"
            raise CompileError(Diagnostic(f"no factors {self.factors!r}", func.loc, hint))
        new = Cloner().func(func)
        for op in new.body.walk():
            if op.name == "contract":
                factors = op.operands[: len(op.operands) - bool(op.attrs.get("acc"))]
                if all(v.type.dtype is F32 for v in factors):
                    op.attrs["factors"] = self.factors
        return new

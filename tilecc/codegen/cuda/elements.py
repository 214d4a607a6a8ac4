"""Elements of tiles, as code for one thread sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cuda.layout import Layout
from tilecc.codegen.cuda.mathlib import Prim


@dataclass
class At:
    """An element: where its sources stand in a layout, and further coordinates."""

    layout: Layout
    env: Mapping[str, Prim]
    more: Mapping[str, Prim] = field(default_factory=dict)

    def coordinate(self, axis: str) -> Prim:
        """The coordinate along an axis (i32); 0 where there is no such axis."""
        if axis in self.more:
            return self.more[axis]
        x = self.layout.coordinate(axis, self.env)
        return tirx.const(x, "int32") if isinstance(x, int) else x


def local(n: int, dtype: str) -> Any:
    """An array that is kept in registers."""
    return T.alloc_buffer((max(1, n),), dtype, scope="local")

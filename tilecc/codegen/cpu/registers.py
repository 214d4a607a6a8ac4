"""What an element is computed from: positions, tensors, small buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad, Var
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.casts import register_name
from tilecc.codegen.cpu.scalars import Prim
from tilecc.ir.dtypes import DType

Position = dict[str, Prim]
"""Where in a tile an element is: an index (i32) for each axis."""


READY = (TensorLoad, Var, tirx.FloatImm, tirx.IntImm)
"""Expressions that cost nothing to write twice."""


def i32(n: int) -> Prim:
    """A constant i32."""
    return tirx.const(n, "int32")


def local(size: int, dtype: str) -> Any:
    """A buffer on the stack, where LLVM makes registers of it. By itself TVM takes one of a KiB and
    more from a pool of its runtime, which is a call, and which saved kernels do without."""
    return T.alloc_buffer((size,), dtype, annotations={"disable_lower_builtin": True})


def i64(x: Prim | int) -> Prim:
    """A constant or an index as i64."""
    return tirx.const(x, "int64") if isinstance(x, int) else tirx.Cast("int64", x)


def wide(x: Prim) -> Prim:
    """An index as i64, one vector of them if it is one."""
    if isinstance(x, tirx.Ramp):
        return tirx.Ramp(i64(x.base), tirx.const(1, "int64"), x.lanes)
    return i64(x)


@dataclass
class Tensor:
    """A user's tensor or a workspace: its TIR buffer and its extents."""

    buffer: Any
    shape: list[Prim]


@dataclass
class Temps:
    """Small buffers that LLVM keeps in registers; taken for one element, then all given back."""

    buffers: Mapping[str, list[Any]]
    pairs: Sequence[Any] = ()  # f32 halves of values that are packed as bf16
    taken: dict[str, int] = field(default_factory=dict)
    short: dict[str, int] = field(default_factory=dict)
    """How many buffers of a type an element needs, where that is more than there are."""

    def take(self, t: DType) -> Any | None:
        """A free buffer for a value of type `t`; None for a type that has no buffers.

        When all are taken, the last one again: code in which `short` is not empty is not right.
        """
        name = register_name(t)
        free = self.buffers.get(name)
        if not free:
            return None
        n = self.taken.get(name, 0)
        self.taken[name] = n + 1
        if n >= len(free):
            self.short[name] = max(n + 1, self.short.get(name, 0))
        return free[min(n, len(free) - 1)]

    def release(self) -> None:
        """Give all buffers back."""
        self.taken.clear()

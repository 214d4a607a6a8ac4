"""What code generation hands to the runtime: functions to build, and how to call them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilecc.ir.core import Value
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Expr


@dataclass(frozen=True)
class ScratchBuffer:
    """Memory that one running task needs beside its registers: `size` elements, 64-byte aligned."""

    name: str
    size: int
    dtype: DType


@dataclass(frozen=True)
class KernelEntry:
    """One function: f(*args, *scratch, begin, end) does tasks begin .. end of the grid, serially.

    `args` are HBM tensors and rank-0 parameters of the tile-level function, in calling order;
    `grid` over extent names and the values `grid_reads` gives the number of tasks (its product).
    """

    name: str
    prim_func: Any
    args: tuple[Value, ...]
    grid: tuple[Expr, ...]
    grid_reads: tuple[Value, ...]
    scratch: tuple[ScratchBuffer, ...]


@dataclass(frozen=True)
class Program:
    """A compiled function's kernels in the order in which they run."""

    kernels: tuple[KernelEntry, ...] = field(default_factory=tuple)

    @property
    def scratch_bytes(self) -> int:
        """Bytes that one thread needs beside inputs and outputs; does not depend on any extent."""
        sizes = [sum(s.size * s.dtype.bytes for s in k.scratch) for k in self.kernels]
        return max(sizes, default=0)

"""What code generation hands to the runtime: functions to build, and how to call them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

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


MARKED = "// "
"""How a line of generated source begins that names an operation: its text, `  # ` and its line."""


@dataclass(frozen=True)
class Parameter:
    """One argument of a CUDA kernel.

    `kind` "tensor": the address of `value`, whose last axis is contiguous. "stride": elements
    between neighbours along axis number `axis` of `value`. "extent": the size of `extent` (a name),
    which `value` has along `axis`. "scalar": the rank-0 parameter `value`. `ctype` is its C type,
    `name` its name in the source.
    """

    kind: Literal["tensor", "extent", "stride", "scalar"]
    name: str
    ctype: str
    value: Value | None = None
    axis: int | None = None
    extent: str | None = None


@dataclass(frozen=True)
class DeviceKernel:
    """One CUDA kernel: launched with a 1-D grid of CTAs, the product of `grid`, none if it is 0.

    `params` are in the order of the signature that `source` has. `grid` is over extent names and
    the values `grid_reads`; a CTA has `threads` threads and `shared` bytes of dynamic shared
    memory. `alignment`: by tensor parameter, what its address and all its strides must be multiples
    of, in bytes; where a call's are not, `relaxed` takes its place, the same kernel with loads and
    stores of single elements (None: the kernel asks for no more than the size of an element).
    """

    name: str
    prim_func: Any
    source: str
    params: tuple[Parameter, ...]
    grid: tuple[Expr, ...]
    grid_reads: tuple[Value, ...]
    threads: int
    shared: int
    alignment: tuple[tuple[str, int], ...] = ()
    relaxed: DeviceKernel | None = None


@dataclass(frozen=True)
class DeviceProgram:
    """A compiled function's kernels in the order in which they run, for an architecture (sm_80)."""

    kernels: tuple[DeviceKernel, ...]
    arch: str

"""Kernels for any number of rows: which extent that is, and what few of them would need."""

from __future__ import annotations

from tilecc.cost.candidates import FEW, kernels_of
from tilecc.ir.core import Axis, Func
from tilecc.ir.expr import Extent, extents
from tilecc.passes.tiling.plan import kernel_axes, streamed_axes, tiled_rows

# Up to FEW rows a kernel for exactly so many is several times as fast, since its vectors lie along
# heads and keys; up to this, one whose tile holds no more than the rows of one vector.
SOME = 16


def rows_axis(func: Func) -> tuple[str, str] | None:
    """The axis of the rows and its extent's name, where a call alone says how many there are.

    `func` is a loop-level program. None if there are several, or if what is streamed grows with
    them: few rows are then short work.
    """
    found: set[Axis] = set()
    walked: set[str] = set()
    for kernel in kernels_of(func):
        axes = kernel_axes(kernel)
        found |= {axes[a] for a in tiled_rows(kernel) if axes[a].static is None}
        walked |= {n for a in streamed_axes(kernel) for n in extents(axes[a].extent)}
    if len(found) != 1:
        return None
    (axis,) = found
    extent = axis.extent
    if not isinstance(extent, Extent) or extent.name in walked:
        return None
    return axis.name, extent.name


def variant(rows: int) -> int | None:
    """The number of rows that a kernel for so many is made for; None: for any number."""
    if 0 < rows <= FEW:
        return rows
    return SOME if FEW < rows <= SOME else None


def is_exact(rows: int) -> bool:
    """Whether a variant is for exactly so many rows, rather than for no more."""
    return rows <= FEW

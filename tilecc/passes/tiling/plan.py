"""Which axes of a kernel are tiled, and with what sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilecc.errors import CompileError, Diagnostic, Loc
from tilecc.ir.core import Axis, Op, Value
from tilecc.ir.printer import print_expr

DEFAULT_TILE = 64


@dataclass(frozen=True)
class AxisPlan:
    """One axis of a kernel: its role and its tile; `size` None is a point (one element)."""

    axis: Axis
    role: str  # "parallel", "streamed" or "inner"
    size: int | None

    @property
    def ragged(self) -> bool:
        """Whether the last tile may reach beyond the extent."""
        if self.size is None or self.role == "inner":
            return False
        return self.axis.static is None or self.axis.static % self.size != 0


def kernel_axes(kernel: Op) -> dict[str, Axis]:
    """Every axis of the values inside a loop-level kernel (what access maps read apart)."""
    axes: dict[str, Axis] = {}
    for op in kernel.body.walk():
        for v in [*(() if op.name == "at" else op.operands), *op.results]:
            for a in v.type.axes:
                axes.setdefault(a.name, a)
    return axes


def streamed_axes(kernel: Op) -> tuple[str, ...]:
    """The axes that the kernel's streams walk."""
    streams = (op.attrs["axis"] for op in kernel.body.walk() if op.name == "stream")
    return tuple(dict.fromkeys(streams))


def rows(kernel: Op) -> tuple[str, ...]:
    """Parallel axes along which tiling saves traffic: a contraction has operands with and without.

    (What lacks an axis in all operands, such as scores in a kernel over parts of the keys, differs
    from tile to tile in which of them it computes.) A kernel with no contraction, and no axis that
    is whole, gets its last parallel axis tiled, for the sake of vectors.
    """
    parallel: tuple[str, ...] = kernel.attrs["over"]
    contractions = [op for op in kernel.body.walk() if op.name == "contract"]
    if not contractions:
        whole = set(kernel_axes(kernel)) - {*parallel, *streamed_axes(kernel)}
        return () if whole else parallel[-1:]

    def shares(op: Op, a: str) -> bool:
        return len({v.type.has(a) for v in op.operands}) == 2

    return tuple(a for a in parallel if any(shares(op, a) for op in contractions))


def tiled_rows(kernel: Op) -> tuple[str, ...]:
    """Of the rows that the same factors have, the last: each such tile lets the others be shared.

    Attention has one (the queries); a plain product has two, one a factor. A row whose factors
    include all of another's would let fewer be shared, and is a dimension of the grid.
    """
    return tuple(axes[-1] for axes in sharing(kernel))


def sharing(kernel: Op) -> list[tuple[str, ...]]:
    """The rows that the same factors have, in groups: heads and queries, of keys that lack heads.

    A tile of any of a group's axes, or of several, shares what the factors without them load.
    """
    found: dict[frozenset[tuple[int, int]], tuple[str, ...]] = {}
    contractions = [op for op in kernel.body.walk() if op.name == "contract"]
    for a in rows(kernel):
        factors = frozenset(
            (n, m)
            for n, op in enumerate(contractions)
            for m, v in enumerate(op.operands)
            if v.type.has(a)
        )
        found[factors] = (*found.get(factors, ()), a)
    return [axes for factors, axes in found.items() if not any(other < factors for other in found)]


def tiled_axes(kernel: Op) -> tuple[str, ...]:
    """The axes whose tile size is a choice: rows, and the streamed axes."""
    return (*tiled_rows(kernel), *streamed_axes(kernel))


def sizes_for(kernel: Op, kernels: Sequence[Op], sizes: Mapping[str, int]) -> dict[str, int]:
    """Of the sizes for a program's `kernels`, those that are meant for this one.

    An axis that one kernel walks or shares by tiles, and of which another has a program for each
    element (parts of the keys: what one writes for each, the other merges), has tiles in the first.
    """
    chosen = {a for k in kernels for a in tiled_axes(k)}
    return {a: n for a, n in sizes.items() if a not in chosen or a in tiled_axes(kernel)}


def plan_tiles(
    kernel: Op, sizes: Mapping[str, int], default: int = DEFAULT_TILE
) -> dict[str, AxisPlan]:
    """The tile of every axis of a loop-level kernel, from `sizes` and the default.

    Raises:
        CompileError: the extent of an inner axis is not a number yet.
    """
    parallel, streamed = kernel.attrs["over"], streamed_axes(kernel)
    choice = tiled_axes(kernel)
    plan: dict[str, AxisPlan] = {}
    for name, axis in kernel_axes(kernel).items():
        if name not in parallel and name not in streamed:
            if axis.static is None:
                raise CompileError(_not_static(axis, kernel))
            plan[name] = AxisPlan(axis, "inner", axis.static)
            continue
        size: int | None = sizes.get(name, default if name in choice else 1)
        assert size is not None
        if axis.static is not None:
            size = max(1, min(size, axis.static))
        if size == 1 and name not in streamed:
            size = None
        plan[name] = AxisPlan(axis, "streamed" if name in streamed else "parallel", size)
    return plan


def _not_static(axis: Axis, kernel: Op) -> Diagnostic:
    extent = print_expr(axis.extent)
    return Diagnostic(
        f"a tile holds the whole of axis {axis.name}, so its extent {extent} must be a number",
        _first_with(axis.name, kernel),
        f'compile with static={{"{extent}": ...}} (--shape {extent}=... on the command line)',
    )


def _first_with(axis: str, kernel: Op) -> Loc | None:
    def has(v: Value) -> bool:
        return v.type.has(axis)

    for op in kernel.body.walk():
        if any(map(has, [*op.operands, *op.results])):
            return op.loc
    return kernel.loc

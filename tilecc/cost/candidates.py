"""The tile sizes that are tried: of rows and of streamed axes, for each kind of machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from tilecc.ir.core import Axis, Func, Op
from tilecc.ir.expr import Call, Env, Expr, Index, evaluate
from tilecc.passes.tiling.plan import kernel_axes, rows, sharing, streamed_axes, tiled_rows
from tilecc.target import Target

SMALL = 64  # a static extent of a row up to this is one tile
FEW = 4  # rows so few that heads which read the same keys are put together instead
MERGED = 8  # of what one kernel writes program by program, how much another reads at once


@dataclass(frozen=True)
class Ladder:
    """Sizes of rows and of streamed axes; `square`: the same for both.

    `alone`: sizes of streamed axes in place of `streamed`, where all rows are fewer than `least`.
    `fill`: rows that an instruction takes, and that are put together from several axes.
    """

    rows: tuple[int, ...]
    streamed: tuple[int, ...]
    square: bool = False
    alone: tuple[int, ...] = ()
    least: int = 0
    fill: int = 0


def ladder(target: Target) -> Ladder:
    """The sizes for a machine."""
    if target.kind == "abstract":
        return Ladder(target.tiles, target.tiles, square=True)
    if target.kind == "cuda":
        return Ladder((16, 32, 64, 128, 256), (16, 32, 64, 96, 128, 256), fill=16)
    lanes = max(4, target.lanes("f32"))
    row = tuple(n for n in (16, 32, 64, 128) if n % lanes == 0)
    streamed: tuple[int, ...] = (32, 64, 128, 256)
    alone = streamed  # divide the parts that the keys of few rows are split into
    if 64 % target.register_tile[0]:  # what a register tile leaves over is done at half its speed
        streamed = (48, 96, 192)
    return Ladder(row or (lanes,), streamed, alone=alone, least=lanes)


def kernels_of(func: Func) -> list[Op]:
    """The kernels of a loop-level program."""
    return [op for op in func.body.ops if op.name == "kernel"]


def tiles(func: Func, target: Target, steps: Ladder | None = None) -> list[dict[str, int]]:
    """Tile sizes to try, by axis; `steps` in place of those for the machine."""
    steps = steps or ladder(target)
    row_axes: dict[str, Axis] = {}
    streams: dict[str, Axis] = {}
    groups: dict[str, int] = {}
    points: set[str] = set()
    for kernel in kernels_of(func):
        axes = kernel_axes(kernel)
        groups |= grouped(kernel)
        row_axes |= {a: axes[a] for a in tiled_rows(kernel) if a not in groups}
        streams |= {a: axes[a] for a in streamed_axes(kernel)}
        points |= set(kernel.attrs["over"]) - set(tiled_rows(kernel))
    merged = {a: _clamped(MERGED, axis) for a, axis in streams.items() if a in points}
    streams = {a: axis for a, axis in streams.items() if a not in merged}
    few = all(a.static is not None and a.static < steps.least for a in row_axes.values())
    columns = steps.alone if few and steps.alone else steps.streamed
    pairs = (
        [(n, n) for n in steps.rows]
        if steps.square
        else [(r, s) for r in (steps.rows if row_axes else steps.rows[:1]) for s in columns]
    )
    found: list[dict[str, int]] = []
    packs = {a: n for kernel in kernels_of(func) for a, n in packed(kernel, steps.fill).items()}
    for (row, stream), packing in product(pairs, ({}, packs) if packs else ({},)):
        whole = 0 if steps.square else SMALL
        sizes = {a: _row(row, axis, whole) for a, axis in row_axes.items()}
        sizes |= {a: _clamped(max(1, row // n), axis) for a, (axis, n) in packing.items()}
        sizes |= {a: _clamped(stream, axis) for a, axis in streams.items() if a not in sizes}
        sizes |= groups | merged
        if sizes not in found:
            found.append(sizes)
    return found


def packed(kernel: Op, fill: int) -> dict[str, tuple[Axis, int]]:
    """Axes that let the same tiles be shared as rows do which are fewer than `fill`; each with the
    rows that there are for one element of it.

    A step of decoding has one query; heads that read the same keys fill the tile.
    """
    axes = kernel_axes(kernel)
    found: dict[str, tuple[Axis, int]] = {}
    for group in sharing(kernel):
        rows = 1
        for a, other in zip(reversed(group), reversed(group[:-1]), strict=False):
            extent = axes[a].static
            if extent is None:
                break
            rows *= 1 << max(0, extent - 1).bit_length()
            if rows >= fill:
                break
            found[other] = axes[other], rows
    return found


def _clamped(size: int, axis: Axis) -> int:
    return size if axis.static is None else max(1, min(size, axis.static))


def _row(size: int, axis: Axis, whole: int) -> int:
    if axis.static is not None and axis.static <= whole:
        return max(1, axis.static)
    return _clamped(size, axis)


def grouped(kernel: Op) -> dict[str, int]:
    """Axes of which successive elements read the same tile, and how many: h of k[h // 4].

    Only where there are (almost) no other rows to share what is loaded.
    """
    axes = kernel_axes(kernel)
    parallel: tuple[str, ...] = kernel.attrs["over"]
    found: dict[str, int] = {}
    for op in kernel.body.walk():
        if op.name == "at":
            for _, e in op.attrs["coords"]:
                match e:
                    case Call("floordiv", (Index(a), by)) if a in parallel:
                        group = _number(by, {})
                        if group is not None and group > 1:
                            found[a] = _clamped(group, axes[a])
    others = [axes[a] for a in rows(kernel) if a not in found]
    few = all(a.static is not None and a.static <= FEW for a in others)
    return {a: n for a, n in found.items() if n > 1} if few else {}


def _number(e: Expr, extents: Mapping[str, int]) -> int | None:
    try:
        return int(evaluate(e, Env(extent=lambda n: extents[n])))
    except KeyError:
        return None

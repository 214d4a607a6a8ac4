"""tile: kernels over whole axes become grids of programs over tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Block, Builder, Func, Op, TensorType, Value
from tilecc.passes.base import Remarks
from tilecc.passes.tiling.kernel import tile_kernel
from tilecc.passes.tiling.maps import tile_maps
from tilecc.passes.tiling.plan import DEFAULT_TILE, AxisPlan, plan_tiles, sizes_for


@dataclass(frozen=True)
class Tile:
    """Bind a tile size to each axis; loads, stores, loops and their bounds become explicit.

    `sizes` are pairs (axis, size) for parallel and streamed axes: `default` where none is given for
    an axis whose tiling saves traffic, 1 (a grid dimension) for the other parallel axes. Inner axes
    are whole. Extents stay symbolic; a tile that may reach beyond its axis says so (`pad`, `clip`),
    and the streamed axis is split into tiles that need the mask and tiles that do not.

        kernel over b, h, i {         kernel grid(%b: B, %h: H, %i_tile: ceildiv(N, 64)) {
          %m = stream j {        -->    %q_t = load %q[%b, %h, %i_tile * 64 :+ i, 0 :+ d] ..
            ...                         %m = for %j_tile in 0 .. %split carry(..) { .. }
    """

    name: ClassVar[str] = "tile"
    sizes: tuple[tuple[str, int], ...] = ()
    default: int = DEFAULT_TILE

    def apply(self, func: Func, remarks: Remarks) -> Func:
        """The tiled program.

        Raises:
            CompileError: a size is not positive or is for no tiled axis, the extent of an inner
                axis is not a number, or the program is not in kernels.
        """
        self._check_sizes()
        host: dict[Value, Value] = {}
        params = []
        for p in func.params:
            host[p] = Value(p.type, p.name)
            params.append(host[p])
        body = Block()
        known: dict[str, AxisPlan] = {}
        kernels, ret = func.body.ops[:-1], func.body.terminator
        for op in kernels:
            if op.name != "kernel" or "grid" in op.attrs:
                raise CompileError(Diagnostic(f"{op.name} is in no kernel: run fuse first", op.loc))
        sizes = dict(self.sizes)
        planned = [
            (op, plan_tiles(op, sizes_for(op, kernels, sizes), self.default)) for op in kernels
        ]
        for n, (op, plan) in enumerate(planned, 1):
            known |= {a: p for a, p in plan.items() if a not in known or known[a].role == "inner"}
            outs = []
            for r in op.results:
                t = TensorType(r.type.dtype, r.type.axes)
                if r not in ret.operands:
                    t = _as_read(t, r, planned[n:])
                alloc = Builder(body, op.loc).op("alloc", [], [t], names=[r.name])
                outs.append(alloc.result)
                host[r] = alloc.result
            if not all(any(a.static == 0 for a in r.type.axes) for r in op.results):
                maps = tile_maps(op, plan, host, body)
                body.ops.append(tile_kernel(op, plan, host, outs, maps))  # else nothing to do
        self._check_axes(known)
        Builder(body, ret.loc).op("return", [host[v] for v in ret.operands])
        return Func(func.name, params, body, dict(func.attrs), func.loc)

    def _check_sizes(self) -> None:
        for name, size in (("default", self.default), *self.sizes):
            if size < 1:
                what = "the default tile size" if name == "default" else f"the tile size of {name}"
                raise CompileError(f"{what} is {size}, not a positive number")

    def _check_axes(self, known: dict[str, AxisPlan]) -> None:
        """Each size must be for an axis that some kernel tiles."""
        choices = [a for a, p in known.items() if p.role != "inner"]
        there_are = f"axes with tiles are {', '.join(sorted(choices)) or 'none'}"
        for a, _ in self.sizes:
            if a not in known:
                raise CompileError(
                    Diagnostic(f"tile size for axis {a}, which no kernel has", None, there_are)
                )
            if a not in choices:
                message = f"tile size for axis {a}, but a tile holds the whole of it"
                raise CompileError(Diagnostic(message, None, there_are))


def _as_read(
    t: TensorType, v: Value, later: Sequence[tuple[Op, Mapping[str, AxisPlan]]]
) -> TensorType:
    """How a tensor between kernels lies in memory, which nobody sees: as it is read.

    Axes of which its first reader has one position at a time come first: were they innermost, it
    would read single elements that lie apart, and of each line a part.
    """
    plan = next((p for op, p in later if any(v in o.operands for o in op.body.walk())), {})
    points = [a for a in t.axes if a.name in plan and plan[a.name].size is None]
    return TensorType(t.dtype, (*points, *(a for a in t.axes if a not in points)))

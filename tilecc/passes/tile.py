"""tile: kernels over whole axes become grids of programs over tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Block, Builder, Func, TensorType, Value
from tilecc.passes.base import Remarks
from tilecc.passes.tiling.kernel import tile_kernel
from tilecc.passes.tiling.plan import DEFAULT_TILE, plan_tiles


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
        host: dict[Value, Value] = {}
        params = []
        for p in func.params:
            host[p] = Value(p.type, p.name)
            params.append(host[p])
        body = Block()
        known: set[str] = set()
        for op in func.body.ops[:-1]:
            if op.name != "kernel" or "grid" in op.attrs:
                raise CompileError(Diagnostic(f"{op.name} is in no kernel: run fuse first", op.loc))
            plan = plan_tiles(op, dict(self.sizes), self.default)
            known |= set(plan)
            outs = []
            for r in op.results:
                t = TensorType(r.type.dtype, r.type.axes)
                alloc = Builder(body, op.loc).op("alloc", [], [t], names=[r.name])
                outs.append(alloc.result)
                host[r] = alloc.result
            body.ops.append(tile_kernel(op, plan, host, outs))
        unknown = [a for a, _ in self.sizes if a not in known]
        if unknown:
            raise CompileError(
                f"tile size for axis {', '.join(unknown)}, which no kernel has; "
                f"there are {', '.join(sorted(known))}"
            )
        ret = func.body.terminator
        Builder(body, ret.loc).op("return", [host[v] for v in ret.operands])
        return Func(func.name, params, body, dict(func.attrs), func.loc)

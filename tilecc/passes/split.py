"""split: a streamed axis is shared out among workers, and what they found is merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilecc.errors import CompileError
from tilecc.ir.core import Axis, Block, Cloner, Func, Op
from tilecc.ir.expr import Call, Const, Env, Expr, call, ceildiv, evaluate, extents, mul
from tilecc.passes.base import Remarks
from tilecc.passes.splitting.merge import merge_kernel
from tilecc.passes.splitting.partial import partial_kernel
from tilecc.passes.splitting.parts import Parts, has_few_rows, obstacle, streams_of
from tilecc.passes.tiling.plan import DEFAULT_TILE, kernel_axes, rows

# Parts begin at multiples of this: every size of tile that is chosen divides it, so that no tile
# lies in two parts (and is masked for that).
GRAIN = 256
# What `workers` asks for: enough that the last program to end keeps the others waiting but little.
PROGRAMS_EACH = 4


@dataclass(frozen=True)
class Split:
    """Cut the streamed axis of each kernel into parts, and merge their states by their repairs.

    The first kernel gets a parallel axis that counts parts, and gives the states as they are
    carried; the second streams over the parts, where the state of a part is moved to the new
    references by the same repair that the stream has, and then goes on as the kernel did.

    `chunk`: positions in a part. `parts`: how many there are, instead of that. `workers`: as many
    as keep that many threads busy, instead of both; where to cut then depends on all extents, and
    no longer on that of the axis alone. `rows`: only kernels whose rows (axes along which tiles
    share what they read) are static and no more than this together; 0: all kernels.

        %m, %l = stream j {                   %m_p, %l_p = kernel over b, h, j_part {
          %r = reduce max %x over j             stream j where (positions of the part) {
          %m1 = update max %r                     (the body, what it sums masked)
          %p = ..                        -->  %o = kernel over b, h {
          %s = reduce sum %p over j             %m, %l = stream j_part {
          %l1 = update sum %s repair R            %m1 = update max (reduce max %m_p over j_part)
        }                                         %l1 = update sum (reduce sum R' over j_part) ..
    """

    name: ClassVar[str] = "split"
    chunk: int = 2048
    parts: int = 0
    workers: int = 0
    rows: int = 0

    def apply(self, func: Func, remarks: Remarks) -> Func:
        """The program with two kernels for each that is split.

        Raises:
            CompileError: an option is out of range.
        """
        if self.chunk < 1 or min(self.parts, self.workers, self.rows) < 0:
            raise CompileError("split: chunk is a positive number, and the others are not negative")
        cloner = Cloner()
        params = [cloner.fresh(p) for p in func.params]
        body = Block()
        taken = {a for op in func.walk() for v in [*op.operands, *op.results] for a in v.type.names}
        for op in func.body.ops:
            parts = self._parts(op, taken, remarks)
            if parts is None:
                body.ops.append(cloner.op(op))
                continue
            taken.add(parts.axis.name)
            partial = partial_kernel(op, parts, cloner)
            merge = merge_kernel(op, partial, parts, cloner)
            cloner.mapping.update(zip(op.results, merge.results, strict=True))
            body.ops += [partial, merge]
        return Func(func.name, params, body, dict(func.attrs), func.loc)

    def _parts(self, op: Op, taken: set[str], remarks: Remarks) -> Parts | None:
        """How a kernel is cut, None if it stays as it is; a remark says why."""
        if op.name != "kernel" or not streams_of(op):
            return None
        axis = kernel_axes(op)[streams_of(op)[0].attrs["axis"]]
        if self.rows and not has_few_rows(op, self.rows):
            return None
        found = obstacle(op)
        if found is not None:
            remarks.add(f"{axis.name} is not split: {found.reason}", found.loc or op.loc)
            return None
        chunk, number = self._cut(op, axis)
        if isinstance(number, Const) and number.value <= 1:
            return None  # one part is the kernel as it is
        name = f"{axis.name}_part"
        while name in taken:
            name += "_"
        return Parts(Axis(name, number), axis.name, chunk)

    def _cut(self, kernel: Op, axis: Axis) -> tuple[Expr, Expr]:
        """(positions in a part, parts) of the streamed axis."""
        if not (self.parts or self.workers):
            return Const(self.chunk), _fold(ceildiv(axis.extent, self.chunk))
        number = _filling(kernel, self.workers) if self.workers else Const(self.parts)
        grains = _fold(call("ceildiv", _fold(ceildiv(axis.extent, GRAIN)), number))
        return mul(grains, GRAIN), number


def _filling(kernel: Op, workers: int) -> Expr:
    """Parts that give each of `workers` a few programs: fewer where the grid has many."""
    axes, shared = kernel_axes(kernel), rows(kernel)
    programs: Expr = Const(1)
    for a in kernel.attrs["over"]:
        extent = axes[a].extent
        programs = mul(programs, _fold(ceildiv(extent, DEFAULT_TILE)) if a in shared else extent)
    programs = _fold(call("maximum", programs, Const(1)))  # of none each would get infinitely many
    return _fold(call("ceildiv", Const(PROGRAMS_EACH * workers), programs))


def _fold(e: Expr) -> Expr:
    """The number that an expression over numbers is."""
    if isinstance(e, Call) and not extents(e):
        return Const(int(evaluate(e, Env())))
    return e

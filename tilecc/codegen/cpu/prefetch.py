"""What a contraction's loop reads next is asked for while this step is at work.

The rows of a tile are read a few at a time, and columns of them with the stride of a row: too short
or too far apart for the machine to see them coming. So each block of a contraction asks for some
rows of the tile that the next step of the enclosing loop will bring. Nothing is read: beyond the
last tile it asks for the tensor's last elements again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import tirx

from tilecc.codegen.cpu.layout import inputs
from tilecc.codegen.cpu.registers import i64
from tilecc.codegen.cpu.scalars import Prim
from tilecc.codegen.cpu.vectors import prefetch_row
from tilecc.ir.core import Op, Range, Value
from tilecc.ir.dtypes import I64
from tilecc.ir.expr import Arg, Expr, Index, walk

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter


@dataclass(frozen=True)
class _Rows:
    """A load whose tile is new at each step: `count` rows, of `length` elements side by side."""

    load: Op
    axis: str | None
    count: int
    length: int


class Prefetch:
    """For a contraction that is done in `blocks` blocks: what each of them asks for."""

    def __init__(self, em: Emitter, op: Op, blocks: int) -> None:
        self.em, self.blocks = em, blocks
        self.loop = em.loops[-1] if em.loops and em.isa.prefetch else None
        found = [self._rows(v) for v in inputs(op)] if self.loop is not None else []
        self.rows = [r for r in found if r is not None]

    def emit(self, block: Prim) -> None:
        """The share of block number `block`."""
        for r in self.rows:
            share = -(-r.count // self.blocks)
            for n in range(share):
                row = tirx.min(block * share + n, tirx.const(r.count - 1, "int32"))
                self._ask(r, row)

    def _ask(self, r: _Rows, row: Prim) -> None:
        em, op = self.em, r.load
        tensor = em.tensors[op.operands[0]]
        assert self.loop is not None
        now = em.scalars[self.loop]
        em.scalars[self.loop] = now + 1
        coords = []
        for c, extent in zip(op.attrs["coords"], tensor.shape, strict=True):
            if isinstance(c, Range):
                x = em.uniform(c.base, op.operands, I64)
                if c.axis == r.axis:
                    x = x + i64(row)
                last = extent - tirx.const(1, "int64")
                x = tirx.call_llvm_pure_intrin("int64", "llvm.smin", x, last)
            else:
                x = em.uniform(c, op.operands, I64)
            coords.append(x)
        em.scalars[self.loop] = now
        address = tirx.address_of(tensor.buffer[tuple(coords)])
        prefetch_row(address, r.length * op.result.type.dtype.bytes)

    def _rows(self, v: Value) -> _Rows | None:
        """The rows of a load that moves with the loop; None for other values and other forms."""
        op = v.owner
        if op is None or op.name != "load" or not op.attrs["coords"]:
            return None
        coords = op.attrs["coords"]
        exprs: list[Expr] = [c.base if isinstance(c, Range) else c for c in coords]
        nodes = [n for e in exprs for n in walk(e)]
        reads = {op.operands[n.k] for n in nodes if isinstance(n, Arg)}
        if self.loop not in reads or not all(x in self.em.scalars for x in reads):
            return None
        ranges = [c for c in coords if isinstance(c, Range)]
        plain = not any(isinstance(n, Index) for n in nodes)
        if not plain or len(ranges) > 2 or coords[-1] is not ranges[-1]:
            return None
        length = v.type.axis(ranges[-1].axis).size
        if len(ranges) == 1:
            return _Rows(op, None, 1, length)
        return _Rows(op, ranges[0].axis, v.type.axis(ranges[0].axis).size, length)

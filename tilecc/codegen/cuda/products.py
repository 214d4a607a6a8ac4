"""Which contractions are products of matrices that the tensor cores can do, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilecc.codegen.cuda.layout import natural
from tilecc.codegen.cuda.roles import Product, Roles, factors, wide
from tilecc.ir.core import Op, Value
from tilecc.target import Target

if TYPE_CHECKING:
    from tilecc.codegen.cuda.plan import Plan

DEPTH = 16
"""How much of the summed axis an m16n8k16 takes."""


@dataclass(frozen=True)
class Matrix:
    """C[m, n] += A[m, k] B[k, n] on tensor cores; `m` may be several axes, the fastest first."""

    op: Op
    a: Value
    b: Value
    m: tuple[tuple[str, int], ...]
    n: tuple[str, int]
    k: tuple[str, int]
    a_in_registers: bool

    @property
    def steps(self) -> int:
        """Instructions along k."""
        return -(-self.k[1] // DEPTH)

    @property
    def width(self) -> int:
        """Instructions along n."""
        return -(-self.n[1] // 8)

    def require(self, plan: Plan) -> None:
        """Have room for whole instructions in the tiles that hold the factors."""
        depth = self.steps * DEPTH
        layout = plan.roles.layout(self.op.result.type)
        if not self.a_in_registers:
            tile = plan.tile_for(self.a)
            tile.require(self.k[0], depth)
            slow = self.m[-1][0]
            tile.require(slow, layout.covers(slow))
        tile = plan.tile_for(self.b)
        tile.require(self.k[0], depth)
        tile.require(self.n[0], self.width * 8)


def matrix_product(op: Op, roles: Roles, target: Target) -> Matrix | None:
    """How tensor cores do a contraction; None if they cannot."""
    if len(factors(op)) != 2 or not target.has("mma.sync"):
        return None
    x, y = op.operands[:2]
    types = {x.type.dtype.name, y.type.dtype.name}
    if types not in ({"f16"}, {"bf16"}) or op.result.type.dtype.name != "f32":
        return None
    p = Product.of(op)
    if p.batch or len(p.k) != 1 or x is y:
        return None
    rows, columns = roles.split(op.result.type)
    if not rows or len(columns) != 1:
        return None
    names = {a for a, _ in rows}
    if names == set(p.m) and p.n == (columns[0][0],):
        a, b = x, y
    elif names == set(p.n) and p.m == (columns[0][0],):
        a, b = y, x
    else:
        return None
    k = (p.k[0], a.type.axis(p.k[0]).size)
    if set(wide(a.type)) != {*names, k[0]} or set(wide(b.type)) != {columns[0][0], k[0]}:
        return None
    if len(rows) > 1 and any(n & (n - 1) for _, n in rows[:-1]):
        return None
    return Matrix(op, a, b, tuple(rows), columns[0], k, _in_registers(a, rows, k, roles))


def _in_registers(v: Value, rows: list[tuple[str, int]], k: tuple[str, int], roles: Roles) -> bool:
    """Whether a factor is computed in registers, just as the instruction takes it."""
    if v.type.space == "sram" or k[1] % DEPTH:
        return False
    if v.owner is not None and v.owner.name == "load":
        return False
    wanted = natural(rows, [k], roles.warps)
    return roles.layout(v.type) == wanted

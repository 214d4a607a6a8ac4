"""Which contractions are products of matrices that the tensor cores can do, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilecc.codegen.cuda.layout import natural
from tilecc.codegen.cuda.roles import Product, Roles, factors, wide
from tilecc.codegen.cuda.shared import SharedTile
from tilecc.ir.core import Op, Value
from tilecc.target import Target

if TYPE_CHECKING:
    from tilecc.codegen.cuda.plan import Plan

DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8}
"""How much of the summed axis an instruction takes: m16n8k16, m16n8k8."""


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
    factors: str
    """What is multiplied: the factors' type, or what f32 is rounded to."""

    @property
    def depth(self) -> int:
        """How much of the summed axis an instruction takes."""
        return DEPTHS[self.factors]

    @property
    def neighbours(self) -> bool:
        """Whether a thread's two elements along k of 32 bits are neighbours, as accumulators are,
        and not 4 apart: an order of k that A and B share.
        """
        return self.a_in_registers and self.factors == "tf32"

    def by_elements(self, tile: SharedTile) -> bool:
        """Whether a factor is read element by element: ldmatrix turns 16 bits, and not 32."""
        return self.factors == "tf32" and (self.neighbours or tile.inner != self.k[0])

    @property
    def steps(self) -> int:
        """Instructions along k."""
        return -(-self.k[1] // self.depth)

    @property
    def width(self) -> int:
        """Instructions along n."""
        return -(-self.n[1] // 8)

    def require(self, plan: Plan) -> None:
        """Have room for whole instructions in the tiles that hold the factors."""
        depth = self.steps * self.depth
        layout = plan.roles.layout(self.op.result.type)
        if not self.a_in_registers:
            tile = plan.tile_for(self.a)
            tile.require(self.k[0], depth)
            for axis, _ in self.m:
                tile.require(axis, layout.covers(axis))
        tile = plan.tile_for(self.b)
        tile.require(self.k[0], depth)
        tile.require(self.n[0], self.width * 8)


def matrix_product(op: Op, roles: Roles, target: Target) -> Matrix | None:
    """How tensor cores do a contraction; None if they cannot."""
    if len(factors(op)) != 2 or not target.has("mma.sync"):
        return None
    x, y = op.operands[:2]
    types = {op.attrs.get("factors", v.type.dtype.name) for v in (x, y)}
    multiplied = min(types)
    if len(types) > 1 or multiplied not in DEPTHS or op.result.type.dtype.name != "f32":
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
    held = k[1] % DEPTHS[multiplied] == 0 and _in_registers(a, rows, k, roles)
    return Matrix(op, a, b, tuple(rows), columns[0], k, held, multiplied)


def _in_registers(v: Value, rows: list[tuple[str, int]], k: tuple[str, int], roles: Roles) -> bool:
    """Whether a factor is computed in registers, just as the instruction takes it."""
    if v.type.space == "sram":
        return False
    if v.owner is not None and v.owner.name == "load":
        return False
    wanted = natural(rows, [k], roles.warps)
    return roles.layout(v.type) == wanted

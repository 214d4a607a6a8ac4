"""Comparisons of positions in 32 bits: one vector of them goes with one vector of scores.

Positions are 64-bit numbers, and a vector holds half as many of those as of scores. But within a
tile they are a small number, which differs from lane to lane, beside one that does not:

    %j_tile * 64 + index(j) <= %i_tile * 64 + index(i)
    -->
    index(j) - index(i) <= %i_tile * 64 - %j_tile * 64, cut to 32 bits

The right side is worked out once for all lanes, and cutting it changes no answer: it stays beyond
all that the left side can be. The difference of the two sides saturates, so none of this overflows
where the sides themselves do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from tilecc.codegen.cpu import mathlib
from tilecc.codegen.cpu.isa import Isa
from tilecc.ir.core import Value
from tilecc.ir.dtypes import I32, I64
from tilecc.ir.expr import Call, Const, Expr, Index, arg_numbers, call, indices, mul
from tilecc.ir.ops import infer_dtype

Prim = Any

_LARGEST = 1 << 30
"""The differing part stays below this."""
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


@dataclass
class _Sum:
    """A side of a comparison: multiples of positions in the tile, and what all lanes share."""

    lanes: dict[str, int] = field(default_factory=dict)
    shared: Expr = field(default_factory=lambda: Const(0))

    def add(self, other: _Sum, sign: int) -> None:
        """Plus or minus another one."""
        for a, c in other.lanes.items():
            self.lanes[a] = self.lanes.get(a, 0) + sign * c
        if other.shared != Const(0):
            fn = "add" if sign > 0 else "sub"
            plain = self.shared == Const(0) and sign > 0
            self.shared = other.shared if plain else call(fn, self.shared, other.shared)


def _split(e: Expr, operands: Sequence[Value]) -> _Sum | None:
    """`e` as such a sum; None if it is none."""
    if not indices(e) and not any(operands[k].type.axes for k in arg_numbers(e)):
        return _Sum(shared=e)
    out = _Sum()
    match e:
        case Index(axis):
            out.lanes[axis] = 1
        case Call("add" | "sub" as fn, (a, b)):
            for x, sign in ((a, 1), (b, 1 if fn == "add" else -1)):
                part = _split(x, operands)
                if part is None:
                    return None
                out.add(part, sign)
        case Call("neg", (a,)):
            part = _split(a, operands)
            if part is None:
                return None
            out.add(part, -1)
        case Call("mul", (a, Const(c)) | (Const(c), a)) if isinstance(c, int):
            part = _split(a, operands)
            if part is None:
                return None
            out.lanes = {axis: int(c) * n for axis, n in part.lanes.items()}
            if part.shared != Const(0):
                out.shared = mul(part.shared, int(c))
        case _:
            return None
    return out


def compare(
    fn: str,
    args: Sequence[Expr],
    operands: Sequence[Value],
    sizes: Mapping[str, int],
    position: Callable[[Mapping[str, int]], Prim],
    shared: Callable[[Expr], Prim],
    spread: Callable[[Prim], Prim],
    isa: Isa,
) -> Prim | None:
    """A comparison of integers in 32 bits; None where it is not one of positions.

    Args:
        sizes: how many positions a tile has along each axis.
        position: a sum of positions of the current element, from their multiples.
        shared: an expression that is the same for all lanes, as i64.
        spread: a number in as many lanes as values have.
    """
    dtypes = [v.type.dtype for v in operands]
    if fn not in COMPARISONS or any(infer_dtype(a, dtypes) is not I64 for a in args):
        return None
    left, right = (_split(a, operands) for a in args)
    if left is None or right is None:
        return None
    lanes = {a: left.lanes.get(a, 0) - right.lanes.get(a, 0) for a in {**left.lanes, **right.lanes}}
    lanes = {a: c for a, c in lanes.items() if c}
    if not lanes or not all(a in sizes for a in lanes):
        return None
    if sum(abs(c) * sizes[a] for a, c in lanes.items()) >= _LARGEST:
        return None
    sides = position(lanes), _cut(left.shared, right.shared, shared)
    return mathlib.lower(fn, [spread(x) for x in sides], I32, isa)


def _cut(left: Expr, right: Expr, shared: Callable[[Expr], Prim]) -> Prim:
    """right - left as i32, or an i32 beyond all sums of positions on the same side."""
    if isinstance(left, Const) and isinstance(right, Const):
        n = int(right.value) - int(left.value)
        return tirx.const(max(-_LARGEST, min(_LARGEST, n)), "int32")
    x = shared(right)
    if left != Const(0):
        x = _pure("llvm.ssub.sat", x, shared(left))
    x = _pure("llvm.smin", x, tirx.const(_LARGEST, "int64"))
    return tirx.Cast("int32", _pure("llvm.smax", x, tirx.const(-_LARGEST, "int64")))


def _pure(name: str, a: Prim, b: Prim) -> Prim:
    return tirx.call_llvm_pure_intrin("int64", name, a, b)

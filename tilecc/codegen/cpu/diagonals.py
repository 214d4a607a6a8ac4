"""Loads through a table that depend on a difference of positions alone, such as a relative bias.

    %b = load B[%h, minimum(%it * 64 + index(i) - (%jt * 96 + index(j)), 127)] : f32[i:64, j:96]

Along each diagonal of the tile all elements are the same: 159 numbers, not 6,144. They are read
once a tile, or worked out where a bucket is computed, to a row of scratch in which an element of
the tile is found by its difference. A step along the lanes is a step in that row, so what follows
reads whole vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilecc.analysis.forms import is_integer
from tilecc.analysis.linear import linear
from tilecc.ir.core import Op, Range
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Call, Const, Expr, Index, call, indices, rebuild, transform, walk

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def diagonal(op: Op) -> tuple[str, str, int] | None:
    """The axes (a, b) and a sign s where all of a load depends on index(a) + s * index(b) alone;
    None where it depends on more, or on less."""
    t, coords = op.result.type, op.attrs["coords"]
    if len(t.axes) != 2 or any(isinstance(c, Range) for c in coords):
        return None
    a, b = t.names
    dtypes = [v.type.dtype for v in op.operands]
    if any(v.type.axes for v in op.operands[1:]):
        return None
    if not {a, b} <= {x for c in coords for x in indices(c)}:
        return None
    for sign in (-1, 1):
        # Nothing changes from one element of a diagonal to the next.
        if all(_normal(_moved(c, a, b, -sign), dtypes) == _normal(c, dtypes) for c in coords):
            return a, b, sign
    return None


def _moved(e: Expr, a: str, b: str, step: int) -> Expr:
    """`e` one further along `a`, and `step` along `b`."""
    steps = {a: 1, b: step}

    def f(n: Expr) -> Expr | None:
        if isinstance(n, Index) and n.axis in steps:
            return call("add", n, Const(steps[n.axis]))
        return None

    return transform(e, f)


def _normal(e: Expr, dtypes: Sequence[DType]) -> Expr:
    """`e` with its integer sums, and comparisons of such, in normal form."""
    chooses = any(isinstance(n, Call) and n.fn == "where" for n in walk(e))
    if not chooses and is_integer(e, dtypes):
        return linear(e).expr()
    if not chooses and isinstance(e, Call) and e.fn in _COMPARISONS:
        a, b = e.args
        if is_integer(a, dtypes) and is_integer(b, dtypes):
            return Call(e.fn, ((linear(a) - linear(b)).expr(), Const(0)))
    return rebuild(e, tuple(_normal(x, dtypes) for x in e.children()))

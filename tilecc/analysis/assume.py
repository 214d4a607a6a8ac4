"""Simplification of an expression where a predicate is known to hold."""

from __future__ import annotations

from collections.abc import Sequence

from tilecc.analysis.predicate import Pred, every, implies, is_condition, negate, normalize, some
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Call, Const, Expr, rebuild


def assume(e: Expr, pred: Expr, dtypes: Sequence[DType] | None = None) -> Expr:
    """`e` simplified given that `pred` is true.

    Conditions that `pred` implies become true, those that it excludes false, and `where` and the
    connectives fold; the rest stays as written. `Arg(k)` means the same operand in both, and
    `dtypes` are those operands' types.

        assume(where(j <= i, s, -inf), i - j >= 0) --> s
    """
    return _assume(e, normalize(pred, dtypes), dtypes)


def _assume(e: Expr, known: Pred, dtypes: Sequence[DType] | None) -> Expr:
    if is_condition(e, dtypes):
        p = normalize(e, dtypes)
        if implies(known, p):
            return Const(True)
        if implies(known, negate(p)):
            return Const(False)
    kids = tuple(_assume(c, known, dtypes) for c in e.children())
    match e, kids:
        case Call("where"), (Const(value), a, b):
            return a if value else b
        case Call("and"), _:
            return every(*kids)
        case Call("or"), _:
            return some(*kids)
        case Call("not"), (Const(value),):
            return Const(not value)
    return e if all(a is b for a, b in zip(kids, e.children(), strict=True)) else rebuild(e, kids)

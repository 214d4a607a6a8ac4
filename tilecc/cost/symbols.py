"""Scalar expressions as formulas of sympy: extents, tile sizes and run-time values are symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from tilecc.cost.signs import Greatest, Least
from tilecc.ir.expr import Call, Cast, Env, Expr, evaluate, walk

Formula = Any  # a sympy expression


def symbol(name: str) -> Formula:
    """The symbol of an extent, or (`%w`) of a value that is known at run time."""
    if name.startswith("%"):
        return sympy.Symbol(name[1:], integer=True)
    return sympy.Symbol(name, integer=True, positive=True)


def tile_symbol(axis: str) -> Formula:
    """The symbol of the tile size of an axis: B_i."""
    return sympy.Symbol(f"B_{axis}", integer=True, positive=True)


_FUNCTIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "floordiv": lambda a, b: sympy.floor(a / b),
    "ceildiv": lambda a, b: sympy.ceiling(a / b),
    "mod": lambda a, b: a - b * sympy.floor(a / b),
    "minimum": Least,
    "maximum": Greatest,
    "abs": sympy.Abs,
    "lt": sympy.Lt,
    "le": sympy.Le,
    "gt": sympy.Gt,
    "ge": sympy.Ge,
    "eq": sympy.Eq,
    "ne": sympy.Ne,
    "and": sympy.And,
    "or": sympy.Or,
    "not": sympy.Not,
    "where": lambda c, a, b: sympy.Piecewise((a, c), (b, True)),
}


def formula(e: Expr, extents: Mapping[str, Formula] | None = None) -> Formula:
    """A scalar expression over extents and counters as a formula."""
    known = extents or {}
    leaves = Env(
        index=lambda a: sympy.Symbol(a, integer=True, nonnegative=True),
        extent=lambda n: known.get(n, symbol(n)),
        cast=lambda x, t: x,
        call=lambda fn, args: _FUNCTIONS[fn](*map(sympy.sympify, args)),
    )
    return sympy.sympify(evaluate(e, leaves))


def can_express(e: Expr) -> bool:
    """Whether `formula` knows every function in `e`."""
    return not any(
        (isinstance(n, Call) and n.fn not in _FUNCTIONS) or isinstance(n, Cast) for n in walk(e)
    )

"""Proofs that an expression vanishes, and rewriting towards them."""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import Any

from tilecc.analysis.symbolic import from_sympy, to_sympy
from tilecc.ir.expr import Expr


def vanishes(e: Any) -> bool:
    """Whether the sympy expression `e` is proved to be 0."""
    import sympy as sp

    if e == 0:
        return True
    if _nonzero_somewhere(e):
        return False
    for route in (sp.expand, lambda e: sp.powsimp(sp.expand(e)), sp.together, sp.simplify):
        try:
            if route(e) == 0:
                return True
        except (sp.PolynomialError, NotImplementedError):
            continue
    return False


def _nonzero_somewhere(e: Any) -> bool:
    """A cheap refutation: `e` is a finite number away from 0 at some sampled point."""
    draw = random.Random(1)
    symbols = sorted(e.free_symbols, key=str)
    for _ in range(2):
        try:
            value = complex(e.subs({s: draw.uniform(0.3, 1.9) for s in symbols}).evalf(15))
        except (TypeError, ValueError):
            return False
        if math.isfinite(abs(value)) and abs(value) > 1e-6:
            return True
    return False


@lru_cache(maxsize=1024)
def simplified(e: Expr, positive: frozenset[Expr] = frozenset()) -> Expr:
    """`e` with sums expanded and logarithms of exponentials resolved."""
    import sympy as sp

    return from_sympy(sp.expand(sp.expand_log(sp.expand(to_sympy(e, positive)))))


@lru_cache(maxsize=1024)
def is_zero(e: Expr, positive: frozenset[Expr] = frozenset()) -> bool:
    """Whether `e` is identically 0 over the reals (Arg and Old of `positive` being positive)."""
    import sympy as sp

    s = to_sympy(e, positive)
    return vanishes(s) or vanishes(sp.expand(sp.expand_log(s)))

"""Derives the repair of a dependent state, and proves it.

A state accumulates contributions f(x, u) under a reducer, where x is what the streamed axis brings
and u are references: values that are still moving. When they move from u to u', a repair R turns
what was accumulated so far into what would have been accumulated under u':

    f(x, u') = R(f(x, u), u, u')  for all x,   and R commutes with the reducer.

For sum, R must be linear: R = acc * g with g = f(x, u') / f(x, u) free of x. For max and min R must
be monotone: acc + h, acc * g with g > 0, or f(., u') after the inverse of f(., u). For prod it must
be multiplicative: acc ** c. What is derived here holds over the reals; what happens at a reducer's
identity is `analysis.identity`'s concern.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilecc.analysis.monotone import inverse, monotone
from tilecc.analysis.problem import Problem, Repair, holds_at_samples, varies
from tilecc.analysis.symbolic import from_sympy, to_sympy
from tilecc.analysis.zero import vanishes
from tilecc.ir.expr import Acc, Arg, Call, Const, Expr, Old, transform, walk


@dataclass(frozen=True)
class Refusal:
    """The obligation that could not be proved."""

    obligation: str


@lru_cache(maxsize=1024)
def derive(problem: Problem) -> Repair | Refusal:
    """The repair for `problem` with its proof done, or why there is none."""
    moving = set(problem.of_role("u"))
    branches = _branches(problem.f, moving)
    if branches is None:
        return Refusal("a condition on x depends on r: the cases of f(x, r) change with r")
    result = _derive(problem, branches)
    if isinstance(result, Repair) and not holds_at_samples(problem, branches, result):
        return Refusal("the derived repair does not hold at sampled points")
    return result


def _derive(problem: Problem, branches: list[Expr]) -> Repair | Refusal:

    new = {k: to_sympy(Arg(k), problem.positive) for k in problem.of_role("u")}
    old = {k: to_sympy(Old(k), problem.positive) for k in problem.of_role("u")}
    xs = {to_sympy(Arg(k), problem.positive) for k in problem.of_role("x")}
    live = [b for b in branches if not _absorbing(problem.kind, b)]
    after = [to_sympy(b, problem.positive) for b in live]
    before = [b.subs({new[k]: old[k] for k in new}, simultaneous=True) for b in after]
    pairs = list(zip(before, after, strict=True))
    if all(vanishes(a - b) for b, a in pairs):
        return Repair("keep", Acc())
    if problem.kind in ("max", "min") and not varies(problem, live, np.subtract):
        h = _common(lambda b, a: a - b, lambda b, a, h: a - b - h, pairs, xs)
        if h is not None:
            return Repair("shift", from_sympy(h))
    if problem.kind == "prod":
        return _power(pairs, xs)
    g = None
    if not varies(problem, live, np.divide):
        g = _common(lambda b, a: a / b, lambda b, a, g: a - b * g, pairs, xs)
    if g is not None and (problem.kind == "sum" or g.is_positive):
        g = _tidy(g)
        return Repair("scale", from_sympy(g), _exponent(g))
    return _by_inverse(problem, live, pairs, xs, g)


def _common(quotient: Any, residue: Any, pairs: list[Any], xs: set[Any]) -> Any:
    """The value of `quotient(before, after)` if it is free of x and the same for all pairs."""
    value = _free_of(quotient(*pairs[0]), xs)
    if value is None or not all(vanishes(residue(b, a, value)) for b, a in pairs):
        return None
    return value


def _power(pairs: list[Any], xs: set[Any]) -> Repair | Refusal:
    import sympy as sp

    def log(e: Any) -> Any:
        return sp.expand_log(sp.log(e), force=True)

    if all(b.is_positive and a.is_positive for b, a in pairs):
        c = _common(lambda b, a: log(a) / log(b), lambda b, a, c: log(a) - c * log(b), pairs, xs)
        if c is not None:
            return Repair("power", from_sympy(c))
    return Refusal(
        "f(x, r') is not a power of f(x, r) with an exponent free of x, "
        "and only powers commute with prod"
    )


def _by_inverse(
    problem: Problem, live: list[Expr], pairs: list[Any], xs: set[Any], ratio: Any
) -> Repair | Refusal:
    """f(., r') after the inverse of f(., r), where that exists and is monotone."""
    kind = problem.kind
    read = {n.k for b in live for n in walk(b) if isinstance(n, Arg)}
    seen = sorted(read & {*problem.of_role("x")})
    positive = {k for k, p in enumerate(problem.positive) if p}
    if len(live) == 1 and len(seen) == 1:
        back = inverse(live[0], seen[0])
        if back is not None:
            old = transform(back, _to_old(set(problem.of_role("u"))))
            repair = transform(live[0], lambda n: old if n == Arg(seen[0]) else None)
            if kind in ("max", "min") and monotone(live[0], Arg(seen[0]), positive) in (1, -1):
                return Repair("map", repair)
            return Refusal(
                f"repair does not commute with {kind}: f(x, r') follows from f(x, r), r and r', "
                f"but not {'linearly' if kind == 'sum' else 'monotonically'}"
            )
    if ratio is not None:
        return Refusal(f"repair does not commute with {kind}: acc * ({ratio}) may change the order")
    tried = "f(x, r') / f(x, r)" + ("" if kind == "sum" else " and f(x, r') - f(x, r)")
    return Refusal(
        "f(x, r') is not a function of f(x, r), r, r' alone: "
        f"with f = {pairs[0][1]}, {tried} {'depends' if kind == 'sum' else 'depend'} on x"
    )


def _to_old(moving: set[int]) -> Any:
    return lambda n: Old(n.k) if isinstance(n, Arg) and n.k in moving else None


def _absorbing(kind: str, branch: Expr) -> bool:
    """Whether a contribution is the reducer's identity, which every repair of that form keeps."""
    e = branch
    while hasattr(e, "arg"):
        e = e.arg
    neutral = {"sum": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}[kind]
    if isinstance(e, Call) and e.fn == "neg" and isinstance(e.args[0], Const):
        return -e.args[0].value == neutral
    return isinstance(e, Const) and e.value == neutral


def _branches(f: Expr, moving: set[int]) -> list[Expr] | None:
    """The cases of `f`: one expression for each way its conditions can come out."""
    conds = [n.args[0] for n in walk(f) if isinstance(n, Call) and n.fn == "where"]
    if not conds:
        return [f]
    cond = conds[-1]  # an innermost one
    if any(isinstance(n, Arg) and n.k in moving for n in walk(cond)):
        return None
    out: list[Expr] = []
    for side in (1, 2):

        def take(n: Expr, side: int = side) -> Expr | None:
            hit = isinstance(n, Call) and n.fn == "where" and n.args[0] == cond
            return n.args[side] if isinstance(n, Call) and hit else None

        sub = _branches(transform(f, take), moving)
        if sub is None:
            return None
        out += sub
    return out if len(out) <= 16 else None


def _free_of(e: Any, xs: set[Any]) -> Any:
    """`e` written without the symbols `xs`, None if no rewriting removes them."""
    import sympy as sp

    routes = (
        lambda e: e,
        sp.expand,
        lambda e: sp.powsimp(sp.expand(e)),
        sp.cancel,
        lambda e: sp.powsimp(sp.factor(e)),
    )
    for route in routes:
        try:
            out = route(e)
        except (sp.PolynomialError, NotImplementedError):
            continue
        if not out.free_symbols & xs and not out.has(sp.nan, sp.zoo, sp.oo):
            return out
    # The rewriting rules missed it: if it is constant in x, its value anywhere is the answer.
    if all(vanishes(sp.diff(e, x)) for x in xs):
        out = sp.simplify(e.subs({x: sp.Rational(3, 7) for x in xs}))
        return None if out.has(sp.nan, sp.zoo, sp.oo) else out
    return None


def _tidy(g: Any) -> Any:
    """One exponential for a product of them, its exponent factored.

    exp(c * (old - new)) neither overflows nor cancels where exp(c * old) and c * old - c * new do.
    """
    import sympy as sp

    g = sp.powsimp(g, combine="exp")
    return g.replace(
        lambda e: isinstance(e, sp.exp) or (e.is_Pow and bool(e.exp.free_symbols)),
        lambda e: e.func(*e.args[:-1], sp.factor_terms(e.args[-1])),
    )


def _exponent(g: Any) -> Expr | None:
    """The sum of the exponents of the exponential factors of `g`, to base e."""
    import sympy as sp

    total = sp.Integer(0)
    for factor in sp.Mul.make_args(g):
        base, exponent = factor.as_base_exp()
        if isinstance(factor, sp.exp):
            base, exponent = sp.E, factor.args[0]
        if exponent.free_symbols:
            total += exponent if base == sp.E else exponent * sp.log(base)
    return from_sympy(sp.expand(total)) if total != 0 else None

"""The question that a derivation answers, the form of an answer, and both at sampled points."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from tilecc.ir.expr import Acc, Env, Expr, call, evaluate


@dataclass(frozen=True)
class Problem:
    """Reducer `kind` over `f`, an expression in Arg(k) whose role is `roles[k]`.

    Roles: "x" differs along the streamed axis, "c" is constant along it, "u" is a reference.
    `positive[k]`: Arg(k) is known to be positive.
    """

    kind: str
    f: Expr
    roles: tuple[str, ...]
    positive: tuple[bool, ...]

    def of_role(self, role: str) -> list[int]:
        """The numbers of the leaves with that role."""
        return [k for k, r in enumerate(self.roles) if r == role]


@dataclass(frozen=True)
class Repair:
    """`expr` over Acc, Old(k) and Arg(k) for reference k before and after, Arg(k) for constants.

    form: "keep" (acc), "scale" (acc * by), "shift" (acc + by), "power" (acc ** by) or "map".
    exponent: the sum of the exponents of exponential factors of `by`; unless it is at most 0 what
    was rounded to 0 under an early reference could have mattered under a later one.
    """

    form: str
    by: Expr
    exponent: Expr | None = None

    @property
    def expr(self) -> Expr:
        """The repair as an expression."""
        if self.form in ("keep", "map"):
            return self.by
        return call({"scale": "mul", "shift": "add", "power": "pow"}[self.form], Acc(), self.by)


def _points(problem: Problem, draw: random.Random) -> tuple[list[float], list[float]]:
    """Values of the leaves after and before the references moved."""
    after, before = (
        [draw.uniform(0.2, 1.5) if p else draw.uniform(-1.5, 1.5) for p in problem.positive]
        for _ in range(2)
    )
    roles = zip(before, after, problem.roles, strict=True)
    return after, [b if r == "u" else a for b, a, r in roles]


def varies(problem: Problem, branches: list[Expr], quotient: np.ufunc) -> bool:
    """Whether sampled points show that f(x, u') against f(x, u) is not free of x.

    A refutation in floats spares the prover the search for a simplification that is not there.
    """
    draw = random.Random(2)
    for _ in range(4):
        at, was = _points(problem, draw)
        other = _points(problem, draw)[0]
        seen = []
        for x in (at, other):
            moved = [
                [y if r == "x" else w for w, y, r in zip(v, x, problem.roles, strict=True)]
                for v in (at, was)
            ]
            with np.errstate(all="ignore"):
                after, before = (
                    float(evaluate(branches[0], Env(arg=[np.float64(y) for y in v].__getitem__)))
                    for v in moved
                )
                seen.append(float(quotient(after, before)))
        a, b = seen
        if math.isfinite(a) and math.isfinite(b) and abs(a - b) > 1e-6 * (1 + abs(a) + abs(b)):
            return True
    return False


def holds_at_samples(problem: Problem, branches: list[Expr], repair: Repair) -> bool:
    """Whether the identity holds at random points, in floats: a guard against the prover."""
    draw = random.Random(0)
    for _ in range(8):
        at, was = ([np.float64(x) for x in v] for v in _points(problem, draw))
        for f in islice(branches, 4):
            with np.errstate(all="ignore"):
                want, seen = (float(evaluate(f, Env(arg=v.__getitem__))) for v in (at, was))
                env = Env(arg=at.__getitem__, old=was.__getitem__, acc=partial(float, seen))
                got = float(evaluate(repair.expr, env))
            if all(map(math.isfinite, (got, want))) and abs(got - want) > 1e-9 * (1 + abs(want)):
                return False
    return True

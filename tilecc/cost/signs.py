"""Which of two formulas is larger, for counters in their ranges and sizes from 1 on."""

from __future__ import annotations

from typing import Any

import sympy

Formula = Any
Box = dict[Formula, tuple[Formula, Formula]]


class Least(sympy.Function):  # type: ignore[misc]
    """The smaller of two. sympy's Min asks of every pair which is smaller, at every step."""

    nargs = 2

    @classmethod
    def eval(cls, a: Formula, b: Formula) -> Formula | None:
        """A value where that is plain to see."""
        return a if a == b else sympy.Min(a, b) if _numbers(a, b) else None


class Greatest(sympy.Function):  # type: ignore[misc]
    """The larger of two."""

    nargs = 2

    @classmethod
    def eval(cls, a: Formula, b: Formula) -> Formula | None:
        """A value where that is plain to see."""
        return a if a == b else sympy.Max(a, b) if _numbers(a, b) else None


def _numbers(a: Formula, b: Formula) -> bool:
    """Whether both are numbers that compare (1 / n is none for a size of 0, which sympy tries)."""
    return bool(a.is_Number and b.is_Number and sympy.nan not in (a, b))


def plain(e: Formula) -> Formula:
    """`e` with sympy's own functions."""
    return e.replace(Least, sympy.Min).replace(Greatest, sympy.Max)


def resolve(e: Formula, box: Box) -> Formula:
    """`e` with every minimum and maximum decided that can be, for counters in `box` (inclusive)."""

    if not e.has(Least, Greatest):
        return e
    return e.replace(lambda x: isinstance(x, Least | Greatest), lambda x: _decide(x, box))


def _decide(x: Formula, box: Box) -> Formula:
    a, b = x.args
    larger, smaller = (a, b) if isinstance(x, Greatest) else (b, a)
    if nonnegative(larger - smaller, box):
        return a
    return b if nonnegative(smaller - larger, box) else x


def decided(condition: Formula, box: Box) -> Formula:
    """A condition with every comparison decided that is the same all over the box."""
    known = {}
    for c in condition.atoms(sympy.Rel):
        if isinstance(c, sympy.Ge | sympy.Gt | sympy.Le | sympy.Lt):
            # a >= b, and its negation a < b, that is b >= a + 1 in whole numbers
            d = c.gts - c.lts - (1 if isinstance(c, sympy.Gt | sympy.Lt) else 0)
            if nonnegative(d, box):
                known[c] = sympy.true
            elif nonnegative(-d - 1, box):
                known[c] = sympy.false
    return condition.xreplace(known) if known else condition


def nonnegative(e: Formula, box: Box) -> bool:
    """Whether `e` is proved to be at least 0: affine in each counter, so its corners decide."""
    ends = {sympy.expand(e)}
    for c in reversed(box):  # from the innermost loop out: its ends read the counters around it
        moving = [x for x in ends if x.has(c)]
        if any(not x.is_polynomial(c) or sympy.degree(x, c) > 1 for x in moving):
            return False
        ends -= set(moving)
        ends |= {sympy.expand(x.subs(c, end)) for x in moving for end in box[c]}
    hard = (sympy.floor, sympy.ceiling, Least, Greatest)
    return not any(x.has(*hard) for x in ends) and all(map(_corner, ends))


def _corner(e: Formula) -> bool:
    """Whether a polynomial in sizes is at least 0 where all of them are at least 1."""
    sizes = sorted(e.free_symbols, key=str)
    if any(not s.is_positive for s in sizes):
        return False
    shifted = sympy.expand(e.subs({s: s + 1 for s in sizes}))
    if not sizes:
        return bool(shifted >= 0)
    if not shifted.is_polynomial(*sizes):
        return False
    return all(c >= 0 for c in sympy.Poly(shifted, *sizes).coeffs())

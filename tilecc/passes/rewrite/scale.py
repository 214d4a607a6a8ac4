"""Rules that gather constant factors and move positive ones outwards.

A constant factor is kept as the last argument of one `mul`. A scale passes through whatever
commutes with multiplication by a positive finite number, so that a maximum is taken over a raw
contraction, and exp2's argument ends as one multiply-add per score.
"""

from __future__ import annotations

import math

from tilecc.passes.rewrite.engine import Rewriter, rule
from tilecc.passes.rewrite.facts import (
    ONE,
    Addend,
    Scale,
    combine,
    constant_scale,
    linear,
    opened,
    scale_term,
    scaled,
    times,
)
from tilecc.passes.rewrite.terms import Term, postorder

# Numbers that a positive scale leaves as they are.
FIXED = (0, math.inf, -math.inf)
LOG2_E = 1.0 / math.log(2.0)


@rule("mul")
def constant_product(rw: Rewriter, t: Term) -> Term | None:
    """(x * c) * d --> x * (c * d), (x * c) * y --> (x * y) * c"""
    if not t.is_float:
        return None
    a, b = t.args
    ca, cb = constant_scale(a), constant_scale(b)
    if ca is not None and cb is not None:
        return scale_term(rw.terms, combine(rw.terms, ca, cb))
    if cb is not None:  # the table of terms puts constants last
        core, inner = opened(rw, a)
        return times(rw.terms, core, combine(rw.terms, inner, cb))
    (x, sx), (y, sy) = opened(rw, a), opened(rw, b)
    if sx == ONE and sy == ONE:
        return None
    return times(rw.terms, rw.terms.call("mul", x, y), combine(rw.terms, sx, sy))


@rule("div")
def constant_quotient(rw: Rewriter, t: Term) -> Term | None:
    """x / c --> x * (1 / c), (x * c) / y --> (x / y) * c, x / (y * c) --> (x / y) * (1 / c),
    c / y --> (1 / y) * c"""
    if not t.is_float:
        return None
    a, b = t.args
    ca, cb = constant_scale(a), constant_scale(b)
    if cb is not None:
        inverse = _inverse(rw, cb)
        if inverse is None:
            return None
        if ca is None:
            return times(rw.terms, a, inverse)
        new = scale_term(rw.terms, combine(rw.terms, ca, inverse))
        return None if new is t else new
    (x, sx), (y, sy) = scaled(a), scaled(b)
    if ca is not None and ca != ONE:
        x, sx = rw.terms.const(1.0), ca
    inverse = _inverse(rw, sy)
    if (sx == ONE and sy == ONE) or inverse is None:
        return None
    return times(rw.terms, rw.terms.call("div", x, y), combine(rw.terms, sx, inverse))


def _inverse(rw: Rewriter, s: Scale) -> Scale | None:
    """1 / s, in closed form for roots; None where it is not a finite number."""
    if s.literal == 0 or not math.isfinite(1.0 / s.literal) or not math.isfinite(s.literal):
        return None
    c = s.symbol
    if c is None:
        return Scale(1.0 / s.literal)
    twin = {"sqrt": "rsqrt", "rsqrt": "sqrt"}.get(c.data) if c.kind == "call" else None
    if twin is not None:
        return Scale(1.0 / s.literal, rw.terms.call(twin, *c.args))
    if c.is_call("div") and c.args[0].is_number(1):
        return Scale(1.0 / s.literal, c.args[1])
    return Scale(1.0 / s.literal, rw.terms.call("div", rw.terms.const(1.0), c))


@rule("neg")
def constant_negation(rw: Rewriter, t: Term) -> Term | None:
    """-(x * c) --> x * (-c)"""
    core, s = scaled(t.args[0])
    return None if s == ONE else times(rw.terms, core, Scale(-s.literal, s.symbol))


@rule("where")
def scale_out_of_where(rw: Rewriter, t: Term) -> Term | None:
    """where(p, x * c, -inf) --> where(p, x, -inf) * c, also for 0, inf, and y * c"""
    c, a, b = t.args
    found = _common_scale(a, b)
    if found is None:
        return None
    x, y, s = found
    return times(rw.terms, rw.terms.call("where", c, x, y), s)


@rule("maximum", "minimum")
def scale_out_of_extremum(rw: Rewriter, t: Term) -> Term | None:
    """maximum(x * c, 0) --> maximum(x, 0) * c, maximum(x * c, y * c) --> maximum(x, y) * c"""
    found = _common_scale(*t.args) if t.is_float else None
    if found is None:
        return None
    x, y, s = found
    return times(rw.terms, rw.terms.call(t.data, x, y), s)


@rule("eq", "ne", "lt", "le", "gt", "ge")
def scale_out_of_comparison(rw: Rewriter, t: Term) -> Term | None:
    """x * c == -inf --> x == -inf, x * c < 0 --> x < 0"""
    found = _common_scale(*t.args)
    return None if found is None else rw.terms.call(t.data, found[0], found[1])


@rule("abs")
def scale_out_of_abs(rw: Rewriter, t: Term) -> Term | None:
    """abs(x * c) --> abs(x) * c"""
    core, s = scaled(t.args[0])
    if s == ONE or not s.positive:
        return None
    return times(rw.terms, rw.terms.call("abs", core), s)


def _common_scale(a: Term, b: Term) -> tuple[Term, Term, Scale] | None:
    """A positive scale that both have, or that one has and the other does not notice."""
    (x, sx), (y, sy) = scaled(a), scaled(b)
    if sx != ONE and sx.positive and (sx == sy or b.is_number(*FIXED)):
        return x, y, sx
    if sy != ONE and sy.positive and a.is_number(*FIXED):
        return a, y, sy
    return None


@rule("reduce")
def scale_out_of_reduction(rw: Rewriter, t: Term) -> Term | None:
    """max_j(x * c) --> max_j(x) * c, for max and min and a positive constant c"""
    kind, over = t.data
    core, s = scaled(t.args[0])
    if kind not in ("max", "min") or s == ONE or not s.positive:
        return None
    return times(rw.terms, rw.terms.reduce(kind, core, over), s)


@rule("exp", "pow")
def exponential(rw: Rewriter, t: Term) -> Term | None:
    """exp(x) --> exp2(x * log2(e)), pow(2.0, x) --> exp2(x)"""
    if t.data == "pow":
        base, x = t.args
        return rw.terms.call("exp2", x) if base.is_number(2) and x.is_float else None
    x = t.args[0]
    return rw.terms.call("exp2", rw.terms.call("mul", x, rw.terms.const(LOG2_E)))


@rule("exp2")
def linear_exponent(rw: Rewriter, t: Term) -> Term | None:
    """exp2((x * a - y) * c) --> exp2(x * (a * c) - y * c)"""
    (x,) = t.args
    if not x.is_float or x.constant:
        return None
    form = linear(rw, x)
    if len(form) < 2:
        return None
    return rw.terms.call("exp2", _sum(rw, form))


def _sum(rw: Rewriter, form: list[Addend]) -> Term:
    """Additions first, those of most axes first of all; then subtractions."""
    # A literal 0 (softmax's `x - 0`) has no effect on an exponent.
    form = [a for a in form if a.scale.literal != 0.0]
    plus = sorted((a for a in form if a.scale.literal > 0), key=lambda a: -len(a.atom.axes))
    minus = [a for a in form if not a.scale.literal > 0]
    total: Term | None = None
    for a in plus:
        x = _addend(rw, a.atom, a.scale)
        total = x if total is None else rw.terms.call("add", total, x)
    for a in minus:
        if total is None:
            total = _addend(rw, a.atom, a.scale)
        else:
            x = _addend(rw, a.atom, Scale(-a.scale.literal, a.scale.symbol))
            total = rw.terms.call("sub", total, x)
    return total if total is not None else rw.terms.const(0.0)


def _addend(rw: Rewriter, atom: Term, s: Scale) -> Term:
    if atom.is_number(1):
        return scale_term(rw.terms, s)
    x = times(rw.terms, atom, s)
    x.name = x.name or atom.name
    return x


@rule("div")
def reciprocal_of_row(rw: Rewriter, t: Term) -> Term | None:
    """x_ij / a_i --> x_ij * (1 / a_i): one division per row. Only for an `a` that comes from inputs
    without a reduction: a sum may be so small that its reciprocal overflows."""
    x, a = t.args
    if not t.is_float or x.constant or a.constant or not a.names < x.names:
        return None
    if any(y.kind in ("reduce", "contract") for y in postorder([a])):
        return None
    return rw.terms.call("mul", x, rw.terms.call("div", rw.terms.const(1.0), a))


@rule("mul")
def scale_of_row(rw: Rewriter, t: Term) -> Term | None:
    """(x_ij * a_i) * c --> x_ij * (a_i * c): one multiplication per row"""
    x, c = t.args
    if not t.is_float or constant_scale(c) is None or not x.is_call("mul") or rw.materialised(x):
        return None
    for a, b in (x.args, x.args[::-1]):
        if b.names < a.names and b.is_float and not b.constant:
            return rw.terms.call("mul", a, rw.terms.call("mul", b, c))
    return None


@rule("mul")
def scale_into_extremum(rw: Rewriter, t: Term) -> Term | None:
    """maximum(x * a, y) * b --> maximum(x * (a * b), y * b): x then has one scale, as elsewhere"""
    core, s = scaled(t)
    if not core.is_call("maximum", "minimum") or not s.positive or rw.materialised(core):
        return None
    parts = [scaled(a) for a in core.args]
    if all(inner == ONE for _, inner in parts):
        return None

    def part(x: Term, inner: Scale) -> Term:
        number = constant_scale(x)
        if number is not None:  # no rule of this phase would multiply it out
            return scale_term(rw.terms, combine(rw.terms, number, s))
        return times(rw.terms, x, combine(rw.terms, inner, s))

    return rw.terms.call(core.data, *(part(x, inner) for x, inner in parts))


RULES = [
    constant_product,
    constant_quotient,
    constant_negation,
    scale_out_of_where,
    scale_out_of_extremum,
    scale_out_of_comparison,
    scale_out_of_abs,
    scale_out_of_reduction,
    exponential,
    reciprocal_of_row,
]

# Taken apart only once scales have settled: before, what is materialised is not known.
LATE_RULES = [linear_exponent]

# Last of all, alone: constants no longer have to stand last.
FINAL_RULES = [scale_of_row, scale_into_extremum]

"""Rules that write composites out. Both start alike, so that softmax and logsumexp share work."""

from __future__ import annotations

import math

from tilecc.passes.rewrite.engine import Rewriter, rule
from tilecc.passes.rewrite.terms import Term


def _shifted(rw: Rewriter, t: Term) -> tuple[Term, Term, Term]:
    """exp(x - g), its sum, and g: the maximum, or 0 where that is -inf (no live element)."""
    terms = rw.terms
    x = t.args[0] if t.args[0].is_float else terms.cast(t.args[0], t.dtype)
    m = terms.reduce("max", x, t.over)
    masked = terms.call("eq", m, terms.const(-math.inf))
    g = terms.call("where", masked, terms.const(0.0), m)
    p = terms.call("exp", terms.call("sub", x, g))
    l = terms.reduce("sum", p, t.over)
    for v, name in ((m, "m"), (g, "g"), (p, "p"), (l, "l")):
        v.name = v.name or name
    return p, l, g


@rule("softmax")
def expand_softmax(rw: Rewriter, t: Term) -> Term | None:
    """softmax_j(x) --> p * where(l == 0, 0, 1 / l), p = exp(x - g), l = sum_j(p)"""
    p, l, _ = _shifted(rw, t)
    terms = rw.terms
    empty = terms.call("eq", l, terms.const(0.0))
    inverse = terms.call("div", terms.const(1.0), l)
    return terms.call("mul", p, terms.call("where", empty, terms.const(0.0), inverse))


@rule("logsumexp")
def expand_logsumexp(rw: Rewriter, t: Term) -> Term | None:
    """logsumexp_j(x) --> g + log(l): -inf where no element is live, as log(0) is"""
    _, l, g = _shifted(rw, t)
    return rw.terms.call("add", g, rw.terms.call("log", l))


RULES = [expand_softmax, expand_logsumexp]

"""Proofs that an online form neither loses nor overflows what the two-pass form would not.

Over the reals a repair may take any factor. In floats, what was rounded to 0 or to infinity under
an early reference stays that.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilecc.analysis.contribution import Contribution
from tilecc.analysis.facts import Knowledge
from tilecc.analysis.leaves import replace, replace_leaves
from tilecc.analysis.monotone import monotone
from tilecc.analysis.signs import POS
from tilecc.analysis.zero import is_zero, simplified
from tilecc.ir.expr import Acc, Arg, Call, Expr, Index, Old, walk

EXPONENTIALS = ("exp", "exp2", "pow")


def bounded(known: Knowledge, c: Contribution, exponent: Expr) -> bool:
    """Whether `exponent`, of a factor of the repair of `c`, is at most 0.

    A state after a chunk is at least (max, sums of what is not negative) or at most (min) what
    its own repair makes of it. The exponent at that bound must vanish, state by state from the
    last, and must not grow from there.
    """
    e = exponent
    positive = {k for k in c.moving if known.of(c, k).regular == POS}
    sure = frozenset(leaf for k in positive for leaf in (Arg(k), Old(k)))
    for k in reversed(c.moving):
        kind, facts = known.kind(c, k), known.of(c, k)
        if kind == "prod" or (kind == "sum" and facts.identity is None):
            return False
        direction = monotone(e, Arg(k), positive)
        if direction is None:
            e = simplified(e, sure)
            direction = monotone(e, Arg(k), positive)
        if direction is None or direction * (-1 if kind == "min" else 1) > 0:
            return False
        e = replace(e, Arg(k), _bound(known, c, k))
    return is_zero(e, sure)


def _bound(known: Knowledge, c: Contribution, k: int) -> Expr:
    """What state `k` is repaired to, in terms of old values and of states before it."""
    facts = known.of(c, k)
    if facts.plain is None:
        return Old(k)

    def f(n: Expr) -> Expr | None:
        if isinstance(n, Acc):
            return Old(k)
        if isinstance(n, Arg | Old):
            leaf = c.leaf(facts.leaves[n.k])
            return leaf if isinstance(n, Arg) else Old(leaf.k)
        return None

    return replace_leaves(facts.plain, f)


def tame(known: Knowledge, c: Contribution) -> bool:
    """Whether exponentials in f are bounded whatever the moving states are, as at the end.

    A maximum is at least, a sum of what is not negative is at least, what the position itself
    contributes to it.
    """
    f = known.regular(c, c.open)
    exponents = {
        n.args[-1]
        for n in walk(f)
        if isinstance(n, Call) and n.fn in EXPONENTIALS and c.moves(n.args[-1])
    }
    # Where what the position brings does not cancel, its bound is no bound.
    brought: set[Expr] = {
        n
        for w in c.written.values()
        for n in walk(w)
        if isinstance(n, Arg | Index) and c.streamed(n)
    }
    return all(any(_cancels(known, c, v, brought) for v in _without_maximum(e)) for e in exponents)


def _cancels(known: Knowledge, c: Contribution, e: Expr, brought: set[Expr]) -> bool:
    """Whether `e` is bounded by what is free of moving states and of what is brought to them."""
    positive = {k for k in c.moving if known.of(c, k).regular == POS}
    sure = frozenset(Arg(k) for k in positive)
    for k in reversed(c.moving):
        kind = known.kind(c, k)
        direction = monotone(e, Arg(k), positive)
        wrong = 1 if kind != "min" else -1
        if k not in c.written or direction is None or direction == wrong:
            return False
        if direction and (kind in ("max", "min") or known.of(c, k).identity):
            own = known.regular(c, c.written[k])
            e = simplified(replace(e, Arg(k), own), sure)
    return not c.moves(e) and brought.isdisjoint(walk(e))


def _without_maximum(e: Expr) -> Iterator[Expr]:
    """`e`, and bounds of it in which a maximum (minimum) that it falls (rises) with is one side."""
    yield e
    for n in walk(e):
        if isinstance(n, Call) and n.fn in ("maximum", "minimum"):
            hole = Arg(-1)
            direction = monotone(replace(e, n, hole), hole)
            if direction == (-1 if n.fn == "maximum" else 1):
                for side in n.args:
                    yield from _without_maximum(replace(e, n, side))
            return

"""What is known of the values that states take, in order of their dependence."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilecc.analysis.contribution import Contribution, reduction, resolve_guards
from tilecc.analysis.leaves import replace
from tilecc.analysis.signs import (
    FINITE,
    NEG_INF,
    POS,
    POS_INF,
    ZERO,
    SignEnv,
    Signs,
    of_number,
    signs,
    within,
)
from tilecc.analysis.streams import Streams
from tilecc.ir.core import Value
from tilecc.ir.expr import Arg, Const, Expr, call, transform
from tilecc.ir.ops import REDUCERS

Regime = frozenset[int]
"""Leaf numbers of the moving states that are still at their identity."""


@dataclass(frozen=True)
class Facts:
    """What is known of a state: classes it can have once something contributed, and before that.

    follows: states at whose identity this one is at its own; anchored: those of them that leave
    their identity only together with it. plain: the repair over the reals, over `leaves`.
    """

    regular: Signs
    identity: Signs | None
    follows: frozenset[Value] = frozenset()
    anchored: frozenset[Value] = frozenset()
    plain: Expr | None = None
    leaves: tuple[Value, ...] = ()


@dataclass(eq=False)
class Knowledge:
    """Facts of the states of `streams` that have been planned, and the guards of their plans."""

    streams: Streams
    facts: dict[Value, Facts] = field(default_factory=dict)
    guards: dict[Value, Mapping[Value, float]] = field(default_factory=dict)

    def of(self, c: Contribution, k: int) -> Facts:
        """Facts of the state that is leaf `k`."""
        return self.facts[c.leaves[k]]

    def kind(self, c: Contribution, k: int) -> str:
        """The reducer of the state that is leaf `k`."""
        return self.streams.items[c.leaves[k]].kind

    def regular(self, c: Contribution, e: Expr) -> Expr:
        """`e` without guards: as it is once something has contributed to all states."""
        return resolve_guards(e, self.env(c, frozenset()))

    def env(
        self, c: Contribution, regime: Regime, *, floats: bool = False, constants: Signs = FINITE
    ) -> SignEnv:
        """Classes of the leaves: the states of `regime` at their identity, the others past it."""
        args = {k: c.default(k, constants) for k in range(len(c.leaves))}
        for k in c.moving:
            facts = self.of(c, k)
            at_identity = k in regime and facts.identity is not None
            args[k] = (facts.identity or 0) if at_identity else facts.regular
            if k in c.own:
                past = facts.regular | (facts.identity or 0)
                kind = self.kind(c, k)
                if kind in ("max", "min"):  # single contributions lie on the other side of it
                    past |= FINITE if facts.regular != ZERO | POS else 0
                else:
                    past = ZERO | POS if facts.identity is not None else FINITE
                args[c.own[k]] = args[k] if at_identity else past
        return SignEnv(args, dict(args), FINITE, floats)

    def regimes(self, c: Contribution) -> list[Regime]:
        """The sets of moving states that can be at their identity at the same time."""
        able = [k for k in c.moving if self.of(c, k).identity is not None]
        out = []
        for n in range(len(able) + 1):
            for some in itertools.combinations(able, n):
                at = {c.leaves[k] for k in some}
                past = {c.leaves[k] for k in able} - at
                follows = all(not (self.facts[s].follows & at) for s in past)
                anchored = all(not (self.facts[s].anchored & past) for s in at)
                if follows and anchored:
                    out.append(frozenset(some))
        return out

    def learn(
        self, c: Contribution, guards: Mapping[int, float], plain: Expr | None = None
    ) -> None:
        """Find the facts of the state that accumulates `c` under `guards`."""
        kind, seen = c.item.kind, 0
        f = self.guarded(c, c.f, guards)
        for regime in self.regimes(c):
            seen |= signs(f, self.env(c, regime))
        finite = seen & FINITE if within(seen, FINITE | NEG_INF | POS_INF) else FINITE
        identity: Signs | None = of_number(REDUCERS[kind].identity)
        regular = finite
        if kind == "sum":
            definite = within(finite, ZERO | POS)
            identity, regular = (ZERO, POS) if definite else (None, FINITE)
        elif kind == "prod":
            identity, regular = None, POS if finite == POS else FINITE
        moving = {k: c.leaves[k] for k in c.moving if k in c.own}
        sums = identity is not None and kind == "sum"
        follows = frozenset(moving.values() if sums else ())
        anchored = frozenset(s for k, s in moving.items() if self._anchored(c, k))
        self.guards[c.item.value] = {c.leaves[k]: g for k, g in guards.items()}
        self.facts[c.item.value] = Facts(
            regular, identity, follows, anchored & follows, plain, tuple(c.leaves)
        )

    def _anchored(self, c: Contribution, k: int) -> bool:
        """Whether the position that gives state `k` its extreme value contributes more than 0."""
        if self.kind(c, k) not in ("max", "min"):
            return False
        _, over = reduction(self.streams, self.streams.items[c.leaves[k]])
        if not set(over) <= set(c.over):  # that position may belong to another sum
            return False
        e = replace(self.regular(c, c.f), Arg(c.own[k]), Arg(k))
        return signs(e, self.env(c, frozenset())) == POS

    def guarded(self, c: Contribution, e: Expr, guards: Mapping[int, float]) -> Expr:
        """`e` with guards put on the values after a chunk of the states in `guards`."""

        def f(n: Expr) -> Expr | None:
            if isinstance(n, Arg) and n.k in guards:
                return guard(self.kind(c, n.k), n, guards[n.k])
            return None

        return transform(e, f)


def guard(kind: str, state: Expr, stand_in: float) -> Expr:
    """`state`, or the number `stand_in` while it is at its identity."""
    return call("where", at_identity(kind, state), Const(stand_in), state)


def at_identity(kind: str, e: Expr) -> Expr:
    """Whether the state `e` is at its identity."""
    return call("eq", e, Const(float(REDUCERS[kind].identity)))

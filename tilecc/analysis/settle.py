"""Makes a repair that holds over the reals hold for what a kernel computes.

- at the identity: while nothing has contributed to a state r (max: r = -inf), what a dependent
  state accumulates must be exactly its own identity under the old and every new r, and the repair
  must keep that, with no inf * 0 and no inf - inf. Where the program has no guard, one is put on r
  (`where(r == -inf, 0, r)`), a value a row; what the program would then have given for a row that
  ends like that (NaN, mostly) can be put back at the end;
- under rounding: see `analysis.bounds`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tilecc.analysis.bounds import EXPONENTIALS, bounded, tame
from tilecc.analysis.contribution import Abstraction, Contribution, reduction
from tilecc.analysis.facts import Knowledge, Regime, at_identity
from tilecc.analysis.leaves import leaves_of, replace, replace_leaves
from tilecc.analysis.problem import Repair
from tilecc.analysis.signs import (
    FINITE,
    NAN,
    NEG_INF,
    SignEnv,
    Signs,
    of_number,
    signs,
    single,
    within,
)
from tilecc.ir.core import Value
from tilecc.ir.expr import Acc, Arg, Call, Const, Expr, Index, Old, call, transform, walk
from tilecc.ir.ops import REDUCERS


@dataclass(frozen=True)
class Restore:
    """Where `cond` holds at the end, the final value is `value`; None: that cannot be written.

    Both are over the plan's leaves, Arg(k) being the final value of a state.
    point: what the guarded state gives there, in place of a NaN that the program may give.
    """

    cond: Expr
    value: Expr | None
    point: Signs


@dataclass(frozen=True)
class Plan:
    """How to keep a state online.

    repair: over Acc, Old(k) and Arg(k), leaves[k] being computed in the body; None: acc stays.
    guards: for a state the number that stands for it while it is at its identity.
    restore: what puts back the program's own value where a guarded state ends at its identity.
    """

    leaves: tuple[Value, ...]
    repair: Expr | None
    guards: Mapping[Value, float] = field(default_factory=dict)
    restore: Restore | None = None


@dataclass(eq=False)
class Candidate:
    """One repair that holds over the reals, being made to hold at identities and in floats."""

    known: Knowledge
    c: Contribution
    problem: Abstraction
    repair: Repair

    def plan(self) -> Plan | str:
        """The plan, or the obligation that fails."""
        c, known = self.c, self.known
        if not self._axes_fit():
            return "the repair needs a value for each position that the state has been summed over"
        if not self._bounded():
            return (
                "the repair amplifies: its exponential factor may exceed 1, and what was rounded "
                "to 0 under an early r would be missing under a later one"
            )
        if not tame(known, c):
            return "f(x, r) may overflow under an early r where it would not under the final one"
        self.regimes = known.regimes(c)
        for constants in (FINITE | NEG_INF, FINITE):
            for guards in self._guard_choices():
                if not self._settles(guards, constants):
                    continue
                for repair in self._shapes():
                    if self._keeps(repair, guards, constants):
                        return self._accept(repair, guards, self._restore(guards, constants))
        return (
            "at the reducer's identity: while r has its first value, or where it is 0 in a "
            "denominator, what f(x, r) accumulates is not provably neutral"
        )

    def _accept(self, repair: Expr, guards: Mapping[int, float], restore: Restore | None) -> Plan:
        c = self.c
        self.known.learn(c, guards, self._written(self.repair.expr, values=False))
        return Plan(
            tuple(c.leaves),
            None if self.repair.form == "keep" else repair,
            {c.leaves[k]: g for k, g in guards.items()},
            restore,
        )

    def _written(self, e: Expr, *, values: bool) -> Expr:
        """`e` over the leaves; references after the chunk as `values` of the program, if there are.

        References before the chunk are written without their guards: at the identity they must
        give what the arithmetic of infinities gives.
        """
        c, parts = self.c, self.problem.parts

        def f(n: Expr) -> Expr | None:
            if isinstance(n, Old):
                plain = self.known.regular(c, parts[n.k])
                return transform(plain, self._to_old)
            if isinstance(n, Arg):
                part = parts[n.k]
                if not c.moves(part):
                    return part
                if not values:
                    return self.known.regular(c, part)
                return self._by_values(part)
            return None

        return replace_leaves(e, f)

    def _by_values(self, part: Expr) -> Expr:
        """`part` in terms of values that the body computes anyway."""
        large_first = sorted(self.c.references, key=lambda e: -sum(1 for _ in walk(e)))
        for e in large_first:
            part = replace(part, e, self.c.leaf(self.c.references[e]))
        return part

    def _to_old(self, n: Expr) -> Expr | None:
        return Old(n.k) if isinstance(n, Arg) and n.k in self.c.moving else None

    def _axes_fit(self) -> bool:
        c = self.c
        have = set(c.item.value.type.names)
        repair = self._written(self.repair.expr, values=False)
        leaves = {n.k for n in leaves_of(repair) if isinstance(n, Arg | Old)}
        return not c.streamed(repair) and all(set(c.leaves[k].type.names) <= have for k in leaves)

    def _bounded(self) -> bool:
        if self.repair.exponent is None:
            return True
        return bounded(self.known, self.c, self._written(self.repair.exponent, values=False))

    def _guard_choices(self) -> Iterator[dict[int, float]]:
        """Numbers to stand for states at their identity, few before many.

        What a state accumulates is as its own plan has it only under that plan's guards.
        """
        c, known = self.c, self.known
        base: dict[int, float] = {}
        for k in c.own:
            base.update({c.leaf(s).k: g for s, g in known.guards.get(c.leaves[k], {}).items()})
        able = [k for k in c.moving if known.of(c, k).identity is not None]
        free = [k for k in able if k not in base]
        choices = itertools.product((None, 0.0, 1.0), repeat=len(free))
        for choice in sorted(choices, key=lambda ch: sum(g is not None for g in ch)):
            yield base | {k: g for k, g in zip(free, choice, strict=True) if g is not None}

    def _env(self, regime: Regime, constants: Signs) -> SignEnv:
        return self.known.env(self.c, regime, floats=bool(regime), constants=constants)

    def _settled(self, guards: Mapping[int, float], old: Regime, new: Regime, k: Signs) -> Signs:
        """Classes of contributions of positions seen under `old`, evaluated under `new`."""
        env = self._env(new, k)
        seen = self._env(old, k)
        args = dict(env.args)
        args.update({own: seen.args[own] for own in self.c.own.values()})
        f = self.known.guarded(self.c, self.c.f, guards)
        return signs(f, SignEnv(args, floats=bool(old)))

    def _settles(self, guards: Mapping[int, float], constants: Signs) -> bool:
        """Whether contributions are finite past the identity, and one and the same value at it."""
        self.point = of_number(REDUCERS[self.c.item.kind].identity)
        fine = self._settled(guards, frozenset(), frozenset(), FINITE)
        if not within(fine, FINITE | self.point):
            return False
        seen = 0
        for old in self.regimes:
            for new in self.regimes:
                if old and new <= old:
                    seen |= self._settled(guards, old, new, constants)
        self.point = seen or self.point
        return single(self.point) and self.point != NAN

    def _shapes(self) -> Iterator[Expr]:
        """The repair as derived, and with its factor or the whole of it guarded."""
        r, c = self.repair, self.c
        kind = c.item.kind
        whole = self._written(r.expr, values=True)
        held = call("where", at_identity(kind, Acc()), Acc(), whole)
        yield whole
        yield held
        if r.form in ("scale", "shift"):
            by = self._written(r.by, values=True)
            cond = self._any_at_identity(c.moving, Old)
            if cond is not None:
                neutral = Const(1.0 if r.form == "scale" else 0.0)
                op = "mul" if r.form == "scale" else "add"
                factor = call("where", cond, neutral, by)
                yield call(op, Acc(), factor)
                yield call("where", at_identity(kind, Acc()), Acc(), call(op, Acc(), factor))

    def _keeps(self, repair: Expr, guards: Mapping[int, float], constants: Signs) -> bool:
        """Whether `repair` keeps the reducer's identity, and what has been accumulated at it."""
        c = self.c
        inverse = {v: e for e, v in c.references.items()}
        expanded = transform(
            repair,
            lambda n: inverse.get(c.leaves[n.k]) if isinstance(n, Arg) else None,
        )
        e = self.known.guarded(c, expanded, guards)
        nothing = of_number(REDUCERS[c.item.kind].identity)
        # An only exponential has been proved to be at most 1.
        calls = {n for n in walk(self.repair.by) if isinstance(n, Call)}
        many = sum(n.fn in EXPONENTIALS for n in calls) > 1
        overflow = self.repair.exponent is None or many
        for old in self.regimes:
            for new in self.regimes:
                if not new <= old:
                    continue
                before, after = self._env(old, constants), self._env(new, constants)
                # Extremes start at an infinity, which a factor that is rounded to 0 would spoil.
                floats = bool(old) or c.item.kind in ("max", "min")
                for acc in {nothing, self.point} if old else {nothing}:
                    env = SignEnv(after.args, before.args, acc, floats, overflow)
                    if signs(e, env) != acc:
                        return False
                if not old:
                    env = SignEnv(self._env(new, FINITE).args, before.args, FINITE, floats=False)
                    if not within(signs(e, env), FINITE):
                        return False
        return True

    def _any_at_identity(self, ks: Iterable[int], leaf: type[Arg] | type[Old]) -> Expr | None:
        """Whether one of the states `ks` is at its identity; None if none of them can be."""
        facts = {k: self.known.of(self.c, k) for k in ks}
        cond: Expr | None = None
        for k, fact in facts.items():
            leads = any(self.c.leaves[m] in fact.anchored for m in facts)
            if fact.identity is not None and not leads:
                at = at_identity(self.known.kind(self.c, k), leaf(k))
                cond = at if cond is None else call("or", cond, at)
        return cond

    def _restore(self, guards: Mapping[int, float], constants: Signs) -> Restore | None:
        """What puts back the program's own value where a guarded state ends at its identity."""
        c, seen = self.c, 0
        for regime in self.regimes:
            if regime & set(guards):
                seen |= self._settled({}, regime, regime, constants)
        cond = self._any_at_identity(guards, Arg)
        if cond is None or seen == self.point:
            return None
        value: Expr = Const(math.nan) if seen == NAN else self._at_end()
        if not within(seen, self.point | NAN) or any(
            isinstance(n, Index) and n.axis in c.over for n in leaves_of(value)
        ):
            return Restore(cond, None, self.point)
        source, over = reduction(self.known.streams, c.item)
        extents = {a.name: a.extent for v in source.operands for a in v.type.axes}
        for name in over:  # over nothing the state is at its identity by right
            if not isinstance(extents[name], Const):
                cond = call("and", cond, call("gt", extents[name], Const(0)))
        return Restore(cond, value, self.point)

    def _at_end(self) -> Expr:
        """f where own contributions are identities; other factors cannot tell 0 from NaN."""
        c = self.c
        own = {c.own[k]: k for k in c.own}

        def f(n: Expr) -> Expr | None:
            if isinstance(n, Arg) and n.k in own:
                kind = self.known.kind(c, own[n.k])
                return Const(float(REDUCERS[kind].identity))
            return Const(1.0) if isinstance(n, Arg) and c.streamed(n) else None

        return transform(replace_leaves(c.f, f), _drop_one)


def _drop_one(n: Expr) -> Expr | None:
    if isinstance(n, Call) and n.fn == "mul" and n.args[1] == Const(1.0):
        return n.args[0]
    return None

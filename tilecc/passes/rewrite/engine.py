"""The engine: applies a table of rules to a term graph until nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tilecc.errors import Loc
from tilecc.passes.rewrite.terms import Term, Terms, postorder

MAX_SWEEPS = 12
FUEL = 20_000


@dataclass(frozen=True)
class Rule:
    """A named rewrite. `heads`: the term kinds, or functions of calls, that it starts at."""

    name: str
    heads: tuple[str, ...]
    apply: Callable[[Rewriter, Term], Term | None]


def rule(*heads: str) -> Callable[[Callable[[Rewriter, Term], Term | None]], Rule]:
    """Declares a function as a rule; its docstring is the formula."""

    def wrap(f: Callable[[Rewriter, Term], Term | None]) -> Rule:
        assert f.__doc__, f"rule {f.__name__} has no formula"
        return Rule(f.__name__, heads, f)

    return wrap


class Rewriter:
    """Holds the term table, the rules by head, and what the rules want to tell the user."""

    def __init__(self, terms: Terms, rules: Sequence[Rule]) -> None:
        self.terms = terms
        self.fuel = FUEL
        self.remarks: dict[tuple[str, Loc | None], None] = {}
        self.missed: dict[tuple[str, Loc | None], None] = {}
        self._by_head: dict[str, list[Rule]] = {}
        for r in rules:
            for head in r.heads:
                self._by_head.setdefault(head, []).append(r)
        self.cache: dict[object, object] = {}  # for rules; emptied before each sweep
        self._memo: dict[Term, Term] = {}
        self._materialised: set[Term] = set()

    def remark(self, message: str, loc: Loc | None) -> None:
        """Leaves a remark, once."""
        self.remarks[(message, loc)] = None

    def miss(self, message: str, loc: Loc | None) -> None:
        """Leaves a remark on what was not done, unless a later sweep does it."""
        self.missed[(message, loc)] = None

    def materialised(self, t: Term) -> bool:
        """Whether a reduction, a contraction or the caller reads `t` as a whole tensor."""
        return t in self._materialised

    def run(self, roots: Sequence[Term]) -> list[Term]:
        """The roots rewritten to a fixed point (or until the bound on sweeps)."""
        current = list(roots)
        for _ in range(MAX_SWEEPS):
            order = postorder(current)
            self._memo = {}
            self.cache.clear()
            self.missed.clear()
            self._materialised = set(current) | set(tensor_operands(order))
            for t in order:
                self._normalise(t)
            new = [self._memo[t] for t in current]
            if all(a is b for a, b in zip(new, current, strict=True)):
                break
            current = new
        return current

    def _normalise(self, t: Term) -> Term:
        known = self._memo.get(t)
        if known is not None:
            return known
        args = tuple(self._normalise(a) for a in t.args)
        self.terms.loc = t.loc
        new = self.terms.rebuild(t, args)
        if new is t or (known := self._memo.get(new)) is None:
            self.inherit(new, t)
            known = self._rewrite(new)
        self._memo[new] = self._memo[t] = known
        if t in self._materialised:
            self._materialised.add(known)
        return known

    def _rewrite(self, t: Term) -> Term:
        head = t.data if t.kind == "call" else t.kind
        for r in self._by_head.get(head, ()):
            if self.fuel <= 0:
                break
            self.terms.loc = t.loc
            new = r.apply(self, t)
            if new is not None and new is not t:
                self.fuel -= 1
                if not (new.weak or t.weak) and new.dtype is not t.dtype:
                    new = self.terms.cast(new, t.dtype)
                self.inherit(new, t)
                self._memo[t] = new  # a rule that undoes another ends here, and not in a loop
                return self._normalise(new)
        return t

    @staticmethod
    def inherit(new: Term, old: Term) -> None:
        """Gives `new` the name, line and order of axes of what it stands for, where it has none."""
        core = new.args[0] if new.is_call("mul") and new.args[1].constant else new
        for t in (new, core):
            if not t.name and not t.constant and t.kind != "param":
                t.name = old.name
            if t.loc is None:
                t.loc = old.loc
            if t.order is None and old.order is not None and len(old.order) == len(t.axes):
                t.order = old.order


def tensor_operands(order: Iterable[Term]) -> Iterable[Term]:
    """What reductions, contractions, composites and reads take as whole tensors."""
    for t in order:
        if not t.elementwise:
            yield from t.args[:1] if t.kind == "at" else t.args

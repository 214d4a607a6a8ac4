"""Whether interval arithmetic decides a condition over a box exactly, or only on the safe side.

`may` of a conjunction asks each part for a position of its own, so it may say "perhaps" where no
position satisfies all of them: a key in reach by rows and one in reach by columns need not be one
key. Where that cannot happen, `decides` says so: no tile has to be looked at element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from tilecc.analysis.forms import Linear, axes_of
from tilecc.analysis.interval import Box
from tilecc.analysis.linear import linear
from tilecc.analysis.predicate import Atom, Bool, Conj, Disj, Opaque, Pred, conj, literals
from tilecc.ir.expr import Arg, Call, Const, Expr, Index, arg_numbers

_CASES = 16  # ways to choose one condition of each union that are looked at


def decides(p: Pred, ranges: Box) -> bool:
    """Whether `may(p, ranges)` is true only where some position of the box satisfies `p`.

    The box may be any one over the axes of `ranges`; operands that `ranges` names are arrays.
    """
    loose = frozenset(a for a, (lo, hi) in ranges.items() if lo is None or lo != hi)
    known = frozenset(a for a, ends in ranges.items() if None not in ends)
    return _Judge(loose, known).decides(p)


@dataclass(frozen=True)
class _Judge:
    """`loose`: the axes and operands that are not the same for the whole box; of the `known` ones
    both ends are."""

    loose: frozenset[str | int]
    known: frozenset[str | int]

    def decides(self, p: Pred) -> bool:
        match p:
            case Bool():
                return True
            case Atom(form):
                return self.reaches_ends(form)
            case Opaque(e):
                return not self.reads(e) or (isinstance(e, Arg) and e.k in self.known)
            case Disj(parts):
                return all(map(self.decides, parts))
            case Conj(parts):
                moving = [q for q in parts if self.reads_of(q)]
                if not all(map(self.decides, moving)):
                    return False
                if self.independent(moving) or self.one_corner(moving) or self.one_form(moving):
                    return True
                choices = [q.parts for q in moving if isinstance(q, Disj)]
                rest = [q for q in moving if not isinstance(q, Disj)]
                if not choices or prod(map(len, choices)) > _CASES:
                    return False
                return all(self.decides(conj([*rest, *one])) for one in product(*choices))
        return False

    def reads(self, e: Expr) -> set[str | int]:
        """The loose axes and operands that `e` reads."""
        return {a for a in (*axes_of(e), *arg_numbers(e)) if a in self.loose}

    def reads_of(self, p: Pred) -> set[str | int]:
        found: set[str | int] = set()
        for x in literals(p):
            for e in [x.expr] if isinstance(x, Opaque) else [s for s, _ in x.form.terms]:  # type: ignore[attr-defined]
                found |= self.reads(e)
        return found

    def independent(self, parts: Sequence[Pred]) -> bool:
        """Whether no two of the conditions read the same axis; arrays may share any."""
        found = [self.reads_of(q) for q in parts]
        if len(parts) > 1 and any(isinstance(r, int) for each in found for r in each):
            return False
        return all(not a & b for a, b in combinations(found, 2))

    def one_corner(self, parts: Sequence[Pred]) -> bool:
        """Whether one corner of the box is where every condition holds if it holds anywhere."""
        signs: dict[str | int, set[int | None]] = {}
        for q in parts:
            if not isinstance(q, Atom):
                return False
            for s, c in self._moving(q.form).terms:
                for a in self.reads(s):
                    signs.setdefault(a, set()).add(self._slope(s, a, 1 if c > 0 else -1))
        return all(isinstance(a, str) and len(x) == 1 and None not in x for a, x in signs.items())

    def _slope(self, s: Expr, axis: str | int, sign: int) -> int | None:
        """The direction in which `s`, times a factor of that sign, grows with an axis."""
        match s:
            case Index():
                return sign
            case Call("floordiv", (x, Const(d))) if int(d) > 0:
                terms = [(t, c) for t, c in linear(x).terms if axis in self.reads(t)]
                found = {self._slope(t, axis, sign if c > 0 else -sign) for t, c in terms}
                return found.pop() if len(found) == 1 else None
        return None

    def one_form(self, parts: Sequence[Pred]) -> bool:
        """Whether all conditions bound one form that takes every whole number between its ends."""
        forms = [self._moving(q.form) for q in parts if isinstance(q, Atom)]
        same = len(forms) == len(parts) and all(f in (forms[0], -forms[0]) for f in forms)
        return same and self.steps_by_one(forms[0])

    def _moving(self, form: Linear) -> Linear:
        return Linear(tuple((s, c) for s, c in form.terms if self.reads(s)))

    def reaches_ends(self, form: Linear) -> bool:
        """Whether the form takes the values that interval arithmetic gives as its ends."""
        moving = [s for s, _ in self._moving(form).terms]
        if any(self.reads(a) & self.reads(b) for a, b in combinations(moving, 2)):
            return False
        return all(map(self._symbol_reaches_ends, moving))

    def _symbol_reaches_ends(self, s: Expr) -> bool:
        match s:
            case Index(axis):
                return axis in self.known
            case Arg(k):
                return k in self.known
            case Call("floordiv", (x, d)) if not self.reads(d):
                return self.reaches_ends(linear(x))
            case Call("mod", (x, Const(d))) if int(d) > 0:
                return self.steps_by_one(linear(x))
        return False

    def steps_by_one(self, form: Linear) -> bool:
        """Whether the form takes every whole number between its ends."""
        moving = self._moving(form).terms
        unit = all(abs(c) == 1 for _, c in moving)
        return unit and self.reaches_ends(form) and all(self._unit(s) for s, _ in moving)

    def _unit(self, s: Expr) -> bool:
        match s:
            case Index():
                return True
            case Call("floordiv", (x, Const(d))) if int(d) > 0:
                return self.steps_by_one(linear(x))
        return False

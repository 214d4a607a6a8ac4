"""Predicates over coordinates in normal form, so that equal conditions look equal.

A condition becomes a tree of conjunctions and disjunctions over atoms `linear form >= 0`. `<` on
integers is tightened to `<=`, negations are pushed into the atoms, minima, maxima and absolute
values are taken apart, and what follows from the rest is dropped. What is not integer arithmetic
(a comparison of floats, a boolean operand) stays as an opaque literal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from tilecc.analysis.forms import Linear, axes_of, is_integer, order
from tilecc.analysis.linear import constant_range, extremum, linear, nonnegative, tidy
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Arg, Call, Const, Expr, arg_numbers, call, joined


class Pred:
    """Base of the node classes."""

    __slots__ = ()


@dataclass(frozen=True)
class Bool(Pred):
    """Always, or never."""

    value: bool


@dataclass(frozen=True)
class Atom(Pred):
    """form >= 0; the coefficients have no common divisor."""

    form: Linear


@dataclass(frozen=True)
class Opaque(Pred):
    """A boolean expression that nothing is known about, or (sense False) its negation."""

    expr: Expr
    sense: bool = True


@dataclass(frozen=True)
class Conj(Pred):
    """All of `parts` hold."""

    parts: tuple[Pred, ...]


@dataclass(frozen=True)
class Disj(Pred):
    """Some of `parts` hold."""

    parts: tuple[Pred, ...]


TRUE, FALSE = Bool(True), Bool(False)

# How a comparison `a REL b` reads as atoms over d = a - b: each row is a disjunction of
# conjunctions of (sign, constant), meaning sign * d + constant >= 0.
COMPARISONS: dict[str, tuple[tuple[tuple[int, int], ...], ...]] = {
    "lt": (((-1, -1),),),
    "le": (((-1, 0),),),
    "gt": (((1, -1),),),
    "ge": (((1, 0),),),
    "eq": (((1, 0), (-1, 0)),),
    "ne": (((1, -1),), ((-1, -1),)),
}
CONNECTIVES = frozenset(["and", "or", "xor", "not", *COMPARISONS])
_STRICT = {("le", -1): "lt", ("ge", 1): "gt"}
_NEGATION = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def normalize(e: Expr, dtypes: Sequence[DType] | None = None, sense: bool = True) -> Pred:
    """The normal form of the condition `e` (of its negation, when `sense` is False).

    `dtypes` are those of the operands that `Arg` refers to; without them all are integers where
    they are compared, and booleans where they stand alone.
    """
    match e:
        case Const(value):
            return Bool(bool(value) == sense)
        case Call("not", (a,)):
            return normalize(a, dtypes, not sense)
        case Call("and" | "or" as fn):
            parts = [normalize(a, dtypes, sense) for a in joined(e, fn)]
            return conj(parts) if (fn == "and") == sense else disj(parts)
        case Call("xor", (a, b)):
            both = [(True, not sense), (False, sense)]
            return disj(conj([normalize(a, dtypes, x), normalize(b, dtypes, y)]) for x, y in both)
        case Call("where", (c, a, b)):
            yes, no = normalize(a, dtypes, sense), normalize(b, dtypes, sense)
            return _choice(normalize(c, dtypes), normalize(c, dtypes, False), yes, no)
        case Call(fn, (a, b)) if fn in COMPARISONS:
            if is_integer(a, dtypes) and is_integer(b, dtypes):
                d = tidy(linear(a) - linear(b))
                rows = COMPARISONS[fn if sense else _NEGATION[fn]]
                return disj(conj(atom(d * s + c) for s, c in row) for row in rows)
            truths = [is_condition(x, dtypes) for x in (a, b)]
            if all(truths) and fn in ("eq", "ne"):
                return normalize(Call("xor", (a, b)), dtypes, sense == (fn == "ne"))
            if all(t or is_integer(x, dtypes) for t, x in zip(truths, (a, b), strict=True)):
                sides = [_number(x) if t else x for t, x in zip(truths, (a, b), strict=True)]
                if is_integer(sides[0], dtypes) and is_integer(sides[1], dtypes):
                    return normalize(Call(fn, tuple(sides)), dtypes, sense)
            if fn in ("gt", "ge"):
                return Opaque(call("lt" if fn == "gt" else "le", b, a), sense)
    return Opaque(e, sense)


def is_condition(e: Expr, dtypes: Sequence[DType] | None = None) -> bool:
    """Whether `e` is a truth value; operands are, where `dtypes` says so."""
    match e:
        case Const(value):
            return isinstance(value, bool)
        case Arg(k):
            return dtypes is not None and dtypes[k].kind == "bool"
        case Call("where", (_, a, b)):
            return is_condition(a, dtypes) and is_condition(b, dtypes)
        case Call(fn):
            return fn in CONNECTIVES
    return False


def _number(e: Expr) -> Expr:
    """A truth value as 1 or 0."""
    return call("where", e, Const(1), Const(0))


def _choice(cond: Pred, negated: Pred, yes: Pred, no: Pred) -> Pred:
    return disj([conj([cond, yes]), conj([negated, no])])


def atom(form: Linear) -> Pred:
    """form >= 0, with minima, maxima, absolute values and choices taken apart."""
    form = tidy(form)
    if form.terms:
        g = gcd(*(c for _, c in form.terms))
        form = Linear(tuple((s, c // g) for s, c in form.terms), form.const // g)
    low, high = constant_range(form)
    if low is not None and low >= 0:
        return TRUE
    if high is not None and high < 0:
        return FALSE
    for s, c in form.terms:
        match s:
            case Call("abs", (x,)):
                rest = form.without(s)
                sides = [atom(rest + linear(x) * c), atom(rest - linear(x) * c)]
                return disj(sides) if c > 0 else conj(sides)
            case Call("where", (cond, a, b)):
                yes, no = (atom(form.without(s) + linear(x) * c) for x in (a, b))
                return _choice(normalize(cond), normalize(cond, None, False), yes, no)
    if (e := extremum(form)) is not None:
        alternatives = [atom(x) for x in e[1]]
        return conj(alternatives) if e[0] == "minimum" else disj(alternatives)
    return Atom(form)


def conj(parts: Iterable[Pred]) -> Pred:
    """The conjunction of `parts`, without those that follow from others."""
    return _join(parts, Conj, absorbing=FALSE, neutral=TRUE)


def disj(parts: Iterable[Pred]) -> Pred:
    """The disjunction of `parts`, without those that imply others."""
    return _join(parts, Disj, absorbing=TRUE, neutral=FALSE)


Joined = type[Conj] | type[Disj]


def _join(parts: Iterable[Pred], kind: Joined, absorbing: Bool, neutral: Bool) -> Pred:
    flat: list[Pred] = []
    for p in parts:
        flat += p.parts if isinstance(p, kind) else [p]
    flat = [p for p in dict.fromkeys(flat) if p != neutral]
    if absorbing in flat:
        return absorbing
    conjunction = kind is Conj
    literal = [p for p in flat if isinstance(p, Atom | Opaque)]
    refuted = literal if conjunction else [negate(p) for p in literal]
    near = _Near(refuted)
    if any(contradict(p, q) for p in refuted for q in near.to(p)):
        return absorbing
    kept, near = dict.fromkeys(flat), _Near(flat)
    for p in flat:
        others = [q for q in near.to(p) if q in kept]
        if any(implies(q, p) if conjunction else implies(p, q) for q in others):
            del kept[p]
    near = _Near(kept)
    shorter = [_without_settled(p, near.to(p), kind) for p in kept]
    if shorter != list(kept):
        return conj(shorter) if conjunction else disj(shorter)
    if not kept:
        return neutral
    return next(iter(kept)) if len(kept) == 1 else kind(tuple(sorted(kept, key=_rank)))


class _Near:
    """Of many predicates those that are about the same as one is: no other implies it."""

    def __init__(self, all: Iterable[Pred]) -> None:
        self.about: dict[Topic, list[Pred]] = {}
        for p in all:
            for t in topics(p):
                self.about.setdefault(t, []).append(p)

    def to(self, p: Pred) -> list[Pred]:
        """Those other than `p`, in order of first appearance of what they are about."""
        return [q for q in dict.fromkeys(q for t in topics(p) for q in self.about[t]) if q != p]


def _without_settled(p: Pred, others: Sequence[Pred], kind: Joined) -> Pred:
    """`p` less those of its parts that cannot matter beside the `others` it is joined with.

    q & (r | s) is q & s where q excludes r; q | (r & s) is q | s where r fails only if q holds.
    """
    if isinstance(p, Conj) and kind is Disj:
        fails = [(x, negate(x)) for x in p.parts]
        return conj(x for x, no in fails if not any(implies(no, q) for q in others))
    if isinstance(p, Disj) and kind is Conj:
        fails = [(x, negate(x)) for x in p.parts]
        return disj(x for x, no in fails if not any(implies(q, no) for q in others))
    return p


def _rank(p: Pred) -> tuple[int, str]:
    if isinstance(p, Atom):
        return 0, repr([(*order(s), c) for s, c in p.form.terms]) + f"{p.form.const:+d}"
    return (1 if isinstance(p, Opaque) else 2), repr(p)


def negate(p: Pred) -> Pred:
    """The normal form of `not p`."""
    match p:
        case Bool(value):
            return Bool(not value)
        case Atom(form):
            return atom(-form - 1)
        case Opaque(e, sense):
            return Opaque(e, not sense)
        case Conj(parts):
            return disj(negate(q) for q in parts)
        case Disj(parts):
            return conj(negate(q) for q in parts)
    raise TypeError(f"not a predicate: {p!r}")


def contradict(p: Pred, q: Pred) -> bool:
    """Whether two literals surely exclude each other."""
    if isinstance(p, Atom) and isinstance(q, Atom):
        total = p.form + q.form
        return not total.terms and total.const < 0
    return isinstance(p, Opaque) and isinstance(q, Opaque) and p == Opaque(q.expr, not q.sense)


def implies(p: Pred, q: Pred) -> bool:
    """Whether p surely implies q: a syntactic test, sound and not complete."""
    if q in (p, TRUE) or p == FALSE:
        return True
    match p, q:
        case Atom(f), Atom(g):
            return f.terms == g.terms and f.const <= g.const
        case _, Conj(parts):
            return all(implies(p, x) for x in parts)
        case Disj(parts), _:
            return all(implies(x, q) for x in parts)
        case Conj(parts), Disj(others):
            return any(implies(x, q) for x in parts) or any(implies(p, y) for y in others)
        case Conj(parts), _:
            return any(implies(x, q) for x in parts)
        case _, Disj(parts):
            return any(implies(p, x) for x in parts)
    return False


def weaken(p: Pred, keep: Callable[[Pred], bool]) -> Pred:
    """What follows from `p` when every literal that `keep` refuses is taken to be true."""
    match p:
        case Conj(parts):
            return conj(weaken(q, keep) for q in parts)
        case Disj(parts):
            return disj(weaken(q, keep) for q in parts)
        case Bool():
            return p
    return p if keep(p) else TRUE


Topic = Expr | tuple[tuple[Expr, int], ...]


@lru_cache(maxsize=8192)
def topics(p: Pred) -> tuple[Topic, ...]:
    """What `p` is about: sums up to sign and constant, and opaque conditions.

    Predicates that are about nothing in common neither imply nor contradict each other.
    """
    match p:
        case Atom(form):
            return (form.terms if form.terms[0][1] > 0 else (-form).terms,)
        case Opaque(e):
            return (e,)
        case Conj(parts) | Disj(parts):
            return tuple(dict.fromkeys(t for q in parts for t in topics(q)))
    return ()


def literals(p: Pred) -> list[Pred]:
    """The atoms and opaque literals of `p`."""
    if isinstance(p, Conj | Disj):
        return [x for q in p.parts for x in literals(q)]
    return [] if isinstance(p, Bool) else [p]


def reads(p: Pred) -> tuple[frozenset[str], set[int]]:
    """The axes and the operand numbers that `p` reads."""
    axes: frozenset[str] = frozenset()
    args: set[int] = set()
    for x in literals(p):
        for e in [x.expr] if isinstance(x, Opaque) else [s for s, _ in x.form.terms]:  # type: ignore[attr-defined]
            axes |= axes_of(e)
            args |= arg_numbers(e)
    return axes, args


def to_expr(p: Pred, first: str = "") -> Expr:
    """`p` as an expression; comparisons put the coordinate of the axis `first` on the left."""
    match p:
        case Bool(value):
            return Const(value)
        case Opaque(e, sense):
            return e if sense else call("not", e)
        case Atom(form):
            return compare(form, first)
        case Conj(parts):
            equal = [q for q in parts if isinstance(q, Atom) and Atom(-q.form) in parts]
            once = [q for n, q in enumerate(equal) if Atom(-q.form) not in equal[:n]]
            exprs = [compare(q.form, first, "eq") for q in once]
            return every(*exprs, *(to_expr(q, first) for q in parts if q not in equal))
        case Disj(parts):
            rest = list(parts)
            exprs = []
            while rest:
                q = rest.pop(0)
                other = next((x for x in rest if _apart(q, x)), None)
                if other is None or not isinstance(q, Atom):
                    exprs.append(to_expr(q, first))
                else:
                    rest.remove(other)
                    exprs.append(compare(q.form + 1, first, "ne"))
            return some(*exprs)
    raise TypeError(f"not a predicate: {p!r}")


def _apart(p: Pred, q: Pred) -> bool:
    """Whether `p | q` leaves out a single number: f > n or f < n."""
    return isinstance(p, Atom) and isinstance(q, Atom) and p.form + q.form == Linear((), -2)


def compare(form: Linear, first: str = "", fn: str = "ge") -> Expr:
    """`form >= 0` (== 0, != 0) as a comparison of sums without negative terms, constants folded."""
    if not form.terms:
        return Const({"ge": form.const >= 0, "eq": form.const == 0, "ne": form.const != 0}[fn])
    lead = [(s, c) for s, c in form.terms if first and first in axes_of(s)]
    if (lead[0][1] if lead else max(c for _, c in form.terms)) < 0:
        form = -form
        fn = {"ge": "le"}.get(fn, fn)
    left = Linear(tuple(t for t in form.terms if t[1] > 0))
    if len(lead) == 1:
        left = Linear(((lead[0][0], abs(lead[0][1])),))
    right = left - form
    # Of the integer forms `a <= b - 1` and `a < b` the second reads better.
    if right.terms and (fn, right.const) in _STRICT:
        fn, right = _STRICT[fn, right.const], Linear(right.terms)
    if fn == "le" and right == Linear() and nonnegative(left):
        fn = "eq"
    return call(fn, left.expr(), right.expr())


def every(*conditions: Expr) -> Expr:
    """Their conjunction, constants folded."""
    return _fold("and", conditions, True)


def some(*conditions: Expr) -> Expr:
    """Their disjunction, constants folded."""
    return _fold("or", conditions, False)


def _fold(fn: str, conditions: Sequence[Expr], neutral: bool) -> Expr:
    if Const(not neutral) in conditions:
        return Const(not neutral)
    out: Expr | None = None
    for c in dict.fromkeys(conditions):
        if c != Const(neutral):
            out = c if out is None else call(fn, out, c)
    return Const(neutral) if out is None else out

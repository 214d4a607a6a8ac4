"""What can be proved about a term: its constant scale, its sign, that it is finite or at most 1."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec

from tilecc.ir.core import Axis
from tilecc.ir.expr import extents
from tilecc.passes.rewrite.engine import Rewriter
from tilecc.passes.rewrite.terms import Term, Terms, postorder

Q = ParamSpec("Q")

# Functions whose value is never negative.
NONNEGATIVE = frozenset({"exp", "exp2", "sigmoid", "abs", "sqrt", "rsqrt"})
# Functions that are finite where their arguments are (overflow aside).
TOTAL = frozenset({"add", "sub", "mul", "neg", "abs", "minimum", "maximum", "floor"}) | frozenset(
    {"tanh", "sigmoid", "sin", "cos", "exp", "exp2"}
)


# Sums and products of more parts are left alone (shared subterms could make them any number).
MAX_PARTS = 24


def _remembered(f: Callable[Q, bool]) -> Callable[Q, bool]:
    """Keeps the answers of a question about a term, which is asked again for each use of it."""

    @functools.wraps(f)
    def ask(*args: Q.args, **kwargs: Q.kwargs) -> bool:
        t = args[0]
        assert isinstance(t, Term) and not kwargs
        key = (f, *args[1:])
        if key not in t.memo:
            t.memo[key] = f(*args, **kwargs)
        return t.memo[key]

    return ask


@dataclass(frozen=True)
class Scale:
    """A constant factor: a literal times a constant term (None stands for 1)."""

    literal: float = 1.0
    symbol: Term | None = None

    @property
    def positive(self) -> bool:
        """Proved to be > 0 and finite (extents under a root are taken to be positive)."""
        return 0 < self.literal < math.inf and (self.symbol is None or positive(self.symbol))


ONE = Scale()


def constant_scale(t: Term) -> Scale | None:
    """A constant term as a scale; None for what is not a constant number."""
    if not t.constant or t.dtype.kind == "bool":
        return None
    if t.kind == "const":
        return Scale(float(t.data.value))
    if t.is_call("mul") and t.is_float and t.args[1].kind == "const":
        return Scale(float(t.args[1].data.value), t.args[0])
    if t.is_call("neg") and t.is_float:
        inner = constant_scale(t.args[0])
        return inner and Scale(-inner.literal, inner.symbol)
    return Scale(1.0, t)


def scaled(t: Term) -> tuple[Term, Scale]:
    """`t` as (core, scale); the rules keep a constant factor last, so that this need not search."""
    if t.is_call("mul") and t.is_float and not t.constant:
        scale = constant_scale(t.args[1])
        if scale is not None:
            return t.args[0], scale
    return t, ONE


def opened(rw: Rewriter, t: Term) -> tuple[Term, Scale]:
    """`scaled(t)`, but a tensor that a reduction reads stays whole with a factor that is not
    positive: such a factor cannot leave a maximum, and what meets the maximum should look alike."""
    core, s = scaled(t)
    return (t, ONE) if rw.materialised(t) and not s.positive else (core, s)


def combine(terms: Terms, a: Scale, b: Scale) -> Scale:
    """The product of two scales."""
    symbol = a.symbol or b.symbol
    if a.symbol is not None and b.symbol is not None:
        symbol = terms.call("mul", a.symbol, b.symbol)
    return Scale(a.literal * b.literal, symbol)


def scale_term(terms: Terms, s: Scale) -> Term:
    """The constant term of a scale."""
    literal = terms.const(s.literal)
    if s.symbol is None:
        return literal
    return s.symbol if s.literal == 1.0 else terms.call("mul", s.symbol, literal)


def times(terms: Terms, core: Term, s: Scale) -> Term:
    """core * scale."""
    if s == ONE:
        return core
    if s == Scale(-1.0):
        return terms.call("neg", core)
    return terms.call("mul", core, scale_term(terms, s))


@_remembered
def positive(t: Term) -> bool:
    """Proved to be greater than 0, for finite arguments without underflow."""
    if t.kind == "const":
        return bool(t.data.value > 0)
    if t.kind == "cast":
        return positive(t.args[0])
    if t.kind != "call":
        return False
    a = t.args
    match t.data:
        case "exp" | "exp2" | "sigmoid":
            return t.constant
        case "rsqrt":
            return nonnegative(a[0]) if t.constant else positive(a[0])
        case "sqrt":
            return positive(a[0])
        case "mul" | "div" | "minimum":
            return positive(a[0]) and positive(a[1])
        case "maximum":
            return positive(a[0]) or positive(a[1])
        case "add":
            return (positive(a[0]) and nonnegative(a[1])) or (nonnegative(a[0]) and positive(a[1]))
    return False


@_remembered
def nonnegative(t: Term) -> bool:
    """Proved to be 0 or more (or NaN)."""
    if t.kind == "const":
        return bool(t.data.value >= 0)
    if t.kind in ("extent", "index"):
        return True
    if t.kind in ("cast", "spread") or (t.kind == "reduce" and t.data[0] in ("sum", "min")):
        return nonnegative(t.args[0])
    if t.kind != "call":
        return False
    a = t.args
    match t.data:
        case fn if fn in NONNEGATIVE:
            return True
        case "mul":
            return a[0] is a[1] or (nonnegative(a[0]) and nonnegative(a[1]))
        case "add" | "div" | "minimum" | "floordiv" | "ceildiv" | "mod":
            return nonnegative(a[0]) and nonnegative(a[1])
        case "maximum":
            return nonnegative(a[0]) or nonnegative(a[1])
        case "where":
            return nonnegative(a[1]) and nonnegative(a[2])
    return False


@_remembered
def finite_when_empty(t: Term, axis: Axis, nonzero: frozenset[Term] = frozenset()) -> bool:
    """Whether `t` is finite where the extent of `axis` is 0, given finite inputs and no overflow.

    There a sum over the axis is 0 and a maximum -inf, so that a division by the sum is not finite.
    `nonzero` are terms known to be different from 0 and from -inf here.
    """

    def ok(x: Term) -> bool:
        return finite_when_empty(x, axis, nonzero)

    a = t.args
    if t.kind == "const":
        return t.dtype.kind != "float" or math.isfinite(t.data.value)
    if t.constant:
        zero = extents(axis.extent)
        risky = [x for x in postorder([t]) if x.is_call("div", "log", "log2", "pow")]
        return not any(zero & _extents(x) for x in risky)
    if t.kind in ("reduce", "contract") and axis.name in t.over:
        return t.kind == "contract" or t.data[0] in ("sum", "prod") or t in nonzero
    if t.kind == "reduce" and t.data[0] in ("max", "min"):
        return t in nonzero
    if t.kind != "call":
        return all(ok(x) for x in a)
    match t.data:
        case "maximum" if any(x.kind == "reduce" and x.data[0] == "max" for x in a):
            return any(ok(x) for x in a)
        case fn if fn in TOTAL:
            return all(ok(x) for x in a)
        case "where":
            other = nonzero
            if a[0].is_call("eq") and a[0].args[1].is_number(0, -math.inf):
                other = nonzero | {a[0].args[0]}
            return ok(a[1]) and finite_when_empty(a[2], axis, other)
        case "div":
            return (a[1] in nonzero or positive(a[1])) and ok(a[0]) and ok(a[1])
        case "sqrt":
            return nonnegative(a[0]) and ok(a[0])
        case "rsqrt":
            return positive(a[0]) and ok(a[0])
    return False


def _extents(t: Term) -> set[str]:
    return {x.data.name for x in postorder([t]) if x.kind == "extent"}


@dataclass(frozen=True)
class Addend:
    """One summand of a linear form: scale * atom."""

    scale: Scale
    atom: Term


def linear(rw: Rewriter, t: Term) -> list[Addend]:
    """`t` as a sum of scaled atoms. What is materialised anyway stays an atom: taking a score that
    is shared apart would compute it again."""
    out: list[Addend] = []

    def visit(x: Term, s: Scale) -> None:
        if len(out) > MAX_PARTS:
            return
        core, factor = opened(rw, x)
        whole = rw.materialised(core) and x is not t
        if core is not x:
            visit(core, combine(rw.terms, s, factor))
        elif x.is_call("add", "sub") and x.is_float and not x.constant and not whole:
            visit(x.args[0], s)
            visit(x.args[1], Scale(-s.literal, s.symbol) if x.data == "sub" else s)
        elif x.is_call("neg") and x.is_float and not x.constant and not whole:
            visit(x.args[0], Scale(-s.literal, s.symbol))
        elif x.constant:
            c = constant_scale(x)
            s = combine(rw.terms, s, c) if c is not None else s
            out.append(Addend(s, rw.terms.const(1.0)))
        else:
            out.append(Addend(s, x))

    visit(t, ONE)
    return out if len(out) <= MAX_PARTS else [Addend(ONE, t)]


def unguarded(t: Term) -> Term:
    """`m` of `where(m == -inf, 0, m)`, else `t`."""
    if t.is_call("where") and t.args[0].is_call("eq") and t.args[1].is_number(0):
        a, b = t.args[0].args
        if t.args[2] is a and b.is_number(-math.inf):
            return a
    return t


def chain(t: Term, fn: str) -> list[Term]:
    """The arguments of nested calls of `fn`, as a + (b + c)."""
    stack, parts = [t], []
    while stack:
        x = stack.pop()
        if x.is_call(fn):
            stack.extend(reversed(x.args))
        else:
            parts.append(x)
        if len(stack) + len(parts) > MAX_PARTS:
            return [t]
    return parts


def _form(rw: Rewriter, t: Term, scale: Scale = ONE) -> dict[Term, Scale]:
    parts = ((a.atom, combine(rw.terms, a.scale, scale)) for a in linear(rw, t))
    return {atom: s for atom, s in parts if s.literal != 0}


@dataclass(frozen=True)
class RowMaximum:
    """How exp2(k*x - k*m) refers to a maximum m of x: over which axes, and with which more terms.

    others: exp2 of them less k*m, as forms; where m is one of those, that is 1.
    """

    over: frozenset[str]
    others: tuple[dict[Term, Scale], ...]


def row_maximum(rw: Rewriter, t: Term) -> RowMaximum | None:
    """How `t` is exp2(k*x - k*m) for a maximum m of x (and so at most 1); None if it is not."""
    form = linear(rw, t.args[0]) if t.is_call("exp2") else []
    if len(form) != 2:
        return None
    x, m = sorted(form, key=lambda a: -a.scale.literal)
    k = Scale(-m.scale.literal, m.scale.symbol)

    def is_row_maximum(e: Term) -> bool:
        top, c = scaled(e)
        is_max = top.kind == "reduce" and top.data[0] == "max" and top.args[0] is x.atom
        return is_max and combine(rw.terms, c, k) == x.scale

    entries = chain(unguarded(m.atom), "maximum")
    maxima = [scaled(e)[0] for e in entries if is_row_maximum(e)]
    if not x.scale.positive or not maxima:
        return None
    others = [e for e in entries if not is_row_maximum(e)]
    return RowMaximum(
        frozenset(maxima[0].over), tuple({**_form(rw, e, k), m.atom: m.scale} for e in others)
    )


def shrinks(rw: Rewriter, p: Term, factor: Term) -> bool:
    """Whether `factor` is proved to be between 0 and 1, for the exponentials `p` of a row."""
    if factor.kind == "const":
        return 0 <= float(factor.data.value) <= 1
    if factor.is_call("where"):
        sides = [a for a in factor.args[1:] if not a.is_number(0)]
        return all(shrinks(rw, p, a) for a in sides)
    if factor.is_call("div") and factor.args[0].is_number(1):
        return normalises(rw, p, factor.args[1])
    return factor.is_call("sigmoid")


def normalises(rw: Rewriter, p: Term, d: Term) -> bool:
    """Whether `d` is the sum of `p` over a row (and more that is not negative) that holds a 1.

    That is so where the sum is over all axes of the maximum that p refers to; a maximum over more,
    or other, axes leaves rows in which all of p is tiny. Where the maximum may be another term r (a
    sink, softmax-1), exp2(k*r - k*m) has to be an addend too.
    """
    top = row_maximum(rw, p)
    if d.is_call("where") and d.args[0].is_call("eq") and d.args[0].args[0] is d.args[2]:
        d = d.args[2]  # 1 where the sum is 0: then there is nothing to divide
    if top is None or not nonnegative(d):
        return False
    addends = chain(d, "add")
    sums = [a for a in addends if a.kind == "reduce" and a.data[0] == "sum" and a.args[0] is p]
    present = [_form(rw, a.args[0]) for a in addends if a.is_call("exp2")]
    return any(top.over <= set(a.over) for a in sums) and all(o in present for o in top.others)

"""Integer expressions in normal form: linear forms over symbols that are in normal form themselves.

Two ways of writing the same sum give the same `Linear`, and `Linear.expr` gives one
expression for it: that is what makes loop bounds independent of how a predicate was written.

Semantics: 64-bit integers that do not overflow; `//` and `%` floor; extents and coordinates are
not negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from tilecc.analysis.forms import Linear, collect, order, product, symbol
from tilecc.ir.expr import Call, Cast, Const, Expr, Extent, Index, call


def tidy(form: Linear) -> Linear:
    """x - x % c becomes c * (x // c), and x - c * (x // c) becomes x % c, where that is shorter."""
    for s, c in form.terms:
        match s:
            case Call("mod" | "floordiv" as fn, (x, Const(d))) if fn == "mod" or c % int(d) == 0:
                other = Call("floordiv" if fn == "mod" else "mod", s.args)
                inside = linear(x)
                n = c if fn == "mod" else c // int(d)  # how many times x
                terms = [(t, k * n) for t, k in inside.terms]
                terms += [(other, -c * int(d) if fn == "mod" else -n)]
                merged = dict(form.without(s).terms)
                for t, k in terms:
                    merged[t] = merged.get(t, 0) + k
                kept = [(t, k) for t, k in merged.items() if k]
                if len(kept) < len(form.terms):
                    return tidy(collect(kept, form.const + n * inside.const))
    return form


@lru_cache(maxsize=8192)
def linear(e: Expr) -> Linear:
    """The normal form of `e`, for which `is_integer` holds."""
    match e:
        case Const(value):
            return Linear((), int(value))
        case Cast(arg, _):
            return linear(arg)
        case Call("add", (a, b)):
            return tidy(linear(a) + linear(b))
        case Call("sub", (a, b)):
            return tidy(linear(a) - linear(b))
        case Call("neg", (a,)):
            return -linear(a)
        case Call("mul", (a, b)):
            return product(linear(a), linear(b))
        case Call("floordiv", (a, b)):
            return divide(linear(a), linear(b))
        case Call("ceildiv", (a, b)):
            x, y = linear(a), linear(b)
            return -divide(-x, y) if y.terms else ceildiv(x, y.const)
        case Call("mod", (a, b)):
            return remainder(linear(a), linear(b))
        case Call("minimum", (a, b)):
            return minimum([linear(a), linear(b)])
        case Call("maximum", (a, b)):
            return maximum([linear(a), linear(b)])
        case Call("abs", (a,)):
            return absolute(linear(a))
        case Call("where", (c, a, b)):
            return select(c, linear(a), linear(b))
    return symbol(e)


def floordiv(a: Linear, d: int) -> Linear:
    """a // d for a number d, with whole multiples of d taken out."""
    if d < 0:
        return floordiv(-a, -d)
    if d == 0:
        return symbol(call("floordiv", a.expr(), Const(0)))
    whole = Linear(tuple((s, c // d) for s, c in a.terms if c % d == 0), a.const // d)
    rest = Linear(tuple(t for t in a.terms if t[1] % d), a.const % d)
    if not rest.terms:
        return whole
    match rest:
        case Linear(((Call("floordiv", (x, Const(k))), 1),), 0) if int(k) > 0:
            return whole + floordiv(linear(x), int(k) * d)
    if (e := extremum(rest)) is not None and e[0] != "where":
        pick = minimum if e[0] == "minimum" else maximum
        return whole + pick([floordiv(x, d) for x in e[1]])
    return whole + symbol(call("floordiv", rest.expr(), Const(d)))


def ceildiv(a: Linear, d: int) -> Linear:
    """ceil(a / d) for a number d."""
    return floordiv(a + (d - 1), d) if d > 0 else -floordiv(-a, d)


def divide(a: Linear, b: Linear) -> Linear:
    """a // b."""
    if not b.terms:
        return floordiv(a, b.const)
    if a == Linear():
        return a
    return symbol(call("floordiv", a.expr(), b.expr()))


def remainder(a: Linear, b: Linear) -> Linear:
    """a % b."""
    if a == Linear():
        return a
    if b.terms or b.const <= 0:
        return symbol(call("mod", a.expr(), b.expr()))
    d = b.const
    rest = Linear(tuple(t for t in a.terms if t[1] % d), a.const % d)
    if not rest.terms:
        return rest
    return symbol(call("mod", rest.expr(), Const(d)))


def absolute(a: Linear) -> Linear:
    """|a|, one form for a and -a."""
    if not a.terms:
        return Linear((), abs(a.const))
    low, high = constant_range(a)
    if low is not None and low >= 0:
        return a
    if high is not None and high <= 0:
        return -a
    return symbol(call("abs", (a if a.terms[0][1] > 0 else -a).expr()))


def select(cond: Expr, a: Linear, b: Linear) -> Linear:
    """where(cond, a, b)."""
    if a == b:
        return a
    if isinstance(cond, Const):
        return a if cond.value else b
    return symbol(call("where", cond, a.expr(), b.expr()))


def constant_range(a: Linear) -> tuple[int | None, int | None]:
    """Numbers between which `a` always lies; None where none is known."""
    low: int | None = a.const
    high: int | None = a.const
    for s, c in a.terms:
        lo, hi = _symbol_range(s)
        if c < 0:
            lo, hi = hi, lo
        low = None if low is None or lo is None else low + c * lo
        high = None if high is None or hi is None else high + c * hi
    return low, high


@lru_cache(maxsize=8192)
def _symbol_range(s: Expr) -> tuple[int | None, int | None]:
    match s:
        case Index() | Extent():
            return 0, None
        case Call("mod", (_, Const(d))) if int(d) > 0:
            return 0, int(d) - 1
        case Call("floordiv", (x, Const(d))) if int(d) > 0:
            lo, hi = constant_range(linear(x))
            return None if lo is None else lo // int(d), None if hi is None else hi // int(d)
        case Call("abs", _):
            return 0, None
        case Call("mul", (a, b)):
            return (0 if nonnegative(linear(a)) and nonnegative(linear(b)) else None), None
        case Call("minimum" | "maximum" | "where" as fn, args):
            ranges = [constant_range(linear(x)) for x in args[-2:]]
            los, his = [r[0] for r in ranges], [r[1] for r in ranges]
            lo = _known(los, max) if fn == "maximum" else _all_known(los, min)
            hi = _known(his, min) if fn == "minimum" else _all_known(his, max)
            return lo, hi
    return None, None


Pick = Callable[[list[int]], int]


def _known(xs: list[int | None], pick: Pick) -> int | None:
    known = [x for x in xs if x is not None]
    return pick(known) if known else None


def _all_known(xs: list[int | None], pick: Pick) -> int | None:
    return None if None in xs else _known(xs, pick)


def nonnegative(a: Linear) -> bool:
    """Whether `a` >= 0 is certain."""
    low, _ = constant_range(a)
    return low is not None and low >= 0


def extremum(a: Linear) -> tuple[str, list[Linear]] | None:
    """`a` as ("minimum" | "maximum" | "where", alternatives), its other terms moved inside."""
    for s, c in a.terms:
        match s:
            case Call("minimum" | "maximum" | "where" as fn, args):
                rest = a.without(s)
                if c < 0 and fn != "where":
                    fn = "minimum" if fn == "maximum" else "maximum"
                return fn, [linear(x) * c + rest for x in args[-2:]]
    return None


def at_most(a: Linear, b: Linear) -> bool:
    """Whether a <= b is certain (a sufficient test)."""
    if nonnegative(tidy(b - a)):
        return True
    # What needs every alternative first: those steps lose nothing.
    for fns, split_a in ((("maximum", "where"), True), (("minimum", "where"), False)):
        e = extremum(a if split_a else b)
        if e is not None and e[0] in fns:
            return all(at_most(x, b) if split_a else at_most(a, x) for x in e[1])
    for x in (extremum(a) or ("", []))[1]:
        if at_most(x, b):
            return True
    return any(at_most(a, x) for x in (extremum(b) or ("", []))[1])


def minimum(xs: Sequence[Linear]) -> Linear:
    """The least of `xs`: flattened, without what is certainly not it."""
    return _extreme("minimum", xs)


def maximum(xs: Sequence[Linear]) -> Linear:
    """The greatest of `xs`: flattened, without what is certainly not it."""
    return _extreme("maximum", xs)


def _extreme(fn: str, xs: Sequence[Linear]) -> Linear:
    flat: list[Linear] = []
    queue = list(xs)
    while queue:
        x = queue.pop(0)
        e = extremum(x)
        if e is not None and e[0] == fn:
            queue[:0] = e[1]
        elif x not in flat:
            flat.append(x)
    kept: list[Linear] = []
    for n, x in enumerate(flat):
        others = [*kept, *flat[n + 1 :]]
        if not any(at_most(y, x) if fn == "minimum" else at_most(x, y) for y in others):
            kept.append(x)
    kept.sort(key=lambda x: (bool(x.terms), [order(s) for s, _ in x.terms], x.const))
    # Constants last, as in minimum(N, i + 1): what varies is read first.
    exprs = [x.expr() for x in kept]
    if len(kept) == 1:
        return kept[0]
    out = exprs[0]
    for e2 in exprs[1:]:
        out = call(fn, out, e2)
    return symbol(out)

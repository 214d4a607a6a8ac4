"""Linear forms: a sum of integer multiples of symbols, plus a constant.

A symbol is a coordinate, an extent, a scalar operand, or a call that is not linear (a floor
division, a remainder, a minimum, a product of symbols). `analysis.linear` makes forms of
expressions; here is their arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilecc.ir.dtypes import I32, I64, DType
from tilecc.ir.expr import Arg, Call, Cast, Const, Expr, Extent, Index, call, transform, walk
from tilecc.ir.ops import infer_dtype

INTEGER_FUNCTIONS = frozenset(
    ["add", "sub", "mul", "neg", "floordiv", "mod", "ceildiv", "minimum", "maximum", "abs"]
)

_GROWING = frozenset(["add", "sub", "mul", "neg", "abs"])
"""What these give may need more bits than their operands have."""


@dataclass(frozen=True)
class Linear:
    """`const + sum(coefficient * symbol)`; terms are sorted, their coefficients are not 0."""

    terms: tuple[tuple[Expr, int], ...] = ()
    const: int = 0

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.terms, self.const + other)
        if not other.terms:
            return Linear(self.terms, self.const + other.const)
        return collect([*self.terms, *other.terms], self.const + other.const)

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Linear | int) -> Linear:
        return self + -other

    def __mul__(self, k: int) -> Linear:
        if k == 0:
            return Linear()
        return Linear(tuple((s, c * k) for s, c in self.terms), self.const * k)

    def coefficient(self, symbol: Expr) -> int:
        """The factor of `symbol`, 0 where it is absent."""
        return next((c for s, c in self.terms if s == symbol), 0)

    def without(self, symbol: Expr) -> Linear:
        """The form less its term in `symbol`."""
        return Linear(tuple(t for t in self.terms if t[0] != symbol), self.const)

    @property
    def axes(self) -> frozenset[str]:
        """Axes whose coordinate the form reads, inside symbols too."""
        return frozenset().union(*(axes_of(s) for s, _ in self.terms))

    def expr(self) -> Expr:
        """The form as an expression: positive terms, then negative ones, then the constant."""
        out: Expr | None = None
        for s, c in self.terms:
            if c > 0:
                out = _times(s, c) if out is None else call("add", out, _times(s, c))
        rest = self.const
        if out is None:
            out, rest = Const(rest), 0
        for s, c in self.terms:
            if c < 0:
                zero = out == Const(0) and c == -1
                out = call("neg", s) if zero else call("sub", out, _times(s, -c))
        if rest:
            out = call("add" if rest > 0 else "sub", out, Const(abs(rest)))
        return out


def _times(s: Expr, c: int) -> Expr:
    return s if c == 1 else call("mul", s, Const(c))


_RANK: dict[type[Expr], int] = {Arg: 0, Index: 1, Call: 2, Cast: 2, Extent: 3}


@lru_cache(maxsize=8192)
def order(e: Expr) -> tuple[int, str]:
    """A sort key for symbols: operands, coordinates, calls, extents."""
    return _RANK.get(type(e), 4), repr(e)


@lru_cache(maxsize=8192)
def axes_of(e: Expr) -> frozenset[str]:
    """Axes whose coordinate `e` reads."""
    return frozenset(n.axis for n in walk(e) if isinstance(n, Index))


def collect(terms: Iterable[tuple[Expr, int]], const: int) -> Linear:
    """The form with these terms, equal symbols taken together."""
    total: dict[Expr, int] = {}
    for s, c in terms:
        total[s] = total.get(s, 0) + c
    kept = sorted(((s, c) for s, c in total.items() if c), key=lambda t: order(t[0]))
    return Linear(tuple(kept), const)


def symbol(e: Expr) -> Linear:
    """`e` as an opaque symbol."""
    return Linear(((e, 1),), 0)


def product(a: Linear, b: Linear) -> Linear:
    """a * b, expanded into monomials."""
    if not b.terms:
        return a * b.const
    if not a.terms:
        return b * a.const
    terms = [(_monomial(s, t), c * d) for s, c in a.terms for t, d in b.terms]
    terms += [(s, c * b.const) for s, c in a.terms] + [(t, d * a.const) for t, d in b.terms]
    return collect(terms, a.const * b.const)


def factors(e: Expr) -> list[Expr]:
    """The factors of a monomial."""
    match e:
        case Call("mul", (a, b)):
            return [*factors(a), *factors(b)]
    return [e]


def _monomial(a: Expr, b: Expr) -> Expr:
    first, *rest = sorted([*factors(a), *factors(b)], key=order)
    for f in rest:
        first = call("mul", first, f)
    return first


def is_integer(e: Expr, dtypes: Sequence[DType] | None = None) -> bool:
    """Whether `e` is 64-bit integer arithmetic; operands are integers unless `dtypes` says else."""
    match e:
        case Const(value):
            return isinstance(value, int) and not isinstance(value, bool)
        case Index() | Extent():
            return True
        case Arg(k):
            return dtypes is None or dtypes[k].kind == "int"
        case Cast(arg, to):
            return to is I64 and is_integer(arg, dtypes)
        case Call("where", (cond, a, b)):
            kids = [a, b, *(k for n in walk(cond) if _compares(n) for k in n.children())]
            return all(is_integer(k, dtypes) for k in kids)
        case Call(fn, args):
            if dtypes is not None and _wraps(e, dtypes):
                return False
            return fn in INTEGER_FUNCTIONS and all(is_integer(a, dtypes) for a in args)
    return False


def widened(e: Expr, dtypes: Sequence[DType]) -> Expr:
    """`e` with its arithmetic on 32-bit operands in 64 bits, as forms take all arithmetic to be."""

    def f(n: Expr) -> Expr | None:
        if not _wraps(n, dtypes):
            return None
        assert isinstance(n, Call)
        return Call(n.fn, tuple(a if isinstance(a, Const) else Cast(a, I64) for a in n.args))

    return transform(e, f)


def _wraps(e: Expr, dtypes: Sequence[DType]) -> bool:
    """Whether `e` is arithmetic that overflows at 32 bits, though its operands do not."""
    return (
        isinstance(e, Call)
        and e.fn in _GROWING
        and infer_dtype(e, dtypes) is I32
        and any(infer_dtype(a, dtypes) is I32 for a in e.args if not isinstance(a, Const))
    )


def _compares(e: Expr) -> bool:
    return isinstance(e, Call) and e.fn in ("eq", "ne", "lt", "le", "gt", "ge")

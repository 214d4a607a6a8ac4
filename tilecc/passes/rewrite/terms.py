"""Terms: a graph as hash-consed scalar functions, reductions and contractions.

In a term graph there are no maps: `exp(x - m)` is a call of `exp` on a call of `sub`. Equal terms
are one object, so common subexpressions exist once, and rules see through what were
several operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from tilecc.errors import Loc
from tilecc.ir.core import Axis, Value
from tilecc.ir.dtypes import BOOL, F32, F64, I64, DType, accumulator
from tilecc.ir.expr import Arg, Call, Const, Expr, Extent
from tilecc.ir.ops import infer_dtype

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "xor", "eq", "ne"})
ELEMENTWISE = frozenset({"const", "index", "extent", "call", "cast", "spread"})


class Term:
    """One node. `kind`: param, const, index, extent, call, cast, spread (broadcast along more
    axes), reduce, contract, at, softmax or logsumexp; `data` holds what is not an argument.

    `weak` marks values made of literals alone, which take the type of what they meet. `loc` and
    `name` come from the first operation that gave the term; `order` is the axis order it had.
    """

    __slots__ = (
        "args", "axes", "constant", "data", "dtype", "kind", "loc", "memo", "name", "order", "weak",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        data: Any,
        args: tuple[Term, ...],
        axes: tuple[Axis, ...],
        dtype: DType,
        *,
        weak: bool = False,
        loc: Loc | None = None,
    ) -> None:
        self.kind = kind
        self.data = data
        self.args = args
        self.axes = axes
        self.dtype = dtype
        self.weak = weak
        self.loc = loc
        self.name = ""
        self.order: tuple[Axis, ...] | None = None
        self.memo: dict[Any, bool] = {}  # what has been asked about it
        # Without operands and coordinates: a number once the extents are known.
        leaf = kind in ("const", "extent")
        self.constant: bool = leaf or (kind in ("call", "cast") and all(a.constant for a in args))

    @property
    def names(self) -> frozenset[str]:
        """Names of the axes."""
        return frozenset(a.name for a in self.axes)

    @property
    def elementwise(self) -> bool:
        """Whether this can be part of a map's expression."""
        return self.kind in ELEMENTWISE

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating point numbers."""
        return self.dtype.kind == "float"

    @property
    def over(self) -> tuple[str, ...]:
        """The axes that a reduction, contraction or composite consumes or normalises."""
        data = self.data
        over: tuple[str, ...] = data[1] if self.kind == "reduce" else data
        return over

    def is_call(self, *fns: str) -> bool:
        """Whether this is a call of one of `fns`."""
        return self.kind == "call" and self.data in fns

    def is_number(self, *values: float) -> bool:
        """Whether this is a literal equal to one of `values` (0 is -0 here, True is no number)."""
        if self.kind != "const":
            return False
        v = self.data.value
        return not isinstance(v, bool) and v in values

    def __repr__(self) -> str:
        if self.kind == "param":
            return f"%{self.data.name}"
        return f"{self.kind}:{self.data}({', '.join(map(repr, self.args))})"


def union(terms: Iterable[Term]) -> tuple[Axis, ...]:
    """Axes of an elementwise term."""
    axes: dict[str, Axis] = {}
    for t in terms:
        for a in t.axes:
            axes.setdefault(a.name, a)
    return tuple(axes.values())


@lru_cache(maxsize=4096)
def _call_dtype(fn: str, signature: tuple[DType | str, ...]) -> DType:
    literal: dict[str, Expr] = {"bool": Const(True), "int": Const(1), "float": Const(1.0)}
    args = (literal[s] if isinstance(s, str) else Arg(k) for k, s in enumerate(signature))
    e = Call(fn, tuple(args))
    return infer_dtype(e, [F32 if isinstance(s, str) else s for s in signature])


def _rank_of_constant(t: Term) -> int:
    return 2 if t.kind == "const" else int(t.constant)


class Terms:
    """Makes terms, each once. `loc` is the source line that new terms get."""

    def __init__(self) -> None:
        self._table: dict[tuple[Any, ...], Term] = {}
        self.loc: Loc | None = None

    def _intern(
        self,
        kind: str,
        data: Any,
        args: tuple[Term, ...],
        axes: tuple[Axis, ...],
        dtype: DType,
        weak: bool = False,
    ) -> Term:
        ids = tuple(map(id, args))
        if kind == "call" and data in COMMUTATIVE:
            ids = tuple(sorted(ids))
        key = (kind, data, ids)
        t = self._table.get(key)
        if t is None:
            t = Term(kind, data, args, axes, dtype, weak=weak, loc=self.loc)
            self._table[key] = t
        return t

    def param(self, v: Value) -> Term:
        """A parameter of the function."""
        return self._intern("param", v, (), v.type.axes, v.type.dtype)

    def const(self, value: bool | int | float) -> Term:
        """A literal."""
        c = Const(value)
        return self._intern("const", c, (), (), infer_dtype(c, ()), True)

    def index(self, axis: Axis) -> Term:
        """The coordinate along an axis."""
        return self._intern("index", axis, (), (axis,), I64)

    def extent(self, e: Expr) -> Term:
        """An extent: a number, a name, or arithmetic on them."""
        if isinstance(e, Const):
            return self.const(e.value)
        if isinstance(e, Extent):
            return self._intern("extent", e, (), (), I64)
        assert isinstance(e, Call), "extents are arithmetic on names and numbers"
        return self.call(e.fn, *(self.extent(a) for a in e.args))

    def call(self, fn: str, *args: Term) -> Term:
        """A scalar function applied to terms; of a commutative one constants come last."""
        if fn in COMMUTATIVE and _rank_of_constant(args[0]) > _rank_of_constant(args[1]):
            args = args[::-1]
        weak = all(a.weak for a in args)
        dtype = _call_dtype(fn, tuple(a.dtype.kind if a.weak else a.dtype for a in args))
        if dtype is F64:
            # What is narrower is converted first: constants and factors that rules gather are
            # then gathered in f64 too.
            args = tuple(a if a.weak or a.dtype in (F64, BOOL) else self.cast(a, F64) for a in args)
        return self._intern("call", fn, args, union(args), dtype, weak)

    def cast(self, x: Term, to: DType) -> Term:
        """`x` rounded to `to`."""
        return self._intern("cast", to, (x,), x.axes, to)

    def spread(self, x: Term, axes: tuple[Axis, ...]) -> Term:
        """`x` repeated along those of `axes` that it lacks."""
        more = tuple(a for a in axes if a.name not in x.names)
        return self._intern("spread", more, (x,), x.axes + more, x.dtype, x.weak) if more else x

    def reduce(self, kind: str, x: Term, over: tuple[str, ...]) -> Term:
        """A reduction."""
        axes = tuple(a for a in x.axes if a.name not in over)
        wide = kind in ("sum", "prod") or x.is_float
        return self._intern(
            "reduce", (kind, over), (x,), axes, accumulator(x.dtype) if wide else x.dtype
        )

    def contract(self, operands: tuple[Term, ...], over: tuple[str, ...]) -> Term:
        """A contraction."""
        axes = tuple(a for a in union(operands) if a.name not in over)
        dtype = accumulator(*(x.dtype for x in operands))
        return self._intern("contract", over, operands, axes, dtype)

    def at(self, tensor: Term, coords: dict[str, Term], axes: tuple[Axis, ...] = ()) -> Term:
        """`tensor` read at `coords`; the result's axes are those that the reading leaves."""
        kept = [a for a in tensor.axes if a.name not in coords]
        found = {a.name: a for a in [*kept, *union(coords.values()), *axes]}
        args = (tensor, *coords.values())
        return self._intern("at", tuple(coords), args, tuple(found.values()), tensor.dtype)

    def composite(self, kind: str, x: Term, over: tuple[str, ...]) -> Term:
        """`softmax` or `logsumexp`."""
        kept = tuple(a for a in x.axes if kind == "softmax" or a.name not in over)
        return self._intern(kind, over, (x,), kept, accumulator(x.dtype))

    def rebuild(self, t: Term, args: tuple[Term, ...]) -> Term:
        """`t` with other arguments."""
        if all(a is b for a, b in zip(args, t.args, strict=True)):
            return t
        match t.kind:
            case "call":
                return self.call(t.data, *args)
            case "cast":
                return self.cast(args[0], t.data)
            case "spread":
                return self.spread(args[0], t.data)
            case "reduce":
                return self.reduce(t.data[0], args[0], t.over)
            case "contract":
                return self.contract(args, t.over)
            case "at":
                return self.at(args[0], dict(zip(t.data, args[1:], strict=True)), t.axes)
            case kind:
                return self.composite(kind, args[0], t.over)


def postorder(roots: Iterable[Term]) -> list[Term]:
    """All terms under `roots`, arguments first. (Not recursive: graphs are deep.)"""
    done: dict[int, None] = {}
    out: list[Term] = []
    stack = [(r, False) for r in reversed(list(roots))]
    while stack:
        t, expanded = stack.pop()
        if id(t) in done:
            continue
        if expanded:
            done[id(t)] = None
            out.append(t)
        else:
            stack.append((t, True))
            stack.extend((a, False) for a in reversed(t.args))
    return out

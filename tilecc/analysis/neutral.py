"""Which positions of a streamed axis contribute nothing to a state, by going through the masks.

For a value and a constant c, `Neutral.differs` gives a predicate outside of which the value is
surely c. It looks through the operations that keep such a fact: where(P, s, -inf) is -inf outside
P, so exp2 of it less something finite is 0 there, so is a product with that, so is its sum. Nothing
is known by name: an expression is tried on the constants that its arguments may become.

What is assumed of a masked position: numbers that are loaded or contracted there are finite (what
NaN does at a masked pair is left open, since its tile may be skipped), and exponentials of finite
numbers do not overflow. Running states may hold an infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat

from tilecc.analysis import spans
from tilecc.analysis.memo import Memo
from tilecc.analysis.predicate import (
    FALSE,
    TRUE,
    Pred,
    conj,
    disj,
    is_condition,
    literals,
    negate,
    normalize,
    reads,
    weaken,
)
from tilecc.analysis.spans import ALL, FINITE, Span
from tilecc.errors import Loc
from tilecc.ir.core import Op, Value
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import FUNCTIONS, Arg, Call, Cast, Const, Expr, Extent, Index, transform
from tilecc.ir.ops import identity

Known = tuple[tuple[Expr, Span], ...]  # what a condition says of some expressions
_NAN_FOR_INFINITY = {"f8e4m3"}


@dataclass(eq=False)
class Neutral:
    """Facts about the body of one stream.

    Expressions here refer to operands of different operations in one numbering: `Arg(k)` is
    `values[k]`, whose type is `dtypes[k]`.
    """

    stream: Op
    inside: set[Op] = field(default_factory=set)
    values: list[Value] = field(default_factory=list)
    dtypes: list[DType] = field(default_factory=list)
    # How a literal was written, and where.
    sources: dict[Pred, tuple[Expr, Loc | None]] = field(default_factory=dict)
    _expanded: dict[Op, Expr] = field(default_factory=dict)
    _numbers: dict[Value, int] = field(default_factory=dict)
    _spans: dict[tuple[Expr, Known], Span] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inside = set(self.stream.body.walk())
        self.value_span = Memo(self._value_span)
        """Numbers between which the elements of a value lie."""
        self._differs = Memo(self._value)

    @property
    def axis(self) -> str:
        """The streamed axis."""
        axis = self.stream.attrs["axis"]
        assert isinstance(axis, str)
        return axis

    def live(self, update: Op) -> Pred:
        """A predicate outside of which a position contributes the identity to `update`."""
        (x, *_), kind = update.operands, update.attrs["kind"]
        c = identity(kind, x.type.dtype).value
        return self.differs(x, float(c), chunk=True)

    def differs(self, v: Value, c: float, chunk: bool) -> Pred:
        """A predicate outside of which `v` is surely `c`.

        With `chunk` the predicate is about a whole chunk of the streamed axis (v has not that
        axis): outside means at all its positions. Otherwise it is about one position.
        """
        return self._differs((v, c, chunk))

    def _value(self, key: tuple[Value, float, bool]) -> Pred:
        v, c, chunk = key
        op = v.owner
        if op is None:
            return TRUE
        match op.name:
            case "map":
                return self._expr(self.expand(op), c, chunk, (), op.loc)
            case "contract" if c == 0 and not op.attrs.get("acc"):
                inner = self._inner(op, chunk)
                if inner is None:
                    return TRUE
                factors = [self.differs(x, 0.0, inner) for x in op.operands]
                return self._project(self._any_of(factors, inner), op)
            case "reduce" if c == float(identity(op.attrs["kind"], v.type.dtype).value):
                inner = self._inner(op, chunk)
                if inner is None:
                    return TRUE
                x = op.operands[0]
                start = float(identity(op.attrs["kind"], x.type.dtype).value)
                return self._project(self.differs(x, start, inner), op)
        return TRUE

    def _inner(self, op: Op, chunk: bool) -> bool | None:
        """`chunk` for the operands of a reduction; None where it reads other positions."""
        if self.axis in op.over:
            return False if chunk and op in self.inside else None
        return chunk

    def _any_of(self, options: list[Pred], chunk: bool) -> Pred:
        """What holds outside any of `options`; any one of them alone would do, too.

        Of a chunk every position is outside the same option: half of them outside one and half
        outside another does not count. So of those over the streamed axis only one is taken.
        """
        if chunk:
            moving = [p for p in options if self.axis in reads(p)[0]]
            options = [p for p in options if p not in moving[1:]]
        return conj(options)

    def _project(self, p: Pred, op: Op) -> Pred:
        """`p` for any coordinate of the other axes that `op` reduces."""
        gone = frozenset(op.over) - {self.axis}
        return weaken(p, lambda x: not reads(x)[0] & gone)

    def number(self, v: Value) -> Arg:
        """The operand that stands for `v`."""
        if v not in self._numbers:
            self._numbers[v] = len(self.values)
            self.values.append(v)
            self.dtypes.append(v.type.dtype)
        return Arg(self._numbers[v])

    def expand(self, op: Op) -> Expr:
        """The expression of a map over `values`, with maps to integers and booleans written out."""
        if op not in self._expanded:
            self._expanded[op] = self._expand(op)
        return self._expanded[op]

    def _expand(self, op: Op) -> Expr:
        def read(n: Expr) -> Expr | None:
            if not isinstance(n, Arg):
                return None
            v = op.operands[n.k]
            if v.owner is not None and v.owner.name == "map" and v.type.dtype.kind != "float":
                return self.expand(v.owner)
            return self.number(v)

        return transform(op.expr, read)

    def _condition(self, e: Expr, loc: Loc | None) -> Pred:
        for part in _parts(e):
            p = normalize(part, self.dtypes)
            for x in [*literals(p), *literals(negate(p))]:
                self.sources.setdefault(x, (part, loc))
        return normalize(e, self.dtypes)

    def _expr(self, e: Expr, c: float, chunk: bool, known: Known, loc: Loc | None) -> Pred:
        """A predicate outside of which `e` is surely `c`."""
        if self.span(e, known) == (c, c):
            return FALSE
        match e:
            case Arg(k):
                return self.differs(self.values[k], c, chunk)
            case Cast(arg, to):
                if math.isinf(c) and (to.kind != "float" or to.name in _NAN_FOR_INFINITY):
                    return TRUE
                return self._expr(arg, c, chunk, known, loc)
            case Call("where", (cond, a, b)):
                p = self._condition(cond, loc)
                yes = self._expr(a, c, chunk, known + refine(cond, True), loc)
                no = self._expr(b, c, chunk, known + refine(cond, False), loc)
                return conj([disj([negate(p), yes]), disj([p, no])])
            case Call(fn) if FUNCTIONS[fn].kind == "bool" and c in (0.0, 1.0):
                p = self._condition(e, loc)
                return negate(p) if c else p
            case Call():
                return self._call(e, c, chunk, known, loc)
        return TRUE

    def _call(self, e: Call, c: float, chunk: bool, known: Known, loc: Loc | None) -> Pred:
        """By trying constants: where some arguments are those, the function gives `c`."""

        def outside(n: int, x: float) -> Pred:
            return self._expr(e.args[n], x, chunk, known, loc)

        args = [self.span(a, known) for a in e.args]
        trials = list(dict.fromkeys([-math.inf, 0.0, 1.0, math.inf, c]))
        options: list[Pred] = []
        for n in range(len(args)):
            for x in trials:
                one = [*args[:n], (x, x), *args[n + 1 :]]
                if spans.apply(e.fn, tuple(one)) == (c, c):
                    options.append(outside(n, x))
        if len(args) == 2 and not options:
            for x in trials:
                for y in trials:
                    if spans.apply(e.fn, ((x, x), (y, y))) == (c, c):
                        options.append(disj([outside(0, x), outside(1, y)]))
        return self._any_of([p for p in options if p != TRUE], chunk)

    def span(self, e: Expr, known: Known = ()) -> Span:
        """Numbers between which `e` lies."""
        key = e, known
        if key not in self._spans:
            self._spans[key] = self._span(e, known)
        return self._spans[key]

    def _span(self, e: Expr, known: Known) -> Span:
        for x, s in known:
            if x == e:
                return s
        match e:
            case Const(value):
                number = float(value)
                return ALL if math.isnan(number) else (number, number)
            case Arg(k):
                return self.value_span(self.values[k])
            case Index():
                return 0.0, spans.BIG
            case Extent():
                return 1.0, spans.BIG  # over an empty axis there is nothing to prove
            case Cast(arg, to):
                s = self.span(arg, known)
                return s if to.kind == "float" or s[0] == s[1] else FINITE
            case Call("where", (cond, a, b)):
                yes = self.span(a, known + refine(cond, True))
                return spans.union(yes, self.span(b, known + refine(cond, False)))
            case Call(fn, args):
                return spans.apply(fn, tuple(map(self.span, args, repeat(known))))
        return ALL

    def _value_span(self, v: Value) -> Span:
        op = v.owner
        if v.type.dtype.kind == "bool":
            return spans.TRUTH
        if op is None or v.type.dtype.kind == "int" or op.name in ("at", "contract"):
            return FINITE
        match op.name:
            case "map":
                return self.span(self.expand(op))
            case "softmax":
                return spans.TRUTH
            case "reduce":
                x, kind = self.value_span(op.operands[0]), op.attrs["kind"]
                if kind in ("max", "min"):
                    start = float(identity(kind, v.type.dtype).value)
                    return spans.union(x, (start, start))
                return FINITE if x[0] > -math.inf and x[1] < math.inf else ALL
        return ALL


def _parts(e: Expr) -> list[Expr]:
    """The conditions that `e` joins."""
    if isinstance(e, Call) and e.fn in ("and", "or", "xor", "not"):
        return [x for a in e.args for x in _parts(a)]
    if isinstance(e, Call) and e.fn in ("eq", "ne") and all(map(is_condition, e.args)):
        return [x for a in e.args for x in _parts(a)]
    return [e]


_REFINING: dict[tuple[str, bool], Callable[[float], Span]] = {
    # x == -inf is false: x is more than that.
    ("eq", False): lambda k: (-spans.BIG, math.inf) if k < 0 else (-math.inf, spans.BIG),
    ("ne", True): lambda k: (-spans.BIG, math.inf) if k < 0 else (-math.inf, spans.BIG),
    ("gt", True): lambda k: (max(k, -spans.BIG), math.inf),
    ("lt", True): lambda k: (-math.inf, min(k, spans.BIG)),
    ("le", False): lambda k: (max(k, -spans.BIG), math.inf),
    ("ge", False): lambda k: (-math.inf, min(k, spans.BIG)),
}


def refine(cond: Expr, truth: bool) -> Known:
    """What a condition on one expression and a constant says of it where it is true, or false."""
    match cond:
        case Call("not", (a,)):
            return refine(a, not truth)
        case Call("and" | "or" as fn, (a, b)) if truth == (fn == "and"):
            return refine(a, truth) + refine(b, truth)
        case Call(fn, (x, Const(k))) if (fn, truth) in _REFINING and not math.isnan(k):
            if fn in ("eq", "ne") and not math.isinf(k):
                return ()
            return ((x, _REFINING[fn, truth](float(k))),)
    return ()

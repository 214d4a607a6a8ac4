"""Scalar expressions: what one element of a `map`, one loop bound or one coordinate is.

An expression is an immutable tree over constants, the coordinates of the element (`Index`), extents
by name (`Extent`), the operation's operands by position (`Arg`) and functions from the table below.
The same trees serve at every level, so that a predicate written by the user, a repair found by the
derivation and a loop bound are one language with one printer, one parser and one evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tilecc.ir.dtypes import I64, DType
from tilecc.ir.philox import philox

ResultKind = Literal["arith", "float", "int", "bool", "select"]


@dataclass(frozen=True)
class Fn:
    """A scalar function: how many arguments, what it gives, how it prints, what numpy computes.

    kind: "arith" promotes its arguments; "float" gives a float; "int" wants and gives integers;
    "bool" is a predicate; "select" is `where`.
    """

    name: str
    arity: int
    kind: ResultKind
    numpy: Callable[..., Any]
    infix: str = ""
    precedence: int = 100


def _true_divide(a: Any, b: Any) -> Any:
    # float32 / int64 arrays would go to float64 in numpy; here the float operand decides.
    a, b = np.asarray(a), np.asarray(b)
    kind = np.result_type(a, b)
    if a.dtype.kind == "f" and b.dtype.kind != "f":
        kind = a.dtype
    elif b.dtype.kind == "f" and a.dtype.kind != "f":
        kind = b.dtype
    if np.dtype(kind).kind != "f":
        kind = np.dtype(np.float64)
    return np.true_divide(a.astype(kind), b.astype(kind))


def _sigmoid(x: Any) -> Any:
    # exp of what is negative: neither end overflows, and the lower one keeps its digits.
    z = np.exp(-np.abs(x))
    return np.where(x < 0, z, z.dtype.type(1)) / (1 + z)


_ROWS = [
    Fn("or", 2, "bool", np.logical_or, "|", 5),
    Fn("xor", 2, "bool", np.logical_xor, "^", 6),
    Fn("and", 2, "bool", np.logical_and, "&", 7),
    Fn("eq", 2, "bool", np.equal, "==", 4),
    Fn("ne", 2, "bool", np.not_equal, "!=", 4),
    Fn("lt", 2, "bool", np.less, "<", 4),
    Fn("le", 2, "bool", np.less_equal, "<=", 4),
    Fn("gt", 2, "bool", np.greater, ">", 4),
    Fn("ge", 2, "bool", np.greater_equal, ">=", 4),
    Fn("add", 2, "arith", np.add, "+", 10),
    Fn("sub", 2, "arith", np.subtract, "-", 10),
    Fn("mul", 2, "arith", np.multiply, "*", 20),
    Fn("div", 2, "float", _true_divide, "/", 20),
    Fn("floordiv", 2, "int", np.floor_divide, "//", 20),
    Fn("mod", 2, "int", np.mod, "%", 20),
    Fn("neg", 1, "arith", np.negative, "-", 30),
    Fn("not", 1, "bool", np.logical_not, "~", 30),
    Fn("maximum", 2, "arith", np.maximum),
    Fn("minimum", 2, "arith", np.minimum),
    Fn("abs", 1, "arith", np.abs),
    Fn("pow", 2, "float", np.power),
    Fn("exp", 1, "float", np.exp),
    Fn("exp2", 1, "float", np.exp2),
    Fn("log", 1, "float", np.log),
    Fn("log2", 1, "float", np.log2),
    Fn("sqrt", 1, "float", np.sqrt),
    Fn("rsqrt", 1, "float", lambda x: 1 / np.sqrt(x)),
    Fn("tanh", 1, "float", np.tanh),
    Fn("sigmoid", 1, "float", _sigmoid),
    Fn("sin", 1, "float", np.sin),
    Fn("cos", 1, "float", np.cos),
    Fn("floor", 1, "float", np.floor),
    Fn("ceildiv", 2, "int", lambda a, b: -np.floor_divide(-a, b)),
    Fn("where", 3, "select", np.where),
    # A seed and four counters, modulo 2**32: 32 random bits.
    Fn("philox", 5, "int", philox),
]
FUNCTIONS: dict[str, Fn] = {fn.name: fn for fn in _ROWS}
BINARY: dict[str, Fn] = {fn.infix: fn for fn in _ROWS if fn.infix and fn.arity == 2}


class Expr:
    """Base of the node classes. Nodes compare by value and are hashable."""

    __slots__ = ()

    def children(self) -> tuple[Expr, ...]:
        """The nodes right below."""
        return ()


@dataclass(frozen=True)
class Const(Expr):
    """A literal. Its Python type (bool, int, float) is its kind; floats are weakly typed.

    Two constants are equal when type and bits are: 1 is not 1.0, and NaN equals itself.
    """

    value: bool | int | float

    def _key(self) -> tuple[type, bool | int | str]:
        x = self.value
        return type(x), repr(x) if isinstance(x, float) else x

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Const) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True)
class Arg(Expr):
    """The operation's operand number `k`, broadcast by axis name."""

    k: int


@dataclass(frozen=True)
class Index(Expr):
    """The element's coordinate along `axis` (i64). In tile IR: within the tile."""

    axis: str


@dataclass(frozen=True)
class Extent(Expr):
    """The extent called `name` (i64), as `N`."""

    name: str


@dataclass(frozen=True)
class Call(Expr):
    """A function of the table applied to arguments."""

    fn: str
    args: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        """The nodes right below."""
        return self.args

    # Kept: expressions are keys of many tables, and a deep one has many nodes. Not pickled, since
    # strings hash differently in each process.
    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            found = hash((self.fn, self.args))
            object.__setattr__(self, "_hash", found)
        return int(found)

    def __reduce__(self) -> tuple[type[Call], tuple[str, tuple[Expr, ...]]]:
        return Call, (self.fn, self.args)


@dataclass(frozen=True)
class Cast(Expr):
    """`arg` rounded to `to` (nearest even for floats)."""

    arg: Expr
    to: DType

    def children(self) -> tuple[Expr, ...]:
        """The nodes right below."""
        return (self.arg,)


@dataclass(frozen=True)
class Acc(Expr):
    """In a repair: what the state holds so far, before this chunk."""


@dataclass(frozen=True)
class Old(Expr):
    """In a repair: the value before this chunk of the state that is operand `k`."""

    k: int


def call(fn: str, *args: Expr) -> Call:
    """`Call` with the arity checked."""
    if len(args) != FUNCTIONS[fn].arity:
        raise TypeError(f"{fn} takes {FUNCTIONS[fn].arity} arguments, not {len(args)}")
    return Call(fn, args)


def rebuild(e: Expr, children: tuple[Expr, ...]) -> Expr:
    """`e` with other children."""
    if isinstance(e, Call):
        return Call(e.fn, children)
    if isinstance(e, Cast):
        return Cast(children[0], e.to)
    return e


def transform(e: Expr, f: Callable[[Expr], Expr | None]) -> Expr:
    """Rewrite bottom-up: `f` gets each node with rewritten children, None keeps it."""
    kids = e.children()
    if kids:
        new = tuple(transform(c, f) for c in kids)
        if any(a is not b for a, b in zip(new, kids, strict=True)):
            e = rebuild(e, new)
    out = f(e)
    return e if out is None else out


def walk(e: Expr) -> Iterator[Expr]:
    """All nodes of `e`, parents first."""
    rest = [e]
    while rest:
        e = rest.pop()
        yield e
        rest += reversed(e.children())


@dataclass(frozen=True)
class _Reads:
    """What an expression reads: axes, extents, operands."""

    indices: frozenset[str] = frozenset()
    extents: frozenset[str] = frozenset()
    args: frozenset[int] = frozenset()

    def joined(self, other: _Reads) -> _Reads:
        """What both read; the same object where one of the two reads nothing, as is common."""
        if other is self or other is _NOTHING:
            return self
        if self is _NOTHING:
            return other
        return _Reads(
            self.indices | other.indices, self.extents | other.extents, self.args | other.args
        )


_NOTHING = _Reads()


def _reads(e: Expr) -> _Reads:
    """Kept beside a node, as its hash is: most expressions are asked many times."""
    match e:
        case Const() | Acc():
            return _NOTHING
        case Index(axis):
            return _Reads(indices=frozenset({axis}))
        case Extent(name):
            return _Reads(extents=frozenset({name}))
        case Arg(k) | Old(k):
            return _Reads(args=frozenset({k}))
    found = e.__dict__.get("_reads")
    if found is None:
        found = _NOTHING
        for c in e.children():
            found = found.joined(_reads(c))
        object.__setattr__(e, "_reads", found)
    assert isinstance(found, _Reads)
    return found


def indices(e: Expr) -> frozenset[str]:
    """Axes whose coordinate `e` reads."""
    return _reads(e).indices


def extents(e: Expr) -> frozenset[str]:
    """Names of extents that `e` reads."""
    return _reads(e).extents


def conjuncts(e: Expr) -> list[Expr]:
    """The conditions that all have to hold for `e` to."""
    return joined(e, "and")


def joined(e: Expr, fn: str) -> list[Expr]:
    """What `fn` ("and", "or") joins in `e`, in order; `e` itself where it is no such call."""
    out: list[Expr] = []
    rest = [e]
    while rest:  # chains of hundreds are common
        e = rest.pop()
        if isinstance(e, Call) and e.fn == fn:
            rest += reversed(e.args)
        else:
            out.append(e)
    return out


def arg_numbers(e: Expr) -> frozenset[int]:
    """Operand positions that `e` reads."""
    return _reads(e).args


def shift_args(e: Expr, mapping: dict[int, Expr]) -> Expr:
    """`e` with `Arg(k)` replaced by `mapping[k]` where there is one (an `Old` keeps its kind)."""

    def f(n: Expr) -> Expr | None:
        if isinstance(n, Arg):
            return mapping.get(n.k)
        if isinstance(n, Old) and n.k in mapping:
            new = mapping[n.k]
            assert isinstance(new, Arg), "the old value of a state can only be renumbered"
            return Old(new.k)
        return None

    return transform(e, f)


def substitute_extents(
    e: Expr, values: dict[str, int], narrow: frozenset[int] = frozenset()
) -> Expr:
    """`e` with named extents replaced by numbers.

    `narrow` are the operands that are integers of less than 64 bits. What is computed from one and
    an extent is i64, and stays so: a number takes the type of what it meets, so that is cast.
    """
    if isinstance(e, Extent):
        return Const(values[e.name]) if e.name in values else e
    children = [substitute_extents(c, values, narrow) for c in e.children()]
    if narrow and isinstance(e, Call) and any(_becomes_number(c, values) for c in e.args):
        children = [Cast(c, I64) if _is_narrow(c, narrow) else c for c in children]
    return rebuild(e, tuple(children)) if children else e


def _becomes_number(e: Expr, values: dict[str, int]) -> bool:
    names = extents(e)
    known = all(isinstance(n, Const | Extent | Call) for n in walk(e))
    return known and bool(names) and names <= set(values)


def _is_narrow(e: Expr, narrow: frozenset[int]) -> bool:
    """Whether `e` is computed from narrow integers and literals alone."""
    if isinstance(e, Call):
        parts = e.args[1:] if e.fn == "where" else e.args
        found = [_is_narrow(c, narrow) for c in parts]
        plain = all(f or isinstance(c, Const) for f, c in zip(found, parts, strict=True))
        return FUNCTIONS[e.fn].kind != "bool" and any(found) and plain
    return isinstance(e, Arg) and e.k in narrow


@dataclass
class Env:
    """What an expression's leaves stand for when it is evaluated."""

    arg: Callable[[int], Any] = lambda k: _missing(f"operand {k}")
    index: Callable[[str], Any] = lambda a: _missing(f"index({a})")
    extent: Callable[[str], Any] = lambda n: _missing(f"extent {n}")
    acc: Callable[[], Any] = lambda: _missing("acc")
    old: Callable[[int], Any] = lambda k: _missing(f"old value of operand {k}")
    cast: Callable[[Any, DType], Any] = lambda x, t: np.asarray(x).astype(t.numpy)
    call: Callable[[str, tuple[Any, ...]], Any] = lambda fn, args: FUNCTIONS[fn].numpy(*args)


def _missing(what: str) -> Any:
    raise KeyError(f"{what} has no value here")


def evaluate(e: Expr, env: Env) -> Any:
    """Fold `e` over `env`; with the default `call`, in numpy."""
    match e:
        case Const(value):
            return value
        case Arg(k):
            return env.arg(k)
        case Index(axis):
            return env.index(axis)
        case Extent(name):
            return env.extent(name)
        case Acc():
            return env.acc()
        case Old(k):
            return env.old(k)
        case Cast(arg, to):
            return env.cast(evaluate(arg, env), to)
        case Call(fn, args):
            return env.call(fn, tuple(evaluate(a, env) for a in args))
    raise TypeError(f"not an expression: {e!r}")


def as_expr(x: Expr | bool | int | float) -> Expr:
    """`x` as an expression; Python numbers become constants."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, bool | int | float):
        return Const(x)
    raise TypeError(f"not a scalar: {x!r}")


def add(a: Expr | int, b: Expr | int) -> Expr:
    """a + b with constants folded."""
    a, b = as_expr(a), as_expr(b)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.value + b.value)
    if a == Const(0):
        return b
    if b == Const(0):
        return a
    return call("add", a, b)


def mul(a: Expr | int, b: Expr | int) -> Expr:
    """a * b with constants folded."""
    a, b = as_expr(a), as_expr(b)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.value * b.value)
    if a == Const(1):
        return b
    if b == Const(1):
        return a
    return call("mul", a, b)


def ceildiv(a: Expr | int, b: int) -> Expr:
    """ceil(a / b) with constants folded."""
    a = as_expr(a)
    if isinstance(a, Const):
        return Const(-(-int(a.value) // b))
    return a if b == 1 else call("ceildiv", a, Const(b))

"""What one position of the streamed axis contributes to a state, as one scalar expression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilecc.analysis.problem import Problem
from tilecc.analysis.signs import EITHER, FALSE, FINITE, POS, SignEnv, Signs, signs, within
from tilecc.analysis.streams import Item, Streams
from tilecc.errors import Loc
from tilecc.ir.core import Op, Value
from tilecc.ir.dtypes import BOOL
from tilecc.ir.expr import Arg, Call, Cast, Const, Expr, Index, call, shift_args, transform, walk


@dataclass(eq=False)
class Unclear(Exception):
    """The contribution is no scalar expression that one could reason about."""

    obligation: str
    loc: Loc | None = None


@dataclass(eq=False)
class Contribution:
    """f of an item: `f` over `leaves` (Arg(k) is leaves[k]).

    moving: leaf numbers of the states that still move, in order.
    own: for a moving state's leaf, the leaf that stands for its own contribution where that occurs
        in `f`; in `open` it is expanded too. written: what each moving state accumulates, expanded.
    references: values outside the stream's chunk that are functions of moving states.
    """

    streams: Streams
    item: Item
    over: tuple[str, ...]
    leaves: list[Value] = field(default_factory=list)
    moving: list[int] = field(default_factory=list)
    own: dict[int, int] = field(default_factory=dict)
    written: dict[int, Expr] = field(default_factory=dict)
    references: dict[Expr, Value] = field(default_factory=dict)
    f: Expr = field(default_factory=lambda: Const(0.0))
    open: Expr = field(default_factory=lambda: Const(0.0))

    def leaf(self, v: Value) -> Arg:
        """The Arg that stands for `v`."""
        if v not in self.leaves:
            self.leaves.append(v)
        return Arg(self.leaves.index(v))

    def streamed(self, e: Expr) -> bool:
        """Whether `e` differs along the axes that are reduced."""
        return any(
            (isinstance(n, Index) and n.axis in self.over)
            or (isinstance(n, Arg) and any(map(self.leaves[n.k].type.has, self.over)))
            for n in walk(e)
        )

    def moves(self, e: Expr) -> bool:
        """Whether `e` depends on a state that still moves."""
        return any(isinstance(n, Arg) and n.k in self.moving for n in walk(e))

    def default(self, k: int, constants: Signs = FINITE) -> Signs:
        """What is assumed of leaf `k`: a predicate, or a finite number."""
        t = self.leaves[k].type
        if t.dtype is BOOL:
            return EITHER
        streamed = any(map(t.has, self.over))
        return FINITE if streamed or t.dtype.kind != "float" else constants


def reduction(streams: Streams, item: Item) -> tuple[Op, tuple[str, ...]]:
    """The reduction or contraction whose chunk results the state combines, and its axes."""
    assert item.update is not None
    op = streams.definition(streams.of(item.update.operands[0]))
    kind = item.kind
    fits = op is not None and (
        (op.name == "reduce" and op.attrs["kind"] == kind)
        or (op.name == "contract" and kind == "sum" and not op.attrs.get("acc"))
    )
    if op is None or not fits or streams.axis not in op.over:
        loc = op.loc if op else item.update.loc
        raise Unclear(f"what it accumulates is not a {kind} over {streams.axis}", loc)
    return op, op.over


def contribution(streams: Streams, item: Item, moving: list[Value]) -> Contribution:
    """f of `item`, in which the states `moving` are leaves.

    Raises:
        Unclear: a moving state goes through an operation that is no map.
    """
    op, over = reduction(streams, item)
    c = Contribution(streams, item, over)
    c.moving = [c.leaf(s).k for s in moving]
    bodies: dict[Value, Value] = {}
    for s in moving:
        try:
            source, _ = reduction(streams, streams.items[s])
        except Unclear:
            continue
        if source.name == "reduce":
            bodies[s] = streams.of(source.operands[0])
    builder = _Expansion(c, set(bodies.values()))
    c.open = builder.product(op, set())
    c.f = builder.product(op, set(bodies.values()))
    for s, body in bodies.items():
        own = c.leaf(body)
        written = builder.expand(body, set(bodies.values()) - {body})
        c.written[c.leaf(s).k] = builder.expand(body, set())
        c.f = transform(c.f, lambda n, w=written, o=own: o if n == w else None)  # type: ignore[misc]
        if own in walk(c.f):
            c.own[c.leaf(s).k] = own.k
    return c


class _Expansion:
    """Writes a value as an expression of leaves, maps being expanded where that tells something."""

    def __init__(self, c: Contribution, bodies: set[Value]) -> None:
        self.c = c
        self.bodies = bodies
        self.memo: dict[tuple[Value, frozenset[Value]], Expr] = {}

    def product(self, op: Op, stops: set[Value]) -> Expr:
        e, *rest = (self.expand(v, stops) for v in self.c.streams.inputs(op))
        for x in rest:
            e = call("mul", e, x)
        return e

    def moving(self, v: Value) -> bool:
        return any(self.c.leaves[k] in self.c.streams.states(v) for k in self.c.moving)

    def expand(self, v: Value, stops: set[Value]) -> Expr:
        key = (v, frozenset(stops))
        if key not in self.memo:
            self.memo[key] = self._expand(v, stops)
        return self.memo[key]

    def _expand(self, v: Value, stops: set[Value]) -> Expr:
        streams, op = self.c.streams, self.c.streams.definition(v)
        if v in stops or (v in streams.items and streams.items[v].update):
            return self.c.leaf(v)
        if op is None or op.name != "map":
            if self.moving(v):
                assert op is not None
                raise Unclear(f"f(x, r) depends on r through a {op.name}, which is no map", op.loc)
            return self.c.leaf(v)
        if not self.moving(v) and not self._holds_body(v):
            return self.c.leaf(v)
        args = {k: self.expand(x, stops) for k, x in enumerate(streams.inputs(op))}
        e = shift_args(op.expr, args)
        if self.moving(v) and not self.c.streamed(e):
            self.c.references.setdefault(e, v)
        return e

    def _holds_body(self, v: Value) -> bool:
        """Whether expanding `v` by maps comes across what a moving state reduces."""
        if v in self.bodies:
            return True
        op = self.c.streams.definition(v)
        if op is None or op.name != "map":
            return False
        return any(self._holds_body(x) for x in self.c.streams.inputs(op))


def resolve_guards(e: Expr, env: SignEnv, among: Callable[[Expr], bool] = lambda n: True) -> Expr:
    """`e` without those `where`s of `among` whose condition comes out one way only under `env`."""

    def f(n: Expr) -> Expr | None:
        if not (isinstance(n, Call) and n.fn == "where" and among(n)):
            return None
        truth = signs(n.args[0], env)
        if truth == EITHER:
            return None
        return n.args[2] if truth == FALSE else n.args[1]

    return transform(e, f)


@dataclass(frozen=True)
class Abstraction:
    """A problem in which maximal parts are single leaves, and what those parts are."""

    problem: Problem
    parts: tuple[Expr, ...]


def abstract(c: Contribution, env: SignEnv, *, inline: bool) -> Abstraction:
    """`c.open` with maximal parts that do not move, or that are references, as leaves.

    With `inline` the references are written out in terms of the states.
    """
    parts: dict[Expr, int] = {}
    roles: list[str] = []

    def part(e: Expr, role: str) -> Expr:
        if e not in parts:
            parts[e] = len(parts)
            roles.append(role)
        return Arg(parts[e])

    def go(e: Expr) -> Expr:
        if isinstance(e, Const) and (
            isinstance(e.value, int) or abs(e.value) == float("inf") or e.value.is_integer()
        ):
            return e
        if not c.moves(e):
            return part(e, "x" if c.streamed(e) else "c")
        if not c.streamed(e) and (not inline or isinstance(e, Arg)):
            return part(e, "u")
        if isinstance(e, Cast):  # over the reals nothing is rounded
            return go(e.arg) if e.to.kind == "float" else Cast(go(e.arg), e.to)
        assert isinstance(e, Call)
        return Call(e.fn, tuple(go(a) for a in e.args))

    # References keep their guards: the proof holds for whatever they are.
    shape = go(resolve_guards(c.open, env, (lambda n: True) if inline else c.streamed))
    keys = tuple(parts)
    positive = tuple(within(signs(e, env), POS) for e in keys)
    return Abstraction(Problem(c.item.kind, shape, tuple(roles), positive), keys)

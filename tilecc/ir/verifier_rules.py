"""Rules for the types of single operations, as `ops` infers them, and for where they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tilecc.ir.core import Op, Range, TensorType, Value
from tilecc.ir.dtypes import F32, F64, DType
from tilecc.ir.expr import Call, Const, Expr, Old, arg_numbers, call, indices, walk
from tilecc.ir.ops import contract_type, infer_dtype, reduce_type


@dataclass(frozen=True)
class Context:
    """Where an operation stands: its parents, and the operation that defines each value so far."""

    level: str
    parents: tuple[Op, ...] = ()
    owner: dict[Value, Op] = field(default_factory=dict)

    @property
    def parent(self) -> Op | None:
        """The operation whose region this is; None in the function's body."""
        return self.parents[-1] if self.parents else None

    def inside(self, op: Op) -> Context:
        """The context of the regions of `op`."""
        return replace(self, parents=(*self.parents, op))

    @property
    def parallel(self) -> set[str]:
        """Axes of the loop kernel around this place."""
        return {a for p in self.parents if p.name == "kernel" for a in p.attrs.get("over", ())}

    @property
    def streamed(self) -> set[str]:
        """Axes of the streams around this place."""
        return {p.attrs["axis"] for p in self.parents if p.name == "stream"}

    def in_pieces(self, v: Value, axis: str) -> bool:
        """Whether `v` is computed where only a part of `axis` is present."""
        owner = self.owner.get(v)
        return any(
            owner in list(p.body.walk())
            for p in self.parents
            if axis in p.attrs.get("over", ()) or axis == p.attrs.get("axis")
        )

    @property
    def in_grid(self) -> bool:
        """Whether this is in a kernel of tile IR."""
        return any("grid" in p.attrs for p in self.parents)


def _dtype_of(op: Op, e: Expr, acc: DType = F32) -> DType:
    return infer_dtype(e, [v.type.dtype for v in op.operands], acc)


def _wants(op: Op, what: str, e: Expr, kind: str) -> Iterable[str]:
    t = _dtype_of(op, e)
    if t.kind != kind:
        yield f"{what} must be {kind}, not {t}"


def _extents_agree(values: Iterable[Value]) -> Iterable[str]:
    """The same axis has the same extent in all of them."""
    seen: dict[str, tuple[Expr, Value]] = {}
    for v in values:
        for a in v.type.axes:
            extent, other = seen.setdefault(a.name, (a.extent, v))
            if extent != a.extent:
                yield f"axis {a.name} has different extents in {other!r} and {v!r}"


def _same(got: TensorType, want: TensorType) -> Iterable[str]:
    """The result has the inferred element type and axes; their order is free."""
    if got.dtype is not want.dtype:
        yield f"the result is {got.dtype}, but must be {want.dtype}"
    if set(got.names) != set(want.names):
        yield f"the result has axes [{', '.join(got.names)}], wanted [{', '.join(want.names)}]"


def _summed(op: Op, context: Context, operands: list[Value]) -> Iterable[str]:
    """The axes that are reduced are in an operand, and not spread over a kernel's instances."""
    present = {a for v in operands for a in v.type.names}
    for a in op.over:
        if a not in present:
            yield f"axis {a} is in no operand"
        elif a in context.parallel:
            yield f"axis {a} is a parallel axis of the kernel: each instance has one element of it"


def _contract(op: Op, context: Context) -> Iterable[str]:
    factors = op.operands[:-1] if op.attrs.get("acc") else op.operands
    yield from _extents_agree([*op.operands, op.result])
    yield from _summed(op, context, factors)
    yield from _same(op.result.type, contract_type(factors, op.over))
    if op.attrs.get("factors") and any(v.type.dtype.name != "f32" for v in factors):
        yield f"factors are rounded to {op.attrs['factors']} that are f32, and these are not"
    if op.attrs.get("acc"):
        acc = op.operands[-1].type
        yield from (m.replace("the result", "acc") for m in _same(acc, op.result.type))
        if acc.names != op.result.type.names:
            yield "acc must have its axes in the order of the result"


_RANK = {"bool": 0, "int": 1, "float": 2}


def _is_literal(e: Expr) -> bool:
    return isinstance(e, Const) or (isinstance(e, Call) and all(map(_is_literal, e.args)))


def _map(op: Op, context: Context) -> Iterable[str]:
    t = op.result.type
    yield from _extents_agree([*op.operands, op.result])
    lost = [a for v in op.operands for a in v.type.names if not t.has(a)]
    if lost:
        yield f"the result has no axis {lost[0]}, but an operand has"
    want = _dtype_of(op, op.expr)
    # A literal takes the type that is asked for, as long as that holds it.
    fits = _is_literal(op.expr) and _RANK[want.kind] <= _RANK[t.dtype.kind]
    if t.dtype is not want and not fits:
        yield f"the result is {t.dtype}, but the expression gives {want}"
    for value, met in _misfits(op, op.expr):
        yield f"{value} does not fit {met}, the type of what it meets"


def _misfits(op: Op, e: Expr) -> Iterable[tuple[int, DType]]:
    """Whole numbers that meet integers with fewer bits than they need."""
    for n in walk(e):
        parts = n.args[1:] if isinstance(n, Call) and n.fn == "where" else n.children()
        large = [c.value for c in parts if isinstance(c, Const) and not _is_small(c.value)]
        strong = [p for p in parts if not _is_literal(p)]
        if not large or not strong:
            continue
        met = infer_dtype(call("maximum", *(strong * 2)[:2]), [v.type.dtype for v in op.operands])
        if met.kind == "int":
            bound = 1 << (met.bits - (met.name[0] == "i"))
            low = -bound if met.name[0] == "i" else 0
            yield from ((int(c), met) for c in large if not low <= c < bound)


def _is_small(value: float) -> bool:
    return not isinstance(value, int) or 0 <= value < 128


def _reduce(op: Op, context: Context) -> Iterable[str]:
    yield from _extents_agree([*op.operands, op.result])
    yield from _summed(op, context, op.operands)
    yield from _same(op.result.type, reduce_type(op.operands[0], op.over, op.attrs["kind"]))


def _composite(op: Op, context: Context) -> Iterable[str]:
    t = op.operands[0].type
    want = t.with_dtype(F64 if t.dtype is F64 else F32)
    yield from _extents_agree([*op.operands, op.result])
    yield from _summed(op, context, op.operands)
    yield from _same(op.result.type, want.without(*op.over) if op.name == "logsumexp" else want)


def _at(op: Op, context: Context) -> Iterable[str]:
    tensor, t = op.operands[0], op.result.type
    replaced = {name for name, _ in op.attrs["coords"]}
    for name, e in op.attrs["coords"]:
        if not tensor.type.has(name):
            yield f"{tensor!r} has no axis {name}"
        if 0 in arg_numbers(e):
            yield "a coordinate reads the tensor itself"
        yield from _wants(op, f"the coordinate of {name}", e, "int")
    kept = Value(tensor.type.without(*replaced), tensor.name)
    yield from _extents_agree([kept, *op.operands[1:], op.result])
    for a in kept.type.names:
        if not t.has(a):
            yield f"the result has no axis {a}, but {tensor!r} has"
    if t.dtype is not tensor.type.dtype:
        yield f"the result is {t.dtype}, but {tensor!r} is {tensor.type.dtype}"
    for a in sorted(replaced):
        if context.in_pieces(tensor, a):
            yield f"reads other places on axis {a} of {tensor!r}, which is computed in pieces"


def _kernel(op: Op, context: Context) -> Iterable[str]:
    for e in op.attrs.get("grid", ()):
        yield from _wants(op, "a grid size", e, "int")
    if ("grid" in op.attrs) != (context.level == "tile"):
        has = "a grid" if context.level == "tile" else "parallel axes"
        yield f"a kernel of {context.level} IR has {has}"
    if "grid" in op.attrs and op.results:
        yield "a kernel with a grid has no results: it stores"


def _stream(op: Op, context: Context) -> Iterable[str]:
    axis = op.attrs["axis"]
    if axis in context.parallel | context.streamed:
        yield f"axis {axis} is parallel or streamed already"
    ops = list(op.body.walk())
    if not any(v.type.has(axis) for o in ops for v in [*o.results, *o.operands]):
        yield f"no value in it has axis {axis}"
    if op.attrs.get("where") is not None:
        yield from _wants(op, "the predicate", op.attrs["where"], "bool")


def _update(op: Op, context: Context) -> Iterable[str]:
    t, stream = op.operands[0].type, context.parent
    yield from _extents_agree([*op.operands, op.result])
    if op.result.type != t:
        yield "the result must have the type of the operand"
    if stream is not None and t.has(stream.attrs["axis"]):
        yield f"a state may not have the streamed axis {stream.attrs['axis']}"
    repair = op.attrs.get("repair")
    if repair is None:
        return
    for k in sorted({n.k for n in walk(repair) if isinstance(n, Old)}):
        owner = context.owner.get(op.operands[k])
        if owner is None or owner.name != "update" or owner not in _ops_of(stream):
            yield f"old({op.operands[k]!r}) is no state of this stream"
    got = _dtype_of(op, repair, t.dtype)
    if got is not t.dtype:
        yield f"the repair gives {got}, but the state is {t.dtype}"


def _ops_of(op: Op | None) -> list[Op]:
    return op.body.ops if op is not None else []


def _tile_value(op: Op, context: Context) -> Iterable[str]:
    for v in op.results if context.level == "tile" else ():
        if not context.in_grid and v.type.axes:
            yield "a tile may only be computed inside a kernel"
        for a in v.type.axes:
            if a.static is None:
                yield f"axis {a.name} of the tile {v!r} has no static extent"


def _access(op: Op, tensor: Value, tile: Value, loose: str, context: Context) -> Iterable[str]:
    """Coordinates of a load or store: one for each axis, and each tile axis in one of them."""
    coords, t = op.attrs["coords"], tile.type
    owner = context.owner.get(tensor)
    if tensor.type.space or (owner is not None and owner.name != "alloc"):
        yield f"{tensor!r} is no tensor in memory: a parameter or an alloc"
    if len(coords) != len(tensor.type.axes):
        yield f"has {len(coords)} coordinates, but {tensor!r} has {len(tensor.type.axes)} axes"
    if tensor.type.dtype is not t.dtype:
        yield f"{tensor!r} is {tensor.type.dtype}, but the tile {tile!r} is {t.dtype}"
    ranged = [c.axis for c in coords if isinstance(c, Range)]
    for a in sorted(set(ranged)):
        if not t.has(a) or ranged.count(a) > 1:
            yield f"{a} must be an axis of the tile and the range of one coordinate"
    reached = set(ranged)
    for c in coords:
        e = c.base if isinstance(c, Range) else c
        yield from _wants(op, "a coordinate", e, "int")
        reached |= indices(e) | {a for k in arg_numbers(e) for a in op.operands[k].type.names}
    for a in t.names:
        if a not in reached:
            yield f"axis {a} of the tile is in no coordinate"
    for a in op.attrs.get(loose, ()):
        if not t.has(a):
            yield f"{loose} names {a}, which is no axis of the tile"


def _load(op: Op, context: Context) -> Iterable[str]:
    return _access(op, op.operands[0], op.result, "pad", context)


def _store(op: Op, context: Context) -> Iterable[str]:
    value, tensor = op.operands[:2]
    if tensor not in context.owner:
        yield f"{tensor!r} is a parameter, which may not be written"
    yield from _access(op, tensor, value, "clip", context)


def _for(op: Op, context: Context) -> Iterable[str]:
    yield from _wants(op, "the lower bound", op.attrs["lo"], "int")
    yield from _wants(op, "the upper bound", op.attrs["hi"], "int")


def _if(op: Op, context: Context) -> Iterable[str]:
    return _wants(op, "the condition", op.attrs["cond"], "bool")


def _return(op: Op, context: Context) -> Iterable[str]:
    for v in op.operands:
        owner = context.owner.get(v)
        if v.type.space or (context.level == "tile" and owner and owner.name != "alloc"):
            yield f"{v!r} is no tensor in memory"


Rule = Callable[[Op, Context], Iterable[str]]


def _also(*rules: Rule) -> Rule:
    return lambda op, context: [m for rule in rules for m in rule(op, context)]


TYPE_RULES: dict[str, Rule] = {
    "contract": _also(_contract, _tile_value),
    "map": _also(_map, _tile_value),
    "reduce": _also(_reduce, _tile_value),
    "softmax": _composite,
    "logsumexp": _composite,
    "at": _at,
    "kernel": _kernel,
    "stream": _stream,
    "update": _update,
    "load": _also(_load, _tile_value),
    "store": _store,
    "for": _for,
    "if": _if,
    "return": _return,
}

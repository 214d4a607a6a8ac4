"""Maps of tiles: which tiles of a kernel are empty, partial or full, worked out before it runs.

Where the live positions of a stream have no closed form, since they depend on data or their hull
has holes that intervals cannot tell, small kernels in front of the main one write down

    %doc_lo, %doc_hi = alloc : i64[j_tile]         the least and greatest id of each tile
    %tiles = alloc : i8[i_tile, j_tile]            0 empty, 1 partial, 2 full
    %first, %last = alloc : i64[i_tile]            all tiles that are not empty are in first .. last

Interval arithmetic over tile ends and summaries judges a tile in three values; one that it cannot
tell is looked at element by element. That is done once, not for each head, and needs a byte for
each tile: N = 32,768 in tiles of 64 is 256 KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilecc.analysis import affine
from tilecc.ir.core import Axis, Block, Builder, Op, TensorType, Value
from tilecc.ir.dtypes import BOOL, I32, I64, dtype
from tilecc.ir.expr import Arg, Call, Cast, Const, Expr, add, call, ceildiv, indices, mul
from tilecc.ir.ops import identity
from tilecc.passes.tiling.access import tile_of
from tilecc.passes.tiling.coordinates import name_divisions, share_coordinates
from tilecc.passes.tiling.loops import (
    ALWAYS,
    last_position,
    live_hull,
    predicate,
    ranges_of,
)
from tilecc.passes.tiling.plan import AxisPlan
from tilecc.passes.tiling.scope import Operands, Scope

EMPTY, PARTIAL, FULL = 0, 1, 2
CODE = dtype("i8")


@dataclass(frozen=True)
class TileMap:
    """Where the map of a stream lies: over tiles of `axes`, the codes over the stream's as well."""

    codes: Value
    first: Value
    last: Value
    axes: tuple[str, ...]

    def read(self, scope: Scope, tensor: Value, *, streamed: str | None = None) -> Value:
        """The element of one of the tensors for the current tile, a scalar."""
        operands = Operands([tensor])
        names = self.axes if streamed is None else (*self.axes, streamed)
        coords = tuple(operands.ref(scope.scalars[a]) for a in names)
        t = TensorType(tensor.type.dtype)
        op = Op("load", operands.values, [t], {"coords": coords, "pad": ()}, names=[tensor.name])
        return scope.once(("load", tuple(operands.values), coords), op)


def tile_maps(
    kernel: Op, plan: Mapping[str, AxisPlan], host: Mapping[Value, Value], body: Block
) -> dict[Op, TileMap]:
    """The maps that the streams of a loop-level kernel need; what makes them is added to `body`."""
    maker = _Maker(kernel, plan, host, body)
    streams = [op for op in kernel.body.ops if op.name == "stream" and "where" in op.attrs]
    return {op: maker.make(op) for op in streams if maker.needed(op)}


@dataclass
class _Maker:
    kernel: Op
    plan: Mapping[str, AxisPlan]
    host: Mapping[Value, Value]
    body: Block
    made: dict[tuple[object, ...], TileMap] = field(default_factory=dict)
    summaries: dict[Value, tuple[Value, Value]] = field(default_factory=dict)

    def needed(self, stream: Op) -> bool:
        """Whether conditions on scalars leave open which tiles are live."""
        if stream.attrs["where"] is None:
            return False
        scope, _ = self._open(self.kernel.attrs["over"])
        axis, operands = stream.attrs["axis"], Operands()
        where, data = predicate(scope, stream, operands)
        if data:
            return True
        rows = ranges_of(scope, axis, operands)
        if affine.is_convex(where, axis, rows):
            return False
        first, last = Value(TensorType(I64)), Value(TensorType(I64))
        box = {**rows, axis: (operands.ref(first), operands.ref(last))}
        return not affine.is_exact(where, box)

    def make(self, stream: Op) -> TileMap:
        """The map of a stream; streams with the same predicate share one."""
        axis, where = stream.attrs["axis"], stream.attrs["where"]
        key = (axis, where, tuple(stream.operands))
        if key not in self.made:
            self.made[key] = self._make(stream)
        return self.made[key]

    def _open(self, axes: tuple[str, ...]) -> tuple[Scope, Block]:
        """A scope for a program on one tile of each of these axes."""
        block = Block()
        scope = Scope(self.plan, Builder(block, self.kernel.loc), dict(self.host))
        for a in axes:
            scope.scalars[a] = Value(TensorType(I64), _tiles(a, self.plan))
            block.args.append(scope.scalars[a])
        return scope, block

    def _alloc(self, name: str, axes: tuple[str, ...], t: TensorType) -> Value:
        """Memory with an element for each tile of the axes."""
        own = tuple(Axis(_tiles(a, self.plan), _count(self.plan[a])) for a in axes)
        builder = Builder(self.body, self.kernel.loc)
        return builder.op("alloc", [], [TensorType(t.dtype, own)], names=[name]).result

    def _close(self, block: Block, axes: tuple[str, ...], tiled: tuple[str, ...]) -> None:
        """Add the kernel with this body, a program for each tile of the axes."""
        sizes = tuple((a, self.plan[a].size) for a in tiled)
        attrs = {"grid": tuple(_count(self.plan[a]) for a in axes), "tile": sizes}
        self.body.ops.append(Op("kernel", [], [], attrs, [block], self.kernel.loc))

    def _make(self, stream: Op) -> TileMap:
        axis = stream.attrs["axis"]
        read = {a for v in stream.operands for a in v.type.names}
        read |= indices(stream.attrs["where"])
        axes = tuple(a for a in self.kernel.attrs["over"] if a in read)
        scope, block = self._open(axes)
        _, data = predicate(scope, stream, Operands())
        found = {v: s for v in data.values() if (s := self._summary(v)) is not None}
        scalar = TensorType(I64)
        codes = self._alloc("tiles", (*axes, axis), TensorType(CODE))
        made = TileMap(
            codes, self._alloc("first", axes, scalar), self._alloc("last", axes, scalar), axes
        )
        _Judge(scope, stream, found, made).emit()
        tiled = tuple(a for a in (*axes, axis) if self.plan[a].size is not None)
        self._close(block, axes, tiled)
        return made

    def _summary(self, v: Value) -> tuple[Value, Value] | None:
        """The least and greatest element of each tile of `v`; None for floats and for 2-D tiles."""
        tiled = [a for a in v.type.names if self.plan[a].size is not None]
        if len(tiled) != 1 or v.type.dtype.kind == "float":
            return None
        if v not in self.summaries:
            axes = v.type.names
            scope, block = self._open(axes)
            tile = tile_of(scope, v, [a for a in tiled if self.plan[a].ragged])
            out = []
            for kind, suffix in (("min", "lo"), ("max", "hi")):
                target = self._alloc(f"{v.name}_{suffix}", axes, TensorType(I64))
                store_scalar(scope, _extreme(scope, tile, kind, tiled[0]), target, axes)
                out.append(target)
            self._close(block, axes, tuple(tiled))
            self.summaries[v] = out[0], out[1]
        return self.summaries[v]


def _tiles(axis: str, plan: Mapping[str, AxisPlan]) -> str:
    return axis if plan[axis].size is None else f"{axis}_tile"


def _count(p: AxisPlan) -> Expr:
    return p.axis.extent if p.size is None else ceildiv(p.axis.extent, p.size)


def _number(e: Expr, t: TensorType) -> Expr:
    """An element as i64; truth values as 0 and 1."""
    return call("where", e, Const(1), Const(0)) if t.dtype is BOOL else Cast(e, I64)


def _extreme(scope: Scope, tile: Value, kind: str, axis: str) -> Value:
    """The least or greatest element of a tile over one axis, positions beyond the end left out."""
    operands = Operands([tile])
    e = _number(Arg(0), tile.type)
    p = scope.plan[axis]
    if p.ragged:
        inside = call("lt", scope.coordinate(axis, operands), p.axis.extent)
        e = call("where", inside, e, identity(kind, I64))
    wide = TensorType(I64, tile.type.axes, "reg")
    x = scope.map(e, operands.values, wide, tile.name)
    return _reduce(scope, x, kind)


def _reduce(scope: Scope, x: Value, kind: str) -> Value:
    attrs = {"kind": kind, "over": x.type.names}
    op = Op("reduce", [x], [TensorType(x.type.dtype)], attrs, names=[x.name])
    return scope.once(("reduce", kind, x), op)


def store_scalar(scope: Scope, x: Value, target: Value, axes: tuple[str, ...]) -> None:
    """Write a scalar to the place of the current tile of `axes`."""
    operands = Operands([x, target])
    coords = tuple(operands.ref(scope.scalars[a]) for a in axes)
    scope.builder.op("store", operands.values, coords=coords, clip=())


@dataclass
class _Judge:
    """Emits the body of the kernel that fills a map: a program for each tile of rows."""

    scope: Scope
    stream: Op
    summaries: Mapping[Value, tuple[Value, Value]]
    map: TileMap

    @property
    def axis(self) -> str:
        """The streamed axis."""
        axis: str = self.stream.attrs["axis"]
        return axis

    def emit(self) -> None:
        """first, last = for each tile of the stream's hull: its code."""
        scope, b = self.scope, self.scope.builder
        size = scope.plan[self.axis].size or 1
        lo, hi = live_hull(scope, self.stream)
        count = _count(scope.plan[self.axis])
        for v, ends in self.summaries.items():
            if not v.type.has(self.axis):  # the same for all tiles of the stream
                for t in ends:
                    self._load(scope, t, v)
        first = scope.scalar(count, [], "first")
        last = b.op("map", [], [TensorType(I64)], names=["last"], expr=Const(0)).result
        block = Block()
        inner = scope.inner(block)
        counter = Value(TensorType(I64), f"{self.axis}_tile")
        inner.scalars[self.axis] = counter
        carried = [Value(TensorType(I64), name) for name in ("first", "last")]
        block.args = [counter, *carried]
        code = self._code(inner, size)
        store_scalar(inner, _as_code(inner, code), self.map.codes, (*self.map.axes, self.axis))
        live = call("gt", Arg(0), Const(EMPTY))
        least = call("where", live, call("minimum", Arg(1), Arg(2)), Arg(1))
        most = call("where", live, add(Arg(2), 1), Arg(1))
        new = [
            inner.scalar(least, [code, carried[0], counter], "first"),
            inner.scalar(most, [code, carried[1], counter], "last"),
        ]
        Builder(block, b.loc).op("yield", new)
        loop = b.op(
            "for",
            [first, last, lo, hi],
            [TensorType(I64)] * 2,
            regions=[block],
            names=["first", "last"],
            lo=Arg(2),
            hi=Arg(3),
            n_carry=2,
        )
        for v, target in zip(loop.results, (self.map.first, self.map.last), strict=True):
            store_scalar(scope, v, target, self.map.axes)

    def _code(self, scope: Scope, size: int) -> Value:
        """The code of the current tile: by intervals, or else by its elements."""
        operands = Operands()
        where, data = predicate(scope, self.stream, operands)
        ranges = ranges_of(scope, self.axis, operands)
        p = scope.plan[self.axis]
        start = mul(operands.ref(scope.scalars[self.axis]), size)
        ranges[self.axis] = (start, last_position(p, start, size))
        for k, v in data.items():
            ranges[k] = (None, None)
            if v in self.summaries:
                lo, hi = (self._load(scope, t, v) for t in self.summaries[v])
                ranges[k] = (operands.ref(lo), operands.ref(hi))
        may, must = affine.tile_live(where, ranges), affine.tile_full(where, ranges)
        if p.ragged:
            inside = call("le", add(start, size), p.axis.extent)
            must = inside if must == ALWAYS else call("and", must, inside)

        exact = affine.is_exact(where, ranges) and affine.is_exact(call("not", where), ranges)

        def looked_at(s: Scope) -> Value:
            return _constant(s, PARTIAL) if exact else self._by_elements(s)

        def visited(s: Scope) -> Value:
            return _choose(s, must, operands, lambda x: _constant(x, FULL), looked_at)

        return _choose(scope, may, operands, visited, lambda x: _constant(x, EMPTY))

    def _load(self, scope: Scope, tensor: Value, v: Value) -> Value:
        operands = Operands([tensor])
        coords = tuple(operands.ref(scope.scalars[a]) for a in v.type.names)
        attrs = {"coords": coords, "pad": ()}
        op = Op("load", operands.values, [TensorType(I64)], attrs, names=[tensor.name])
        return scope.once(("load", tuple(operands.values), coords), op)

    def _by_elements(self, scope: Scope) -> Value:
        """How many positions of the tile are live: none, some, or as many as there are.

        Away from the ends of the axes nothing is asked but the predicate.
        """
        plan, operands = scope.plan, Operands()
        names = [a for a in (*self.map.axes, self.axis) if plan[a].size is not None]
        ragged = [a for a in names if plan[a].ragged]
        inside: Expr = ALWAYS
        for a in ragged:
            end = add(scope.base(a, operands), plan[a].size or 1)
            fits = call("le", end, plan[a].axis.extent)
            inside = fits if inside == ALWAYS else call("and", inside, fits)
        return _choose(
            scope,
            inside,
            operands,
            lambda s: self._count(s, names, []),
            lambda s: self._count(s, names, ragged),
        )

    def _count(self, scope: Scope, names: list[str], ragged: list[str]) -> Value:
        """The code by elements, for a tile that may reach beyond the ends of `ragged` axes."""
        operands = Operands()
        where, data = predicate(scope, self.stream, operands)
        plan = scope.plan
        numbers: dict[int, Expr] = {
            k: operands.ref(tile_of(scope, v, ragged)) for k, v in data.items()
        }
        some = every = scope.globalise(_renumbered(where, numbers), operands)
        for a in ragged:
            inside = call("lt", scope.coordinate(a, operands), plan[a].axis.extent)
            some = call("and", some, inside)
            # Rows beyond the end do no harm; what is streamed is not read there without a mask.
            if a == self.axis:
                every = call("and", every, inside)
            else:
                every = call("or", every, call("not", inside))
        t = TensorType(I32, tuple(Axis(a, Const(plan[a].size or 1)) for a in names), "reg")

        def found(e: Expr, kind: str) -> Expr:
            e = Cast(call("where", e, Const(1), Const(0)), I32)
            e = share_coordinates(scope, e, operands, t)
            return operands.ref(_reduce(scope, _map(scope, e, operands, t, "live"), kind))

        most, least = found(some, "max"), found(every, "min")
        full = call("eq", Cast(least, I64), Const(1))
        code = call("where", full, Const(FULL), Cast(most, I64))
        return _map(scope, code, operands, TensorType(I64), "code")


def _renumbered(e: Expr, numbers: Mapping[int, Expr]) -> Expr:
    match e:
        case Arg(k):
            return numbers.get(k, e)
        case Call(fn, args):
            return Call(fn, tuple(_renumbered(a, numbers) for a in args))
        case Cast(arg, to):
            return Cast(_renumbered(arg, numbers), to)
    return e


def _as_code(scope: Scope, x: Value) -> Value:
    return scope.map(Cast(Arg(0), CODE), [x], TensorType(CODE), "code")


def _constant(scope: Scope, n: int) -> Value:
    return scope.builder.op("map", [], [TensorType(I64)], names=["code"], expr=Const(n)).result


def _map(scope: Scope, e: Expr, operands: Operands, t: TensorType, name: str) -> Value:
    """A map that reads no more than it needs."""
    e, values = operands.used(e)
    return scope.map(e, values, t, name)


def _choose(
    scope: Scope,
    cond: Expr,
    operands: Operands,
    then: Callable[[Scope], Value],
    other: Callable[[Scope], Value],
) -> Value:
    """One of two scalars, or an `if` between them."""
    if isinstance(cond, Const):
        return (then if cond.value else other)(scope)
    cond = name_divisions(scope, cond, operands)
    e, values = operands.used(cond)
    blocks = []
    for branch in (then, other):
        block = Block()
        Builder(block, scope.builder.loc).op("yield", [branch(scope.inner(block))])
        blocks.append(block)
    types = [TensorType(I64)]
    op = scope.builder.op("if", values, types, regions=blocks, names=["code"], cond=e)
    return op.result

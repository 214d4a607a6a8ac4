"""The operations of a loop-level body on tiles: loads in, maps over global coordinates, states."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tilecc.analysis.assume import assume
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Op, TensorType, Value
from tilecc.ir.expr import (
    Acc,
    Arg,
    Cast,
    Const,
    Expr,
    Old,
    arg_numbers,
    call,
    indices,
    rebuild,
    shift_args,
    transform,
    walk,
)
from tilecc.ir.ops import REDUCERS, compute_dtype, identity, infer_dtype, map_type
from tilecc.passes.tiling.access import load_at, tile_of
from tilecc.passes.tiling.coordinates import share_coordinates
from tilecc.passes.tiling.scope import Operands, Scope


@dataclass
class Body:
    """Emits loop-level operations into a scope.

    `masked`: tiles may reach beyond the streamed axis or hold dead positions. Otherwise `known`,
    a predicate over global coordinates and the scalars `known_reads`, holds everywhere in the tile.
    """

    scope: Scope
    axis: str | None = None  # the streamed axis, inside a stream
    masked: bool = False
    known: Expr = field(default_factory=lambda: Const(True))
    known_reads: list[Value] = field(default_factory=list)
    carried: Mapping[Value, Value] = field(default_factory=dict)  # update result -> carried tile
    uses: Mapping[Value, list[Op]] = field(default_factory=dict)  # who reads a value of the stream

    @property
    def ragged(self) -> Collection[str]:
        """Axes along which a load may reach beyond the tensor."""
        plan = self.scope.plan
        return [
            a
            for a, p in plan.items()
            if p.ragged and (p.role == "parallel" or (a == self.axis and self.masked))
        ]

    def operand(self, v: Value) -> Value:
        """The tile of a loop-level value."""
        return tile_of(self.scope, v, self.ragged)

    def emit(self, op: Op) -> None:
        """Emit one operation and record the tile values of its results."""
        self.scope.builder.loc = op.loc
        rule = getattr(self, f"_{op.name}", None)
        if rule is None:
            raise CompileError(Diagnostic(f"{op.name} cannot be tiled", op.loc))
        value = rule(op)
        if value is not None:
            self.scope.values[op.result] = value

    def _at(self, op: Op) -> Value | None:
        if self.axis is not None and not op.result.type.has(self.axis):
            return None  # loaded outside the loop, when first read
        return load_at(self.scope, op, self.ragged)

    def _map(self, op: Op) -> Value:
        e, values = op.expr, op.operands
        if self.axis is not None and not self.masked and self.known != Const(True):
            e, values = self._assume(op)
        operands = Operands()
        read = arg_numbers(e)  # what `assume` dropped is not loaded
        tiles = [self.operand(v) if k in read else v for k, v in enumerate(values)]
        e = operands.adopt(e, tiles)
        return self._emit_map(e, operands, op)

    def _emit_map(self, e: Expr, operands: Operands, op: Op) -> Value:
        e = self.scope.globalise(e, operands)
        type = self._read_axes(op, e, operands)
        e = share_coordinates(self.scope, e, operands, type)
        e, values = operands.used(e)
        return self.scope.map(e, values, type, op.result.name)

    def _read_axes(self, op: Op, e: Expr, operands: Operands) -> TensorType:
        """The type of a map's tile: without axes along which all its elements are the same, where
        only contractions and maps read it.

        A head's values behind padding, or dequantised, are those of its group, as they are in
        memory: one tile of them, and not one for each head.
        """
        type, readers = self.scope.type(op.result.type), self.uses.get(op.result, [])
        if op.name != "map" or not readers or {r.name for r in readers} - {"contract", "map"}:
            return type
        moving = indices(e) | {a for v in operands.used(e)[1] for a in v.type.names}
        moving |= {a for r in readers if r.name == "contract" for a in r.over}
        kept = type.without(*(a for a in type.names if a not in moving))
        return kept if kept.axes else type

    def _assume(self, op: Op) -> tuple[Expr, list[Value]]:
        """A map's expression where the predicate holds, and its operands."""
        together = Operands()
        e = _written_out(op, together)
        known = together.adopt(self.known, self.known_reads)
        dtypes = [v.type.dtype for v in together.values]
        out = assume(e, known, dtypes)
        if out == e:
            return op.expr, op.operands
        if isinstance(out, Cast) and infer_dtype(out.arg, dtypes) is out.to:
            out = out.arg  # what is left of cast(where(c, x, 0.0), bf16): x itself, not a copy
        # where(c, x, 0.0) is f32 where x is f16, and remains so.
        wide = infer_dtype(e, dtypes)
        return out if infer_dtype(out, dtypes) is wide else Cast(out, wide), together.values

    def _guard(self, v: Value, tile: Value, kind: str) -> Value:
        """`tile` with the reducer's identity beyond the end of the streamed axis."""
        axis = self.axis
        if axis is None or not self.masked or not tile.type.has(axis):
            return tile
        p = self.scope.plan[axis]
        zero = kind == "sum" and tile.owner is not None and tile.owner.name == "load"
        if not p.ragged or zero:
            return tile
        operands = Operands([tile])
        inside = call("lt", self.scope.coordinate(axis, operands), p.axis.extent)
        e: Expr = call("where", inside, Arg(0), identity(kind, tile.type.dtype))
        if compute_dtype(tile.type.dtype) is not tile.type.dtype:
            e = Cast(e, tile.type.dtype)  # exact: both sides have that type
        return self.scope.map(e, operands.values, replace(tile.type, space="reg"), tile.name)

    def _is_empty(self, op: Op) -> bool:
        """Whether `op` reduces over an axis without elements."""
        return any(self.scope.plan[a].size == 0 for a in op.over)

    def _identity(self, op: Op, kind: str) -> Value:
        type = self.scope.type(op.result.type)
        return self.scope.map(identity(kind, type.dtype), [], type, op.result.name)

    def _reduce(self, op: Op) -> Value:
        kind = op.attrs["kind"]
        if self._is_empty(op):
            return self._identity(op, kind)
        x = self.operand(op.operands[0])
        if self.axis in op.over:
            x = self._guard(op.operands[0], x, kind)
        new = Op(
            "reduce",
            [x],
            [self.scope.type(op.result.type)],
            op.attrs,
            loc=op.loc,
            names=[op.result.name],
        )
        return self.scope.once(("reduce", kind, x, op.over), new)

    def _contract(self, op: Op) -> Value:
        if self._is_empty(op):
            return self._identity(op, "sum")
        tiles = self.factors(op)
        new = Op(
            "contract",
            tiles,
            [self.scope.type(op.result.type)],
            {**op.attrs, "acc": False},
            loc=op.loc,
            names=[op.result.name],
        )
        return self.scope.once(("contract", *tiles, op.over, op.attrs.get("factors")), new)

    def factors(self, op: Op) -> list[Value]:
        """The operands of a contraction, zero beyond the end of an axis that it sums over."""
        tiles = [self.operand(v) for v in op.operands]
        if self.axis in op.over:
            pairs = zip(op.operands, tiles, strict=True)
            tiles = [self._guard(v, t, "sum") for v, t in pairs]
        return tiles

    def _update(self, op: Op) -> Value:
        """new = combine(repair(carried), contribution)."""
        source, kind = op.operands[0], op.attrs["kind"]
        carried = self.carried[op.result]
        type = self.scope.type(op.result.type)
        start = self._repaired(op, carried)
        if kind == "sum" and _is_fresh_contraction(source):
            assert source.owner is not None
            if self._is_empty(source.owner):
                return start
            tiles = self.factors(source.owner)
            return self.scope.builder.op(
                "contract",
                [*tiles, start],
                [type],
                names=[op.result.name],
                **{**source.owner.attrs, "acc": True},
            ).result
        e = call(REDUCERS[kind].combine, Arg(0), Arg(1))
        return self.scope.map(e, [start, self.operand(source)], type, op.result.name)

    def _repaired(self, op: Op, carried: Value) -> Value:
        repair: Expr | None = op.attrs.get("repair")
        if repair is None:
            return carried
        operands = Operands([carried])

        def leaf(n: Expr) -> Expr | None:
            if isinstance(n, Old):
                return operands.ref(self.carried[op.operands[n.k]])
            if isinstance(n, Arg):
                return operands.ref(self.operand(op.operands[n.k]))
            return None

        e = transform(repair, leaf)
        e = self._share_factors(e, operands, op)
        e = transform(e, lambda n: Arg(0) if isinstance(n, Acc) else None)
        return self._emit_map(e, operands, op)

    def _share_factors(self, e: Expr, operands: Operands, op: Op) -> Expr:
        """Parts of a repair that do not read the accumulator become maps, shared by all states."""
        if any(isinstance(n, Acc) for n in walk(e)):
            kids = tuple(self._share_factors(c, operands, op) for c in e.children())
            return rebuild(e, kids) if kids else e
        used = sorted({n.k for n in walk(e) if isinstance(n, Arg)})
        if not used or isinstance(e, Arg) or indices(e):
            return e
        values = [operands.values[k] for k in used]
        local = shift_args(e, {k: Arg(n) for n, k in enumerate(used)})
        t = map_type(local, values)
        factor = self.scope.map(local, values, replace(t, space="reg" if t.axes else ""), "c")
        return operands.ref(factor)


def _written_out(op: Op, operands: Operands) -> Expr:
    """A map's expression with those of the integers and conditions that it reads put in, the way
    that the predicate has them."""

    def read(n: Expr) -> Expr | None:
        if not isinstance(n, Arg):
            return None
        v = op.operands[n.k]
        if v.owner is not None and v.owner.name == "map" and v.type.dtype.kind != "float":
            return _written_out(v.owner, operands)
        return operands.ref(v)

    return transform(op.expr, read)


def _is_fresh_contraction(v: Value) -> bool:
    return v.owner is not None and v.owner.name == "contract"

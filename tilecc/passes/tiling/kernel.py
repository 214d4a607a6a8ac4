"""A loop-level kernel becomes a grid of programs, each on one tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilecc.ir.core import Block, Builder, Op, TensorType, Value, uses
from tilecc.ir.dtypes import I64
from tilecc.ir.expr import Arg, Const, Expr, call, ceildiv
from tilecc.ir.ops import identity
from tilecc.passes.tiling.access import load, load_at, store
from tilecc.passes.tiling.body import Body
from tilecc.passes.tiling.loops import conditions, is_hull, live_hull, segments
from tilecc.passes.tiling.maps import EMPTY, PARTIAL, TileMap
from tilecc.passes.tiling.plan import AxisPlan
from tilecc.passes.tiling.scope import Operands, Scope

_Branch = Callable[[Scope], list[Value]]


def tile_kernel(
    kernel: Op,
    plan: Mapping[str, AxisPlan],
    host: Mapping[Value, Value],
    outs: list[Value],
    maps: Mapping[Op, TileMap],
) -> Op:
    """The tiled form of `kernel`; `host` maps HBM tensors, `outs` are the tensors it writes.

    `maps`: streams whose tiles are judged beforehand.
    """
    body = Block()
    scope = Scope(plan, Builder(body, kernel.loc), dict(host))
    grid: list[Expr] = []
    for name in kernel.attrs["over"]:
        p = plan[name]
        var = Value(TensorType(I64), name if p.size is None else f"{name}_tile")
        body.args.append(var)
        scope.scalars[name] = var
        grid.append(p.axis.extent if p.size is None else ceildiv(p.axis.extent, p.size))
    results = kernel.body.terminator.operands
    targets = dict(zip(results, outs, strict=True))
    top = Body(scope)
    for op in kernel.body.ops[:-1]:
        if op.name == "stream":
            _Stream(scope, op, targets, maps.get(op)).emit()
        elif op.name != "at":
            top.emit(op)
    for v in results:
        if not (v.owner is not None and v.owner.name == "stream" and _emitted(v)):
            scope.builder.loc = v.owner.loc if v.owner else kernel.loc
            store(scope, top.operand(v), targets[v])
    _without_unread(body, set())
    sizes = tuple((a, p.size) for a, p in plan.items() if p.size is not None and p.role != "inner")
    attrs = {"grid": tuple(grid), "tile": sizes}
    return Op("kernel", [], [], attrs, [body], kernel.loc)


def _without_unread(block: Block, read: set[Value]) -> None:
    """Drop loads and maps that nothing reads: what only a mask took, where there is none.

    `read` gets all values that the block reads.
    """
    kept: list[Op] = []
    for op in reversed(block.ops):
        if op.name in ("map", "load") and op.result not in read:
            continue
        for region in op.regions:
            _without_unread(region, read)
        read.update(op.operands)
        kept.insert(0, op)
    block.ops[:] = kept


def _emitted(v: Value) -> bool:
    """Whether a stream's result is an output that it writes tile by tile."""
    assert v.owner is not None
    return v.type.has(v.owner.attrs["axis"])


class _Stream:
    """Emits the loops of one stream."""

    def __init__(
        self, scope: Scope, stream: Op, targets: Mapping[Value, Value], map: TileMap | None
    ) -> None:
        self.scope, self.stream, self.targets, self.map = scope, stream, targets, map
        self.axis: str = stream.attrs["axis"]
        self.ops = stream.body.ops[:-1]
        self.yields = stream.body.terminator.operands
        self.updates = [op for op in self.ops if op.name == "update"]
        self.uses = uses(stream.body)

    def emit(self) -> None:
        self._hoist()
        current = [self._initial(op) for op in self.updates]
        if self.map is not None or is_hull(self.scope, self.stream):
            current = self._hull_loop(current)
        else:
            for s in segments(self.scope, self.stream):
                current = self._loop(s.lo, s.hi, current, masked=s.masked)
        final = dict(zip((op.result for op in self.updates), current, strict=True))
        for result, v in zip(self.stream.results, self.yields, strict=True):
            if v in final:
                self.scope.values[result] = final[v]

    def _hoist(self) -> None:
        """Load what does not move with the streamed axis before the loops."""
        ragged = [a for a, p in self.scope.plan.items() if p.ragged and p.role == "parallel"]
        for op in self.ops:
            self.scope.builder.loc = op.loc
            if op.name == "at":
                if not op.result.type.has(self.axis):
                    self.scope.values[op.result] = load_at(self.scope, op, ragged)
                continue
            for v in op.operands:
                if v.type.has(self.axis):
                    continue
                if v.owner is not None and v.owner.name == "at" and v.owner not in self.ops:
                    load_at(self.scope, v.owner, ragged)
                elif v.type.axes and (v.owner is None or v.owner.name == "kernel"):
                    load(self.scope, v, ragged)

    def _initial(self, op: Op) -> Value:
        self.scope.builder.loc = op.loc
        t = self.scope.type(op.result.type)
        init = self.scope.builder.op(
            "map", [], [t], names=[f"{op.result.name}_0"], expr=identity(op.attrs["kind"], t.dtype)
        )
        return init.result

    def _loop(self, lo: Value, hi: Value, current: list[Value], *, masked: bool) -> list[Value]:
        """for j_tile in lo .. hi: one body."""
        block, loop_scope, carried = self._open(current)
        results = self._body(loop_scope, carried, masked=masked)
        return self._close(block, loop_scope, lo, hi, current, results)

    def _hull_loop(self, current: list[Value]) -> list[Value]:
        """for j_tile in lo .. hi: if live: if full: unmasked else masked."""
        if self.map is not None:
            lo, hi = (self.map.read(self.scope, t) for t in (self.map.first, self.map.last))
        else:
            lo, hi = live_hull(self.scope, self.stream)
        block, loop_scope, carried = self._open(current)
        operands = Operands()
        live, full = self._conditions(loop_scope, operands)

        def visit(scope: Scope) -> list[Value]:
            return self._choose(
                scope,
                full,
                operands,
                lambda s: self._body(s, carried, masked=False),
                lambda s: self._body(s, carried, masked=True),
            )

        results = self._choose(loop_scope, live, operands, visit, lambda _: carried)
        return self._close(block, loop_scope, lo, hi, current, results)

    def _conditions(self, scope: Scope, operands: Operands) -> tuple[Expr, Expr]:
        """(may be live, is full) of the current tile."""
        if self.map is None:
            return conditions(scope, self.stream, operands)
        code = operands.ref(self.map.read(scope, self.map.codes, streamed=self.axis))
        return call("gt", code, Const(EMPTY)), call("gt", code, Const(PARTIAL))

    def _choose(
        self, scope: Scope, cond: Expr, operands: Operands, then: _Branch, other: _Branch
    ) -> list[Value]:
        """What `then` or `other` gives: one of them, or both under an `if`."""
        if cond == Const(True):
            return then(scope)
        if cond == Const(False):
            return other(scope)
        blocks = []
        for branch in (then, other):
            block = Block()
            inner = scope.inner(block)
            Builder(block, self.stream.loc).op("yield", branch(inner))
            blocks.append(block)
        values = blocks[0].terminator.operands
        op = scope.builder.op(
            "if",
            operands.values,
            [v.type for v in values],
            regions=blocks,
            names=[v.name for v in values],
            cond=cond,
        )
        return op.results

    def _open(self, current: list[Value]) -> tuple[Block, Scope, list[Value]]:
        block = Block()
        scope = self.scope.inner(block)
        var = Value(TensorType(I64), f"{self.axis}_tile")
        scope.scalars[self.axis] = var
        pairs = zip(current, self.updates, strict=True)
        carried = [Value(v.type, op.result.name) for v, op in pairs]
        block.args = [var, *carried]
        return block, scope, carried

    def _close(
        self,
        block: Block,
        scope: Scope,
        lo: Value,
        hi: Value,
        current: list[Value],
        results: list[Value],
    ) -> list[Value]:
        Builder(block, self.stream.loc).op("yield", results)
        n = len(current)
        b = self.scope.builder
        b.loc = self.stream.loc
        op = b.op(
            "for",
            [*current, lo, hi],
            [v.type for v in current],
            regions=[block],
            names=[f"{u.result.name}" for u in self.updates],
            lo=Arg(n),
            hi=Arg(n + 1),
            n_carry=n,
        )
        return op.results

    def _body(self, scope: Scope, carried: list[Value], *, masked: bool) -> list[Value]:
        """The stream's body on one tile; gives the new states."""
        states = dict(zip((op.result for op in self.updates), carried, strict=True))
        where = self.stream.attrs.get("where", Const(True))
        known = list(self.stream.operands)
        body = Body(scope, self.axis, masked, where, known, states, self.uses)
        for op in self.ops:
            if op.name == "contract" and self._is_accumulated(op):
                continue  # emitted by its update, into the state
            body.emit(op)
        for result, v in zip(self.stream.results, self.yields, strict=True):
            if v not in states:
                scope.builder.loc = self.stream.loc
                store(scope, body.operand(v), self.targets[result])
        return [scope.values[op.result] for op in self.updates]

    def _is_accumulated(self, op: Op) -> bool:
        readers = self.uses.get(op.result, [])
        return all(r.name == "update" and r.attrs["kind"] == "sum" for r in readers)

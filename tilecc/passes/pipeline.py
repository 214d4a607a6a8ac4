"""pipeline: loads of a loop are issued early, so that copies overlap with arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilecc.ir.core import Block, Builder, Cloner, Func, Op, Value, uses
from tilecc.ir.expr import Arg, Const, Expr, arg_numbers, call, shift_args
from tilecc.passes.base import Remarks


@dataclass(frozen=True)
class Pipeline:
    """Order the loads of each loop for asynchronous copies, with one buffer for each.

    The tiles that a loop's first product reads are loaded an iteration ahead: before the loop, and
    in it as soon as nothing reads the last ones any more. The other loads come first in the body.
    So each copy has a product to overlap with; in a loop with one product, the copy of the next
    tile has what is computed after that. A tile that is read at places which a table gives stays
    where it is if others read the table, too: nothing is loaded twice. Reductions move up to what
    they reduce, which frees its registers. A loop that ends with its first product stays as it is.

        for %j .. {                      %k_1 = if lo < hi { load %K[lo] } else { 0 }
          %k = load %K[%j]               for %j .. carry(%k = %k_1) {
          %s = contract %q, %k     -->     %v = load %V[%j]
          %v = load %V[%j]                 %s = contract %q, %k
          %o = contract %s, %v             %k_2 = if %j + 1 < hi { load %K[%j + 1] } else { %k }
        }                                  %o = contract %s, %v
                                           yield %k_2
                                         }
    """

    name: ClassVar[str] = "pipeline"

    def apply(self, func: Func, remarks: Remarks) -> Func:
        """The program with its loops' loads in that order."""
        cloner = Cloner()
        params = [cloner.fresh(p) for p in func.params]
        body = Block()
        for op in func.body.ops:
            body.ops += _op(op, cloner)
        return Func(func.name, params, body, dict(func.attrs), func.loc)


def _op(op: Op, cloner: Cloner) -> Iterable[Op]:
    """A copy of an operation, loops in it (and itself, if it is one) in the new form."""
    if op.name == "for":
        return _Loop(op, cloner).ops()
    new = Op(
        op.name,
        [cloner.value(v) for v in op.operands],
        [r.type for r in op.results],
        op.attrs,
        [_block(r, cloner) for r in op.regions],
        op.loc,
        [r.name for r in op.results],
    )
    cloner.mapping.update(zip(op.results, new.results, strict=True))
    return [new]


def _block(block: Block, cloner: Cloner) -> Block:
    args = [cloner.fresh(a) for a in block.args]
    return Block(args, [new for op in block.ops for new in _op(op, cloner)])


class _Loop:
    """One loop on its way into its new form."""

    def __init__(self, op: Op, cloner: Cloner) -> None:
        self.op, self.cloner = op, cloner
        self.inside = {v for o in op.body.walk() for v in o.results} | set(op.body.args[1:])
        self.free = self._free()
        self.users = uses(op.body)
        self.order = _early_reductions(op.body.ops)
        self.ahead = self._ahead()

    def _free(self) -> set[Op]:
        """Operations of the body that need nothing carried: scalars, and loads of tiles."""
        found: set[Op] = set()
        made: set[Value] = set()
        for o in self.op.body.ops:
            scalar = o.name in ("map", "load") and not o.result.type.axes
            if not scalar and o.name != "load":
                continue
            if all(v in made or v not in self.inside for v in o.operands):
                found.add(o)
                made.add(o.result)
        return found

    def _ahead(self) -> list[Op]:
        """The loads that are issued an iteration ahead."""
        products = [o for o in self.order if o.name == "contract"]
        position = {o: n for n, o in enumerate(self.order)}
        if not products:
            return []
        last = position[products[-1]]
        if len(products) == 1:  # then what is computed from it takes time
            last = max(position[o] for o in self.order if _computes(o))
        found = []
        for v in products[0].operands:
            o = v.owner
            if o is None or o.name != "load" or o not in self.free or not v.type.axes:
                continue
            readers = [position.get(r, last) for r in self.users.get(v, [])]
            if max(readers) < last and not self._shares_tables(o):
                found.append(o)
        return list(dict.fromkeys(found))

    def _shares_tables(self, load: Op) -> bool:
        """Whether a tile that tells where to read is read by others: it would be loaded twice."""
        tables = [v.owner for v in load.operands[1:] if v.type.axes and v in self.inside]
        return any(
            t not in self.free or self.users[t.result] != [load] or self._shares_tables(t)
            for t in tables
            if t is not None
        )

    def ops(self) -> list[Op]:
        """What comes in the place of the loop."""
        before = Block()
        if not self.ahead:
            return [self._rebuilt([], before, None)]
        op, build = self.op, Builder(before, self.op.loc)
        reads = [self.cloner.value(v) for v in op.operands]
        first = self._bound(build, op.attrs["lo"], reads, "first")
        end = self._bound(build, op.attrs["hi"], reads, "end")
        there_is = call("lt", Arg(0), Arg(1))
        starts = [
            self._guarded(build, load, first, [first, end], there_is, None) for load in self.ahead
        ]
        return [*before.ops, self._rebuilt(starts, before, end)]

    def _bound(self, build: Builder, e: Expr, reads: Sequence[Value], name: str) -> Value:
        """A bound of the loop as a value."""
        used = sorted(arg_numbers(e))
        expr = shift_args(e, {k: Arg(n) for n, k in enumerate(used)})
        type = self.op.body.args[0].type
        return build.op("map", [reads[k] for k in used], [type], expr=expr, names=[name]).result

    def _guarded(
        self,
        build: Builder,
        load: Op,
        at: Value,
        reads: Sequence[Value],
        condition: Expr,
        otherwise: Value | None,
    ) -> Value:
        """The tile of an iteration if there is one; else `otherwise`, or zeros."""
        then, other = Block(), Block()
        tile = self._copy(load, at, then)
        Builder(then, load.loc).op("yield", [tile])
        if otherwise is None:
            zero = Const(0.0 if tile.type.dtype.kind == "float" else 0)
            expr = zero if tile.type.dtype.kind != "bool" else Const(False)
            otherwise = Builder(other, load.loc).op("map", [], [tile.type], expr=expr).result
        Builder(other, load.loc).op("yield", [otherwise])
        op = build.op(
            "if",
            reads,
            [tile.type],
            regions=[then, other],
            loc=load.loc,
            names=[load.result.name],
            cond=condition,
        )
        return op.result

    def _copy(self, load: Op, at: Value, block: Block) -> Value:
        """The load, and the scalars that it reads, for iteration `at`."""
        cloner = Cloner({**self.cloner.mapping, self.op.body.args[0]: at})
        needed = {load}
        for o in reversed(self.op.body.ops):
            if o in self.free and any(set(o.results) & set(x.operands) for x in needed):
                needed.add(o)
        for o in self.op.body.ops:
            if o in needed:
                block.ops.append(cloner.op(o))
        return cloner.value(load.result)

    def _rebuilt(self, starts: list[Value], before: Block, end: Value | None) -> Op:
        """The loop, carrying the tiles that start as `starts`."""
        op = self.op
        n = int(op.attrs["n_carry"])
        operands = [self.cloner.value(v) for v in op.operands]
        inner = Block([self.cloner.fresh(a) for a in op.body.args])
        counter = inner.args[0]
        build = Builder(inner, op.loc)
        tiles: dict[Op, Value] = {}
        for load in self.ahead:
            tile = Value(load.result.type, load.result.name)
            inner.args.append(tile)
            self.cloner.mapping[load.result] = tile
            tiles[load] = tile
        left = {load: self._read_by(load) for load in self.ahead}
        ends: dict[Op, Value] = {}
        following: Value | None = None
        for o in self._body():
            if o.name == "yield":
                new = [self.cloner.value(v) for v in o.operands] + [ends[x] for x in self.ahead]
                Builder(inner, o.loc).op("yield", new)
                break
            inner.ops += _op(o, self.cloner)
            for load in self.ahead:
                left[load].discard(o)
                if left[load] or load in ends:
                    continue
                assert end is not None
                if following is None:
                    expr = call("add", Arg(0), Const(1))
                    following = build.op(
                        "map", [counter], [counter.type], expr=expr, names=["next"]
                    ).result
                ends[load] = self._guarded(
                    build,
                    load,
                    following,
                    [following, end],
                    call("lt", Arg(0), Arg(1)),
                    tiles[load],
                )
        # The bounds' expressions count operands by position, carried values first.
        moved: dict[int, Expr] = {k: Arg(k + len(starts)) for k in range(n, len(operands))}
        attrs = {
            **op.attrs,
            "n_carry": n + len(starts),
            "lo": shift_args(op.attrs["lo"], moved),
            "hi": shift_args(op.attrs["hi"], moved),
        }
        loop = Op(
            "for",
            [*operands[:n], *starts, *operands[n:]],
            [*(r.type for r in op.results), *(v.type for v in starts)],
            attrs,
            [inner],
            op.loc,
            [*(r.name for r in op.results), *(v.name for v in starts)],
        )
        self.cloner.mapping.update(zip(op.results, loop.results, strict=False))
        return loop

    def _read_by(self, load: Op) -> set[Op]:
        """What must be done before a tile's buffer is free. A map that is reduced at once has its
        reduction read for it, and holds nothing in registers till then.
        """
        found = set()
        for o in set(self.users.get(load.result, [])) & set(self.order):
            readers = self.users.get(o.result, []) if o.name == "map" else []
            alone = len(readers) == 1 and readers[0].name == "reduce" and readers[0] in self.order
            found.add(readers[0] if alone else o)
        return found

    def _body(self) -> list[Op]:
        """The body's operations without the loads that are ahead, the other loads first."""
        ahead = set(self.ahead)
        kept = [o for o in self.order if o not in ahead]
        if not ahead:
            return kept
        early = [o for o in kept if o in self.free]
        return early + [o for o in kept if o not in self.free]


def _computes(op: Op) -> bool:
    """Whether an operation computes a tile."""
    return op.name in ("contract", "map", "reduce") and bool(op.result.type.axes)


def _early_reductions(ops: Sequence[Op]) -> list[Op]:
    """The operations with each reduction right after what it reduces."""
    made = {v: op for op in ops for v in op.results}
    moved: dict[Op, list[Op]] = {}
    for op in ops:
        source = made.get(op.operands[0]) if op.name == "reduce" else None
        if source is not None:
            moved.setdefault(source, []).append(op)
    taken = {op for group in moved.values() for op in group}
    found: list[Op] = []

    def add(op: Op) -> None:
        found.append(op)
        for reduction in moved.get(op, []):
            add(reduction)

    for op in ops:
        if op not in taken:
            add(op)
    return found

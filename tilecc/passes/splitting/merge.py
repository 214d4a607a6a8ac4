"""The kernel that merges the states of all parts, by the repairs that the stream has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilecc.ir.core import Block, Builder, Cloner, Op, Value
from tilecc.ir.expr import (
    Acc,
    Arg,
    Expr,
    Old,
    arg_numbers,
    indices,
    rebuild,
    shift_args,
    transform,
    walk,
)
from tilecc.ir.ops import make_map, make_reduce, make_update
from tilecc.passes.splitting.partial import needed
from tilecc.passes.splitting.parts import Parts, states_of, streams_of


def merge_kernel(kernel: Op, partial: Op, parts: Parts, cloner: Cloner) -> Op:
    """A kernel that streams over the parts, and goes on as `kernel` does after its stream."""
    (stream,) = streams_of(kernel)
    outer = Cloner(dict(cloner.mapping))
    merge = _Merge(stream, partial, parts, outer)
    wanted = list(kernel.body.terminator.operands)
    inside = set(stream.body.ops)
    for op in stream.body.ops:  # what the repairs read from before the stream
        wanted += [v for v in op.operands if v.owner not in inside and op.name in ("map", "update")]
    body = Block()
    for op in needed(kernel.body, wanted):
        body.ops.append(merge.stream() if op is stream else outer.op(op))
    ops = needed(body, [outer.value(v) for v in kernel.body.terminator.operands])
    end = kernel.body.terminator
    yields = [outer.value(v) for v in end.operands]
    ops.append(Op("yield", yields, loc=end.loc))
    names = [r.name for r in kernel.results]
    types = [r.type for r in kernel.results]
    return Op("kernel", [], types, kernel.attrs, [Block([], ops)], kernel.loc, names)


def _repaired_from(op: Op) -> list[Value]:
    """What an operation reads, and of a state what its repair does: a part's is there already."""
    return op.operands[1:] if op.name == "update" else op.operands


@dataclass
class _Merge:
    """The stream over parts.

    The states of a part are a contribution like any other once they are moved to the new
    references: the repair, applied to the part's state with the part's references as the old ones.

        %m1 = update max (reduce max %m_p over s)
        %l1 = update sum (reduce sum (repair of %l_p from %m_p to %m1) over s) repair ...
    """

    source: Op
    partial: Op
    parts: Parts
    cloner: Cloner
    block: Block = field(default_factory=Block)
    factors: dict[tuple[Expr, tuple[Value, ...]], Value] = field(default_factory=dict)

    def stream(self) -> Op:
        """The whole of it; results replace those of the source in the cloner."""
        ends = self.source.body.terminator.operands
        updates = states_of(self.source)
        self.part = dict(zip((op.result for op in updates), self.partial.results, strict=True))
        self.inner = Cloner(dict(self.cloner.mapping))
        reads = [v for op in updates for v in op.operands[1:]]
        for op in needed(self.source.body, reads, _repaired_from):
            if op.name == "update":
                self._update(op)
            else:
                self.block.ops.append(self.inner.op(op))
        for op in updates:
            if op.result not in self.inner.mapping:
                self._update(op)
        yields = [self.inner.value(v) for v in ends]
        self.block.ops.append(Op("yield", yields, loc=self.source.body.terminator.loc))
        names = [r.name for r in self.source.results]
        attrs = {"axis": self.parts.axis.name}
        types = [y.type for y in yields]
        new = Op("stream", [], types, attrs, [self.block], self.source.loc, names)
        self.cloner.mapping.update(zip(self.source.results, new.results, strict=True))
        return new

    def _update(self, op: Op) -> None:
        builder = Builder(self.block, op.loc)
        kind, repair = op.attrs["kind"], op.attrs.get("repair")
        x = self.part[op.result]
        reads = [self.inner.value(v) for v in op.operands]
        if repair is not None:
            x = self._moved(repair, op, x, builder)
        x = make_reduce(builder, kind, x, (self.parts.axis.name,), name=op.operands[0].name)
        new = make_update(builder, kind, x, repair, reads[1:], name=op.result.name)
        self.inner.mapping[op.result] = new

    def _moved(self, repair: Expr, op: Op, state: Value, builder: Builder) -> Value:
        """The part's state under the new references."""
        operands = [state]

        def ref(v: Value) -> Arg:
            if v not in operands[1:]:
                operands.append(v)
            return Arg(operands.index(v, 1))

        def leaf(n: Expr) -> Expr | None:
            if isinstance(n, Old):
                return ref(self.part[op.operands[n.k]])
            if isinstance(n, Arg):
                return ref(self.inner.value(op.operands[n.k]))
            return None

        e = self._factored(transform(repair, leaf), operands, builder)
        e = transform(e, lambda n: Arg(0) if isinstance(n, Acc) else None)
        used = sorted(arg_numbers(e))
        e = shift_args(e, {k: Arg(n) for n, k in enumerate(used)})
        values = [operands[k] for k in used]
        return make_map(builder, e, values, type=state.type, name=state.name)

    def _factored(self, e: Expr, operands: list[Value], builder: Builder) -> Expr:
        """What does not read the state becomes maps: once a part, not for each number of it."""
        if any(isinstance(n, Acc) for n in walk(e)):
            kids = tuple(self._factored(c, operands, builder) for c in e.children())
            return rebuild(e, kids) if kids else e
        used = sorted(arg_numbers(e))
        if not used or isinstance(e, Arg) or indices(e):
            return e
        local = shift_args(e, {k: Arg(n) for n, k in enumerate(used)})
        factor = self._once(local, [operands[k] for k in used], builder)
        if factor not in operands[1:]:
            operands.append(factor)
        return Arg(operands.index(factor, 1))

    def _once(self, e: Expr, values: Sequence[Value], builder: Builder) -> Value:
        key = e, tuple(values)
        if key not in self.factors:
            self.factors[key] = make_map(builder, e, values, name="c")
        return self.factors[key]

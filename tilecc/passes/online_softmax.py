"""Joins the passes over a streamed axis into one, by repairing states whose references move.

A stream for each dependence depth becomes one stream, in which a state that depends on earlier
states is repaired when these change. The repair is derived and proved for each state; a state for
which there is none keeps a pass of its own, with a remark that names the obligation.

    %m = stream j {                            %m, %l = stream j {
      %r = reduce max %x over j                  %r = reduce max %x over j
      %m1 = update max %r                        %m1 = update max %r
      yield %m1                                  %g = map where(%m1 == -inf, 0.0, %m1)
    }                                            %p = map exp2(%x - %g)
    %g = map where(%m == -inf, 0.0, %m)   -->    %s = reduce sum %p over j
    %l = stream j {                              %l1 = update sum %s repair acc * exp2(old(%m1)-%g)
      %p = map exp2(%x - %g)                     yield %m1, %l1
      %s = reduce sum %p over j                }
      %l1 = update sum %s
      yield %l1
    }
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tilecc.analysis.facts import guard
from tilecc.analysis.nan import nan_elsewhere
from tilecc.analysis.schedule import Schedule
from tilecc.analysis.settle import Plan
from tilecc.analysis.streams import Item, Streams, free_values, is_plain, streams_over
from tilecc.ir.core import Block, Builder, Cloner, Func, Op, Value
from tilecc.ir.expr import Arg, Const, Expr, Old, arg_numbers, call, shift_args, transform
from tilecc.ir.ops import make_map
from tilecc.passes.base import Remarks


@dataclass(frozen=True)
class OnlineSoftmax:
    """Makes one pass over each streamed axis where repairs can be proved."""

    name: ClassVar[str] = "online-softmax"

    def apply(self, func: Func, remarks: Remarks) -> Func:
        """`func` with the streams of each kernel joined as far as possible."""
        cloner = Cloner()
        params = [cloner.fresh(p) for p in func.params]
        body = Block()
        for op in func.body.ops:
            new = _one_pass(op, remarks) if op.name == "kernel" else op
            body.ops.append(copy := cloner.op(new))
            cloner.mapping.update(zip(op.results, copy.results, strict=True))
            if op.name == "kernel":
                for reduce in nan_elsewhere(copy):
                    reduce.attrs["nan"] = "elsewhere"
        return Func(func.name, params, body, dict(func.attrs), func.loc)


def _one_pass(kernel: Op, remarks: Remarks) -> Op:
    """The kernel with streams joined, one streamed axis after the other."""
    for key in streams_over(kernel):
        streams = streams_over(kernel).get(key, [])
        if len(streams) < 2 or not all(map(is_plain, streams)):
            continue
        graph = Streams(kernel, streams)
        schedule = Schedule(graph)
        for message, loc in schedule.remarks:
            remarks.add(message, loc)
        body = _Rebuilt(graph, schedule).block()
        names = [r.name for r in kernel.results]
        types = [r.type for r in kernel.results]
        kernel = Op("kernel", kernel.operands, types, kernel.attrs, [body], kernel.loc, names)
    return kernel


@dataclass(eq=False)
class _Rebuilt:
    """The kernel's new body, built on demand from what it yields."""

    graph: Streams
    schedule: Schedule
    out: Block = field(default_factory=Block)

    def __post_init__(self) -> None:
        self.outside: dict[Value, Value] = {}
        self.done: set[int] = set()

    def block(self) -> Block:
        """The body: streams and what is between and after them."""
        terminator = self.graph.kernel.body.terminator
        results = [self.outer(v) for v in self.graph.inputs(terminator)]
        self.out.ops.append(Op("yield", results, loc=terminator.loc))
        return self.out

    def outer(self, v: Value) -> Value:
        """The value of canonical `v` outside of streams."""
        v = self.graph.of(v)
        op = self.graph.definition(v)
        if op is None:
            return v
        if v not in self.outside:
            if v in self.graph.items:
                self._stream(self.schedule.passes[v])
            else:
                reads = {x: self.outer(x) for x in free_values(op)}
                new = Cloner(dict(reads)).op(op)
                self.out.ops.append(new)
                self.outside.update(zip(op.results, new.results, strict=True))
        return self.outside[v]

    def _stream(self, number: int) -> None:
        assert number not in self.done, "a pass depends on its own result"
        self.done.add(number)
        first = self.graph.streams[0]
        body = _Body(self, number)
        members = [i for i in self.graph.items.values() if self.schedule.passes[i.value] == number]
        yields = [body.item(i) for i in members]
        body.block.ops.append(Op("yield", yields, loc=first.body.terminator.loc))
        loc = next(s.loc for s in self.graph.streams if s.loc or s is self.graph.streams[-1])
        stream = Op(
            "stream",
            [self.outer(v) for v in first.operands],
            [y.type for y in yields],
            first.attrs,
            [body.block],
            loc,
            [i.name for i in members],
        )
        self.out.ops.append(stream)
        for item, result in zip(members, stream.results, strict=True):
            self.outside[item.value] = result
        raw = dict(zip((i.value for i in members), stream.results, strict=True))
        for item in members:
            self._restore(item, raw)

    def _restore(self, item: Item, raw: dict[Value, Value]) -> None:
        """Put back what the program gives where a guarded state ended at its identity."""
        if item.value not in self.schedule.restored:
            return
        plan = self.schedule.plans[item.value]
        assert plan.restore is not None and plan.restore.value is not None
        state = raw[item.value]
        builder = Builder(self.out, item.loc)

        def written(e: Expr, *more: Value) -> tuple[Expr, list[Value]]:
            used = sorted(arg_numbers(e))
            values = [raw.get(x) or self.outer(x) for x in (plan.leaves[k] for k in used)]
            place: dict[int, Expr] = {k: Arg(n + len(more)) for n, k in enumerate(used)}
            return shift_args(e, place), [*more, *values]

        value: Expr = plan.restore.value
        more: list[Value] = []
        if not isinstance(value, Const):  # once a row, not once for each element of the state
            more, value = [make_map(builder, *written(value), name="end")], Arg(1)
        cond, operands = written(plan.restore.cond, state, *more)
        e = call("where", cond, value, Arg(0))
        self.outside[item.value] = make_map(builder, e, operands, type=state.type, name=state.name)


Guards = frozenset[tuple[Value, float]]


class _Body:
    """The body of one pass. A value is built once for each set of guards that it is read under."""

    def __init__(self, kernel: _Rebuilt, number: int) -> None:
        self.kernel = kernel
        self.graph = kernel.graph
        self.number = number
        self.block = Block()
        self.built: dict[tuple[Value, Guards], Value] = {}
        self.states: dict[Value, Value] = {}

    def item(self, item: Item) -> Value:
        """The running state, or the output, that the pass yields for `item`."""
        return self.state(item) if item.update else self.value(item.value, frozenset())

    def running(self, v: Value) -> bool:
        """Whether `v` is a state of this pass."""
        return v in self.graph.items and self.kernel.schedule.passes[v] == self.number

    def state(self, item: Item) -> Value:
        """The result of the state's update."""
        if item.value not in self.states:
            assert item.update is not None
            plan = self.kernel.schedule.plans[item.value]
            guards = frozenset(plan.guards.items())
            operands = [self.value(self.graph.of(item.update.operands[0]), guards)]
            repair = self._repair(plan, guards, operands) if plan.repair else None
            update = Op(
                "update",
                operands,
                [item.value.type],
                {**item.update.attrs, "repair": repair},
                loc=item.update.loc,
                names=[item.value.name],
            )
            self.block.ops.append(update)
            self.states[item.value] = update.result
        return self.states[item.value]

    def _repair(self, plan: Plan, guards: Guards, operands: list[Value]) -> Expr:
        """The plan's repair over `operands`, which get what it reads."""
        assert plan.repair is not None

        def place(v: Value) -> int:
            if v not in operands[1:]:
                operands.append(v)
            return operands.index(v, 1)

        def f(n: Expr) -> Expr | None:
            if isinstance(n, Arg):
                return Arg(place(self.value(plan.leaves[n.k], guards)))
            if isinstance(n, Old):
                return Old(place(self.value(plan.leaves[n.k], frozenset())))
            return None

        return transform(plan.repair, f)

    def value(self, v: Value, guards: Guards) -> Value:
        """Canonical `v` in this body, as read under `guards`."""
        graph = self.graph
        op = graph.definition(v)
        here = {s for s in graph.states(v) if self.running(s)}
        if op is None or (not here and (v in graph.outer or op.name == "update")):
            return self.kernel.outer(v)
        guards = frozenset((s, g) for s, g in guards if s in here)
        key = (v, guards)
        if key not in self.built:
            if op.name == "update":
                self.built[key] = self._guarded(graph.items[v], guards)
            else:
                reads = {x: self.value(graph.of(x), guards) for x in free_values(op)}
                new = Cloner(dict(reads)).op(op)
                self.block.ops.append(new)
                for old, result in zip(op.results, new.results, strict=True):
                    self.built[old, guards] = result
        return self.built[key]

    def _guarded(self, item: Item, guards: Guards) -> Value:
        state = self.state(item)
        if not guards:
            return state
        ((_, stand_in),) = guards
        e = guard(item.kind, Arg(0), stand_in)
        builder = Builder(self.block, item.loc)
        return make_map(builder, e, [state], type=state.type, name=f"{item.value.name}_ref")

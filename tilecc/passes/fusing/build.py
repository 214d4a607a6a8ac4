"""Building the loop-level program of groups: kernels with streams, one for each depth."""

from __future__ import annotations

from collections.abc import Sequence

from tilecc.analysis.roles import Refusal
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Block, Builder, Cloner, Func, Op, Value
from tilecc.passes.fusing.graph import Graph
from tilecc.passes.fusing.quotient import Quotient


def build(func: Func, graph: Graph, groups: Sequence[frozenset[Op]]) -> Func:
    """One kernel a group, in an order that respects the dependences."""
    group_of = {op: g for g in groups for op in g}
    quotient = Quotient(graph.edges, group_of)
    first = {g: min(graph.order[op] for op in g) for g in groups}
    host = Cloner()
    params = [host.fresh(p) for p in func.params]
    body = Block()
    for g in quotient.order(first.__getitem__):
        body.ops.append(_Kernel(graph, g, host).build())
    ret = func.body.terminator
    Builder(body, ret.loc).op("return", [host.value(v) for v in ret.operands])
    return Func(func.name, params, body, dict(func.attrs), func.loc)


class _Kernel:
    """Builds one kernel: maps and inner contractions by depth, and a stream for each depth."""

    def __init__(self, graph: Graph, group: frozenset[Op], host: Cloner) -> None:
        roles = graph.plan(group)
        if isinstance(roles, Refusal) and len(group) == 1:
            roles = graph.plan(group, binding=True)  # alone, it cannot be told apart any further
        self.ops = sorted(group, key=graph.order.__getitem__)
        if isinstance(roles, Refusal):
            message = f"no kernel for this: {roles.reason}"
            raise CompileError(Diagnostic(message, roles.loc, roles.hint))
        self.graph, self.roles, self.host = graph, roles, host
        self.outputs = graph.outputs(group)
        self.body = Block()
        self.cloner = Cloner(dict(host.mapping))
        self.depth: dict[Value, int] = {}
        self._find_depths()

    def _streamed_axis(self, op: Op) -> str | None:
        """The streamed axis that `op` reduces over, if any."""
        if op.name not in ("reduce", "contract"):
            return None
        return next((a for a in op.over if a in self.roles.streamed), None)

    def _carries(self, v: Value) -> str | None:
        return next((a for a in self.roles.streamed if v.type.has(a)), None)

    def _find_depths(self) -> None:
        for op in self.ops:
            d = max((self.depth.get(v, 0) for v in op.operands), default=0)
            self.depth[op.result] = d + (self._streamed_axis(op) is not None)

    def build(self) -> Op:
        emitted = [v for v in self.outputs if self._carries(v)]
        deepest = max([*(self.depth.values()), *(self.depth[v] + 1 for v in emitted)], default=0)
        for d in range(deepest + 1):
            for axis in self.roles.streamed if d else ():
                self._stream(axis, d, [v for v in emitted if self.depth[v] + 1 == d])
            for op in self.ops:
                outside = self._streamed_axis(op) is None and self._carries(op.result) is None
                if outside and self.depth[op.result] == d:
                    self._copy(op, self.body, self.cloner)
        results = [self.cloner.value(v) for v in self.outputs]
        Builder(self.body).op("yield", results)
        loc = self.outputs[-1].owner.loc if self.outputs[-1].owner else None
        kernel = Op(
            "kernel",
            [],
            [v.type for v in results],
            {"over": self.roles.parallel},
            [self.body],
            loc,
            [v.name for v in self.outputs],
        )
        self.host.mapping.update(zip(self.outputs, kernel.results, strict=True))
        return kernel

    def _copy(self, op: Op, block: Block, cloner: Cloner) -> Value:
        """Copy `op` into `block`, with the access maps that it reads through."""
        for v in op.operands:
            if v.owner is not None and v.owner.name == "at" and v not in cloner.mapping:
                self._copy(v.owner, block, cloner)
        block.ops.append(cloner.op(op))
        return cloner.value(op.result)

    def _stream(self, axis: str, d: int, emitted: Sequence[Value]) -> None:
        emitted = [v for v in emitted if self._carries(v) == axis]
        states = [
            op for op in self.ops if self._streamed_axis(op) == axis and self.depth[op.result] == d
        ]
        if not states and not emitted:
            return
        body = Block()
        inner = Cloner(dict(self.cloner.mapping))
        needed = self._slice([*states, *(v.owner for v in emitted if v.owner)])
        updates: dict[Value, Value] = {}
        for op in self.ops:
            if op in states:
                chunk = self._copy(op, body, inner)
                kind = op.attrs["kind"] if op.name == "reduce" else "sum"
                update = Builder(body, op.loc).op(
                    "update", [chunk], [chunk.type], names=[chunk.name], kind=kind, repair=None
                )
                updates[op.result] = update.result
            elif op in needed:
                self._copy(op, body, inner)
        yields = [*updates.values(), *(inner.value(v) for v in emitted)]
        Builder(body).op("yield", yields)
        names = [v.name for v in yields]
        first = states[0] if states else emitted[0].owner
        loc = first.loc if first else None
        stream = Op("stream", [], [v.type for v in yields], {"axis": axis}, [body], loc, names)
        self.body.ops.append(stream)
        sources = [*updates, *emitted]
        self.cloner.mapping.update(zip(sources, stream.results, strict=True))

    def _slice(self, roots: Sequence[Op]) -> set[Op]:
        """The operations with the streamed axis that the roots need, themselves included."""
        inside = {op.result: op for op in self.ops}
        needed: set[Op] = set()
        work = list(roots)
        while work:
            op = work.pop()
            if op in needed:
                continue
            needed.add(op)
            work += [
                inside[v]
                for v in op.operands
                if v in inside and self._carries(v) and self._streamed_axis(inside[v]) is None
            ]
        return needed

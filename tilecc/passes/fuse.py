"""fuse: operations that can share a kernel do so when that moves fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import networkx as nx

from tilecc.analysis.roles import Refusal, Roles, assign_roles, reductions
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Block, Builder, Cloner, Func, Op, TensorType, Value, uses
from tilecc.ir.expr import Arg, Const, Env, evaluate, extents
from tilecc.passes.base import Remarks

# Sizes at which two ways of grouping are compared before any size is known.
_NOMINAL_EXTENT = 4096
_NOMINAL_STATIC = 64
_NOMINAL_TILE = 64
# The part of the traffic that must be intermediate tensors, for extents that could stay symbolic to
# be bound.
_WORTH_BINDING = 0.25


@dataclass(frozen=True)
class Fuse:
    """Group a graph into kernels with parallel and streamed axes.

    Groups grow along the edges of the graph, costliest intermediate tensor first, as long as the
    group's axes have roles (analysis.roles), the HBM traffic falls, and no group in it loses its
    stream or its parallel axes. A group is convex: what lies on a path between two of its parts is
    merged with them. In a kernel the streamed axis is walked once for each level of dependence
    among the reductions over it.

        %s = contract %q, %k over d          %o = kernel over b, h, i {
        %m = reduce max %s over j              %m = stream j { s = ..; yield update max .. }
        %p = map exp(%s - %m)          -->     %l, %a = stream j { s = ..; p = ..; .. }
        %l = reduce sum %p over j              yield %z
        ...                                  }
    """

    name: ClassVar[str] = "fuse"

    def apply(self, func: Func, remarks: Remarks) -> Func:
        """The program as kernels, one after the other."""
        func = _materialise(func)
        graph = _Graph(func)
        groups = _grow(graph, remarks)
        return _emit(func, graph, groups)


def _materialise(func: Func) -> Func:
    """Give every returned parameter or view, and every view of a view, a map that computes it."""
    cloner = Cloner()
    out = Func(func.name, [cloner.fresh(p) for p in func.params], Block(), func.attrs, func.loc)
    b = Builder(out.body)

    def copied(v: Value, op: Op) -> Value:
        return b.op("map", [v], [v.type], names=[v.name], loc=op.loc, expr=Arg(0)).result

    for op in func.body.ops[:-1]:
        new = cloner.op(op)
        source = new.operands[0].owner if new.name == "at" else None
        if source is not None and source.name == "at":
            new.operands[0] = copied(new.operands[0], op)
        b.add(new)
    ret = func.body.terminator
    seen: set[Value] = set()
    operands = []
    for v in map(cloner.value, ret.operands):
        stored = v.owner is not None and v.owner.name != "at" and v not in seen
        seen.add(v)
        operands.append(v if stored else copied(v, ret))
    b.op("return", operands, loc=ret.loc)
    return out


class _Graph:
    """The program as nodes (operations that compute) and edges (tensors); views are not nodes."""

    def __init__(self, func: Func) -> None:
        self.order = {op: n for n, op in enumerate(func.body.ops)}
        self.nodes = [op for op in func.body.ops if op.name not in ("at", "return")]
        for op in self.nodes:
            if op.name in ("softmax", "logsumexp"):
                raise CompileError(
                    Diagnostic(f"{op.name} is still whole: run simplify first", op.loc)
                )
            if op.name not in ("contract", "map", "reduce"):
                raise CompileError(Diagnostic(f"{op.name} cannot be fused again", op.loc))
        self.uses = uses(func.body)
        self.returned = set(func.returns)
        # What reads a computed tensor through an access map needs it in memory.
        self.through_view = {
            v for op in func.body.ops if op.name == "at" for v in op.operands if v.owner is not None
        }
        # Axes along which an argument is contiguous.
        self.last = {p.type.names[-1] for p in func.params if p.type.axes}
        self.heads = _head_extents(func.params)
        self.dag: nx.DiGraph[Op] = nx.DiGraph()
        self.dag.add_nodes_from(self.nodes)
        for op in self.nodes:
            for v in self.inputs(op):
                if v.owner is not None and v.owner.name != "at":
                    self.dag.add_edge(v.owner, op)

    def inputs(self, op: Op, *, direct: bool = True) -> list[Value]:
        """Tensors that `op` reads: itself (if `direct`), and through access maps."""
        out: list[Value] = list(op.operands) if direct else []
        for v in op.operands:
            if v.owner is not None and v.owner.name == "at":
                out += self.inputs(v.owner)
        return out

    def outputs(self, group: frozenset[Op]) -> list[Value]:
        return [
            op.result
            for op in sorted(group, key=self.order.__getitem__)
            if op.result in self.returned
            or op.result in self.through_view
            or any(u not in group for u in self.uses.get(op.result, []))
        ]

    def plan(self, group: frozenset[Op]) -> Roles | Refusal:
        ops = sorted(group, key=self.order.__getitem__)
        inside = {op.result for op in ops}
        for op in ops:
            for v in self.inputs(op, direct=False):
                if v in inside:
                    return Refusal("its result is read through an access map", op.loc)
        return assign_roles(ops, self.outputs(group))


def _head_extents(params: Sequence[Value]) -> frozenset[str]:
    """Extents taken to be those of head dimensions: last in an argument, and never before another.

    Of two products in a row either inner extent could be the long one. That of sequences is before
    that of heads in memory.
    """
    types = [[extents(a.extent) for a in p.type.axes] for p in params]
    before = frozenset[str]().union(*(names for axes in types for names in axes[:-1]))
    return frozenset[str]().union(*(axes[-1] for axes in types if axes)) - before


def _size(t: TensorType, static: frozenset[str]) -> float:
    """Elements of a tensor at the nominal sizes."""

    def extent(name: str) -> int:
        return _NOMINAL_STATIC if name in static else _NOMINAL_EXTENT

    size = 1.0
    for a in t.axes:
        # An empty axis would make all groupings equal.
        size *= max(1.0, float(evaluate(a.extent, Env(extent=extent))))
    return size


def _traffic(
    graph: _Graph,
    group: frozenset[Op],
    roles: Roles,
    static: frozenset[str],
    only: set[Value] | None = None,
) -> float:
    """Bytes that the kernel moves: outputs once, an input again for each tile of axes it lacks.

    `static` are extents taken to be small, as those of head dimensions are; `only` are the tensors
    that count (None: all).
    """
    static |= graph.heads
    inside = {op.result for op in group}
    read: dict[Value, None] = {}
    for op in sorted(group, key=graph.order.__getitem__):
        for v in op.operands:
            if v not in inside:
                read[v] = None
    total = 0.0
    outputs = graph.outputs(group)
    shape = {a.name: a for v in outputs for a in v.type.axes}
    shared = [a for a in roles.parallel if all(v.type.has(a) for v in read if v.type.axes)]
    for v in read:
        if only is not None and v not in only:
            continue
        again = 1.0
        for a in roles.parallel:
            if not v.type.has(a) and a not in shared:
                extent = shape[a].extent
                again *= (
                    float(extent.value) if isinstance(extent, Const) else _NOMINAL_EXTENT
                ) / _NOMINAL_TILE
        total += _size(v.type, static) * v.type.dtype.bytes * max(again, 1.0)
    written = [v for v in outputs if only is None or v in only]
    return total + sum(_size(v.type, static) * v.type.dtype.bytes for v in written)


def _grow(graph: _Graph, remarks: Remarks) -> list[frozenset[Op]]:
    """Merge groups pair by pair until no merge is possible or worth its bytes."""
    group_of = {op: frozenset([op]) for op in graph.nodes}
    refused: dict[tuple[Op, Op], tuple[str, Op]] = {}
    changed = True
    while changed:
        changed = False
        for producer, consumer in _candidates(graph):
            a, b = group_of[producer], group_of[consumer]
            if a is b:
                continue
            groups = _between(graph, group_of, a, b)
            merges, reason = _verdict(graph, groups)
            if merges:
                remarks.detail(_told(graph, producer, consumer, merges, reason), consumer.loc)
                merged = frozenset[Op]().union(*groups)
                for op in merged:
                    group_of[op] = merged
                refused.pop((producer, consumer), None)
                changed = True
            else:
                refused[producer, consumer] = (reason, consumer)
    for (producer, consumer), (reason, at) in refused.items():
        if group_of[producer] is not group_of[consumer]:
            remarks.add(_told(graph, producer, consumer, False, reason), at.loc)
    groups = list(dict.fromkeys(group_of[op] for op in graph.nodes))
    for g in groups:
        if len(g) > 1:
            remarks.add(
                f"one kernel of {len(g)} operations", max(g, key=graph.order.__getitem__).loc
            )
    return groups


def _told(graph: _Graph, producer: Op, consumer: Op, merges: bool, reason: str) -> str:
    """A sentence on two operations that share a kernel, or do not."""
    if graph.dag.has_edge(producer, consumer):
        what = "is fused into" if merges else "is not fused into"
    else:
        what = "shares a kernel with" if merges else "does not share a kernel with"
    return f"{_line(producer)} {what} {_line(consumer)}: {reason}"


def _line(op: Op) -> str:
    return f"%{op.result.name or op.name} ({op.name})"


def _candidates(graph: _Graph) -> list[tuple[Op, Op]]:
    """Pairs to try: edges by what writing and reading the tensor costs, then siblings."""

    def cost(v: Value) -> float:
        return _size(v.type, frozenset()) * (1 + len(graph.uses.get(v, [])))

    edges = sorted(graph.dag.edges, key=lambda e: -cost(e[0].result))
    siblings = [
        (x, y)
        for x, y in combinations(graph.nodes, 2)
        if set(graph.inputs(x)) & set(graph.inputs(y)) and (x, y) not in graph.dag.edges
    ]
    return edges + siblings


def _verdict(graph: _Graph, groups: Sequence[frozenset[Op]]) -> tuple[bool, str]:
    """Whether these groups should merge, and why."""
    merged = frozenset[Op]().union(*groups)
    roles = graph.plan(merged)
    if isinstance(roles, Refusal):
        return False, roles.reason
    parts: list[tuple[frozenset[Op], Roles]] = []
    for g in groups:
        own = graph.plan(g)
        if isinstance(own, Refusal):
            return True, "alone one of them is no kernel"
        if (loss := _loss(g, own, roles, producer=g is not groups[-1])) is not None:
            return False, loss
        parts.append((g, own))

    before = sum(_traffic(graph, g, own, roles.static) for g, own in parts)  # sizes as in `after`
    after = _traffic(graph, merged, roles, roles.static)
    bytes_ = f"{after / 1e6:.4g} MB instead of {before / 1e6:.4g} MB"
    if after >= before:
        return False, f"it would move {bytes_}"
    bound = _bound(graph, merged, roles).difference(*(own.static for _, own in parts))
    if bound:
        static = roles.static - bound
        inside = {op.result for op in merged}.difference(graph.outputs(merged))
        saved = sum(_traffic(graph, g, own, static, inside) for g, own in parts)
        if saved < _WORTH_BINDING * sum(_traffic(graph, g, own, static) for g, own in parts):
            names = ", ".join(sorted(bound))
            known = f"{names} would have to be known when it is compiled"
            return False, f"{known}, and little would be saved"
    return True, f"together they move {bytes_}"


def _bound(graph: _Graph, group: frozenset[Op], roles: Roles) -> frozenset[str]:
    """Extents that must be static although they are not those of head dimensions.

    A head dimension is reduced inside of a tile, and lies last in memory (or is reduced together
    with what does). Another inner axis is one that could be tiled if less were in the kernel.
    """
    reduced = {a for op in reductions(group) if graph.last.intersection(op.over) for a in op.over}
    axes = {a.name: a for op in group for v in [*op.operands, *op.results] for a in v.type.axes}
    of = {name: extents(a.extent) for name, a in axes.items() if name in roles.inner}
    inside = frozenset[str]().union(*(of[a] for a in of if a in reduced))
    return frozenset[str]().union(*(of[a] for a in of if a not in reduced)) - inside


def _loss(group: frozenset[Op], own: Roles, merged: Roles, producer: bool) -> str | None:
    """What a group that is a good kernel by itself would lose in a merged one; None if nothing."""
    reduced = {frozenset(op.over) for op in reductions(group)}
    for a in own.streamed:
        # One reduction may well be made inner (the head dimension), a nest of them is too large.
        if a in merged.inner and len(reduced) > 1:
            return f"axis {a} is walked tile by tile, and would have to be whole in a tile"
    if own.parallel and not merged.parallel and (reduced or not producer):
        return f"no axis would be left to run in parallel, of {', '.join(own.parallel)}"
    return None


def _between(
    graph: _Graph, group_of: dict[Op, frozenset[Op]], a: frozenset[Op], b: frozenset[Op]
) -> list[frozenset[Op]]:
    """`a`, the groups on paths between `a` and `b`, and `b`: these merge together or not at all."""
    pair = a | b
    quotient: nx.DiGraph[frozenset[Op]] = nx.DiGraph()
    quotient.add_node(pair)
    for x, y in graph.dag.edges:
        gx, gy = (pair if op in pair else group_of[op] for op in (x, y))
        if gx is not gy:
            quotient.add_edge(gx, gy)
    cycle = next(c for c in nx.strongly_connected_components(quotient) if pair in c)
    inner = [g for g in dict.fromkeys(group_of.values()) if g in cycle and g is not pair]
    return [a, *inner, b]


# Building the loop-level program


def _emit(func: Func, graph: _Graph, groups: Sequence[frozenset[Op]]) -> Func:
    """One kernel a group, in an order that respects the dependences."""
    group_of = {op: g for g in groups for op in g}
    quotient: nx.DiGraph[frozenset[Op]] = nx.DiGraph()
    quotient.add_nodes_from(groups)
    for x, y in graph.dag.edges:
        if group_of[x] is not group_of[y]:
            quotient.add_edge(group_of[x], group_of[y])
    first = {g: min(graph.order[op] for op in g) for g in groups}
    host = Cloner()
    params = [host.fresh(p) for p in func.params]
    body = Block()
    for g in nx.lexicographical_topological_sort(quotient, key=first.__getitem__):
        body.ops.append(_Kernel(graph, g, host).build())
    ret = func.body.terminator
    Builder(body, ret.loc).op("return", [host.value(v) for v in ret.operands])
    return Func(func.name, params, body, dict(func.attrs), func.loc)


class _Kernel:
    """Builds one kernel: maps and inner contractions by depth, and a stream for each depth."""

    def __init__(self, graph: _Graph, group: frozenset[Op], host: Cloner) -> None:
        roles = graph.plan(group)
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

"""fuse: operations that can share a kernel do so when that moves fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from tilecc.analysis.roles import Refusal, Roles, reductions
from tilecc.ir.core import Block, Builder, Cloner, Func, Op, Value
from tilecc.ir.expr import Arg, extents
from tilecc.passes.base import Remarks
from tilecc.passes.fusing.build import build
from tilecc.passes.fusing.graph import Graph
from tilecc.passes.fusing.quotient import Quotient
from tilecc.passes.fusing.traffic import size, traffic

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
        graph = Graph(func)
        groups = _grow(graph, remarks)
        return build(func, graph, groups)


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


def _grow(graph: Graph, remarks: Remarks) -> list[frozenset[Op]]:
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


def _told(graph: Graph, producer: Op, consumer: Op, merges: bool, reason: str) -> str:
    """A sentence on two operations that share a kernel, or do not."""
    if (producer, consumer) in graph.edges:
        what = "is fused into" if merges else "is not fused into"
    else:
        what = "shares a kernel with" if merges else "does not share a kernel with"
    return f"{_line(producer)} {what} {_line(consumer)}: {reason}"


def _line(op: Op) -> str:
    return f"%{op.result.name or op.name} ({op.name})"


def _candidates(graph: Graph) -> list[tuple[Op, Op]]:
    """Pairs to try: edges by what writing and reading the tensor costs, then siblings."""

    def cost(v: Value) -> float:
        return size(v.type, graph.heads) * (1 + len(graph.uses.get(v, [])))

    edges = sorted(graph.edges, key=lambda e: -cost(e[0].result))
    reads = {op: set(graph.inputs(op)) for op in graph.nodes}
    siblings = [
        (x, y)
        for x, y in combinations(graph.nodes, 2)
        if not reads[x].isdisjoint(reads[y]) and (x, y) not in graph.edges
    ]
    return edges + siblings


def _verdict(graph: Graph, groups: Sequence[frozenset[Op]]) -> tuple[bool, str]:
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

    before = sum(traffic(graph, g, own, roles.static) for g, own in parts)  # sizes as in `after`
    after = traffic(graph, merged, roles, roles.static)
    if after >= before:
        more = f", {after / before:.4g} times as many" if before else ""
        return False, f"it would move no fewer bytes{more}"
    bound = _bound(graph, merged, roles).difference(*(own.static for _, own in parts))
    if bound:
        static = roles.static - bound
        inside = {op.result for op in merged}.difference(graph.outputs(merged))
        saved = sum(traffic(graph, g, own, static, inside) for g, own in parts)
        if saved < _WORTH_BINDING * sum(traffic(graph, g, own, static) for g, own in parts):
            names = ", ".join(sorted(bound))
            known = f"{names} would have to be known when it is compiled"
            return False, f"{known}, and little would be saved"
    return True, f"together they move {after / before:.2g} of the bytes"


def _bound(graph: Graph, group: frozenset[Op], roles: Roles) -> frozenset[str]:
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
    graph: Graph, group_of: dict[Op, frozenset[Op]], a: frozenset[Op], b: frozenset[Op]
) -> list[frozenset[Op]]:
    """`a`, the groups on paths between `a` and `b`, and `b`: these merge together or not at all."""
    pair = a | b
    merged = {op: pair if op in pair else g for op, g in group_of.items()}
    cycle = Quotient(graph.edges, merged).between(pair)
    inner = [g for g in dict.fromkeys(group_of.values()) if g in cycle and g is not pair]
    return [a, *inner, b]

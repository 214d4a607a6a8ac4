"""The program as a graph of operations, with the roles that axes have in a group of them."""

from __future__ import annotations

from tilecc.analysis.roles import Refusal, Roles, assign_roles
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Func, Op, Value, uses
from tilecc.ir.expr import extents


class Graph:
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
        self.heads = _head_extents(func)
        read = {(v.owner, op): None for op in self.nodes for v in self.inputs(op)}
        edges = [(x, y) for x, y in read if x is not None and x.name != "at"]
        # From an operation to what reads its result, in the order of the program.
        self.edges = dict.fromkeys(sorted(edges, key=lambda e: self.order[e[0]]))

    def inputs(self, op: Op, *, direct: bool = True) -> list[Value]:
        """Tensors that `op` reads: itself (if `direct`), and through access maps."""
        out: list[Value] = list(op.operands) if direct else []
        for v in op.operands:
            if v.owner is not None and v.owner.name == "at":
                out += self.inputs(v.owner)
        return out

    def outputs(self, group: frozenset[Op]) -> list[Value]:
        """What `group` computes that is read outside of it, or returned."""
        return [
            op.result
            for op in sorted(group, key=self.order.__getitem__)
            if op.result in self.returned
            or op.result in self.through_view
            or any(u not in group for u in self.uses.get(op.result, []))
        ]

    def plan(self, group: frozenset[Op], *, binding: bool = False) -> Roles | Refusal:
        """The roles of the axes in a kernel of `group`, or why there is none.

        `binding`: at the price of a kernel for each length, see `assign_roles`.
        """
        ops = sorted(group, key=self.order.__getitem__)
        inside = {op.result for op in ops}
        for op in ops:
            for v in self.inputs(op, direct=False):
                if v in inside:
                    return Refusal("its result is read through an access map", op.loc)
        return assign_roles(ops, self.outputs(group), binding=binding)


def _head_extents(func: Func) -> frozenset[str]:
    """Extents taken to be those of head dimensions.

    Of two products in a row either inner extent could be the long one. Those of head dimensions are
    last in an argument and never before another, since that of sequences is before that of heads in
    memory; or, as weights have them first (`wv[c, e]`), are summed where both factors have them
    last, as queries and keys do; or, where memory tells nothing (`q[d, i]`, `k[d, j]`), are summed
    in scores of which a maximum is taken along another axis.
    """
    types = [[extents(a.extent) for a in p.type.axes] for p in func.params]
    before = frozenset[str]().union(*(names for axes in types for names in axes[:-1]))
    last = frozenset[str]().union(*(axes[-1] for axes in types if axes))
    heads = (last - before) | _summed_along_rows(func)
    return heads | _summed_in_scores(func, heads)


def _summed_along_rows(func: Func) -> frozenset[str]:
    """Extents of axes that are last in both factors of a product, both computed from no product."""
    products: set[Value] = set()
    found = frozenset[str]()
    for op in func.body.ops:
        if products.isdisjoint(op.operands):
            if op.name == "contract" and len(op.over) == 1:
                ends = [v.type.axes[-1] for v in op.operands if v.type.axes]
                if all(a.name in op.over for a in ends):
                    found |= extents(ends[0].extent)
            if op.name != "contract":
                continue
        products |= set(op.results)
    return found


def _summed_in_scores(func: Func, heads: frozenset[str]) -> frozenset[str]:
    """Extents reduced in scores, of which, after maps, a maximum over no `heads` is taken.

    They are reduced before any product, or by the first one: by a distance, a count of matches.
    """
    none = frozenset[str]()
    reduced: dict[Value, frozenset[str]] = {}
    products: set[Value] = set()
    found = none
    for op in func.body.ops:
        above = none.union(*(reduced.get(v, none) for v in op.operands))
        behind = not products.isdisjoint(op.operands)
        if op.name in ("contract", "reduce"):
            axes = [a for v in op.operands for a in v.type.axes if a.name in op.over]
            over = none.union(*(extents(a.extent) for a in axes))
            if op.attrs.get("kind") == "max" and over.isdisjoint(heads):
                found |= above - over
            above = above if op.name == "reduce" and behind else none if behind else above | over
        if op.name in ("contract", "reduce", "map"):
            reduced[op.result] = above
            if behind or op.name == "contract":
                products.add(op.result)
    return found

"""The traffic of a group of operations as one kernel, before any size is known."""

from __future__ import annotations

from tilecc.analysis.roles import Roles
from tilecc.ir.core import Op, TensorType, Value
from tilecc.ir.expr import Const, Env, evaluate
from tilecc.passes.fusing.graph import Graph

# Sizes at which two ways of grouping are compared before any size is known.
NOMINAL_EXTENT = 4096
NOMINAL_STATIC = 64
NOMINAL_TILE = 64


def size(t: TensorType, static: frozenset[str]) -> float:
    """Elements of a tensor at the nominal sizes."""

    def extent(name: str) -> int:
        return NOMINAL_STATIC if name in static else NOMINAL_EXTENT

    numbers = 1.0
    for a in t.axes:
        # An empty axis would make all groupings equal.
        numbers *= max(1.0, float(evaluate(a.extent, Env(extent=extent))))
    return numbers


def traffic(
    graph: Graph,
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
                    float(extent.value) if isinstance(extent, Const) else NOMINAL_EXTENT
                ) / NOMINAL_TILE
        total += size(v.type, static) * v.type.dtype.bytes * max(again, 1.0)
    written = [v for v in outputs if only is None or v in only]
    return total + sum(size(v.type, static) * v.type.dtype.bytes for v in written)

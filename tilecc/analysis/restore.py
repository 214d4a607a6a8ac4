"""Finds the states whose guards can be seen in the results."""

from __future__ import annotations

from collections.abc import Mapping

from tilecc.analysis.settle import Plan
from tilecc.analysis.signs import ANY, EITHER, NAN, SignEnv, Signs, of_number, signs
from tilecc.analysis.streams import Streams
from tilecc.ir.core import Value
from tilecc.ir.dtypes import BOOL
from tilecc.ir.expr import Arg, Expr, shift_args
from tilecc.ir.ops import REDUCERS


def visible_guards(
    graph: Streams, plans: Mapping[Value, Plan], passes: Mapping[Value, int]
) -> set[Value]:
    """Guarded states whose stand-in for NaN may reach an output as something else than NaN.

    Division by a sum that is 0 or NaN gives NaN either way, and needs nothing put back.
    """
    guarded = {v: p for v, p in plans.items() if p.restore is not None}
    outputs = graph.inputs(graph.kernel.body.terminator)
    seen: set[Value] = set()
    for v, plan in guarded.items():
        later = any(
            passes[i.value] > passes[v]
            and v in graph.states(graph.of(i.update.operands[0]) if i.update else i.value)
            for i in graph.items.values()
        )
        known = _at_the_end(graph, guarded, plan)
        if later or any(
            v in graph.states(out) and _classes(graph, out, known) != NAN for out in outputs
        ):
            seen.add(v)
    return seen


def _at_the_end(graph: Streams, guarded: Mapping[Value, Plan], plan: Plan) -> dict[Value, Signs]:
    """Classes of states where what `plan` guards has ended at its identity."""
    known: dict[Value, Signs] = {}
    for v, other in guarded.items():
        if other.restore and set(other.guards) == set(plan.guards):
            known[v] = other.restore.point | NAN
    if len(plan.guards) == 1:
        (state,) = plan.guards
        known[state] = of_number(REDUCERS[graph.items[state].kind].identity)
    return known


def _classes(graph: Streams, out: Value, known: Mapping[Value, Signs]) -> Signs:
    leaves: list[Value] = []

    def expand(v: Value) -> Expr:
        op = graph.definition(v)
        if op is not None and op.name == "map":
            return shift_args(op.expr, {k: expand(x) for k, x in enumerate(graph.inputs(op))})
        if v not in leaves:
            leaves.append(v)
        return Arg(leaves.index(v))

    e = expand(out)
    any_of = {k: EITHER if v.type.dtype is BOOL else ANY for k, v in enumerate(leaves)}
    return signs(e, SignEnv({k: known.get(v, any_of[k]) for k, v in enumerate(leaves)}))

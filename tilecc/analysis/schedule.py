"""Distributes the items of a kernel's streams over as few passes as can be proved right."""

from __future__ import annotations

from tilecc.analysis.online import Planner, Stuck
from tilecc.analysis.restore import visible_guards
from tilecc.analysis.settle import Plan
from tilecc.analysis.streams import Item, Streams
from tilecc.errors import Loc
from tilecc.ir.core import Value

_UNWRITABLE = (
    "at the reducer's identity: where r ends at its first value the program gives a result that "
    "depends on x there"
)


def _writable(plan: Plan) -> bool:
    return plan.restore is not None and plan.restore.value is not None


class Schedule:
    """Which pass each item goes to: the first in which it can be kept.

    passes: the number of an item's pass; plans: how its states are kept; restored: the states whose
    final value is put right after their pass; remarks: why items got no place in the first pass.
    """

    def __init__(self, graph: Streams) -> None:
        self.passes: dict[Value, int] = {}
        self.plans: dict[Value, Plan] = {}
        self.restored: set[Value] = set()
        apart: set[Value] = set()
        while True:
            self._place_all(graph, apart)
            self.restored = visible_guards(graph, self.plans, self.passes)
            hopeless = {v for v in self.restored if not _writable(self.plans[v])}
            if not hopeless:
                break
            apart |= hopeless

    def _place_all(self, graph: Streams, apart: set[Value]) -> None:
        self.remarks: list[tuple[str, Loc | None]] = []
        self.passes.clear()
        self.plans.clear()
        planner = Planner(graph)
        for item in graph.items.values():
            self._place(graph, planner, item, apart)

    def _place(self, graph: Streams, planner: Planner, item: Item, apart: set[Value]) -> None:
        source = graph.of(item.update.operands[0]) if item.update else item.value
        needs, final = graph.states(source), graph.barred(source)
        at = max([self.passes[s] for s in needs] + [self.passes[s] + 1 for s in final] + [0])
        moving = [s for s in self.passes if s in needs and self.passes[s] == at]
        names = ", ".join(f"%{graph.items[s].name}" for s in moving)
        what = f"%{item.name}" if item.name else "what this line computes"
        own = f"{what} needs a pass over {graph.axis} of its own"
        if final and at > max(self.passes[s] for s in needs):
            names = ", ".join(f"%{graph.items[s].name}" for s in self.passes if s in final)
            message = f"{own}: an operation that is no map stands between it and {names}"
            self.remarks.append((message, item.loc))
        if item.update is None:
            if moving:
                why = f"it is written out for each {graph.axis} and reads the final {names}"
                self.remarks.append((f"{own}: {why}", item.loc))
            self.passes[item.value] = at + bool(moving)
            return
        plan = planner.plan(item, moving)
        if item.value in apart:
            plan = Stuck(_UNWRITABLE, item.loc)
        if isinstance(plan, Stuck):
            at += 1
            self.remarks.append((f"{own}, after {names}: {plan.obligation}", plan.loc))
            plan = planner.plan(item, [])
            assert isinstance(plan, Plan)
        self.passes[item.value] = at
        self.plans[item.value] = plan

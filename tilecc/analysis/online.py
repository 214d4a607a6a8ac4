"""Plans how a state is kept in the same pass as the states that it depends on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilecc.analysis.contribution import (
    Abstraction,
    Contribution,
    Unclear,
    abstract,
    contribution,
    reduction,
)
from tilecc.analysis.facts import Facts, Knowledge
from tilecc.analysis.repair import Refusal, derive
from tilecc.analysis.settle import Candidate, Plan
from tilecc.analysis.signs import FINITE
from tilecc.analysis.streams import Item, Streams
from tilecc.errors import Loc
from tilecc.ir.core import Value
from tilecc.ir.expr import Arg


@dataclass(frozen=True)
class Stuck:
    """Why a state needs a pass of its own: the obligation that fails, and the user's line."""

    obligation: str
    loc: Loc | None


class Planner:
    """Plans for the states of `streams`, in order: what is known of one serves those after it."""

    def __init__(self, streams: Streams) -> None:
        self.known = Knowledge(streams)

    def plan(self, item: Item, moving: list[Value]) -> Plan | Stuck:
        """How to keep `item` while the states `moving` that it depends on still move."""
        loc = item.loc
        try:
            loc = reduction(self.known.streams, item)[0].loc
            c = contribution(self.known.streams, item, moving)
        except Unclear as e:
            if not moving:
                self.known.facts[item.value] = Facts(FINITE, None)
                return Plan((), None)
            return Stuck(e.obligation, e.loc or loc)
        if not moving:
            self.known.learn(c, {})
            return Plan((), None)
        refusals: list[str] = []
        for inline in (False, True):
            problem = abstract(c, self.known.env(c, frozenset()), inline=inline)
            repair = derive(problem.problem)
            if isinstance(repair, Refusal):
                refusals.append(_named(repair.obligation, problem, c))
                continue
            found = Candidate(self.known, c, problem, repair).plan()
            if isinstance(found, Plan):
                return found
            refusals.append(found)
        return Stuck(refusals[0], loc)


def _named(text: str, problem: Abstraction, c: Contribution) -> str:
    """The obligation with letters for the leaves of the problem, and what they stand for."""
    letters = {"x": iter("xyzw"), "u": iter("rstu"), "c": iter("abc")}
    names: dict[str, str] = {}
    told: list[str] = []
    for k, (part, role) in enumerate(zip(problem.parts, problem.problem.roles, strict=True)):
        names[f"a{k}"] = letter = next(letters[role], f"{role}{k}")
        value = c.references.get(part) or (c.leaves[part.k] if isinstance(part, Arg) else None)
        item = c.streams.items.get(value) if value else None
        name = item.name if item else value.name if value else ""
        told += [f"{letter} is %{name}"] if name else []
    text = re.sub(r"\ba\d+\b", lambda m: names.get(m.group(), m.group()), text)
    return f"{text} ({', '.join(told)})" if told else text

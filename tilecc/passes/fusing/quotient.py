"""The graph of groups that a grouping of operations leaves: what lies between two, and an order.

(A graph library does this too, and takes longer to import than all passes take to run.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush

from tilecc.ir.core import Op

Group = frozenset[Op]


class Quotient:
    """Groups, with an edge where an operation of one reads what one of the other computes."""

    def __init__(self, edges: Iterable[tuple[Op, Op]], group_of: Mapping[Op, Group]) -> None:
        self.after: dict[Group, set[Group]] = {g: set() for g in group_of.values()}
        self.before: dict[Group, set[Group]] = {g: set() for g in self.after}
        for x, y in edges:
            a, b = group_of[x], group_of[y]
            if a is not b:
                self.after[a].add(b)
                self.before[b].add(a)

    def between(self, group: Group) -> Collection[Group]:
        """`group`, and all groups on paths from it to itself."""
        return _reached(group, self.after) & _reached(group, self.before)

    def order(self, first: Callable[[Group], int]) -> list[Group]:
        """All groups, each after those that it reads; of several that could be next by `first`."""
        missing = {g: len(before) for g, before in self.before.items()}
        numbered = {first(g): g for g in missing}
        ready = [n for n, g in numbered.items() if not missing[g]]
        heapify(ready)
        out = []
        while ready:
            g = numbered[heappop(ready)]
            out.append(g)
            for follower in self.after[g]:
                missing[follower] -= 1
                if not missing[follower]:
                    heappush(ready, first(follower))
        return out


def _reached(start: Group, following: Mapping[Group, set[Group]]) -> set[Group]:
    found, todo = {start}, [start]
    while todo:
        new = following[todo.pop()] - found
        found |= new
        todo += new
    return found

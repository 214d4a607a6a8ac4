"""Grouping the operations of a tile-level block into loop nests.

Operations over the same axes share a nest, so that a value goes from one to the next in registers:
maps and row reductions are applied to a block of a contraction as it leaves its accumulators. A
result that a reduction completes, or that another nest needs, goes through scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilecc.codegen.cpu.layout import Layout
from tilecc.ir.core import Block, Op, Value
from tilecc.ir.dtypes import BOOL
from tilecc.ir.expr import Arg, Expr, walk

# Maps are evaluated where they are read while the expression that this gives is no deeper.
_DEEP = 100


@dataclass(eq=False)
class Nest:
    """Operations evaluated together for every element of `axes`; at most one contraction."""

    axes: frozenset[str]
    ops: list[Op] = field(default_factory=list)

    @property
    def contraction(self) -> Op | None:
        """The contraction of the nest, if it has one."""
        return next((op for op in self.ops if op.name == "contract"), None)


@dataclass(eq=False)
class Scalar:
    """An i64 or boolean scalar that is computed once."""

    op: Op


@dataclass(eq=False)
class Copy:
    """A load that is kept in scratch memory."""

    op: Op


@dataclass(eq=False)
class Loop:
    """A `for` with its body's plan."""

    op: Op
    body: BlockPlan


@dataclass(eq=False)
class Branch:
    """An `if` with the plans of its two blocks."""

    op: Op
    then: BlockPlan
    other: BlockPlan


Item = Nest | Scalar | Copy | Loop | Branch


@dataclass(eq=False)
class BlockPlan:
    """The items of a block in order of execution, and the maps that are evaluated where used."""

    block: Block
    items: list[Item] = field(default_factory=list)
    where: dict[Value, int] = field(default_factory=dict)  # item that defines a value

    def item_of(self, v: Value) -> int:
        """The position after which `v` is complete; -1 for what comes from outside the block."""
        return self.where.get(v, -1)


def elements(op: Op) -> Value:
    """The value over whose elements an operation runs (a contraction: its result)."""
    return op.operands[0] if op.name in ("reduce", "store") else op.result


def iteration_axes(op: Op) -> frozenset[str]:
    """The axes over whose elements an operation runs."""
    return frozenset(elements(op).type.names)


def readers(block: Block) -> dict[Value, list[Op]]:
    """Operations of this block (not of nested ones) that read a value, directly or within."""
    table: dict[Value, list[Op]] = {}
    for op in block.ops:
        for v in dict.fromkeys(_reads(op)):
            table.setdefault(v, []).append(op)
    return table


def _reads(op: Op) -> Iterable[Value]:
    yield from op.operands
    for region in op.regions:
        for inner in region.ops:
            yield from _reads(inner)


def in_order(block: Block) -> list[Op]:
    """The operations of a block, with what is read beside a contraction's result in front of it.

    Positions, ids and a tile of a mask are ready when the contraction begins, and then a map that
    takes them is applied to each block of the result as it leaves, not in a walk of its own:

        %s = contract %q, %k over d : f32[i, j]
        %y = map (%t * 96 + index(j)) // %w : i64[j]
        %x = map where(%y <= %r, %s, -inf) : f32[i, j]
    -->
        %y, %s, %x
    """
    written = {op.operands[1] for op in block.walk() if op.name == "store"}
    if any(op.name == "load" and op.operands[0] in written for op in block.walk()):
        return block.ops
    inside = {v: op for op in block.ops for v in op.results}
    made: dict[Op, set[Op]] = {}  # of maps and reductions: the contractions that they come from
    early: dict[Op, None] = {}
    for op in block.ops:
        sources = [inside[v] for v in dict.fromkeys(_reads(op)) if v in inside]
        made[op] = set().union(*(made[s] for s in sources))
        if op.name == "contract":
            made[op] |= {op}
        elif op.name == "map" and any(iteration_axes(c) == iteration_axes(op) for c in made[op]):
            early.update(dict.fromkeys(s for s in sources if not made[s]))
    pending = list(early)
    while pending:  # and what those are made of, which comes of no contraction either
        sources = [inside[v] for v in _reads(pending.pop()) if v in inside]
        pending += [s for s in sources if s not in early]
        early.update(dict.fromkeys(sources))
    first = next((n for n, op in enumerate(block.ops) if op.name == "contract"), len(block.ops))
    head, tail = block.ops[:first], block.ops[first:]
    return [*head, *(x for x in tail if x in early), *(x for x in tail if x not in early)]


def _times_read(op: Op, v: Value) -> int:
    """How often an operation's expression reads `v` (anything but a map reads it once)."""
    if op.name != "map":
        return 1
    return sum(isinstance(n, Arg) and op.operands[n.k] is v for n in walk(op.expr))


def _depth(e: Expr) -> int:
    return 1 + max(map(_depth, e.children()), default=0)


class Planner:
    """Plans a kernel's blocks. `inline` are the maps that have no place of their own."""

    def __init__(self, body: Block, kept: set[Value], layout: Layout) -> None:
        self.kept = kept  # loads to keep in scratch
        self.layout = layout
        self.inline: set[Value] = set()
        self.scalars: set[Value] = set()
        self.depth: dict[Value, int] = {}  # of the expressions of inline maps
        self.plan = self._block(body)

    def _block(self, block: Block) -> BlockPlan:
        plan = BlockPlan(block)
        used = readers(block)
        for op in in_order(block):
            if op.name in ("yield", "return"):
                continue
            self._place(plan, op, used)
        return plan

    def _place(self, plan: BlockPlan, op: Op, used: dict[Value, list[Op]]) -> None:
        if op.name == "for":
            self._append(plan, Loop(op, self._block(op.body)), op.results)
        elif op.name == "if":
            then, other = (self._block(r) for r in op.regions)
            self._append(plan, Branch(op, then, other), op.results)
        elif op.name == "load":
            if op.result in self.kept:
                self._append(plan, Copy(op), op.results)
        elif self._is_scalar(op):
            self.scalars.add(op.result)
            self._append(plan, Scalar(op), op.results)
        elif self._is_inline(op, used):
            self.inline.add(op.result)
            plan.where[op.result] = max(
                (self._ready(plan, v, None) for v in op.operands), default=-1
            )
        else:
            self._into_nest(plan, op)

    def _append(self, plan: BlockPlan, item: Item, results: list[Value]) -> None:
        plan.items.append(item)
        for r in results:
            plan.where[r] = len(plan.items) - 1

    def _is_scalar(self, op: Op) -> bool:
        if op.name != "map" or op.result.type.axes or op.result.type.dtype.kind == "float":
            return False
        return all(
            v in self.scalars or (not v.type.axes and (v.owner is None)) for v in op.operands
        )

    def _is_inline(self, op: Op, used: dict[Value, list[Op]]) -> bool:
        """A map that one operation over the same elements reads is evaluated there.

        Truth values are recomputed wherever they are read: they have no good home in memory.
        """
        if op.name != "map":
            return False
        users = used.get(op.result, [])
        if not all(u.name in ("map", "reduce", "store", "contract") for u in users):
            return False
        same = all(
            iteration_axes(u) == iteration_axes(op) and self._elementwise(u, op) for u in users
        )
        if op.result.type.dtype is BOOL:
            return same
        if not same or len(users) != 1 or _times_read(users[0], op.result) != 1:
            return False
        depth = _depth(op.expr) + max((self.depth.get(v, 0) for v in op.operands), default=0)
        self.depth[op.result] = depth if depth <= _DEEP else 0
        return depth <= _DEEP

    @staticmethod
    def _elementwise(user: Op, op: Op) -> bool:
        """Whether `user` reads the result of `op` one element at a time."""
        if user.name == "contract":
            return bool(user.attrs.get("acc")) and op.result not in user.operands[:-1]
        return True

    def _ready(self, plan: BlockPlan, v: Value, nest_axes: frozenset[str] | None) -> int:
        """The earliest item that may read `v`."""
        at = plan.item_of(v)
        if at < 0 or v.owner is None:
            return 0
        if v in self.inline:
            return max((self._ready(plan, o, nest_axes) for o in v.owner.operands), default=0)
        item = plan.items[at]
        elementwise = (
            isinstance(item, Nest)
            and v.owner.name in ("map", "contract")
            and nest_axes is not None
            and item.axes == nest_axes
        )
        return at if elementwise else at + 1

    def _lanes(self, op: Op) -> tuple[str, ...]:
        """The axis that lies in vector lanes in a nest which `op` begins."""
        return self.layout.order(elements(op).type)[-1:]

    def _into_nest(self, plan: BlockPlan, op: Op) -> None:
        axes = iteration_axes(op)
        earliest = 0
        for n, v in enumerate(op.operands):
            streamed = op.name == "contract" and not (
                op.attrs.get("acc") and n == len(op.operands) - 1
            )
            if op.name == "store" and n == 1:
                continue
            earliest = max(earliest, self._ready(plan, v, None if streamed else axes))
        for at in range(earliest, len(plan.items)):
            item = plan.items[at]
            if not isinstance(item, Nest) or item.axes != axes:
                continue
            if op.name == "contract" and (item.contraction is not None or item.ops):
                continue
            if op.name == "reduce" and self._lanes(op) != self._lanes(item.ops[0]):
                continue  # its lanes are added up after the nest, or never are
            item.ops.append(op)
            for r in op.results:
                plan.where[r] = at
            return
        self._append(plan, Nest(axes, [op]), op.results)

"""The streams of a kernel over one axis, as one graph of canonical values and items.

Equal operations on equal operands are one value here, whichever stream they stand in. The items are
what the streams yield: states, and values written out chunk by chunk. Which stream an item came
from is forgotten: that is for the pass to decide anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tilecc.errors import Loc
from tilecc.ir.core import Block, Op, Value


@dataclass(eq=False)
class Item:
    """A state (`update` is its operation) or an output with the streamed axis (`update` is None).

    value: the canonical value that stands for it: the update's result, or the value written out.
    """

    value: Value
    update: Op | None
    name: str = ""

    @property
    def loc(self) -> Loc | None:
        """The user's line."""
        op = self.update or self.value.owner
        return op.loc if op else None

    @property
    def kind(self) -> str:
        """The reducer of a state."""
        assert self.update is not None
        kind: str = self.update.attrs["kind"]
        return kind


def free_values(op: Op) -> Iterator[Value]:
    """Operands of `op`, and what its regions read from outside of them."""
    yield from op.operands
    for region in op.regions:
        inside = {v for o in region.walk() for v in o.results} | set(region.args)
        for o in region.walk():
            yield from (v for v in o.operands if v not in inside)


def streams_over(kernel: Op) -> dict[tuple[object, ...], list[Op]]:
    """The kernel's streams, by what they walk over."""
    groups: dict[tuple[object, ...], list[Op]] = {}
    for op in kernel.body.ops:
        if op.name == "stream":
            key = (op.attrs["axis"], op.attrs.get("where"), *op.operands)
            groups.setdefault(key, []).append(op)
    return groups


def is_plain(stream: Op) -> bool:
    """Whether all states are without repair, read by nothing in the body, and all yields items."""
    updates = {o.result for o in stream.body.ops if o.name == "update"}
    if any(o.attrs.get("repair") is not None for o in stream.body.ops if o.name == "update"):
        return False
    for op in stream.body.ops[:-1]:
        if any(v in updates for v in free_values(op)):
            return False
    axis = stream.attrs["axis"]
    inside = {v for op in stream.body.ops for v in op.results if v.type.has(axis)}
    return all(v in updates or v in inside for v in stream.body.terminator.operands)


@dataclass(eq=False)
class Streams:
    """The graph: `canon` maps each value of the kernel to the one that stands for it."""

    kernel: Op
    streams: list[Op]
    canon: dict[Value, Value] = field(default_factory=dict)
    items: dict[Value, Item] = field(default_factory=dict)
    outer: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._table: dict[object, Op] = {}
        self._states: dict[Value, frozenset[Value]] = {}
        self._barred: dict[Value, frozenset[Value]] = {}
        self._inside: set[Value] = set()
        for op in self.kernel.body.ops[:-1]:
            if op in self.streams:
                self._enter(op.body)
                for result, y in zip(op.results, op.body.terminator.operands, strict=True):
                    v = self.canon[result] = self.of(y)
                    owner = v.owner
                    state = owner is not None and owner.name == "update"
                    self.items.setdefault(v, Item(v, owner if state else None, result.name))
            else:
                self._number(op)
                self.outer |= {self.of(r) for r in op.results}

    @property
    def axis(self) -> str:
        """The streamed axis."""
        axis: str = self.streams[0].attrs["axis"]
        return axis

    def of(self, v: Value) -> Value:
        """The value that stands for `v`."""
        return self.canon.get(v, v)

    def inputs(self, op: Op) -> list[Value]:
        """The operands of `op`, canonical."""
        return [self.of(v) for v in op.operands]

    def definition(self, v: Value) -> Op | None:
        """The kernel's operation that computes canonical `v`, None if it comes from outside."""
        return v.owner if v in self._inside else None

    def _enter(self, body: Block) -> None:
        for op in body.ops[:-1]:
            self._number(op)

    def _number(self, op: Op) -> None:
        key: object = op
        if not op.regions:
            attrs = tuple(sorted(op.attrs.items(), key=lambda kv: kv[0]))
            key = (op.name, attrs, tuple(self.inputs(op)), tuple(r.type for r in op.results))
        first = self._table.setdefault(key, op)
        self.canon.update(zip(op.results, first.results, strict=True))
        self._inside.update(first.results)

    def states(self, v: Value) -> frozenset[Value]:
        """States whose values `v` depends on (a state: on itself)."""
        if v not in self._states:
            op = self.definition(v)
            found: frozenset[Value] = frozenset()
            if v in self.items and self.items[v].update:
                found = frozenset({v})
            elif op is not None:
                found = found.union(*(self.states(self.of(x)) for x in free_values(op)))
            self._states[v] = found
        return self._states[v]

    def barred(self, v: Value) -> frozenset[Value]:
        """States on which `v` depends through an operation outside that is no map.

        Such an operation (another stream, a contraction) needs them final.
        """
        if v not in self._barred:
            op = self.definition(v)
            found: frozenset[Value] = frozenset()
            if op is not None and not (v in self.items and self.items[v].update):
                if v in self.outer and op.name != "map":
                    found = self.states(v)
                else:
                    found = found.union(*(self.barred(self.of(x)) for x in free_values(op)))
            self._barred[v] = found
        return self._barred[v]

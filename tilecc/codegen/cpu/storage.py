"""Which values go through scratch memory, and which of them share a place.

A carried value, what it starts from, what a body makes of it and the loop's result are one place
where that is safe: nothing reads the old value after the new one is written, except element by
element in the nest that writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilecc.codegen.cpu.dot import pair_slot, uses_dot
from tilecc.codegen.cpu.horizontal import uses_horizontal_dot
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.cpu.layout import Layout, Slot, inputs, is_horizontal, make_slot
from tilecc.codegen.cpu.nests import (
    BlockPlan,
    Branch,
    Copy,
    Loop,
    Nest,
    Planner,
    Scalar,
    iteration_axes,
)
from tilecc.codegen.cpu.staged import Stage, buffer_name, stage_of
from tilecc.codegen.cpu.streamed import is_streamed
from tilecc.codegen.program import ScratchBuffer
from tilecc.ir.core import Op, Value


@dataclass
class Storage:
    """Slots by value, and the copies still to be made: (block, value, slot), at the block's end."""

    layout: Layout
    isa: Isa
    planner: Planner
    slots: dict[Value, Slot] = field(default_factory=dict)
    made: list[Slot] = field(default_factory=list)
    entry_copies: dict[Op, list[tuple[Value, Slot]]] = field(default_factory=dict)
    exit_copies: dict[BlockPlan, list[tuple[Value, Slot]]] = field(default_factory=dict)

    dots: set[Op] = field(default_factory=set)
    """Contractions by the dot instruction."""
    pairs: dict[tuple[Value, str], Slot] = field(default_factory=dict)
    """Their factors as pairs along the summed axis."""
    packed_by_nest: dict[tuple[Value, str], None] = field(default_factory=dict)
    """Those that the nest which computes them writes as pairs."""

    stages: dict[Op, Stage] = field(default_factory=dict)
    """Contractions whose large factor is staged."""

    def run(self) -> Storage:
        """Place all values."""
        self._find_dots(self.planner.plan)
        largest: dict[str, Stage] = {}
        for stage in sorted(self.stages.values(), key=lambda s: s.elements):
            largest[buffer_name(stage)] = stage
        for name, s in largest.items():
            self.made.append(Slot(ScratchBuffer(name, s.elements, s.dtype), ()))
        self._block(self.planner.plan, {})
        return self

    def _find_dots(self, plan: BlockPlan) -> None:
        for item in plan.items:
            match item:
                case Loop(_, body):
                    self._find_dots(body)
                case Branch(_, then, other):
                    self._find_dots(then)
                    self._find_dots(other)
                case Nest() if item.contraction and uses_horizontal_dot(
                    item.contraction, self.layout, self.isa
                ):
                    self._add_horizontal_dot(item.contraction)
                case Nest() if item.contraction and uses_dot(
                    item.contraction, self.layout, self.isa
                ):
                    self._add_dot(plan, item.contraction)
                case Nest() if item.contraction and is_streamed(
                    item.contraction, self.layout, self.planner.kept
                ):
                    stage = stage_of(item.contraction, self.layout, self.isa)
                    if stage is not None:
                        self.stages[item.contraction] = stage

    def _add_dot(self, plan: BlockPlan, op: Op) -> None:
        self.dots.add(op)
        k = op.over[-1]
        for v in inputs(op):
            in_place = v.owner is not None and v.owner.name == "load" and v not in self.planner.kept
            if (v, k) in self.pairs or in_place:
                continue
            slot = pair_slot(f"{v.name or 'x'}_pairs_{len(self.pairs)}", v, k, self.layout)
            self.pairs[v, k] = slot
            self.made.append(slot)
            at = plan.item_of(v)
            nest = plan.items[at] if at >= 0 else None
            if not isinstance(nest, Nest) or nest.contraction:
                continue
            inner = self.layout.order(v.type)[-1]
            whole = inner == self.layout.lane_axis or not (
                v.type.axis(inner).size % self.layout.width
            )
            if inner == k or not whole:
                continue  # packing takes whole vectors across the pairs
            others = {o for w, o in self.packed_by_nest if w.owner in nest.ops}
            if others <= {k}:
                self.packed_by_nest[v, k] = None

    def _add_horizontal_dot(self, op: Op) -> None:
        """Factors are pairs where they lie; one that is kept is copied as pairs."""
        self.dots.add(op)
        k = op.over[-1]
        for v in inputs(op):
            if v in self.planner.kept and (v, k) not in self.pairs:
                slot = pair_slot(f"{v.name or 'x'}_pairs_{len(self.pairs)}", v, k, self.layout)
                self.pairs[v, k] = slot
                self.made.append(slot)

    def only_pairs(self, v: Value, readers: list[Op]) -> bool:
        """Whether all these readers take `v` as pairs that are written where `v` is."""
        ready = v.owner is not None and v.owner.name == "load"
        return all(
            op in self.dots
            and v in inputs(op)
            and not (op.attrs.get("acc") and op.operands[-1] is v)
            and (ready or (v, op.over[-1]) in self.packed_by_nest)
            for op in readers
        )

    def new(self, v: Value) -> Slot:
        """A slot of its own for `v`."""
        slot = make_slot(f"{v.name or 'x'}_{len(self.made)}", v.type, self.layout)
        self.made.append(slot)
        return slot

    def _block(self, plan: BlockPlan, wanted: dict[Value, tuple[Slot, Value]]) -> None:
        """`wanted`: where this block's values should go, and the old value that lives there."""
        use = _Uses(plan, self.planner.inline)
        for at, item in enumerate(plan.items):
            match item:
                case Copy(op):
                    if not self.only_pairs(op.result, use.everywhere(op.result)):
                        self.slots[op.result] = self.new(op.result)
                case Nest():
                    for op in item.ops:
                        for v in op.results:
                            through_memory = op.name == "reduce" or (
                                op.name == "contract" and self._ends_in_memory(op)
                            )
                            if through_memory or use.outside(v, at, self):
                                self.slots[v] = self._place(plan, use, v, at, wanted)
                case Loop(op, body):
                    self._loop(use, op, body)
                case Branch(op):
                    self._branch(plan, use, item, at, wanted)
                case Scalar():
                    pass

    def _ends_in_memory(self, op: Op) -> bool:
        streamed = is_streamed(op, self.layout, self.planner.kept)
        return streamed or is_horizontal(op, self.layout)

    def _place(
        self,
        plan: BlockPlan,
        use: _Uses,
        v: Value,
        at: int,
        wanted: dict[Value, tuple[Slot, Value]],
    ) -> Slot:
        if v in wanted:
            slot, old = wanted[v]
            if use.last_read(old, v, at):
                return slot
        return self.new(v)

    def _loop(self, use: _Uses, op: Op, body: BlockPlan) -> None:
        n = op.attrs["n_carry"]
        wanted: dict[Value, tuple[Slot, Value]] = {}
        copies: list[tuple[Value, Slot]] = []
        exits: list[tuple[Value, Slot]] = []
        yields = body.block.terminator.operands
        for k in range(n):
            init, arg, result = op.operands[k], op.body.args[k + 1], op.results[k]
            slot = self.slots.get(init)
            if slot is None or use.count(init) != 1 or op.operands[:n].count(init) > 1:
                slot = self.new(arg)
                copies.append((init, slot))
            self.slots[arg] = self.slots[result] = slot
            if yields[k] not in wanted and yields[k] not in op.body.args:
                wanted[yields[k]] = (slot, arg)
            exits.append((yields[k], slot))
        self.entry_copies[op] = copies
        self._block(body, wanted)
        self._exits(body, exits)

    def _branch(
        self,
        plan: BlockPlan,
        use: _Uses,
        item: Branch,
        at: int,
        wanted: dict[Value, tuple[Slot, Value]],
    ) -> None:
        slots = [self._place(plan, use, v, at, wanted) for v in item.op.results]
        olds = {id(wanted[v][0]): wanted[v][1] for v in item.op.results if v in wanted}
        for v, slot in zip(item.op.results, slots, strict=True):
            self.slots[v] = slot
        for block in (item.then, item.other):
            inner: dict[Value, tuple[Slot, Value]] = {}
            exits = []
            for v, slot in zip(block.block.terminator.operands, slots, strict=True):
                old = olds.get(id(slot))
                if v not in inner and v not in self.slots:
                    inner[v] = (slot, old if old is not None else v)
                exits.append((v, slot))
            self._block(block, inner)
            self._exits(block, exits)

    def _exits(self, plan: BlockPlan, exits: list[tuple[Value, Slot]]) -> None:
        """Copies at the end of a block; a source that another copy overwrites is saved first."""
        pending = [(v, slot) for v, slot in exits if self.slots.get(v) is not slot]
        overwritten = [slot for _, slot in pending]
        first: list[tuple[Value, Slot]] = []
        second: list[tuple[Value, Slot]] = []
        for v, slot in pending:
            if any(self.slots.get(v) is s for s in overwritten):
                saved = Value(v.type, v.name)
                self.slots[saved] = self.new(saved)
                first.append((v, self.slots[saved]))
                second.append((saved, slot))
            else:
                second.append((v, slot))
        self.exit_copies[plan] = first + second


class _Uses:
    """Who reads a value in a block, by item; maps evaluated in place count where they are used."""

    def __init__(self, plan: BlockPlan, inline: set[Value]) -> None:
        self.inline = inline
        self.item: dict[Op, int] = {}
        for at, item in enumerate(plan.items):
            for op in item.ops if isinstance(item, Nest) else [item.op]:
                self.item[op] = at
        self.end = len(plan.items)
        self.block_walk = list(plan.block.walk())
        self.readers: dict[Value, list[Op]] = {}
        for op in plan.block.ops:
            for v in dict.fromkeys(_all_reads(op)):
                self.readers.setdefault(v, []).append(op)

    def count(self, v: Value) -> int:
        return len(self.readers.get(v, []))

    def places(self, v: Value) -> list[tuple[int, Op]]:
        """(item, operation) of each reader; the terminator counts as the end."""
        out: list[tuple[int, Op]] = []
        for op in self.readers.get(v, []):
            if op.results and op.results[0] in self.inline:
                out += self.places(op.results[0])
            else:
                # A load that is not kept is read in place, by whoever reads it.
                if op.name == "load" and op not in self.item:
                    out += self.places(op.result)
                else:
                    out.append((self.item.get(op, self.end), op))
        return out

    def everywhere(self, v: Value) -> list[Op]:
        """The operations that read `v`, those of nested blocks themselves."""
        return [op for op in self.block_walk if v in op.operands]

    def outside(self, v: Value, at: int, storage: Storage) -> bool:
        """Whether anything but nest `at`, element by element, reads `v` from scratch."""
        for item, op in self.places(v):
            if storage.only_pairs(v, [op]):
                continue
            if item != at:
                return True
            if op.name == "contract" and v in op.operands and not _is_accumulator(op, v):
                return True
        return False

    def last_read(self, old: Value, new: Value, at: int) -> bool:
        """Whether `new`, written in item `at`, may take the place of `old`."""
        assert new.owner is not None
        for item, op in self.places(old):
            if op is new.owner and item == at and op.name not in ("if", "for"):
                continue
            if op.name == "if" and op is new.owner:
                continue
            if item > at:
                return False
            if item == at and (
                op.name == "if"
                or op.name == "for"
                or iteration_axes(op) != iteration_axes(new.owner)
            ):
                return False
        return True


def _is_accumulator(op: Op, v: Value) -> bool:
    return bool(op.attrs.get("acc")) and op.operands[-1] is v and v not in op.operands[:-1]


def _all_reads(op: Op) -> list[Value]:
    out = list(op.operands)
    for region in op.regions:
        for inner in region.ops:
            out += _all_reads(inner)
    return out

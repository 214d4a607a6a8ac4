"""Which values go through scratch memory, and which of them share a place.

A carried value, what it starts from, what a body makes of it and the loop's result are one place
where that is safe: nothing reads the old value after the new one is written, except element by
element in the nest that writes it. In the same way a tile takes the place of one that is read no
more, so that less of the first cache is taken: weights that of scores, one loop's that of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilecc.codegen.cpu.dot import pair_slot, uses_dot
from tilecc.codegen.cpu.horizontal import uses_horizontal_dot
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.cpu.layout import (
    Layout,
    Slot,
    diagonal_slot,
    inputs,
    is_diagonal,
    is_horizontal,
    make_slot,
)
from tilecc.codegen.cpu.nests import (
    BlockPlan,
    Branch,
    Copy,
    Loop,
    Nest,
    Planner,
    Scalar,
)
from tilecc.codegen.cpu.staged import Stage, buffer_name, stage_of
from tilecc.codegen.cpu.streamed import is_streamed
from tilecc.codegen.cpu.uses import Uses
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

    def _copied(self, use: Uses, v: Value, at: int) -> Slot:
        """A slot for a load that is copied."""
        if not is_diagonal(v):
            return self._reuse(use, v, at)
        name = f"{v.name or 'x'}_{len(self.made)}"
        self.made.append(diagonal_slot(name, v, self.layout))
        return self.made[-1]

    def _reuse(self, use: Uses, v: Value, at: int) -> Slot:
        """A slot for a tile that item `at` writes: where one lies that is read no more, or new."""
        slot = make_slot("", v.type, self.layout)
        if len(v.type.axes) > 1:
            for buffer in use.buffers:
                if (buffer.size, buffer.dtype) != (slot.buffer.size, slot.buffer.dtype):
                    continue
                there = [(u, s) for u, s in self.slots.items() if s.buffer is buffer]
                if all(use.gone(u, s, v, slot, at) for u, s in there):
                    return Slot(buffer, slot.strides)
        slot = self.new(v)
        use.buffers.append(slot.buffer)
        return slot

    def _block(
        self,
        plan: BlockPlan,
        wanted: dict[Value, tuple[Slot, Value]],
        free: Sequence[ScratchBuffer] = (),
    ) -> list[ScratchBuffer]:
        """Place a block's values; the buffers that they took, and that are free after it.

        `wanted`: where its values should go, and the old value that lives there. `free`: buffers
        that nothing needs while the block runs.
        """
        use = Uses(plan, self.planner.inline, list(free))
        for at, item in enumerate(plan.items):
            match item:
                case Copy(op):
                    if not self.only_pairs(op.result, use.everywhere(op.result)):
                        self.slots[op.result] = self._copied(use, op.result, at)
                case Nest():
                    for op in item.ops:
                        for v in op.results:
                            through_memory = op.name == "reduce" or (
                                op.name == "contract" and self._ends_in_memory(op)
                            )
                            if through_memory or use.outside(v, at, self):
                                place = self._place(use, v, at, wanted)
                                self.slots[v] = place or self._reuse(use, v, at)
                case Loop(op, body):
                    self._loop(use, op, body, at)
                case Branch():
                    self._branch(use, item, at, wanted)
                case Scalar():
                    pass
        return use.buffers

    def _ends_in_memory(self, op: Op) -> bool:
        streamed = is_streamed(op, self.layout, self.planner.kept)
        return streamed or is_horizontal(op, self.layout)

    def _place(
        self, use: Uses, v: Value, at: int, wanted: dict[Value, tuple[Slot, Value]]
    ) -> Slot | None:
        """The slot that is wanted for `v`, if what lives there is read no more."""
        if v in wanted:
            slot, old = wanted[v]
            if use.last_read(old, v, at):
                return slot
        return None

    def _loop(self, use: Uses, op: Op, body: BlockPlan, at: int) -> None:
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
        free = self._free(use, at)
        use.add(self._block(body, wanted, free))
        self._exits(body, exits)

    def _free(self, use: Uses, at: int) -> list[ScratchBuffer]:
        """The buffers of a block that nothing needs while item `at` runs, or after it."""
        found = []
        for buffer in use.buffers:
            there = [u for u, s in self.slots.items() if s.buffer is buffer]
            if all(use.read_before(u, at) for u in there):
                found.append(buffer)
        return found

    def _branch(
        self,
        use: Uses,
        item: Branch,
        at: int,
        wanted: dict[Value, tuple[Slot, Value]],
    ) -> None:
        slots = [self._place(use, v, at, wanted) or self.new(v) for v in item.op.results]
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
            use.add(self._block(block, inner, self._free(use, at)))
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

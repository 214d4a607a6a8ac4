"""Who reads a value in a block, and when: what tells whether its place may be taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilecc.codegen.cpu.layout import Slot
from tilecc.codegen.cpu.nests import BlockPlan, Nest, iteration_axes
from tilecc.codegen.program import ScratchBuffer
from tilecc.ir.core import Op, Value
from tilecc.ir.dtypes import BOOL

if TYPE_CHECKING:
    from tilecc.codegen.cpu.storage import Storage


class Uses:
    """Who reads a value in a block, by item; maps evaluated in place count where they are used."""

    def __init__(
        self, plan: BlockPlan, inline: set[Value], buffers: list[ScratchBuffer] | None = None
    ) -> None:
        self.plan, self.inline = plan, inline
        self.buffers = buffers or []  # of tiles, which others may take when they are read no more
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
        """How many operations read `v`."""
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

    def add(self, buffers: Sequence[ScratchBuffer]) -> None:
        """Buffers that blocks within this one took."""
        self.buffers += [b for b in buffers if b not in self.buffers]

    def read_before(self, v: Value, at: int) -> bool:
        """Whether `v` is complete and read no more when item `at` begins."""
        return self.plan.item_of(v) < at and all(item < at for item, _ in self.places(v))

    def gone(self, old: Value, there: Slot, new: Value, slot: Slot, at: int) -> bool:
        """Whether item `at` may write the tile `new` where `old` lies.

        It may while `new` itself is made of `old`, element by element.
        """
        if self.read_before(old, at):
            return True
        op = new.owner
        if self.plan.item_of(old) >= at or op is None or op.name != "map":
            return False
        if there.strides != slot.strides or new.type.dtype is BOOL:
            return False
        return all(item < at or (item == at and reader is op) for item, reader in self.places(old))

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

"""Reductions: filled with the identity, accumulated in a nest, their lanes combined at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu import mathlib
from tilecc.codegen.cpu.casts import cast
from tilecc.codegen.cpu.layout import Slot, register_dtype
from tilecc.codegen.cpu.registers import Position
from tilecc.codegen.cpu.scalars import Prim, const
from tilecc.ir.core import Op
from tilecc.ir.ops import REDUCERS, identity

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter


class Reductions:
    """The reductions of a nest, for an emitter."""

    def __init__(self, em: Emitter) -> None:
        self.em = em

    def partial_slot(self, op: Op) -> tuple[Any, Slot, bool]:
        """Where a reduction accumulates; True if lanes still have to be combined at the end."""
        slot = self.em.storage.slots[op.result]
        order = self.em.layout.order(op.operands[0].type)
        across = bool(order) and order[-1] in op.over
        if not across:
            return self.em.buffers[slot.buffer.name], slot, False
        return self.em.buffers[f"{slot.buffer.name}_lanes"], slot, True

    def _partial_index(self, op: Op, slot: Slot, pos: Position, across: bool) -> list[Prim]:
        (index,) = self.em.slot_index(slot, {a: pos[a] for a, _ in slot.strides})
        return [self.em.at_lane(index * self._lanes(op))] if across else [index]

    def _lanes(self, op: Op) -> int:
        """Elements in a vector along the innermost axis of what is reduced."""
        t = op.operands[0].type
        innermost = self.em.layout.order(t)[-1]
        return self.em.split(innermost, t.axis(innermost).size)[1]

    def fill(self, op: Op) -> None:
        """Start a reduction at its identity."""
        buffer, slot, across = self.partial_slot(op)
        size = slot.buffer.size * (self._lanes(op) if across else 1)
        t = op.result.type.dtype
        start = const(identity(op.attrs["kind"], t).value, t)
        width = self.em.layout.width if size % self.em.layout.width == 0 else 1
        with T.serial(0, size // width) as n:
            if width == 1:
                T.buffer_store(buffer, start, [n])
            else:
                with T.vectorized(0, width) as v:
                    T.buffer_store(buffer, start, [n * width + v])

    def combine(self, op: Op, a: Prim, b: Prim) -> Prim:
        """The reducer's function of two values."""
        fn = REDUCERS[op.attrs["kind"]].combine
        if op.attrs.get("nan") == "elsewhere" and fn in ("maximum", "minimum"):
            return tirx.max(a, b) if fn == "maximum" else tirx.min(a, b)
        return mathlib.lower(fn, [a, b], register_dtype(op.result.type.dtype), self.em.isa)

    def accumulate(self, op: Op, x: Prim, pos: Position) -> None:
        """Take one more element into a reduction."""
        buffer, slot, across = self.partial_slot(op)
        index = self._partial_index(op, slot, pos, across)
        x = cast(x, op.operands[0].type.dtype, op.result.type.dtype)
        x = self.em.bind(x, op.result.type.dtype)
        T.buffer_store(buffer, self.combine(op, buffer[tuple(index)], x), index)

    def finish(self, op: Op) -> None:
        """Combine the lanes of a reduction along the vector axis."""
        buffer, slot, across = self.partial_slot(op)
        if not across:
            return
        width = self._lanes(op)
        target = self.em.buffers[slot.buffer.name]
        rows = {a.name: a.size for a in op.result.type.axes}
        with self.em.nest_loops(list(rows), rows) as pos:
            (n,) = self.em.slot_index(slot, pos)
            half = width // 2
            while half:
                with T.vectorized(0, half) as v:
                    low, high = n * width + v, n * width + half + v
                    T.buffer_store(buffer, self.combine(op, buffer[low], buffer[high]), [low])
                half //= 2
            T.buffer_store(target, buffer[n * width], [n])

"""Emission of a kernel's nests, loops and copies as TIR, through TVM's builder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu import positions
from tilecc.codegen.cpu.bounds import Bounds
from tilecc.codegen.cpu.casts import cast
from tilecc.codegen.cpu.contract import Broadcast
from tilecc.codegen.cpu.copies import load_turned, store_turned
from tilecc.codegen.cpu.dot import Dot, copy_pairs, repack
from tilecc.codegen.cpu.elementary import dtype_of
from tilecc.codegen.cpu.explicit import qualifies
from tilecc.codegen.cpu.horizontal import Horizontal
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.cpu.layout import (
    Layout,
    Slot,
    inputs,
    is_diagonal,
    is_horizontal,
    register_dtype,
)
from tilecc.codegen.cpu.memory import Memory
from tilecc.codegen.cpu.nests import (
    BlockPlan,
    Branch,
    Copy,
    Item,
    Loop,
    Nest,
    Planner,
    Scalar,
    elements,
)
from tilecc.codegen.cpu.reductions import Reductions
from tilecc.codegen.cpu.registers import READY, Position, Temps, Tensor, i32, wide
from tilecc.codegen.cpu.scalars import ExprLowering, Prim
from tilecc.codegen.cpu.staged import Staged
from tilecc.codegen.cpu.storage import Storage
from tilecc.codegen.cpu.streamed import Streamed, StreamedDot, is_streamed
from tilecc.codegen.cpu.vectors import pack2
from tilecc.ir.core import Op, Value
from tilecc.ir.dtypes import F32, I64, DType
from tilecc.ir.expr import Cast, Expr, conjuncts


class Emitter:
    """Emits one kernel's body; the prologue (arguments, buffers) has been made by `lower`."""

    def __init__(
        self,
        isa: Isa,
        layout: Layout,
        planner: Planner,
        storage: Storage,
        tensors: Mapping[Value, Tensor],
        scalars: dict[Value, Prim],
        extents: Mapping[str, Prim],
        buffers: Mapping[str, Any],
        accumulators: Any,
        temps: Temps,
        cells: Iterator[Any],
        bounds: Bounds,
    ) -> None:
        self.isa, self.layout, self.planner, self.storage = isa, layout, planner, storage
        self.bounds = bounds
        self.tensors, self.scalars, self.extents = tensors, scalars, extents
        self.buffers, self.accumulators, self.temps, self.cells = (
            buffers,
            accumulators,
            temps,
            cells,
        )
        self.local: dict[Value, Prim] = {}  # values of the element being computed
        self.loops: list[Value] = []  # counters of the loops around, outermost first
        self.sizes: dict[str, int] = {}
        self.lane: Prim | None = None  # the lane that is being computed, or all of them
        self.explicit = 0  # lanes of an explicit vector, 0 in a vectorised loop
        self.memory, self.reductions = Memory(self), Reductions(self)

    # blocks

    def block(self, plan: BlockPlan) -> None:
        """The items of a block, then the copies that its end asks for."""
        for item in plan.items:
            self.item(item)
        for v, slot in self.storage.exit_copies.get(plan, []):
            self.copy_value(v, slot)

    def item(self, item: Item) -> None:
        """One item of a block."""
        match item:
            case Scalar(op):
                self.scalar(op)
            case Copy(op):
                self.copy_load(op)
            case Loop(op, body):
                self.loop(op, body)
            case Branch():
                self.branch(item)
            case Nest():
                self.nest(item)

    def scalar(self, op: Op) -> None:
        """A scalar goes through a cell of memory: TVM would substitute a let everywhere."""
        value = self.uniform(op.expr, op.operands, op.result.type.dtype)
        if op.result.type.dtype is not I64:
            self.scalars[op.result] = T.Bind(value)
            return
        cell = next(self.cells)
        T.buffer_store(cell, value, [0])
        self.scalars[op.result] = cell[0]

    def uniform(self, e: Expr, operands: Sequence[Value], want: DType | None = None) -> Prim:
        """An expression over scalars alone."""
        return self.expression(e, operands, {}).lower(e, want)

    def loop(self, op: Op, body: BlockPlan) -> None:
        """A `for`: its carried values are scratch that the body overwrites."""
        for v, slot in self.storage.entry_copies[op]:
            self.copy_value(v, slot)
        lo = self.uniform(op.attrs["lo"], op.operands, I64)
        hi = self.uniform(op.attrs["hi"], op.operands, I64)
        with T.serial(lo, tirx.max(lo, hi)) as var:
            self.scalars[op.body.args[0]] = var
            self.loops.append(op.body.args[0])
            self.block(body)
            self.loops.pop()

    def branch(self, item: Branch) -> None:
        """An `if`."""
        with T.If(self._all(conjuncts(item.op.attrs["cond"]), item.op.operands)):
            with T.Then():
                self.block(item.then)
            with T.Else():
                self.block(item.other)

    def _all(self, parts: Sequence[Expr], operands: Sequence[Value]) -> Prim:
        """Whether all conditions hold: one after the other, since the time that TVM takes for a
        long conjunction grows exponentially."""
        if len(parts) <= 2:
            conditions = [self.uniform(part, operands) for part in parts]
            return conditions[0] if len(parts) == 1 else tirx.And(*conditions)
        cell = next(self.cells)
        yes, no = tirx.const(1, "int64"), tirx.const(0, "int64")
        for n, part in enumerate(parts):
            holds = cell[0] if n else yes
            T.buffer_store(cell, tirx.Select(self.uniform(part, operands), holds, no), [0])
        return cell[0] != no

    # reading values

    def expression(self, e: Expr, operands: Sequence[Value], pos: Position) -> ExprLowering:
        """How to lower `e` for the element at `pos`."""
        return ExprLowering(
            self.isa,
            [v.type.dtype for v in operands],
            lambda k: self.read(operands[k], pos),
            lambda a: wide(pos[a]),
            self.extents.__getitem__,
            self.bind,
            self.spread,
            lambda fn, args: self.compare(fn, args, operands, pos),
        )

    def compare(
        self, fn: str, args: Sequence[Expr], operands: Sequence[Value], pos: Position
    ) -> Prim | None:
        """A comparison of positions in the tile, in 32 bits."""

        def position(multiples: Mapping[str, int]) -> Prim:
            total: Prim = i32(0)
            ramp: tuple[int, int] | None = None
            for a, c in multiples.items():
                x = pos[a]
                if isinstance(x, tirx.Ramp):
                    ramp = c, int(x.lanes)
                    x = x.base
                total = total + x * c
            return total if ramp is None else tirx.Ramp(total, i32(ramp[0]), ramp[1])

        def shared(e: Expr) -> Prim:
            with self.one_lane():
                return self.uniform(e, operands, I64)

        return positions.compare(
            fn, args, operands, self.sizes, position, shared, self.spread, self.isa
        )

    @contextmanager
    def one_lane(self) -> Iterator[None]:
        """What is lowered inside is the same for all lanes, and no vector."""
        lanes, self.explicit = self.explicit, 0
        yield
        self.explicit = lanes

    def bind(self, x: Prim, t: DType) -> Prim:
        """`x` computed once; a constant or a load already is."""
        if isinstance(x, READY):
            return x
        if self.lane is None:
            return x
        buffer = self.temps.take(register_dtype(t))
        if buffer is None:
            return x
        T.buffer_store(buffer, x, [self.lane])
        return buffer[self.lane]

    def spread(self, x: Prim) -> Prim:
        """A scalar in all lanes of an explicit vector."""
        if not self.explicit or "x" in dtype_of(x):
            return x
        return tirx.Broadcast(x, self.explicit)

    def at_lane(self, base: Prim) -> Prim:
        """Where the lanes of a vector that starts at `base` are."""
        if self.explicit:
            return tirx.Ramp(base, i32(1), self.explicit)
        return base + (self.lane if self.lane is not None else i32(0))

    def read(self, v: Value, pos: Position) -> Prim:
        """The element of `v` at `pos`, in its register type."""
        if v in self.local:
            return self.local[v]
        if v in self.scalars:
            return self.scalars[v]
        if v in self.storage.slots:
            slot = self.storage.slots[v]
            return self.buffers[slot.buffer.name][tuple(self.slot_index(slot, pos))]
        assert v.owner is not None, f"{v} has no place"
        if v.owner.name == "load":
            return self.read_uniform(v.owner, pos)
        assert v.owner.name == "map", f"{v} of {v.owner.name} has no place"
        return self.expression(v.owner.expr, v.owner.operands, pos).lower(
            v.owner.expr, v.type.dtype
        )

    def read_uniform(self, op: Op, pos: Position) -> Prim:
        """An element in place; in an explicit vector the same for all lanes."""
        with self.one_lane():
            return self.memory.read(op, pos)

    def slot_index(self, slot: Slot, pos: Position) -> list[Prim]:
        """Where the element at `pos` lies in a slot."""
        index: Prim = i32(slot.first)
        ramp: tuple[int, int] | None = None
        for a, step in slot.strides:
            x = pos[a]
            if isinstance(x, tirx.Ramp):
                ramp = (step, int(x.lanes))
                x = x.base
            index = index + x * step
        return [index if ramp is None else tirx.Ramp(index, i32(ramp[0]), ramp[1])]

    # copies

    def copy_value(self, v: Value, slot: Slot) -> None:
        """Write a value, element by element, to a slot."""

        def body(pos: Position) -> None:
            T.buffer_store(
                self.buffers[slot.buffer.name], self.read(v, pos), self.slot_index(slot, pos)
            )

        self.over(v, body)

    def copy_load(self, op: Op) -> None:
        """Bring a tile into scratch, converted, lanes innermost."""
        for (v, k), pairs in self.storage.pairs.items():
            if v is op.result:
                copy_pairs(self, op, k, pairs)
        slot = self.storage.slots.get(op.result)
        if slot is None:
            return
        t = op.result.type.dtype
        buffer = self.buffers[slot.buffer.name]

        def body(pos: Position) -> None:
            x = cast(self.memory.read(op, pos), t, register_dtype(t))
            T.buffer_store(buffer, x, self.slot_index(slot, pos))

        self.sizes = {a.name: a.size for a in op.result.type.axes}
        if is_diagonal(op.result):
            self.along_diagonals(slot, body)
            return
        if not load_turned(self, op, slot, lambda: self.over(op.result, body)):
            with self.memory.looked_up([op.result]):
                self.over(op.result, body)

    def along_diagonals(self, slot: Slot, body: Callable[[Position], None]) -> None:
        """Run `body` for an element of each diagonal: those of one row, and of the row before."""
        (other, _), (axis, _) = slot.strides
        width = self.layout.width
        with T.serial(0, slot.buffer.size // width) as n:
            pos: Position = {other: i32(0)}
            with self.lanes((n * width - slot.first, width), pos, axis):
                body(pos)
                self.temps.release()

    def over(self, v: Value, body: Callable[[Position], None]) -> None:
        """Run `body` for every element of a value, vectorised along its innermost axis."""
        order = self.layout.order(v.type)
        sizes = {a.name: a.size for a in v.type.axes}
        with self.nest_loops(order[:-1], sizes) as pos:
            for x in self.vectors(order[-1] if order else None, sizes):
                with self.lanes(x, pos, order[-1] if order else None):
                    body(pos)
                    self.temps.release()

    # loops

    @contextmanager
    def nest_loops(self, axes: Sequence[str], sizes: Mapping[str, int]) -> Iterator[Position]:
        """Serial loops over `axes`."""
        pos: Position = {}
        with ExitStack() as stack:
            for a in axes:
                pos[a] = stack.enter_context(T.serial(0, sizes[a]))
            yield pos

    def split(self, axis: str | None, size: int) -> tuple[int, int]:
        """(vectors, elements in a vector) along an axis."""
        if axis is None:
            return 1, 1
        if axis == self.layout.lane_axis:
            return -(-size // self.layout.width), self.layout.width
        width = self.layout.width
        while size % width:
            width //= 2
        return size // width, width

    def vectors(self, axis: str | None, sizes: Mapping[str, int]) -> Iterator[tuple[Prim, int]]:
        """(first index, width) of each vector along an axis, in a loop if there are more."""
        count, width = self.split(axis, sizes.get(axis or "", 1))
        if count == 1:
            yield i32(0), width
        else:
            with T.serial(0, count) as n:
                yield n * width, width

    @contextmanager
    def lanes(self, x: tuple[Prim, int], pos: Position, axis: str | None) -> Iterator[None]:
        """A vectorised loop over the lanes of one vector."""
        first, width = x
        if self.explicit:
            self.lane = tirx.Ramp(i32(0), i32(1), width)
            pos[str(axis)] = tirx.Ramp(first, i32(1), width)
            yield
        elif width == 1:
            self.lane = i32(0)
            if axis is not None:
                pos[axis] = first
            yield
        else:
            with T.vectorized(0, width) as v:
                self.lane = v
                assert axis is not None
                pos[axis] = first + v
                yield
        self.lane = None

    # nests

    def nest(self, nest: Nest) -> None:
        """One nest: reductions filled, its loops, reductions finished."""
        op = nest.ops[0]
        self.sizes = self.tile_sizes(nest)
        for o in nest.ops:
            if o.name == "reduce":
                self.reductions.fill(o)
        if nest.contraction is not None:
            self.contraction_nest(nest)
        else:
            shape = elements(op)

            def each() -> None:
                with self.memory.looked_up(self._rows_of(nest.ops, shape)):
                    self.elementwise_nest(nest.ops, shape)

            if not store_turned(self, nest.ops, shape, each):
                each()
        for o in nest.ops:
            if o.name == "reduce":
                self.reductions.finish(o)

    def _rows_of(self, ops: Sequence[Op], shape: Value) -> Iterator[Value]:
        """The loads that a nest reads row by row, where they lie."""
        lanes = self.layout.order(shape.type)[-1:]
        for op in ops:
            for v in op.operands if op.name in ("map", "reduce", "store") else ():
                if v.owner is None or v in self.tensors:
                    continue
                if v in self.planner.inline:
                    yield from self._rows_of([v.owner], shape)
                elif v not in self.storage.slots and self.layout.order(v.type)[-1:] == lanes:
                    yield v

    def tile_sizes(self, nest: Nest) -> dict[str, int]:
        """Sizes of the axes that a nest touches."""
        values = [v for op in nest.ops for v in [*op.operands, *op.results]]
        return {a.name: a.size for v in values if v not in self.tensors for a in v.type.axes}

    def contraction_nest(self, nest: Nest) -> None:
        """A contraction in the form that its layout asks for, and what is applied to its result."""
        op, *rest = nest.ops
        if not all(a.size for a in op.result.type.axes):
            return  # no elements: a width of nothing has no registers to share out
        placed = self.storage.slots
        with self.memory.looked_up(v for v in inputs(op) if v not in placed):
            self._contraction(op, *rest)

    def _contraction(self, op: Op, *rest: Op) -> None:
        if is_horizontal(op, self.layout):
            Horizontal(self, op).emit()
            if rest:
                self.elementwise_nest(rest, op.result)
        elif op in self.storage.dots:
            for v in dict.fromkeys(op.operands[:2]):
                key = (v, op.over[-1])
                if key not in self.storage.packed_by_nest and not _is_load(v):
                    repack(self, *key, self.storage.pairs[key])
            form = StreamedDot if is_streamed(op, self.layout, self.planner.kept) else Dot
            form(self, op, rest).emit()
        elif is_streamed(op, self.layout, self.planner.kept):
            staged = op in self.storage.stages
            (Staged if staged else Streamed)(self, op, rest).emit()
        else:
            Broadcast(self, op, rest).emit()

    def elementwise_nest(self, ops: Sequence[Op], shape: Value) -> None:
        """Loops over all elements of `shape`, with `ops` in the innermost."""
        order = self.layout.order(shape.type)
        axis = order[-1] if order else None
        packed = {v: k for v, k in self.storage.packed_by_nest if v.owner in ops}
        sizes = dict(self.sizes)
        for k in set(packed.values()):
            sizes[k] //= 2
        width = self.split(axis, sizes.get(axis or "", 1))[1]
        self.explicit = width if qualifies(self, ops, axis, width) else 0
        with self.nest_loops(order[:-1], sizes) as pos:
            for x in self.vectors(axis, sizes):
                if packed:
                    self.element_pairs(ops, pos, x, axis, packed)
                    continue
                with self.lanes(x, pos, axis):
                    self.element_body(ops, pos)
        self.explicit = 0

    def element_pairs(
        self,
        ops: Sequence[Op],
        pos: Position,
        x: tuple[Prim, int],
        axis: str | None,
        packed: Mapping[Value, str],
    ) -> None:
        """Two neighbours along the axis of the pairs; their values go to scratch side by side."""
        (k,) = set(packed.values())
        halves = {
            v: (self.temps.pairs[2 * n], self.temps.pairs[2 * n + 1]) for n, v in enumerate(packed)
        }
        with self.lanes(x, pos, axis):
            for n in (0, 1):
                here = {**pos, k: pos[k] * 2 + n}
                for v, value in self.element_body(ops, here, keep=packed).items():
                    T.buffer_store(halves[v][n], value, [self.lane])
        first = {**pos, str(axis): x[0]}
        for v, (low, high) in halves.items():
            slot = self.storage.pairs[v, k]
            (index,) = self.slot_index(slot, first)
            lanes = tirx.Ramp(i32(0), i32(1), x[1])
            target = [tirx.Ramp(index, i32(1), x[1])]
            T.buffer_store(self.buffers[slot.buffer.name], pack2(low[lanes], high[lanes]), target)

    def element_body(
        self, ops: Sequence[Op], pos: Position, keep: Mapping[Value, str] | None = None
    ) -> dict[Value, Prim]:
        """All operations of a nest for one vector: first every value, then every write.

        Gives the values in `keep`, to be packed as bf16.
        """
        for op in ops:
            if op.name == "map":
                e, t = op.expr, op.result.type.dtype
                if (
                    keep
                    and op.result in keep
                    and isinstance(e, Cast)
                    and not self._read_by(ops, op)
                ):
                    e, t = e.arg, F32  # packing rounds
                x = self.expression(e, op.operands, pos).lower(e, t)
                self.local[op.result] = self.bind(x, t)
        pending = [
            (op, self.read(op.operands[0], pos)) for op in ops if op.name in ("reduce", "store")
        ]
        for op in ops:
            slot = self.storage.slots.get(op.results[0]) if op.results else None
            if slot is not None and op.result in self.local:
                x = self.local[op.result]
                T.buffer_store(self.buffers[slot.buffer.name], x, self.slot_index(slot, pos))
        for op, x in pending:
            if op.name == "reduce":
                self.reductions.accumulate(op, x, pos)
            else:
                self.memory.store(op, x, pos)
        kept = {v: self.local[v] for v in keep or ()}
        self.local.clear()
        self.temps.release()
        return kept

    @staticmethod
    def _read_by(ops: Sequence[Op], op: Op) -> bool:
        return any(op.result in o.operands for o in ops)


def _is_load(v: Value) -> bool:
    return v.owner is not None and v.owner.name == "load"

"""Copies of tiles between global and shared memory, in units of up to 16 bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cuda.access import Portions
from tilecc.codegen.cuda.elements import local
from tilecc.codegen.cuda.mathlib import Prim
from tilecc.codegen.cuda.shared import SharedTile
from tilecc.ir.core import Op, Range
from tilecc.ir.dtypes import I64
from tilecc.ir.expr import Expr

if TYPE_CHECKING:
    from tilecc.codegen.cuda.emit import Emitter
    from tilecc.codegen.cuda.memory import Memory

UNROLLED = 16
"""Copies by a thread that are written out."""
_FAR = 1 << 27
"""More elements than any tile has, and so few that their bytes are a 32-bit number."""


class Copy:
    """The copy of a tile from global to shared memory, `unit` bytes at a time."""

    dense = False
    """How units are shared out (`Portions`)."""

    def __init__(self, memory: Memory, op: Op, tile: SharedTile, unit: int) -> None:
        self.memory, self.em, self.op, self.tile, self.unit = memory, memory.em, op, tile, unit
        self.tensor = self.em.tensors[op.operands[1 if op.name == "store" else 0]]
        self.sizes = dict(tile.axes)
        self.threads = self.em.plan.roles.threads
        portions = Portions.of(tile, unit, self.threads, dense=self.dense)
        self.shape, self.each = portions.shape, portions.each
        self.columns, self.rows = portions.columns, portions.rows
        self.together, self.pieces = portions.together, portions.pieces
        if self.each > 1:
            self.tensor.alignment = max(self.tensor.alignment, unit)
        self.starts: dict[str, Prim] = {}
        self.base: Any = None
        self.pointer: Any = None
        self.slopes: tuple[int, ...] | None = None

    def emit(self) -> None:
        """All copies of the tile."""
        self.begin()
        loop = T.unroll if self.pieces <= UNROLLED else T.serial
        with loop(0, self.pieces) as k:
            self.piece(k)
        self.end()

    def begin(self) -> None:
        """What the pieces have in common: where the tile begins, and a pointer that they move."""
        em = self.em
        offset = self.corner(lambda e: em.uniform(e, self.op.operands, I64))
        if self.op in em.pointers:
            self.pointer, self.slopes = em.pointers[self.op]
            return
        self.place(offset)
        if self.row_axis is not None:
            self.point()

    def place(self, offset: Prim) -> None:
        """Keep the offset of the tile's first element."""
        self.base = local(1, "int64")
        T.buffer_store(self.base, offset, [0])

    def point(self) -> Any:
        """Make the pointer: this thread's address in the first piece."""
        self.pointer = local(1, "int64")
        kept = self.em.call("keep", tirx.Cast("uint32", self.row))
        T.buffer_store(self.pointer, self.address(self.where(kept, self.column)), [0])
        return self.pointer

    def piece(self, k: Prim) -> None:
        """What each thread copies in one go, the k-th of `pieces`; in order."""
        if not self.together:
            n = k * self.threads + self.em.thread
            total = self.rows * self.columns
            inside = [n < total] if total % self.threads else []
            where = self.where(n // self.columns, n % self.columns)
            self.copy(where, self.address(where), inside)
            return
        at = k * self.together + self.row
        inside = [self.row < self.together] if self.together * self.columns < self.threads else []
        inside += [at < self.rows] if self.rows % self.together else []
        where = self.where(at, self.column)
        if self.pointer is None or self.row_axis is None:
            self.copy(where, self.address(where), inside)
            return
        self.copy(where, self.pointer[0], inside)
        on = self.moved({self.row_axis: self.together})
        # Kept, so that no two steps are put together, which would have to be multiplied out.
        T.buffer_store(self.pointer, self.em.call("keep_64", self.pointer[0] + on), [0])

    def end(self) -> None:
        """Move the pointer to where the next iteration of the loop takes over."""
        if self.slopes is None:
            return
        rest = dict(enumerate(self.slopes))
        assert self.row_axis is not None
        rest[self.row_axis] -= self.together * self.pieces
        if any(rest.values()):
            T.buffer_store(self.pointer, self.pointer[0] + self.moved(rest), [0])

    def moved(self, by: Mapping[int, int]) -> Prim:
        """Bytes between elements whose coordinates differ by so much."""
        total: Prim = tirx.const(0, "int64")
        for n, step in by.items():
            if step:
                size = tirx.const(step * self.tile.dtype.bytes, "int64")
                total = total + self.tensor.strides[n] * size
        return total

    @property
    def row(self) -> Prim:
        """The row of this thread, of those that are copied at once."""
        return self.em.thread // self.columns

    @property
    def column(self) -> Prim:
        """The unit of a row that this thread copies."""
        return self.em.thread % self.columns

    @property
    def row_axis(self) -> int | None:
        """The coordinate that moves from row to row, where that is one, and rows are copied whole.

        Then the address moves on by a stride, and is not multiplied out.
        """
        along = [n for n, c in enumerate(self.op.attrs["coords"]) if self.is_row(c)]
        return along[0] if self.together and len(along) == 1 else None

    def corner(self, value: Callable[[Expr], Prim]) -> Prim:
        """The offset of the tile's first element, by the values of its coordinates."""
        offset: Prim = tirx.const(0, "int64")
        for n, c in enumerate(self.op.attrs["coords"]):
            x = value(c.base if isinstance(c, Range) else c)
            if isinstance(c, Range):
                self.starts[c.axis] = x
            else:
                bounds = self.memory.bounds
                if bounds.may_be_high(self.op, n):
                    x = tirx.min(x, self.tensor.shape[n] - 1)
                if bounds.may_be_low(self.op, n):
                    x = tirx.max(x, tirx.const(0, "int64"))
            offset = offset + x * self.tensor.strides[n]
        return offset

    def is_row(self, c: Range | Expr) -> bool:
        """Whether a coordinate moves from row to row."""
        return isinstance(c, Range) and c.axis != self.tile.inner and dict(self.shape)[c.axis] > 1

    def where(self, row: Prim, column: Prim) -> dict[str, Prim]:
        """The coordinates in the tile of a unit."""
        found = split(row, self.shape[:-1])
        found[self.tile.axes[-1][0]] = column * self.each
        return found

    def address(self, where: Mapping[str, Prim]) -> Prim:
        """The address of a unit in global memory."""
        start = self.em.call("address", T.address_of(self.tensor.buffer[self.base[0]]))
        offset: Prim = tirx.const(0, "int64")
        for n, c in enumerate(self.op.attrs["coords"]):
            if isinstance(c, Range):
                offset = offset + tirx.Cast("int64", where[c.axis]) * self.tensor.strides[n]
        size = tirx.const(self.tile.dtype.bytes, "int64")
        return self.em.call("keep_64", start) + offset * size

    def copy(self, where: Mapping[str, Prim], source: Prim, conditions: list[Prim]) -> None:
        """One unit, by threads for which the conditions hold."""
        em, tile = self.em, self.tile
        valid, bytes_ = [], None
        for n, c in enumerate(self.op.attrs["coords"]):
            if not isinstance(c, Range):
                continue
            size, room = self.sizes[c.axis], dict(self.shape)[c.axis]
            if room > size:
                valid.append(where[c.axis] < size)
            if self.memory.bounds.may_be_low(self.op, n):
                x = tirx.Cast("int64", where[c.axis])
                valid.append(self.starts[c.axis] + x >= tirx.const(0, "int64"))
            if self.memory.bounds.may_be_high(self.op, n):
                left = self.tensor.shape[n] - self.starts[c.axis]
                near = tirx.Cast("int32", tirx.min(left, tirx.const(_FAR, "int64")))
                if c.axis == tile.inner and self.each > 1:
                    bytes_ = (near - where[c.axis]) * tile.dtype.bytes
                else:
                    valid.append(where[c.axis] < near)
        index = tile.offset + tile.index(where) * tile.dtype.bytes
        to = self.memory.shared_base() + tirx.Cast("uint32", index)
        with em.when(conditions):
            guard = "" if em.predicate is None else "_if"
            more = [] if em.predicate is None else [em.predicate]
            if not valid and bytes_ is None:
                T.evaluate(em.call(f"cp_async_all{guard}_{self.unit}", to, source, *more))
                return
            count: Prim = tirx.const(self.unit, "int32")
            if bytes_ is not None:
                count = tirx.max(tirx.min(bytes_, count), tirx.const(0, "int32"))
            for c in valid:
                count = tirx.Select(c, count, tirx.const(0, "int32"))
            T.evaluate(em.call(f"cp_async{guard}_{self.unit}", to, source, count, *more))


class Rows(Copy):
    """The copy of a tile from shared to global memory."""

    dense = True

    def copy(self, where: Mapping[str, Prim], source: Prim, conditions: list[Prim]) -> None:
        """One unit; element by element where the tensor ends within it."""
        em, tile = self.em, self.tile
        inner = str(tile.inner)
        inside, whole = list(conditions), []
        for n, c in enumerate(self.op.attrs["coords"]):
            if not isinstance(c, Range):
                continue
            x = self.starts[c.axis] + tirx.Cast("int64", where[c.axis])
            if self.memory.bounds.may_be_low(self.op, n):
                inside.append(x >= tirx.const(0, "int64"))
            if self.memory.bounds.may_be_high(self.op, n):
                if c.axis == inner and self.each > 1:
                    whole.append(x + self.each <= self.tensor.shape[n])
                else:
                    inside.append(x < self.tensor.shape[n])
        index = tile.offset + tile.index(where) * tile.dtype.bytes
        words = local(self.unit // 4, "uint32") if self.each > 1 else None
        with em.when(inside):
            if words is None:
                self.element(where)
                return
            if not whole:
                self.move(words, index, source)
                return
            with T.If(whole[0]):
                with T.Then():
                    self.move(words, index, source)
                with T.Else():
                    self.elements(where)

    def move(self, words: Any, index: Prim, to: Prim) -> None:
        """One unit."""
        call, unit = self.em.call, self.unit
        source = T.address_of(self.em.shared[index])
        T.evaluate(call(f"load_{unit}", T.address_of(words[0]), source))
        T.evaluate(call(f"store_{unit}", to, T.address_of(words[0])))

    def element(self, at: Mapping[str, Prim]) -> None:
        """The element at a place in the tile."""
        offset = self.base[0]
        for n, c in enumerate(self.op.attrs["coords"]):
            if isinstance(c, Range):
                offset = offset + tirx.Cast("int64", at[c.axis]) * self.tensor.strides[n]
        x = self.em.view(self.tile)
        place = self.tile.offset // self.tile.dtype.bytes + self.tile.index(at)
        T.buffer_store(self.tensor.buffer, x[place], [offset])

    def elements(self, where: Mapping[str, Prim]) -> None:
        """The elements of a unit that lie in the tensor."""
        inner = str(self.tile.inner)
        with T.serial(0, self.each) as k:
            at = {**where, inner: where[inner] + k}
            with self.em.when([self.starts[inner] + at[inner] < self.tensor.shape[-1]]):
                self.element(at)


class Spread:
    """A loop over numbers below `total`, shared out to the threads."""

    def __init__(self, em: Emitter, total: int) -> None:
        self.em, self.total = em, total
        self.stack: list[Any] = []

    def __enter__(self) -> Prim:
        threads = self.em.plan.roles.threads
        steps = -(-self.total // threads)
        self.stack = [T.serial(0, steps)]
        k = self.stack[0].__enter__()
        n = k * threads + self.em.thread
        if self.total % threads:
            for frame in (T.If(n < self.total), T.Then()):
                frame.__enter__()
                self.stack.append(frame)
        return n

    def __exit__(self, *error: Any) -> None:
        for frame in reversed(self.stack):
            frame.__exit__(*error)


def split(n: Prim, axes: Sequence[tuple[str, int]]) -> dict[str, Prim]:
    """A number as coordinates, the last axis fastest."""
    where: dict[str, Prim] = {}
    for k, (a, size) in reversed(list(enumerate(axes))):
        if size == 1:
            where[a] = tirx.const(0, "int32")
            continue
        where[a] = n % size if k else n
        n = n // size
    return where

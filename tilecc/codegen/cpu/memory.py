"""Elements of tensors: their coordinates, kept inside, and what is read and written there."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.casts import cast, from_memory, stored, to_memory
from tilecc.codegen.cpu.registers import Position, i32, i64
from tilecc.codegen.cpu.rows import Rows
from tilecc.codegen.cpu.scalars import Prim, const
from tilecc.codegen.cpu.vectors import prefetch
from tilecc.ir.core import Op, Range, Value
from tilecc.ir.dtypes import I64
from tilecc.ir.expr import Expr

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter


class Memory:
    """Loads and stores of single elements, for an emitter."""

    def __init__(self, em: Emitter) -> None:
        self.em = em
        self.blocks: dict[Op, tuple[Any, Prim]] = {}
        """Stores whose elements are gathered in a block first: the block, and where a vector is."""
        self.rows: dict[Op, Rows] = {}
        """Loads whose rows have been looked up."""
        self.anywhere = False
        """Whether positions may be beyond the ends of tiles, too."""

    @contextmanager
    def kept_inside(self, anywhere: bool) -> Iterator[None]:
        """What is read inside may be `anywhere` along an axis: it is kept within its tensor."""
        self.anywhere = anywhere
        yield
        self.anywhere = False

    @contextmanager
    def looked_up(self, values: Iterable[Value]) -> Iterator[None]:
        """For what reads values row by row: those of them whose rows are picked have these looked
        up before."""
        loads = [v.owner for v in dict.fromkeys(values) if v.owner is not None]
        found = [Rows.of(self.em, op) for op in loads if op.name == "load"]
        self.rows = {r.op: r for r in found if r is not None}
        yield
        self.rows = {}

    def coordinates(self, op: Op, pos: Position) -> list[Prim]:
        """Global coordinates (i64) of a load or store for the element at `pos`."""
        return [self._coordinate(op, c, pos) for c in op.attrs["coords"]]

    def _coordinate(self, op: Op, c: Range | Expr, pos: Position) -> Prim:
        if isinstance(c, Range):
            return self.em.uniform(c.base, op.operands, I64) + i64(pos[c.axis])
        return self.em.expression(c, op.operands, pos).lower(c, I64)

    def read(
        self, op: Op, pos: Position, *, inside: Sequence[str] = (), anything: Sequence[str] = ()
    ) -> Prim:
        """An element straight from the tensor; beyond its end 0, without touching memory there.

        `inside`: axes along which the caller stays within the tensor. `anything`: those along which
        it takes any element instead of 0.
        """
        coords, valid = self.address(op, pos, inside=inside, anything=anything)
        x = self.element(op, coords)
        if valid is None:
            return x
        return tirx.Select(valid, x, const(0, op.result.type.dtype))

    def address(
        self, op: Op, pos: Position, *, inside: Sequence[str] = (), anything: Sequence[str] = ()
    ) -> tuple[list[Prim], Prim | None]:
        """Coordinates that are in the tensor, and the condition that they are the right ones."""
        if op in self.rows:
            return self.rows[op].coordinates(self.em, pos), None
        tensor = self.em.tensors[op.operands[0]]
        coords = self.coordinates(op, pos)
        valid: Prim | None = None
        for n, (c, x) in enumerate(zip(op.attrs["coords"], coords, strict=True)):
            waived = isinstance(c, Range) and c.axis in inside
            fits = self.within(op, n, x, tensor.shape[n], high=not waived)
            # TVM would drop a `min` that the condition beside it implies, and read what is outside.
            if not waived and (self.anywhere or self.em.bounds.may_be_high(op, n)):
                coords[n] = tirx.call_llvm_pure_intrin(
                    "int64", "llvm.smin", coords[n], tensor.shape[n] - 1
                )
            if self.em.bounds.may_be_low(op, n):
                zero = tirx.const(0, "int64")
                coords[n] = tirx.call_llvm_pure_intrin("int64", "llvm.smax", coords[n], zero)
            # What a point reads outside is any element: no result may depend on it.
            if fits is not None and isinstance(c, Range) and c.axis not in anything:
                valid = fits if valid is None else tirx.And(valid, fits)
        return coords, valid

    def inside(self, op: Op, axis: str, pos: Position) -> Prim | None:
        """The condition for an element of a load to be in the tensor along an axis of its tile."""
        tensor = self.em.tensors[op.operands[0]]
        ends = [
            self.within(op, n, self._coordinate(op, c, pos), tensor.shape[n])
            for n, c in enumerate(op.attrs["coords"])
            if isinstance(c, Range) and c.axis == axis
        ]
        known = [x for x in ends if x is not None]
        return functools.reduce(tirx.And, known) if known else None

    def fetch_ahead(self, op: Op, pos: Position, axis: str, columns: int, rows: Prim) -> None:
        """Ask for the line at `pos`, `rows` and the bytes of `isa.ahead` further along `axis`.

        Nothing is asked for where rows neither follow each other in memory by one stride nor have
        been looked up. A row has `columns` elements. What lies beyond the tensor is not touched: a
        request is no access.
        """
        each = op.operands[0].type.dtype.bytes
        ahead = -(-self.em.isa.ahead // (columns * each))
        buffer = self.em.tensors[op.operands[0]].buffer
        if op in self.rows:
            last = i32(self.rows[op].count - 1)
            later = {**pos, axis: tirx.min(pos[axis] + rows + i32(ahead), last)}
            prefetch(T.address_of(buffer[tuple(self.address(op, later)[0])]), i64(0))
            return
        places = [
            n for n, c in enumerate(op.attrs["coords"]) if isinstance(c, Range) and c.axis == axis
        ]
        if len(places) != 1:
            return
        coords, _ = self.address(op, pos, inside=(axis,))
        stride = buffer.strides[places[0]] * each
        prefetch(T.address_of(buffer[tuple(coords)]), i64(rows + ahead) * stride)

    def within(self, op: Op, n: int, x: Prim, end: Prim, *, high: bool = True) -> Prim | None:
        """The condition for coordinate n of a load or store to be in the tensor; None: it is."""
        fits: Prim | None = x < end if high and self.em.bounds.may_be_high(op, n) else None
        if self.em.bounds.may_be_low(op, n):
            low = x >= 0
            fits = low if fits is None else tirx.And(fits, low)
        return fits

    def element(self, op: Op, coords: list[Prim]) -> Prim:
        """A tensor's element in its register type."""
        t = op.operands[0].type.dtype
        buffer = self.em.tensors[op.operands[0]].buffer
        return from_memory(buffer[tuple(coords)] if coords else buffer[()], t)

    def store(self, op: Op, x: Prim, pos: Position) -> None:
        """Write an element to a tensor, if it lies in it."""
        tensor = self.em.tensors[op.operands[1]]
        coords = self.coordinates(op, pos)
        x = cast(x, op.operands[0].type.dtype, op.operands[1].type.dtype)
        x = to_memory(x, op.operands[1].type.dtype)
        if op in self.blocks:
            block, first = self.blocks[op]
            x = stored(x, op.operands[1].type.dtype)
            T.buffer_store(block, x, [self.em.at_lane(first)])
            return
        inside: Prim | None = None
        lane_axis = str(self.em.layout.lane_axis)
        if op.operands[0].type.has(lane_axis) and self.em.sizes[lane_axis] % self.em.layout.width:
            inside = pos[lane_axis] < self.em.sizes[lane_axis]
        for n, c in enumerate(coords):
            fits = self.within(op, n, c, tensor.shape[n])
            if fits is not None:
                inside = fits if inside is None else tirx.And(inside, fits)
        if inside is None:
            T.buffer_store(tensor.buffer, x, coords)
        else:
            with T.If(inside), T.Then():
                T.buffer_store(tensor.buffer, x, coords)

"""Global memory: addresses, loads to shared memory, stores.

A tile whose innermost axis is contiguous is copied in units of up to 16 bytes by cp.async, which
fills with zeros what lies beyond the tensor; any other element by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.bounds import Bounds
from tilecc.codegen.cuda.access import copy_unit, store_unit
from tilecc.codegen.cuda.copies import Copy, Rows, Spread, split
from tilecc.codegen.cuda.elements import At
from tilecc.codegen.cuda.layout import Layout
from tilecc.codegen.cuda.mathlib import MEMORY, Prim
from tilecc.codegen.cuda.shared import SharedTile
from tilecc.ir.core import Op, Range, Value
from tilecc.ir.dtypes import I64

if TYPE_CHECKING:
    from tilecc.codegen.cuda.emit import Emitter


@dataclass
class Tensor:
    """A tensor in global memory: elements at a pointer, extents and strides (i64)."""

    buffer: Any
    shape: list[Prim]
    strides: list[Prim]
    alignment: int = 1
    """What address and strides are multiples of, in bytes, as far as loads rely on it."""


class Memory:
    """Loads and stores, for an emitter.

    `aligned`: tensors' addresses and strides may be relied on.
    """

    def __init__(self, em: Emitter, aligned: bool) -> None:
        self.em, self.aligned = em, aligned
        self.bounds = Bounds(em.plan.kernel)
        self._base: Any = None

    # Shared memory

    def shared_base(self) -> Prim:
        """The address of shared memory, for instructions."""
        if self._base is None:
            self._base = self.em.call("shared_address", T.address_of(self.em.shared[0]))
        return self._base

    def shared_view(self, dtype: str) -> Any:
        """All shared memory as elements of a type."""
        shared = self.em.shared
        size = int(shared.shape[0]) // max(1, _width(dtype))
        return T.decl_buffer((max(1, size),), dtype, data=shared.data, scope="shared.dyn")

    def zero_padding(self, tile: SharedTile) -> None:
        """Zeros in a tile's padding."""
        view = self.em.view(tile)
        sizes = dict(tile.axes)
        total = prod(tile.size(a) for a, _ in tile.axes)
        with Spread(self.em, total) as n:
            at = split(n, [(a, tile.size(a)) for a, _ in tile.axes])
            outside = [at[a] >= s for a, s in sizes.items() if tile.size(a) > s]
            either = outside[0]
            for c in outside[1:]:
                either = tirx.Or(either, c)
            with self.em.when([either]):
                index = tile.offset // tile.dtype.bytes + tile.index(at)
                T.buffer_store(view, tirx.const(0, MEMORY[tile.dtype.name]), [index])

    def fill(self, v: Value, tile: SharedTile) -> None:
        """A tile of what does not depend on other tiles, neighbours by neighbouring threads."""
        em = self.em
        with Spread(em, prod(n for _, n in tile.axes)) as n:
            where = split(n, tile.axes)
            x = em.math.to_memory(em.unrounded(v, At(Layout((), ()), {}, where)), v.type.dtype)
            index = tile.offset // tile.dtype.bytes + tile.index(where)
            T.buffer_store(em.view(tile), x, [index])

    # Loads

    def scalar(self, op: Op) -> Prim:
        """A single element."""
        offset, _ = self.element(op, At(Layout((), ()), {}))
        tensor = self.em.tensors[op.operands[0]]
        return self.em.math.from_memory(tensor.buffer[offset], op.operands[0].type.dtype)

    def load(self, op: Op, tile: SharedTile) -> None:
        """A tile into shared memory."""
        copy = self.copy_of(op, tile)
        if copy is not None:
            copy.emit()
        else:
            self.load_elements(op, tile)

    def copy_of(self, op: Op, tile: SharedTile | None = None) -> Copy | None:
        """How a load is copied in units; None where its elements go through registers."""
        home = tile or self.em.plan.homes.get(op.result)
        if not isinstance(home, SharedTile):
            return None
        unit = copy_unit(op, home, self.em.plan.target, self.aligned)
        return Copy(self, op, home, unit) if unit else None

    def load_elements(self, op: Op, tile: SharedTile) -> None:
        """A tile through registers, element by element."""
        em = self.em
        tensor, view = em.tensors[op.operands[0]], em.view(tile)
        sizes = dict(tile.axes)
        shape = [(a, tile.size(a) if tile.zero else n) for a, n in tile.axes]
        with Spread(self.em, prod(n for _, n in shape)) as n:
            where = split(n, shape)
            index = tile.offset // tile.dtype.bytes + tile.index(where)
            at = At(Layout((), ()), {}, where)
            offset, valid = self.element(op, at)
            valid += [where[a] < sizes[a] for a, m in shape if m > sizes[a]]
            if valid:
                zero = tirx.const(0, MEMORY[tile.dtype.name])
                both = valid[0]
                for c in valid[1:]:
                    both = tirx.And(both, c)
                with T.If(both):
                    with T.Then():
                        T.buffer_store(view, tensor.buffer[offset], [index])
                    with T.Else():
                        T.buffer_store(view, zero, [index])
            else:
                T.buffer_store(view, tensor.buffer[offset], [index])

    def element(self, op: Op, at: At) -> tuple[Prim, list[Prim]]:
        """(offset of an element from the tensor's start, conditions that it is in the tensor).

        Points and gathers are moved into the tensor: no table makes a kernel read elsewhere.
        """
        is_store = op.name == "store"
        tensor = self.em.tensors[op.operands[1 if is_store else 0]]
        valid: list[Prim] = []
        offset: Prim = tirx.const(0, "int64")
        for n, c in enumerate(op.attrs["coords"]):
            low, high = self.bounds.may_be_low(op, n), self.bounds.may_be_high(op, n)
            e = c.base if isinstance(c, Range) else c
            x = self.em.lowering(op.operands, at).lower(e, I64)
            if isinstance(c, Range):
                x = x + tirx.Cast("int64", at.coordinate(c.axis))
            inside = [x < tensor.shape[n]] if high else []
            inside += [x >= tirx.const(0, "int64")] if low else []
            if isinstance(c, Range) or is_store:
                valid += inside
            else:
                x = tirx.min(x, tensor.shape[n] - 1) if high else x
                x = tirx.max(x, tirx.const(0, "int64")) if low else x
            offset = offset + x * tensor.strides[n]
        return offset, valid

    # Stores

    def store_rows(self, op: Op, tile: SharedTile) -> None:
        """A tile in shared memory to a tensor."""
        Rows(self, op, tile, store_unit(op, self.aligned)).emit()

    def store(self, op: Op) -> None:
        """A tile to a tensor, each element by one of the threads that have it."""
        em = self.em
        v = op.operands[0]
        target = op.operands[1].type.dtype
        tensor = em.tensors[op.operands[1]]
        layout = em.plan.roles.layout(v.type)
        with em.elements(layout) as env:
            at = At(layout, env)
            offset, valid = self.element(op, at)
            with em.when([*em.owned(layout, v, at), *valid]):
                x = em.math.cast(em.read(v, at), v.type.dtype, target)
                T.buffer_store(tensor.buffer, em.math.to_memory(x, target), [offset])


def _width(dtype: str) -> int:
    return int("".join(c for c in dtype if c.isdigit()) or 8) // 8

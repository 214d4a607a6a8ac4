"""Streamed contractions whose large factor goes through a buffer in the first cache.

Memory is read as fast as a core can only if its lines are asked for one after the other, evenly,
and early: hardware fetches ahead of nothing else. Blocks of registers want the opposite, some
columns of many rows. So a chunk of rows is copied to a small buffer, converted to the type of the
sum, while all blocks of the chunk before it are multiplied: each step of a block copies the next
line or so in the order of memory, and asks for one further ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.casts import cast
from tilecc.codegen.cpu.contract import blocks
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.cpu.layout import (
    LINE,
    Layout,
    inputs,
    natural_axis,
    register_dtype,
    round_up,
)
from tilecc.codegen.cpu.registers import i32
from tilecc.codegen.cpu.scalars import Prim
from tilecc.codegen.cpu.streamed import Streamed
from tilecc.codegen.cpu.vectors import fence, opaque
from tilecc.ir.core import Op, Value
from tilecc.ir.dtypes import DType

if TYPE_CHECKING:
    from tilecc.codegen.cpu.registers import Position

LEAST_ROWS = 4


@dataclass(frozen=True)
class Stage:
    """How a contraction stages its large factor.

    Blocks of `mr` rows by `nr` vectors; `rows` of the factor in a chunk, `stride` elements each in
    the buffer, which holds two chunks.
    """

    large: Value
    mr: int
    nr: int
    rows: int
    stride: int
    dtype: DType

    @property
    def elements(self) -> int:
        """Elements of the buffer."""
        return 2 * self.rows * self.stride


def buffer_name(stage: Stage) -> str:
    """The scratch that contractions of a type stage in, one after the other."""
    return f"stage_{stage.dtype.name}"


def stage_of(op: Op, layout: Layout, isa: Isa) -> Stage | None:
    """How a streamed contraction is staged; None: one block has all columns, and reads in order."""
    x, (k,) = natural_axis(op), op.over
    (large,) = (v for v in inputs(op) if v.type.has(str(x)))
    if set(large.type.names) != {k, x}:
        return None
    columns, keys = large.type.axis(str(x)).size, large.type.axis(k).size
    rows = prod(a.size for a in op.result.type.axes if a.name != x)
    mr, nr = block_shape(rows, columns // layout.width, isa)
    if (rows <= mr and columns <= nr * layout.width) or columns < layout.width:
        return None
    stride, dtype = round_up(columns, layout.width), op.result.type.dtype
    fitting = isa.chunk // (2 * stride * register_dtype(dtype).bytes)
    chunk = LEAST_ROWS
    while 2 * chunk <= min(fitting, keys // 2):
        chunk *= 2
    return Stage(large, mr, nr, chunk, stride, dtype) if chunk <= keys else None


def block_shape(rows: int, vectors: int, isa: Isa) -> tuple[int, int]:
    """Rows and vectors of the blocks that a result is cut into, all of one size if that goes."""
    mr = -(-rows // -(-rows // min(isa.mr, isa.registers // 4)))
    most = max(1, isa.registers * 3 // 4 // mr)
    whole = [n for n in range(1, most + 1) if vectors % n == 0 and 2 * n > most]
    return mr, max(whole, default=-(-vectors // max(1, -(-vectors // most))))


@dataclass(frozen=True)
class _Copying:
    """How the copy of a chunk is shared out: `lines` of it every `keys` steps of `blocks` blocks.

    A row is `row_lines` lines of `elements`, the last one shifted back to end where the row does.
    """

    keys: int
    lines: int
    blocks: int
    row_lines: int
    elements: int

    @property
    def row_steps(self) -> int:
        """Steps that copy a row."""
        return -(-self.row_lines // self.lines)


class Staged(Streamed):
    """Emits one contraction; its large factor is staged chunk by chunk."""

    def stream(self, limit: Prim) -> None:
        """All chunks; the first is copied before, each other one while that before it is used."""
        em = self.em
        self.stage = stage = em.storage.stages[self.op]
        self.buffer, self.end = em.buffers[buffer_name(stage)], limit
        self.copying = self._share_out()
        static = isinstance(limit, int)
        first = min(stage.rows, limit) if static else tirx.min(i32(stage.rows), limit)
        with T.serial(0, first) as row, T.serial(0, self.copying.row_lines) as line:
            self._copy_line(row, row, line)
        full = limit // stage.rows if static else tirx.truncdiv(limit, i32(stage.rows))
        left = limit - full * stage.rows
        with T.serial(0, full) as chunk:
            self._multiply_chunk(chunk, stage.rows, copy=True)
        if not static or left:
            self._multiply_chunk(full, left, copy=False)

    def factor(self, v: Value, pos: Position) -> Prim:
        """A factor's element in the type of the sum; the large one's as it is staged."""
        if v is not self.stage.large:
            return super().factor(v, pos)
        index = self.row * self.stage.stride + pos[str(self.x)]
        return cast(self.buffer[index], self.stage.dtype, self.dtype)

    # blocks

    def _grid(self) -> tuple[list[str], int, list[tuple[int, int, int]]]:
        """Further axes of rows, rows of the last, and (first, count, lanes) along the lanes."""
        outer = [a for a in self.order[:-1] if a != self.y]
        return outer, self.em.sizes[self.y] if self.y else 1, list(self._vectors())

    def _share_out(self) -> _Copying:
        stage = self.stage
        outer, rows, vectors = self._grid()
        blocks = prod(self.em.sizes[a] for a in outer) * (rows // stage.mr)
        blocks *= vectors[0][1] // stage.nr
        columns, each = self.em.sizes[str(self.x)], stage.large.type.dtype.bytes
        elements = min(columns, LINE // each)
        lines = -(-columns // elements)
        for keys in (8, 4, 2, 1):
            found = _Copying(keys, -(-lines * keys // blocks), blocks, lines, elements)
            needless = keys > 1 and columns * each * keys > LINE * blocks
            if not needless and stage.rows % keys == 0 and blocks >= keys * found.row_steps:
                break
        return found

    def _multiply_chunk(self, chunk: Prim, keys: Prim, *, copy: bool) -> None:
        """All blocks for the keys of a chunk, which is staged; with `copy` the next one gets so."""
        stage = self.stage
        outer, rows, vectors = self._grid()
        high, wide = rows // stage.mr, vectors[0][1] // stage.nr
        with self.em.nest_loops(outer, self.em.sizes) as pos:
            number: Prim = i32(0)
            for a in outer:
                number = number * self.em.sizes[a] + pos[a]
            for y0, mr in blocks(rows, stage.mr):
                for n, (x0, count, width) in enumerate(vectors):
                    for first, nr in blocks(count, stage.nr):
                        regular = copy and n == 0 and mr == stage.mr and nr == stage.nr
                        at = number * high + tirx.truncdiv(y0, i32(mr))
                        at = at * wide + tirx.truncdiv(first, i32(nr))
                        part = _Part(chunk, keys, at if regular else None)
                        self._block(dict(pos), part, (y0, mr), (x0 + first, nr), width)

    def multiply(
        self,
        pos: Position,
        part: _Part,
        y: tuple[Prim, int],
        x: tuple[Prim, int],
        width: int,
    ) -> None:
        """Add the products of a chunk's keys, and copy this block's part of the next chunk."""
        c = self.copying
        if part.number is None:
            with T.serial(0, part.keys) as key:
                self._add(pos, part, key, 1, y, x, width)
            return
        each = self.stage.rows // c.blocks
        if each * c.blocks == self.stage.rows and c.blocks == c.keys * c.row_steps:
            with T.serial(0, each) as row, T.serial(0, opaque(c.row_steps)) as step:
                self._copy_lines(part.chunk, part.number * each + row, step)
                key = (row * c.row_steps + step) * c.keys
                self._add(pos, part, key, c.keys, y, x, width)
            return
        steps = self.stage.rows // c.keys
        with T.serial(0, opaque(steps)) as n:
            at = part.number * steps + n
            row = tirx.min(tirx.truncdiv(at, i32(c.row_steps)), i32(self.stage.rows - 1))
            self._copy_lines(part.chunk, row, tirx.truncmod(at, i32(c.row_steps)))
            self._add(pos, part, n * c.keys, c.keys, y, x, width)

    def _add(
        self,
        pos: Position,
        part: _Part,
        first: Prim,
        keys: int,
        y: tuple[Prim, int],
        x: tuple[Prim, int],
        width: int,
    ) -> None:
        """Add the products of some keys of a chunk."""
        for n in range(keys):
            self.row = self._half(part.chunk) + first + n
            k = part.chunk * self.stage.rows + first + n
            self.add_products({**pos, self.op.over[0]: k}, y, x, width)

    def _half(self, chunk: Prim) -> Prim:
        """The first row of the half of the buffer that holds a chunk."""
        return tirx.truncmod(chunk, i32(2)) * self.stage.rows

    # copies

    def _copy_lines(self, chunk: Prim, row: Prim, step: Prim) -> None:
        """Step number `step` of copying a row of the chunk after `chunk`."""
        target = self._half(chunk + 1) + row
        for n in range(self.copying.lines):
            line = step * self.copying.lines + n
            self._copy_line((chunk + 1) * self.stage.rows + row, target, line)

    def _copy_line(self, row: Prim, target: Prim, line: Prim) -> None:
        """Copy a line of a row of the tile; beyond its end the last row again."""
        em, stage, c = self.em, self.stage, self.copying
        op = stage.large.owner
        assert op is not None
        k, x = self.op.over[0], str(self.x)
        columns = em.sizes[x]
        first = line * c.elements
        if c.row_lines * c.elements != columns or c.row_lines % c.lines:
            first = tirx.min(first, i32(columns - c.elements))
        inside = tirx.min(row, (self.end if not isinstance(self.end, int) else i32(self.end)) - 1)
        pos: Position = {k: inside, x: first}
        em.memory.fetch_ahead(op, pos, k, columns, row - inside)
        fence()
        at = 0
        while at < c.elements:
            width = min(em.layout.width, 1 << (c.elements - at).bit_length() - 1)
            with em.lanes((first + at, width), pos, x):
                value = em.memory.read(op, pos, inside=(k,))
                t = register_dtype(op.result.type.dtype)
                index = [target * stage.stride + pos[x]]
                T.buffer_store(self.buffer, cast(value, t, stage.dtype), index)
                em.temps.release()
            at += width


@dataclass(frozen=True)
class _Part:
    """Keys of a chunk that is staged; `number`: which of the blocks that copy the next chunk."""

    chunk: Prim
    keys: Prim
    number: Prim | None

"""Tiles in shared memory: where their elements are, and how tiles share the room.

A row is the innermost axis. Between rows there may be a gap, and a row's 16-byte chunks may be
permuted by an XOR with bits of the row's number: `arrange` chooses by what reads and writes a tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tilecc.ir.core import Value
from tilecc.ir.dtypes import DType

CHUNK = 16
"""Bytes that move at once."""
ALIGN = 128
_BANK_ROWS = 8  # chunks in 128 bytes, the width of all banks


@dataclass(frozen=True)
class Arrangement:
    """How rows lie: `gap` elements from the end of one to the next, `bits` of a chunk's number are
    permuted. `turned`: neighbouring rows differ in the second of the permuted bits, and not in the
    first: then 32 bytes of 4 rows lie in different banks as 16 bytes of 8 rows do.
    """

    gap: int = 0
    bits: int = 0
    turned: bool = False

    def phase(self, row: Any) -> Any:
        """What chunk numbers of a row are XORed with."""
        step = _BANK_ROWS >> self.bits
        by = (row // step if step > 1 else row) % (1 << self.bits)
        if not self.turned:
            return by
        return by * 2 % (1 << self.bits) + by // (1 << (self.bits - 1))

    def place(self, row: Any, inner: Any, columns: int, per_chunk: int) -> Any:
        """The number of an element of a tile with rows of `columns`, `per_chunk` to 16 bytes."""
        start = row * (columns + self.gap)
        if not self.bits:
            return start + inner
        chunk = (inner // per_chunk) ^ self.phase(row)
        return start + chunk * per_chunk + inner % per_chunk


@dataclass(eq=False)
class SharedTile:
    """A tile's place: `axes` (name, size) in memory order, `dtype` of its elements.

    `padded` sizes are those of the memory: what is beyond the tile is 0 when it has been loaded.
    """

    name: str
    axes: tuple[tuple[str, int], ...]
    dtype: DType
    zero: bool = False
    """Whether somebody reads the padding, which must be 0 then."""
    padded: dict[str, int] = field(default_factory=dict)
    offset: int = -1
    asynchronous: bool = False
    chosen: Arrangement | None = None

    def require(self, axis: str, size: int) -> None:
        """Have room for (and zeros in) at least `size` along an axis."""
        if size > self.size(axis):
            self.padded[axis] = size
            self.zero = True

    def size(self, axis: str) -> int:
        """The size of the memory along an axis."""
        return max(self.padded.get(axis, 1), dict(self.axes)[axis])

    @property
    def inner(self) -> str | None:
        """The innermost axis."""
        return self.axes[-1][0] if self.axes else None

    @property
    def columns(self) -> int:
        """Elements in a row."""
        return self.size(self.axes[-1][0]) if self.axes else 1

    @property
    def rows(self) -> int:
        """Rows."""
        return prod(self.size(a) for a, _ in self.axes[:-1])

    @property
    def per_chunk(self) -> int:
        """Elements in 16 bytes."""
        return CHUNK // self.dtype.bytes

    @property
    def chunks(self) -> int:
        """Chunks in a row."""
        return -(-self.columns * self.dtype.bytes // CHUNK)

    @property
    def arrangement(self) -> Arrangement:
        """What has been chosen, or else what suits whole chunks: ldmatrix, and copies of 16 bytes.

        A row that takes all banks a number of times has a chunk behind it. Others are permuted.
        """
        if self.chosen is not None:
            return self.chosen
        rest = self.chunks * self.per_chunk - self.columns
        if self.rows == 1:
            return Arrangement(rest)
        if self.chunks % _BANK_ROWS == 0:
            return Arrangement(rest + self.per_chunk)
        return Arrangement(rest, self.most_bits)

    @property
    def most_bits(self) -> int:
        """How many bits of a chunk's number may be permuted within a row."""
        return min(_BANK_ROWS, self.chunks & -self.chunks).bit_length() - 1

    @property
    def bytes(self) -> int:
        """Bytes of the tile, in whole chunks."""
        return -(-self.rows * self.pitch * self.dtype.bytes // CHUNK) * CHUNK

    @property
    def pitch(self) -> int:
        """Elements from one row to the next."""
        return self.columns + self.arrangement.gap

    @property
    def bits(self) -> int:
        """How many bits of a chunk's number are permuted."""
        return self.arrangement.bits

    def phase(self, row: Any) -> Any:
        """What chunk numbers of a row are XORed with."""
        return self.arrangement.phase(row)

    def row(self, at: Mapping[str, Any]) -> Any:
        """The number of the row of an element."""
        row: Any = 0
        for a, _ in self.axes[:-1]:
            row = row * self.size(a) + at.get(a, 0)
        return row

    def index(self, at: Mapping[str, Any]) -> Any:
        """The number of an element, counted from the beginning of the tile, in elements."""
        inner = at.get(self.inner, 0) if self.inner is not None else 0
        return self.arrangement.place(self.row(at), inner, self.columns, self.per_chunk)


@dataclass
class Life:
    """When a tile is in use: positions of steps, both ends included."""

    tile: SharedTile
    first: int
    last: int


def allocate(lives: Iterable[Life]) -> int:
    """Give each tile an offset; tiles in use at the same time do not overlap. The bytes in all."""
    placed: list[Life] = []
    top = 0
    for life in sorted(lives, key=lambda x: (-x.tile.bytes, x.first, x.tile.name)):
        others = [p for p in placed if p.first <= life.last and life.first <= p.last]
        life.tile.offset = _gap(life.tile.bytes, [(p.tile.offset, p.tile.bytes) for p in others])
        placed.append(life)
        top = max(top, life.tile.offset + life.tile.bytes)
    return top


def _gap(size: int, taken: Sequence[tuple[int, int]]) -> int:
    at = 0
    for offset, n in sorted(taken):
        if at + size <= offset:
            break
        at = max(at, -(-(offset + n) // ALIGN) * ALIGN)
    return at


def overlap(a: SharedTile, b: SharedTile) -> bool:
    """Whether two tiles share bytes."""
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes


def tile_of(v: Value, name: str, order: Sequence[str] | None = None) -> SharedTile:
    """A place for a value's tile; `order` of its axes, if not that of its type."""
    names = list(order) if order is not None else list(v.type.names)
    names += [a for a in v.type.names if a not in names]
    return SharedTile(name, tuple((a, v.type.axis(a).size) for a in names), v.type.dtype)

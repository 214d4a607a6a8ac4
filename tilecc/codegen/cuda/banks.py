"""What the threads of a warp read and write of a tile in shared memory at once.

Shared memory has 32 banks of 4 bytes. A request of a warp takes as many steps as the busiest bank
has words of it; of requests for 8 or 16 bytes a lane, half or a quarter of the lanes go at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.codegen.cuda.access import Portions, copy_unit, store_unit
from tilecc.codegen.cuda.layout import Layout
from tilecc.codegen.cuda.products import Matrix
from tilecc.codegen.cuda.roles import factors
from tilecc.codegen.cuda.shared import CHUNK, Arrangement, SharedTile
from tilecc.codegen.cuda.steps import Registers, Step
from tilecc.ir.core import Op, Value

if TYPE_CHECKING:
    from tilecc.codegen.cuda.plan import Plan

_BANK = 4
_BANKS = 32
_LANES = 32
_SAMPLE = 8
"""Requests that are looked at, of those of a step: others differ by a constant."""
Lanes = np.ndarray[Any, Any]
Where = Mapping[str, Any]


@dataclass(frozen=True)
class Access:
    """Requests for `size` bytes: coordinates, each an array of (request, lane).

    `there`: which lanes take part. `held`: it must have no conflicts, since it is a store or feeds
    tensor cores; of others as few as may be. `whole`: its bytes must be together, and aligned.
    """

    tile: SharedTile
    where: Where
    there: Lanes
    size: int
    held: bool
    whole: bool = False

    @cached_property
    def _request(self) -> _Request:
        inner = self.where.get(self.tile.inner, 0) if self.tile.inner is not None else 0
        at = (np.broadcast_to(x, self.there.shape) for x in (self.tile.row(self.where), inner))
        row, column = (x.astype(np.int64).tobytes() for x in at)
        return _Request(row, column, self.there.tobytes(), self.size)

    def conflicts(self) -> int:
        """Steps more than there would be if no two lanes' words were in one bank."""
        tile = self.tile
        return _conflicts(self._request, tile.arrangement, tile.columns, tile.dtype.bytes)


@dataclass(frozen=True)
class _Request:
    """Rows and columns as int64, who takes part as bool: bytes, so that they can be looked up."""

    row: bytes
    column: bytes
    there: bytes
    size: int


@lru_cache(maxsize=4096)
def _conflicts(at: _Request, arrangement: Arrangement, columns: int, each: int) -> int:
    """Candidates for a tile differ in few accesses: most are counted once for all of them."""
    row, column = (np.frombuffer(x, np.int64) for x in (at.row, at.column))
    index = arrangement.place(row, column, columns, CHUNK // each)
    offsets = np.where(np.frombuffer(at.there, bool), index * each, -1)
    return conflicts(offsets.reshape(-1, _LANES), at.size)


def conflicts(offsets: Lanes, size: int) -> int:
    """Steps too many of requests for `size` bytes at offsets (request, lane); -1: no part."""
    unit = max(size, _BANK)
    at_once = _BANKS * _BANK // unit
    words = np.where(offsets < 0, -1, offsets // unit).reshape(-1, at_once)
    words.sort(axis=1)
    new = words >= 0
    new[:, 1:] &= words[:, 1:] != words[:, :-1]
    rows = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    load = np.bincount((rows * at_once + words % at_once)[new], minlength=words.size)
    busiest = load.reshape(-1, at_once).max(axis=1)
    return int((busiest - (busiest > 0)).sum())


def accesses(plan: Plan, step: Step) -> Iterator[Access]:
    """What a step reads and writes."""
    op, v = step.op, step.value
    match step.kind:
        case "load" if op.result.type.axes:
            unit = copy_unit(op, step.writes[0], plan.target, plan.aligned)
            yield _portions(plan, step.writes[0], unit or step.writes[0].dtype.bytes, bool(unit))
        case "compute" if step.writes and reads_nothing(op):
            pass  # any thread may store any element: as the arrangement wants it
        case "compute" | "copy" | "stage" if v is not None and step.writes:
            yield from _stored(plan, v, step.writes[0])
        case "store_rows":
            yield _portions(plan, step.reads[0], store_unit(op, plan.aligned), True, dense=True)
        case "contract" if op in plan.matrices:
            matrix = plan.matrices[op]
            tiles = [plan.tile_for(matrix.b)]
            tiles += [] if matrix.a_in_registers else [plan.tile_for(matrix.a)]
            for tile in tiles:
                yield _singles(plan, matrix, tile) if matrix.by_elements(tile) else _matrices(tile)
    match step.kind:
        case "contract" if op not in plan.matrices:
            home = plan.homes[op.result]
            assert isinstance(home, Registers)
            yield from _elements(plan, factors(op), home.layout)
        case "compute":
            yield from _elements(plan, op.operands, plan.roles.layout(op.result.type))
        case "reduce" | "store":
            layout = plan.roles.layout(op.operands[0].type)
            yield from _elements(plan, op.operands[:1], layout)


def _portions(
    plan: Plan, tile: SharedTile, unit: int, whole: bool, *, dense: bool = False
) -> Access:
    """Of rows by units, or of elements one after the other.

    What is `dense` crosses from row to row: without a gap it could have no conflicts, but what
    stores to it would, which goes before.
    """
    threads = plan.roles.threads
    p = Portions.of(tile, unit, threads, dense=dense)
    n = np.arange(min(threads, _SAMPLE * _LANES)).reshape(-1, _LANES)
    there = n < p.rows * p.columns
    row, column = n // p.columns, n % p.columns
    if whole and p.together:
        there = there & (row < p.together)
    where = _split(row, p.shape[:-1]) | {p.shape[-1][0]: column * p.each}
    return Access(tile, where, there, unit, not dense or unit == CHUNK, whole)


def _matrices(tile: SharedTile) -> Access:
    """Of ldmatrix: a chunk of each of 8 rows."""
    lane = np.arange(_LANES)[None]
    where = _split(lane % tile.rows, [(a, tile.size(a)) for a, _ in tile.axes[:-1]])
    return Access(
        tile, where | {str(tile.inner): lane * 0}, np.full((1, _LANES), True), CHUNK, True, True
    )


def _singles(plan: Plan, matrix: Matrix, tile: SharedTile) -> Access:
    """Of elements of 32 bits that go to tensor cores, as `TensorProduct.element` reads them."""
    lane = np.arange(_LANES)[None]
    g, t = lane // 4, lane % 4
    where: dict[str, Any] = {matrix.k[0]: t * 2 if matrix.neighbours else t}
    if tile is plan.tile_for(matrix.b):
        where[matrix.n[0]] = g
    else:
        layout = plan.roles.layout(matrix.op.result.type)
        env = next(_registers(layout, ""))
        where |= {a: layout.coordinate(a, env) for a, _ in matrix.m}
    return Access(tile, where, np.full((1, _LANES), True), tile.dtype.bytes, True)


def _stored(plan: Plan, v: Value, tile: SharedTile) -> Iterator[Access]:
    """Of elements that threads have in registers, each stored by one of them."""
    layout = stored_layout(plan, v)
    pair = pairs(v, layout, tile)
    for env in _registers(layout, "c" if pair else ""):
        where = {a.name: layout.coordinate(a.name, env) for a in v.type.axes}
        there = np.full((1, _LANES), True)
        for source, div, n in layout.free({"g": 8, "t": 4}):
            there = there & (env[source] // div % n == 0)
        for a in v.type.axes:
            there = there & (where[a.name] < a.size)
        yield Access(tile, where, there, tile.dtype.bytes * (1 + pair), True, pair)


def _elements(plan: Plan, values: Iterable[Value], layout: Layout) -> Iterator[Access]:
    """Of elements that threads read at their coordinates."""
    for v in _tiles(plan, values):
        tile = plan.tile_for(v)
        for env in _registers(layout, "c"):
            where = {
                a.name: np.minimum(layout.coordinate(a.name, env), a.size - 1) for a in v.type.axes
            }
            yield Access(tile, where, np.full((1, _LANES), True), tile.dtype.bytes, False)


def _tiles(plan: Plan, values: Iterable[Value]) -> Iterator[Value]:
    """Those of values, and of what is computed to read them, that are in shared memory."""
    for v in values:
        home = plan.homes.get(v)
        if home == "inline" and v.owner is not None:
            yield from _tiles(plan, v.owner.operands)
        elif v.type.axes and (isinstance(home, SharedTile) or v in plan.copies):
            yield v


def _registers(layout: Layout, skip: str) -> Iterator[dict[str, Any]]:
    """The parts of the numbers of a warp's lanes and of some registers; 0 for that of `skip`."""
    lane = np.arange(_LANES)[None]
    start: dict[str, Any] = {"g": lane // 4, "t": lane % 4, "w": 0}
    start |= {source: 0 for source, _ in layout.registers}
    yield start
    for source, n in layout.registers:
        if source != skip and n > 1:
            yield start | {source: 1}


def _split(n: Any, axes: Sequence[tuple[str, int]]) -> dict[str, Any]:
    where: dict[str, Any] = {}
    for a, size in reversed(axes):
        where[a], n = n % size, n // size
    return where


def reads_nothing(op: Op) -> bool:
    """Whether an operation is a map of no tile."""
    return op.name == "map" and not any(x.type.axes for x in op.operands)


def is_filled(plan: Plan, op: Op, tile: SharedTile) -> bool:
    """Whether a tile that depends on no other is stored element after element: by its layout, there
    would be conflicts.
    """
    if not reads_nothing(op) or plan.homes[op.result] is not tile:
        return False
    return any(a.conflicts() for a in _stored(plan, op.result, tile))


def stored_layout(plan: Plan, v: Value) -> Layout:
    """How the elements of a value are shared out to the threads that store them."""
    home = plan.homes[v]
    return home.layout if isinstance(home, Registers) else plan.roles.layout(v.type)


def pairs(v: Value, layout: Layout, tile: SharedTile) -> bool:
    """Whether two neighbours along the rows of a tile are stored at once: a thread has both.

    A pair must not reach into the padding, which another thread fills.
    """
    t, inner = v.type.dtype, str(tile.inner)
    if layout.registers[-1:] != (("c", 2),) or t.kind != "float" or t.bits not in (16, 32):
        return False
    if v.type.axis(inner).size % 2 or tile.pitch % 2:
        return False
    return any(d.source == "c" and d.step == 1 for d in layout.digits(inner))

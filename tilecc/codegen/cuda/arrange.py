"""How the rows of each tile in shared memory lie, by what all steps read and write of it.

Stores and what feeds tensor cores must find each word in a bank of its own; other reads as nearly
as may be. Of what does that alike, tiles take the usual arrangement, or the smallest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tilecc.codegen.cuda.banks import Access, accesses
from tilecc.codegen.cuda.shared import CHUNK, Arrangement, SharedTile
from tilecc.codegen.cuda.steps import Item, Loop, Step

if TYPE_CHECKING:
    from tilecc.codegen.cuda.plan import Plan

_GAPS = 4
"""The most chunks between rows."""


def arrange(plan: Plan) -> None:
    """Choose the arrangement of all tiles of a plan."""
    found: dict[SharedTile, list[Access]] = {}
    for step in _steps(plan.items):
        for a in accesses(plan, step):
            found.setdefault(a.tile, []).append(a)
    for tile, uses in found.items():
        if tile.rows > 1:
            _choose(tile, uses)


def _steps(items: Sequence[Item]) -> Iterator[Step]:
    for item in items:
        if isinstance(item, Step):
            yield item
        elif isinstance(item, Loop):
            yield from _steps(item.body)
        else:
            yield from _steps(item.then)
            yield from _steps(item.other)


def _choose(tile: SharedTile, uses: Sequence[Access]) -> None:
    unit = max((a.size for a in uses if a.whole), default=tile.dtype.bytes)
    best: tuple[tuple[int, int, int], Arrangement] | None = None
    for arrangement in _candidates(tile, unit):
        tile.chosen = arrangement
        held = sum(a.conflicts() for a in uses if a.held)
        other = sum(a.conflicts() for a in uses if not a.held)
        if not held and not other:
            return
        key = held, other, tile.bytes
        if best is None or key < best[0]:
            best = key, arrangement
    assert best is not None
    tile.chosen = best[1]


def _candidates(tile: SharedTile, unit: int) -> Iterator[Arrangement]:
    """The usual one, then others in which units of so many bytes stay whole and aligned."""
    tile.chosen = None
    usual = tile.arrangement
    yield usual
    if unit < CHUNK:
        each = unit // tile.dtype.bytes
        rest = -tile.columns % each
        for n in range(tile.per_chunk * _GAPS // each):
            yield Arrangement(rest + n * each)
    rest = tile.chunks * tile.per_chunk - tile.columns
    for n in range(_GAPS + 1):
        yield Arrangement(rest + n * tile.per_chunk)
    for turned in (False, True) if tile.most_bits > 1 else (False,):
        yield Arrangement(rest, tile.most_bits, turned)

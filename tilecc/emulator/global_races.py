"""Races on global memory: nothing orders two CTAs, and within one it is as in shared memory.

Of reads only the last reader is kept (or that there were several CTAs), so a write after reads
by several warps of its own CTA is judged by the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilecc.emulator import report
from tilecc.emulator.access import Site, first_of
from tilecc.emulator.races import ATOMIC, MANY, Threads
from tilecc.emulator.spaces import Region
from tilecc.emulator.types import Array

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand

_WHO, _CLOCK, _CTA = 28, 6, 5
_CLOCK_BITS = (1 << (_WHO - _CLOCK)) - 1
_CTAS = -1
"""A cell that several CTAs have read."""


def _cells(region: Region, shift: int) -> Array:
    granules = (len(region.memory) + 31 >> shift) + 1
    return np.zeros(-(-granules // 16) * 16, np.int64)


def _place(s: Strand, site: Site, region: Region, offsets: Array) -> tuple[Array, int]:
    shift = s.launch.granule_shift
    n = max(1, site.size >> shift)
    return (offsets + region.base % 16 >> shift) // n, n


def _mark(s: Strand, t: Threads, atomic: bool = False) -> Array:
    warp = (s.batch.linear[t.cta] << _CTA) + t.warp + 1
    clock = s.batch.clocks.now[t.cta, t.warp].astype(np.int64)
    lane = np.int64(ATOMIC) if atomic else t.lane
    return (warp << _WHO | clock << _CLOCK | lane)[:, None]


def _unordered(s: Strand, t: Threads, cells: Array, atomic: bool) -> Array:
    """Which cells are of accesses that nothing orders before those of `t`."""
    who = (cells >> _WHO) - 1
    cta, warp = who >> _CTA, who & 31
    clock, lane = cells >> _CLOCK & _CLOCK_BITS, cells & 63
    known = s.batch.clocks.known[t.cta[:, None], t.warp[:, None], warp % s.batch.warps]
    same = (warp == t.warp[:, None]) & (lane == t.lane[:, None])
    ordered = (cta == s.batch.linear[t.cta][:, None]) & ((clock <= known) | same)
    if atomic:
        ordered |= lane == ATOMIC
    out: Array = (cells != 0) & ~(ordered & (cells != _CTAS))
    return out


def _report(s: Strand, site: Site, region: Region, t: Threads, wrong: Array, what: str) -> None:
    at = first_of(None, wrong)[0]
    message = f"{s.batch.name(t.at(np.array([at])))} {site.direction}s what {what} {region.name}"
    count = int(wrong.any(axis=1).sum())
    s.find(report.RACE, site.ins, f"{message}, and nothing orders them", count)


def check_read(s: Strand, site: Site, region: Region, t: Threads, offsets: Array) -> None:
    """Note a read, and report it if a write is not ordered before it."""
    at, n = _place(s, site, region, offsets)
    if region.writes is not None:
        cells = region.writes.reshape(-1, n)[at]
        if cells.any():
            wrong = _unordered(s, t, cells, False)
            if wrong.any():
                _report(s, site, region, t, wrong, "another thread has written to")
    if region.reads is None:
        region.reads = _cells(region, s.launch.granule_shift)
    rows = region.reads.reshape(-1, n)
    new = _mark(s, t)
    old = rows[at]
    rows[at] = new
    back = rows[at]
    foreign = (back >> _WHO + _CTA != new >> _WHO + _CTA) | (
        (old != 0) & (old >> _WHO + _CTA != new >> _WHO + _CTA)
    )
    if foreign.any():
        access, granule = np.nonzero(foreign)
        rows[at[access], granule] = _CTAS
    lanes = ~foreign & ((back != new) | ((old >> _CLOCK == new >> _CLOCK) & (old != new)))
    if lanes.any():
        access, granule = np.nonzero(lanes)
        rows[at[access], granule] |= MANY


def check_write(
    s: Strand, site: Site, region: Region, t: Threads, offsets: Array, atomic: bool = False
) -> None:
    """Note a write, and report it if another access is not ordered before it."""
    at, n = _place(s, site, region, offsets)
    if region.writes is None:
        region.writes = _cells(region, s.launch.granule_shift)
    for cells_of, what in ((region.writes, "written to"), (region.reads, "read from")):
        if cells_of is None:
            continue
        cells = cells_of.reshape(-1, n)[at]
        if cells.any():
            wrong = _unordered(s, t, cells, atomic)
            if wrong.any():
                _report(s, site, region, t, wrong, f"another thread has {what}")
    rows = region.writes.reshape(-1, n)
    new = _mark(s, t, atomic)
    rows[at] = new
    if not atomic:
        lost = rows[at] >> _WHO != new >> _WHO
        if lost.any():
            _report(s, site, region, t, lost, "another warp writes at the same time to")

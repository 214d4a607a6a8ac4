"""Executing accesses: bounds, alignment, races and counters of one memory instruction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilecc.emulator import report
from tilecc.emulator.context import Mask
from tilecc.emulator.counters import BANKS_BYTES, SECTOR, Memo, traffic, wavefronts
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.races import Threads
from tilecc.emulator.report import GlobalAccess, SharedAccess, Traffic
from tilecc.emulator.spaces import Flat, Region
from tilecc.emulator.types import Array

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand


class Site:
    """A memory instruction: `count` words of `width` bytes a lane, and what was counted there."""

    def __init__(self, ins: Instruction, direction: str, width: int, count: int = 1) -> None:
        self.ins = ins
        self.direction = direction
        self.width = width
        self.count = count
        self.size = width * count
        self.alignment = self.size
        self.shared = SharedAccess(ins.line, ins.text, ins.loc, direction)
        self.globals = GlobalAccess(ins.line, ins.text, ins.loc, direction)
        self.memo = Memo()

    def resized(self, size: int) -> Site:
        """The same instruction where it reads fewer bytes: same alignment, same counters."""
        if size == self.size:
            return self
        other = Site(self.ins, self.direction, size)
        other.alignment = self.alignment
        other.shared, other.globals, other.memo = self.shared, self.globals, self.memo
        return other

    def count_shared(self, offsets: Array, m: Mask, whole: bool) -> None:
        """Add the wavefronts of an execution; `whole`: by all lanes of the warps that do it.

        Banks repeat after 128 bytes, so warps that are that far apart need as many steps.
        """
        self.add_shared(*self.shared_cost(offsets, m, whole))

    def shared_cost(self, offsets: Array, m: Mask, whole: bool) -> tuple[int, int, int]:
        """Wavefronts, the ideal and requests. Banks do not matter: all may be shifted alike."""
        times = 1
        if m is None or whole:
            pattern = offsets if m is None else offsets[m[:, 0]]
            pattern = pattern - (pattern.min(axis=1, keepdims=True) & -BANKS_BYTES)
            if (pattern == pattern[0]).all():
                times, pattern = len(pattern), pattern[:1]
        else:
            pattern = np.where(m, offsets, -1)
        key = (whole, pattern.tobytes())
        steps, ideal, requests = self.memo(key, lambda: wavefronts(pattern, self.size))
        return times * steps, times * ideal, times * requests

    def add_shared(self, steps: int, ideal: int, requests: int) -> None:
        """Add what an execution cost."""
        self.shared.wavefronts += steps
        self.shared.ideal += ideal
        self.shared.requests += requests

    def count_global(self, region: Region, offsets: Array, m: Mask) -> None:
        """Add the traffic of an execution."""
        low = int(offsets.min() if m is None else offsets[m].min())
        pattern = offsets - low if m is None else np.where(m, offsets - low, -1)
        shift = (low + region.base) % SECTOR
        key = (pattern.tobytes(), shift, self.size)
        found = self.memo(key, lambda: traffic(pattern, self.size, shift))
        total = self.globals.tensors.setdefault(region.name, Traffic())
        total.add(found)


def first_of(m: Mask, wrong: Array) -> tuple[int, ...]:
    """Index of the first thread where something is wrong."""
    return tuple(int(i[0]) for i in np.nonzero(wrong))


def valid(s: Strand, m: Mask, site: Site, offsets: Array, limit: int, base: int, what: str) -> Mask:
    """The threads whose access lies in [0, limit) and is aligned; the others are findings."""
    outside = (offsets < 0) | (offsets > limit - site.size)
    skewed = (offsets + base) & (site.alignment - 1) != 0
    wrong = outside | skewed
    if m is not None:
        wrong &= m
    if not wrong.any():
        return m
    outside &= wrong
    if outside.any():
        at = first_of(m, outside)
        message = f"{site.direction} of {site.size} bytes at byte {int(offsets[at])} of {what}"
        message = f"{message}, which has {limit}, by {s.thread(at)}"
        s.find(report.OUT_OF_BOUNDS, site.ins, message, int(outside.sum()))
    skewed &= wrong & ~outside
    if skewed.any():
        at = first_of(m, skewed)
        message = f"{site.direction} of {site.size} bytes at byte {int(offsets[at])} of {what}"
        s.find(report.MISALIGNED, site.ins, f"{message}, by {s.thread(at)}", int(skewed.sum()))
    out: Mask = ~wrong if m is None else m & ~wrong
    return out


# -- shared memory


def shared_offsets(s: Strand, m: Mask, site: Site, addresses: Array) -> tuple[Array, Mask]:
    """Offsets in the CTA's shared memory, and the threads for which they are right."""
    memory = s.batch.shared
    offsets = addresses.astype(np.int64) - memory.base
    m = valid(s, m, site, offsets, memory.size, 0, "shared memory")
    if m is None or m.any():
        site.count_shared(offsets, m, m is s.whole)
    return offsets, m


def read_rows(
    s: Strand, m: Mask, sites: Sequence[Site], bases: Sequence[int], addresses: Array
) -> Array | None:
    """Rows of matrices, 16 bytes a lane, that several instructions read for whole warps.

    Args:
        s: who reads.
        m: which of them: whole warps.
        sites: the instructions.
        bases: the register that each adds a constant to.
        addresses: (instructions, warps, 32).

    Returns:
        (instructions, warps, 32, 4) words; None where anything is wrong, and nothing was noted.
    """
    memory, shadow, shift = s.batch.shared, s.batch.shadow, s.launch.granule_shift
    size = sites[0].size
    rows = slice(None) if m is None else m[:, 0]
    offsets = np.broadcast_to(addresses, (len(sites), *s.shape))[:, rows].astype(np.int64)
    offsets -= memory.base
    flat = offsets.reshape(-1)
    if flat.min() < 0 or flat.max() > memory.size - size or np.bitwise_or.reduce(flat) & size - 1:
        return None
    t = s.threads(m).repeated(len(sites))
    first, n = flat >> shift, size >> shift
    written = shadow.last_writes(t, first, n)
    if not written.all() or shadow.unordered_writes(t, written).any():
        return None
    shadow.record_read(t, first, n, together=True)
    costs: dict[int, tuple[int, int, int]] = {}
    for site, base, where in zip(sites, bases, offsets, strict=True):
        if base not in costs:
            costs[base] = site.shared_cost(where, None, True)
        site.add_shared(*costs[base])
    words = load_flat(memory, t.cta, flat, 4, size // 4).reshape(*offsets.shape, size // 4)
    if m is None:
        return words
    out = np.zeros((len(sites), *s.shape, size // 4), words.dtype)
    out[:, rows] = words
    return out


def check_shared_read(
    s: Strand, site: Site, t: Threads, offsets: Array, together: bool = False
) -> None:
    """Races and uninitialised bytes of a read of `site.size` bytes at each offset."""
    shadow, shift = s.batch.shadow, s.launch.granule_shift
    first, n = offsets >> shift, max(1, site.size >> shift)
    if site.ins.used is not None:
        used = [k for k in range(n) if site.ins.used >> (k << shift) & (1 << (1 << shift)) - 1]
        first, n = (first[:, None] + used).ravel(), 1
        offsets = (offsets[:, None] + (np.array(used) << shift)).ravel()
        t = t.at(np.repeat(np.arange(len(t.cta)), len(used)))
    written = shadow.last_writes(t, first, n)
    cells = shadow.unordered_writes(t, written)
    if cells.any():
        _race(s, site, t, cells, False, "reads")
    if not written.all():
        fresh = (written == 0).any(axis=1)
        who = t.at(fresh)
        message = f"{s.batch.name(who)} reads byte {int(offsets[fresh][0])} of shared memory"
        message += ", which nothing has written"
        s.find(report.UNINITIALISED, site.ins, message, int(fresh.sum()))
    shadow.record_read(t, first, n, together)


def check_shared_write(
    s: Strand,
    site: Site,
    t: Threads,
    offsets: Array,
    in_flight: bool = False,
    atomic: bool = False,
) -> None:
    """Races of a write."""
    shadow, shift = s.batch.shadow, s.launch.granule_shift
    first, n = offsets >> shift, max(1, site.size >> shift)
    cells = shadow.unordered_writes(t, shadow.last_writes(t, first, n), atomic)
    if cells.any():
        _race(s, site, t, cells, False, "writes")
    cells = shadow.unordered_reads(t, first, n)
    if cells.any():
        _race(s, site, t, cells, True, "writes")
    lost = shadow.record_write(t, first, n, in_flight, atomic)
    if lost.any() and not atomic:
        message = f"{s.batch.name(t.at(lost))} and another warp write the same shared memory"
        s.find(report.RACE, site.ins, message, int(lost.sum()))


def _race(s: Strand, site: Site, t: Threads, cells: Array, reads: bool, verb: str) -> None:
    at = first_of(None, cells)
    who = s.batch.name(t.at(np.array([at[0]])))
    earlier = s.batch.shadow.describe(int(cells[at]), reads)
    if reads:
        earlier += f" of warp {at[1]}"
    message = f"{who} {verb} shared memory, and nothing orders that after {earlier}"
    count = int((cells != 0).reshape(len(cells), -1).any(axis=1).sum())
    s.find(report.RACE, site.ins, message, count)


def load_flat(memory: Flat, part: Array, offsets: Array, width: int, count: int) -> Array:
    """Words (accesses, count) at aligned offsets of parts."""
    at = (part * memory.stride + offsets) // (width * count)
    found: Array = memory.rows(width, count)[at]
    return found


def store_flat(memory: Flat, part: Array, offsets: Array, values: Array) -> bool:
    """Write words (accesses, count); whether all of them are there afterwards."""
    width, count = values.dtype.itemsize, values.shape[1]
    at = (part * memory.stride + offsets) // (width * count)
    rows = memory.rows(width, count)
    rows[at] = values
    return bool(np.array_equal(rows[at], values))


# -- global memory


def by_region(
    s: Strand, m: Mask, site: Site, addresses: Array
) -> Iterator[tuple[Region, Array, Mask]]:
    """Regions with offsets in them and the threads whose access is right; the rest are findings."""
    memory = s.launch.memory
    slots = memory.slots(addresses if m is None else addresses[m])
    first = int(slots.flat[0])
    alike = bool((slots == first).all())
    every = [first] if alike else [int(x) for x in np.unique(slots)]
    if not alike:
        slots = memory.slots(addresses)
    for slot in every:
        part = m if alike else (slots == slot if m is None else (slots == slot) & m)
        if slot < 0:
            here = np.ones(s.shape, bool) if part is None else part
            at = first_of(None, here)
            where = memory.name_address(int(addresses[at]))
            message = f"{site.direction} of {site.size} bytes at {where}, by {s.thread(at)}"
            s.find(report.OUT_OF_BOUNDS, site.ins, message, int(here.sum()))
            continue
        region = memory.regions[slot]
        offsets = (addresses - np.uint64(region.base)).view(np.int64)
        good = valid(s, part, site, offsets, len(region.memory), region.base, region.name)
        if good is None or good.any():
            yield region, offsets, good


def load_region(region: Region, offsets: Array, width: int, count: int) -> Array:
    """Words (accesses, count) at offsets in a region."""
    size = width * count
    rows = region.rows(width, count)
    at = offsets // size
    if region.base % size == 0 and (len(at) == 0 or int(at.max()) < len(rows)):
        found: Array = rows[at]
        return found
    octets = region.memory[offsets[:, None] + np.arange(size)]
    return octets.view(f"u{width}")


def store_region(region: Region, offsets: Array, values: Array) -> bool:
    """Write words (accesses, count); whether all of them are there afterwards."""
    width, count = values.dtype.itemsize, values.shape[1]
    rows = region.rows(width, count)
    at = offsets // (width * count)
    if region.base % (width * count) == 0 and (len(at) == 0 or int(at.max()) < len(rows)):
        rows[at] = values
        return bool(np.array_equal(rows[at], values))
    octets = np.ascontiguousarray(values).view(np.uint8)
    index = offsets[:, None] + np.arange(width * count)
    region.memory[index] = octets
    return bool(np.array_equal(region.memory[index], octets))

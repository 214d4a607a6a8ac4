"""Who wrote and read what last, and whether synchronisation lies between.

Each warp has a clock that moves when it synchronises, and knows for each warp of its CTA the last
clock whose accesses are ordered before its own from now on (a vector clock). A cell stands for
a granule of memory and holds clock, warp and lane of an access. Lanes of a warp are ordered by
bar.warp.sync and barriers alone. Bytes of an asynchronous copy carry a clock that nobody knows
until the thread that issued it has waited.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilecc.emulator.types import Array

MANY = 63
"""For a lane: more than one."""
ATOMIC = 62
IN_FLIGHT = (1 << 20) - 1
_CLOCK, _WARP = 11, 6
_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Threads:
    """Who accesses: CTA (number within the batch), warp and lane, of the same length."""

    cta: Array
    warp: Array
    lane: Array

    def at(self, chosen: Array) -> Threads:
        """Some of them."""
        return Threads(self.cta[chosen], self.warp[chosen], self.lane[chosen])

    def repeated(self, times: int) -> Threads:
        """All of them several times over."""
        return Threads(*(np.tile(x, times) for x in (self.cta, self.warp, self.lane)))


class Clocks:
    """Vector clocks of all warps of a batch of CTAs."""

    def __init__(self, ctas: int, warps: int) -> None:
        self.now = np.ones((ctas, warps), np.int32)
        self.known = np.zeros((ctas, warps, warps), np.int32)
        self.floor = np.zeros(ctas, np.int32)
        """What all warps of a CTA know of each other, at least."""
        self.least = 0
        """The same for all CTAs."""

    def published(self) -> Array:
        """What each warp knows, its own accesses until now included."""
        out = self.known.copy()
        own = np.arange(self.now.shape[1])
        out[:, own, own] = self.now
        return out

    def advance(self, warps: Array, known: Array) -> None:
        """Warps (ctas, warps: booleans) come to know `known` and begin another interval."""
        self.known = np.where(warps[..., None], np.maximum(self.known, known), self.known)
        self.now = self.now + warps
        self.floor = self.known.min(axis=(1, 2))
        self.least = int(self.floor.min())

    def sync_warps(self, warps: Array) -> None:
        """bar.warp.sync."""
        self.advance(warps, np.where(warps[..., None], self.published(), 0))


class SharedShadow:
    """The last write and each warp's last read of every granule of the CTAs' shared memory."""

    def __init__(self, clocks: Clocks, granules: int) -> None:
        ctas, warps = clocks.now.shape
        self.clocks = clocks
        self.granules = granules
        self.writes = np.zeros(ctas * granules, np.int32)
        self.reads = np.zeros(ctas * warps * granules, np.int32)

    def _warp(self, t: Threads) -> Array:
        return t.cta * self.clocks.now.shape[1] + t.warp

    def last_writes(self, t: Threads, first: Array, n: int) -> Array:
        """Cells (accesses, n) of the last writes.

        Args:
            t: who accesses.
            first: first granule, divisible by n, within its CTA's memory.
            n: granules of an access.
        """
        found: Array = self.writes.reshape(-1, n)[(t.cta * self.granules + first) // n]
        return found

    def unordered_writes(self, t: Threads, cells: Array, atomic: bool = False) -> Array:
        """Of `last_writes` those that the access is not ordered after; 0: none."""
        if int(cells.max()) >> _CLOCK <= self.clocks.least:
            return _NONE
        if not (cells.max(axis=1) >> _CLOCK > self.clocks.floor[t.cta]).any():
            return _NONE
        warps = self.clocks.now.shape[1]
        clock, warp, lane = cells >> _CLOCK, cells >> _WARP & 31, cells & 63
        known = self.clocks.known.reshape(-1)[(self._warp(t) * warps)[:, None] + warp]
        own = (warp == t.warp[:, None]) & (lane == t.lane[:, None]) & (clock != IN_FLIGHT)
        if atomic:
            own |= lane == ATOMIC
        return np.where((clock > known) & ~own, cells, 0)

    def unordered_reads(self, t: Threads, first: Array, n: int) -> Array:
        """Like `unordered_writes`, of reads: (accesses, warps, n)."""
        ctas, warps = self.clocks.now.shape
        cells = self.reads.reshape(ctas, warps, -1, n)[t.cta, :, first // n]
        if int(cells.max()) >> _WARP <= self.clocks.least:
            return _NONE
        clock, lane = cells >> _WARP, cells & 63
        if not (clock.max(axis=(1, 2)) > self.clocks.floor[t.cta]).any():
            return _NONE
        known = self.clocks.known[t.cta, t.warp][:, :, None]
        same = np.arange(warps) == t.warp[:, None]
        own = same[:, :, None] & (lane == t.lane[:, None, None])
        return np.where((clock > known) & ~own, cells, 0)

    def record_read(self, t: Threads, first: Array, n: int, together: bool) -> None:
        """Note a read; `together`: lanes read for each other, as ldmatrix does."""
        rows = self.reads.reshape(-1, n)
        at = (self._warp(t) * self.granules + first) // n
        clock = self.clocks.now[t.cta, t.warp] << _WARP
        if together:
            rows[at] = (clock | MANY)[:, None]
            return
        new = (clock | t.lane.astype(np.int32))[:, None]
        old = rows[at]
        rows[at] = new
        others = (rows[at] != new) | ((old >> _WARP == new >> _WARP) & (old != new))
        if others.any():
            access, granule = np.nonzero(others)
            rows[at[access], granule] |= MANY

    def record_write(
        self, t: Threads, first: Array, n: int, in_flight: bool = False, atomic: bool = False
    ) -> Array:
        """Note a write; accesses whose cell another warp's in this instruction has overwritten."""
        rows = self.writes.reshape(-1, n)
        at = (t.cta * self.granules + first) // n
        clock = np.int32(IN_FLIGHT) if in_flight else self.clocks.now[t.cta, t.warp]
        lane = np.int32(ATOMIC) if atomic else t.lane.astype(np.int32)
        new = clock << _CLOCK | t.warp.astype(np.int32) << _WARP | lane
        rows[at] = new[:, None]
        back = rows[at]
        out: Array = (back >> _WARP & 31 != t.warp[:, None]).any(axis=1)
        return out

    def describe(self, cell: int, read: bool = False) -> str:
        """An earlier access in words."""
        if read:
            return f"a read by {_thread(cell & 63)}"
        if cell >> _CLOCK == IN_FLIGHT:
            return f"a copy in flight that {_thread(cell & 63, cell >> _WARP & 31)} issued"
        return f"a write by {_thread(cell & 63, cell >> _WARP & 31)}"


def _thread(lane: int, warp: int | None = None) -> str:
    who = {MANY: "several lanes", ATOMIC: "an atomic"}.get(lane, f"lane {lane}")
    return who if warp is None else f"warp {warp} {who}"

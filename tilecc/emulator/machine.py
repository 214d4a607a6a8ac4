"""The machine: batches of CTAs, strands of warps that run together, and the order they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.emulator.barriers import Barriers
from tilecc.emulator.context import Mask
from tilecc.emulator.control import APART, BLOCKED, EXIT
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.races import Clocks, SharedShadow, Threads
from tilecc.emulator.spaces import LOCAL_BASE, SHARED_BASE, Flat
from tilecc.emulator.special import coordinates, special_registers
from tilecc.emulator.types import Array, EmulatorError

if TYPE_CHECKING:
    from tilecc.emulator.copies import Copy
    from tilecc.emulator.launch import Launch


_WORTH_KNOWING = 8
"""Steps of a block from which on it is found out what the threads that wait need."""


class Unneeded:
    """Registers that no thread which waits will read before it assigns them."""

    def __init__(self, of: frozenset[int] | None) -> None:
        self.of = of
        """By position; None: not known of any."""
        self._all: dict[tuple[int, ...], bool] = {}

    def __contains__(self, i: int) -> bool:
        return self.of is not None and i in self.of

    def covers(self, at: tuple[int, ...]) -> bool:
        """Whether all of these are."""
        if self.of is None:
            return False
        found = self._all.get(at)
        if found is None:
            found = self._all[at] = self.of.issuperset(at)
        return found


UNKNOWN = Unneeded(None)


class Strand:
    """Warps that run in lockstep: all of a batch, or the same one of each CTA.

    `R` are the registers, arrays (warps, 32) that are replaced and never changed in place; `pc`
    the rank of each thread's block, a view of the batch's.
    """

    def __init__(self, batch: Batch, warps: Array) -> None:
        self.batch = batch
        self.launch = launch = batch.launch
        ctas, n = len(batch.linear), len(warps)
        self.row_cta = np.repeat(np.arange(ctas), n)
        self.row_warp = np.tile(warps, ctas)
        self.shape = (ctas * n, 32)
        whole = n == batch.warps
        self.pc = self._own(batch.pc, whole, warps)
        self.waits_at = self._own(batch.barriers.number, whole, warps)
        zeros = {t: np.zeros(self.shape, t) for t in set(launch.decoded.storage)}
        self.R: list[Array] = [zeros[t] for t in launch.decoded.storage]
        self.defined: dict[int, Array] = {}
        self.commits = np.zeros(self.shape, np.int64)
        self.copies: list[Copy] = []
        self.stacked: dict[tuple[int, ...], tuple[tuple[Array, ...], Array]] = {}
        """Registers that were taken together: what they were, and the array of all."""
        self.fragments: dict[Any, tuple[Array, Array]] = {}
        """Operands of matrix instructions as matrices, with the registers that they are of."""
        # Of the block that runs:
        self.mask: Mask = None
        """Which threads execute."""
        self.whole: Mask = None
        """The same if they are whole warps."""
        self.executing, self.warps = 32 * self.shape[0], self.shape[0]
        """How many threads and warps."""
        self.unneeded = UNKNOWN
        """Registers that the others do not need."""
        lane = np.broadcast_to(np.arange(32), self.shape)
        cta = np.broadcast_to(self.row_cta[:, None], self.shape)
        warp = np.broadcast_to(self.row_warp[:, None], self.shape)
        self.everyone = Threads(cta.ravel(), warp.ravel(), lane.ravel())
        self.numbers = np.arange(lane.size)
        linear = batch.linear[cta]
        self.special = special_registers(
            linear, warp * 32 + lane, launch.grid, launch.block, launch.shared_sizes
        )
        self.local = Flat(lane.size if launch.local_size else 0, launch.local_size, LOCAL_BASE)
        self.local_written = Flat(self.local.memory.size // self.local.stride, launch.local_size, 0)

    def _own(self, array: Array, whole: bool, warps: Array) -> Array:
        """This strand's rows of an array (ctas, warps, 32), as a view."""
        return array.reshape(-1, 32) if whole else array[:, int(warps[0])]

    def write(self, i: int, out: Array, m: Mask) -> None:
        """Set a register for some threads; what the others have of it stays, if they need it."""
        if m is not None and not (m is self.mask and i in self.unneeded):
            out = np.where(m, out, self.R[i])
        elif out.shape != self.shape:
            out = np.full(self.shape, out)
        self.R[i] = out

    def put(self, i: int, out: Array) -> None:
        """Set a register; what other threads have of it nobody reads."""
        self.R[i] = out if out.shape == self.shape else np.full(self.shape, out)

    def live(self) -> Array:
        """Threads that have not exited."""
        out: Array = self.pc != EXIT
        return out

    def threads(self, m: Mask) -> Threads:
        """Who executes."""
        return self.everyone if m is None else self.everyone.at(m.ravel())

    def parts(self, m: Mask) -> Array:
        """Numbers of the threads that execute."""
        return self.numbers if m is None else self.numbers[m.ravel()]

    def gather(self, m: Mask, values: list[Array]) -> Array:
        """Elements of the threads that execute: (threads, elements)."""
        if len(values) == 1:
            return (values[0].reshape(-1) if m is None else values[0][m])[:, None]
        return np.stack([v.reshape(-1) if m is None else v[m] for v in values], axis=1)

    def spread(self, m: Mask, words: Array) -> list[Array]:
        """The inverse: one array (warps, 32) an element, 0 for the other threads."""
        columns = np.ascontiguousarray(words.T)
        if m is None:
            return [c.reshape(self.shape) for c in columns]
        out = []
        for c in columns:
            full = np.zeros(self.shape, c.dtype)
            full[m] = c
            out.append(full)
        return out

    def find(self, kind: str, ins: Instruction, message: str, count: int = 1) -> None:
        """Note a finding."""
        self.launch.findings.add(kind, ins, message, count)

    def warp(self, row: int) -> str:
        """A warp in words."""
        return self.batch.place(int(self.row_cta[row]), int(self.row_warp[row]))

    def thread(self, at: tuple[int, ...]) -> str:
        """A thread, by (row, lane), in words."""
        return f"{self.warp(at[0])} lane {at[1]}"

    def run(self) -> None:
        """Run until every thread waits or is done: always the lowest block that a thread is at."""
        blocks = self.launch.decoded.blocks
        rank, others = APART, 0
        while True:
            if not APART < rank < others:  # else it is the same threads as before
                rank = int(self.pc.min())
                if rank >= BLOCKED:
                    self.mask = None
                    return
                others = self._choose(rank)
            elif rank >= BLOCKED:
                rank = APART
                continue
            self.launch.count_block()
            block = blocks[rank]
            block.warps += self.warps
            m = self.mask
            self.unneeded = UNKNOWN
            if m is not None and len(block.steps) >= _WORTH_KNOWING:
                self.unneeded = self.launch.decoded.unneeded_at(frozenset(self.pc[~m].tolist()))
            for step in block.steps:
                step(self, m)
            rank = block.end(self, m)

    def _choose(self, rank: int) -> int:
        """Threads at a block are those that execute; the lowest block that others are at."""
        m: Array = self.pc == rank
        self.executing = int(np.count_nonzero(m))
        if self.executing == m.size:
            self.mask = self.whole = None
            self.warps = len(m)
            return EXIT + 1
        self.warps = int(np.count_nonzero(np.logical_or.reduce(m, axis=1)))
        self.mask = m
        self.whole = m if self.executing == 32 * self.warps else None
        return int(np.where(m, EXIT, self.pc).min())


class Batch:
    """CTAs that run at the same time, each with its own shared memory."""

    def __init__(self, launch: Launch, linear: Array, rng: np.random.Generator | None) -> None:
        self.launch = launch
        self.linear = linear
        """Numbers of the CTAs in the grid."""
        self.rng = rng
        threads = launch.threads
        self.warps = -(-threads // 32)
        shape = (len(linear), self.warps, 32)
        self.pc = np.zeros(shape, np.int32)
        self.pc.reshape(len(linear), -1)[:, threads:] = EXIT
        self.clocks = Clocks(len(linear), self.warps)
        self.shared = Flat(len(linear), launch.shared_sizes[0], SHARED_BASE)
        granules = self.shared.stride >> launch.granule_shift
        self.shadow = SharedShadow(self.clocks, granules)
        self.barriers = Barriers(self)
        every = np.arange(self.warps)
        groups = [every] if rng is None else [every[i : i + 1] for i in every]
        self.strands = [Strand(self, g) for g in groups]

    def lands_early(self) -> bool:
        """Whether the bytes of a copy arrive at once, or only when they are waited for."""
        return self.rng is not None and bool(self.rng.random() < 0.5)

    def place(self, cta: int, warp: int) -> str:
        """A warp in words."""
        x, y, z = (int(v) for v in coordinates(self.linear[cta], self.launch.grid))
        return f"CTA ({x}, {y}, {z}) warp {warp}"

    def name(self, t: Threads) -> str:
        """The first of some threads in words."""
        return f"{self.place(int(t.cta[0]), int(t.warp[0]))} lane {int(t.lane[0])}"

    def run(self) -> None:
        """Run all to their end, or until they wait for ever."""
        while True:
            ready = [s for s in self.strands if int(s.pc.min()) < BLOCKED]
            if ready:
                n = 0 if self.rng is None else int(self.rng.integers(len(ready)))
                ready[n].run()
                if self.rng is not None:
                    self.barriers.release()
            elif not self.barriers.release():
                break
        if (self.pc != EXIT).any():
            self.barriers.report_deadlock()


class Budget:
    """How many blocks may run before a kernel is taken to have no end."""

    def __init__(self, most: int) -> None:
        self.left = most

    def spend(self) -> None:
        """One block.

        Raises:
            EmulatorError: none is left.
        """
        self.left -= 1
        if self.left < 0:
            raise EmulatorError("the kernel does not come to an end (see `most_blocks`)")

"""CTA barriers of a batch: who waits, when they go on, and what they know then."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.emulator import report
from tilecc.emulator.context import Mask, Sink, Source, UnknownInstruction
from tilecc.emulator.control import BLOCKED, EXIT
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.types import Array

if TYPE_CHECKING:
    from tilecc.emulator.machine import Batch, Strand

_BARRIERS = 16
Reduction = tuple[str, Source, Sink]


class Barriers:
    """The 16 barriers of each CTA."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        ctas, warps = batch.clocks.now.shape
        self.number = np.zeros(batch.pc.shape, np.int32)
        """Which barrier a thread waits at."""
        self.expected = np.zeros((ctas, _BARRIERS), np.int64)
        """Threads that it is for; 0: all that have not exited."""
        self.arrived = np.zeros((ctas, _BARRIERS), np.int64)
        """Threads that arrived without waiting."""
        self.known = np.zeros((ctas, _BARRIERS, warps), np.int32)
        """What those that arrived know together."""
        self.last: dict[int, Instruction] = {}
        self.votes: dict[int, list[tuple[Strand, Array, Array, str, Sink]]] = defaultdict(list)

    def _enter(self, s: Strand, m: Mask, ins: Instruction, number: Array, count: Array) -> Array:
        """Rows whose lanes arrive: note what they know and how many are expected."""
        here = np.ones(s.shape, bool) if m is None else m
        number, count = np.broadcast_to(number, s.shape), np.broadcast_to(count, s.shape)
        if int(number[here].max()) >= _BARRIERS:
            raise UnknownInstruction(ins, "barriers are 0 to 15")
        rows = np.nonzero(here.any(axis=1))[0]
        first = here[rows].argmax(axis=1)
        ids, cta, warp = number[rows, first], s.row_cta[rows], s.row_warp[rows]
        self.expected[cta, ids] = count[rows, first]
        known = self.batch.clocks.published()[cta, warp]
        np.maximum.at(self.known, (cta, ids), known)
        self.last.update((int(i), ins) for i in np.unique(ids))
        return rows

    def arrive(self, s: Strand, m: Mask, ins: Instruction, number: Array, count: Array) -> None:
        """bar.arrive: publish, and go on."""
        rows = self._enter(s, m, ins, number, count)
        ids = np.broadcast_to(number, s.shape)[rows, 0]
        np.add.at(self.arrived, (s.row_cta[rows], ids), 32)
        self.batch.clocks.now[s.row_cta[rows], s.row_warp[rows]] += 1

    def wait(
        self,
        s: Strand,
        m: Mask,
        ins: Instruction,
        number: Array,
        count: Array,
        reduction: Reduction | None,
    ) -> None:
        """bar.sync and bar.red: publish; the caller stops the threads."""
        self._enter(s, m, ins, number, count)
        here = np.ones(s.shape, bool) if m is None else m
        s.waits_at[here] = np.broadcast_to(number, s.shape)[here]
        if reduction is not None:
            op, value, put = reduction
            yes = np.broadcast_to(value(s), s.shape) & here
            for i in np.unique(np.broadcast_to(number, s.shape)[here]):
                self.votes[int(i)].append((s, here, yes, op, put))

    def release(self) -> bool:
        """Let go all that are complete; whether there was one."""
        pc = self.batch.pc
        gone = pc == EXIT
        blocked = (pc >= BLOCKED) & ~gone
        if not blocked.any():
            return False
        some = False
        for i in (int(x) for x in np.unique(self.number[blocked])):
            waiting = blocked & (self.number == i)
            warps = waiting.any(axis=2)
            expected = self.expected[:, i]
            complete = (waiting | gone).all(axis=(1, 2)) & warps.any(axis=1)
            counted = 32 * warps.sum(axis=1) + self.arrived[:, i] >= expected
            ready = np.where(expected > 0, counted & warps.any(axis=1), complete)
            if not ready.any():
                continue
            some = True
            pc[waiting & ready[:, None, None]] -= BLOCKED
            self.batch.clocks.advance(warps & ready[:, None], self.known[:, i, None, :])
            self.known[ready, i] = 0
            self.arrived[ready, i] = 0
            self._count_votes(i, ready)
        return some

    def _count_votes(self, i: int, ready: Array) -> None:
        entries, self.votes[i] = self.votes[i], []
        total, yes = np.zeros(len(ready), np.int64), np.zeros(len(ready), np.int64)
        for s, here, holds, _, _ in entries:
            np.add.at(total, s.row_cta, here.sum(axis=1))
            np.add.at(yes, s.row_cta, holds.sum(axis=1))
        for s, here, holds, op, put in entries:
            results: dict[str, Any] = {"popc": yes.astype(np.uint32)}
            results |= {"and": yes == total, "or": yes > 0}
            value = np.broadcast_to(results[op][s.row_cta][:, None], s.shape)
            now = here & ready[s.row_cta][:, None]
            put(s, now, value)
            if (here & ~now).any():
                self.votes[i].append((s, here & ~now, holds & ~now, op, put))

    def report_deadlock(self) -> None:
        """Findings for barriers at which threads wait for ever."""
        pc = self.batch.pc
        blocked = (pc >= BLOCKED) & (pc != EXIT)
        for i in (int(x) for x in np.unique(self.number[blocked])):
            stuck = blocked & (self.number == i)
            message = f"{int(stuck.sum())} threads wait for ever at barrier {i}"
            self.batch.launch.findings.add(report.DEADLOCK, self.last[i], message)

"""Timing contestants in rounds, A B C A B C ..., on a machine that others may be using too.

How much of the cores other processes took is read before and after each round (Linux); a round in
which they took more than a few per cent is repeated, for as long as patience lasts. What remains
are the quietest rounds that there were, and how quiet those were is part of the result.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

QUIET = 0.05
"""The share of all cores that others may take in a round that counts."""

_REST = 0.02  # seconds between samples: other libraries' threads spin for a while after a call
_WAIT = 0.25  # seconds over which the machine is looked at before a round
_SAMPLE = 0.02  # a sample repeats its call until it is about as long as this
_REPEATS = 50


@dataclass
class Contestant:
    """Something to be timed, and its times in seconds a call, one for each round that counts."""

    name: str
    run: Callable[[], object]
    repeats: int = 1
    seconds: list[float] = field(default_factory=list)
    core_seconds: list[float] = field(default_factory=list)
    """The same in CPU time of all threads, which tells waiting from work."""

    @property
    def median(self) -> float:
        """Seconds a call."""
        return statistics.median(self.seconds)

    @property
    def core_median(self) -> float:
        """Core seconds a call."""
        return statistics.median(self.core_seconds)

    @property
    def best(self) -> float:
        """Seconds a call."""
        return min(self.seconds)


@dataclass(frozen=True)
class Quality:
    """How undisturbed the rounds were that count."""

    rounds: int
    tried: int
    others: float | None
    """Median share of the cores that other processes took; None where that cannot be known."""
    worst: float | None

    def __str__(self) -> str:
        if self.others is None or self.worst is None:
            return f"{self.rounds} rounds"
        text = f"{self.rounds} rounds of {self.tried}, others took {100 * self.others:.0f} %"
        return f"{text} of the cores (at most {100 * self.worst:.0f} %)"


def interleave(contestants: Sequence[Contestant], rounds: int, patience: float) -> Quality:
    """Run all contestants in `rounds` rounds and fill in their times.

    Args:
        contestants: each is called once beforehand, untimed.
        rounds: how many rounds count.
        patience: seconds that may be spent on waiting for others to finish, and on rounds that
            were disturbed.
    """
    for c in contestants:
        start = time.perf_counter()
        c.run()
        once = time.perf_counter() - start
        if once < _SAMPLE:
            start = time.perf_counter()
            c.run()
            once = time.perf_counter() - start
        c.repeats = max(1, min(_REPEATS, round(_SAMPLE / once)))
    taken: list[tuple[float, list[tuple[float, float]]]] = []
    deadline = None
    while True:
        quiet = sum(share <= QUIET for share, _ in taken)
        if quiet >= rounds:
            break
        if len(taken) >= rounds:
            deadline = deadline or time.monotonic() + patience
            if time.monotonic() > deadline or not _known():
                break
            _wait_for_quiet(deadline)
        taken.append(_round(contestants))
    best = sorted(taken, key=lambda t: t[0])[:rounds]
    for _, times in best:
        for c, (wall, cpu) in zip(contestants, times, strict=True):
            c.seconds.append(wall)
            c.core_seconds.append(cpu)
    if not _known():
        return Quality(len(best), len(taken), None, None)
    shares = [share for share, _ in best]
    return Quality(len(best), len(taken), statistics.median(shares), max(shares))


def _round(contestants: Sequence[Contestant]) -> tuple[float, list[tuple[float, float]]]:
    """The share of others, and each contestant's seconds and core seconds."""
    times = []
    watch = _Watch()
    for c in contestants:
        time.sleep(_REST)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(c.repeats):
            c.run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        times.append((wall / c.repeats, cpu / c.repeats))
    return watch.others(), times


def _wait_for_quiet(deadline: float) -> None:
    while time.monotonic() < deadline:
        watch = _Watch()
        time.sleep(_WAIT)
        if watch.others() <= QUIET:
            return


class _Watch:
    """What other processes do from now on."""

    def __init__(self) -> None:
        self.busy, self.own, self.time = _busy(), time.process_time(), time.perf_counter()

    def others(self) -> float:
        """The share of all cores that they have taken since."""
        own, wall = time.process_time() - self.own, time.perf_counter() - self.time
        return max(0.0, (_busy() - self.busy - own) / (wall * (os.cpu_count() or 1)))


def _known() -> bool:
    return Path("/proc/stat").exists()


def _busy() -> float:
    """Seconds of all cores that were not idle, since boot; time stolen by a hypervisor counts."""
    if not _known():
        return 0.0
    user, nice, system, _idle, _iowait, *rest = _first_line("/proc/stat")
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


def _first_line(path: str) -> list[int]:
    with open(path, encoding="ascii") as f:
        return [int(x) for x in f.readline().split()[1:]]


def peak_memory(run: Callable[[], object]) -> int | None:
    """Bytes by which the process grows while `run` is at work, its result included (Linux, glibc).

    The kernel's high-water mark is reset before; None where that cannot be done.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)  # else memory that was freed before is taken again unseen
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        keep = run()
        peak = _status("VmHWM")
    except (OSError, KeyError, AttributeError):
        return None
    del keep
    return max(0, peak - before)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) << 10
    raise KeyError(key)

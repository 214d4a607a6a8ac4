"""Worker processes that stay up: each does one job at a time, and is replaced when it fails.

Nothing that a job does reaches the caller but its answer or the reason why there is none.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

# What a signal that ended a worker means, in a word.
_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic exception",
    signal.SIGILL: "illegal instruction",
    signal.SIGKILL: "killed, perhaps for its memory",
}
_START_SECONDS = 120.0  # for a worker to import what it needs, on a busy machine
_SHARE = 0.8  # of the memory that is free when the pool starts, what all workers may take
_LEAST_MEMORY = 1 << 30
_ROOT = str(Path(__file__).resolve().parents[2])  # where tilecc is imported from


@dataclass(frozen=True)
class Job:
    """A call of a runner's method that must be answered in `seconds`. `tag` is the caller's."""

    tag: Any
    method: str
    args: tuple[Any, ...]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What became of a job: its value, or in `reason` why there is none; and how long it took."""

    job: Job
    value: Any = None
    reason: str = ""
    seconds: float = 0.0


@dataclass
class _Process:
    """One worker: the process, its end of the pipe, its stderr, and the job in flight."""

    popen: subprocess.Popen[bytes]
    pipe: Connection
    stderr: IO[bytes]
    job: Job | None
    started: float = field(default_factory=time.monotonic)

    @property
    def deadline(self) -> float:
        return self.started + self.job.seconds if self.job else float("inf")


class Pool:
    """`count` workers with one runner open in each; a context that ends them.

    Args:
        runner: "module:function"; the function is called with `payload` in each worker.
        count: how many workers.
        pinned: give each a core of its own, so that one's measurements are not moved about.
        memory: bytes that a worker may take beside what it starts with; None: its share.
    """

    def __init__(
        self,
        runner: str,
        payload: Any,
        count: int,
        *,
        pinned: bool = True,
        memory: int | None = None,
    ) -> None:
        self.runner, self.payload, self.count = runner, payload, count
        self.memory = memory if memory is not None else _free_memory(count)
        self.cores = sorted(os.sched_getaffinity(0)) if pinned and _pins() else []
        self.processes: list[_Process] = []
        self.replaced = 0

    def __enter__(self) -> Pool:
        # Through a file: a pipe would block until the worker is up.
        fd, self.file = tempfile.mkstemp(prefix="tilecc-", suffix=".pickle")
        with os.fdopen(fd, "wb") as f:
            pickle.dump(self.payload, f)
        self.processes = [self._start(n) for n in range(self.count)]
        return self

    def __exit__(self, *_: object) -> None:
        for p in self.processes:
            _end(p)
        self.processes = []
        Path(self.file).unlink(missing_ok=True)

    def start_up(self) -> None:
        """Wait until all workers are up; without it they come up while jobs are waiting."""
        while any(p.job is not None for p in self.processes):
            self.collect(0.1)

    def submit(self, job: Job) -> bool:
        """Give `job` to a worker that is free; False if none is."""
        for n, p in enumerate(self.processes):
            if p.job is None:
                p.job, p.started = job, time.monotonic()
                try:
                    p.pipe.send((job.method, *job.args))
                except OSError:  # it died while it had nothing to do
                    self._replace(n)
                    continue
                return True
        return False

    def collect(self, seconds: float | None = None) -> list[Outcome]:
        """What has come to an end, waiting up to `seconds` for the first (None: for ever).

        Raises:
            RuntimeError: a worker cannot start; the message says what it wrote.
        """
        limit = float("inf") if seconds is None else time.monotonic() + seconds
        while True:
            found = self._poll(limit)
            if found or time.monotonic() >= limit:
                return found
            if seconds is None and not any(p.job for p in self.processes):
                return []

    def call(self, job: Job) -> Outcome:
        """One job on the first worker, the others being idle; waits for the worker to be up."""
        while self.processes[0].job is not None:
            self.collect()
        p = self.processes[0]
        p.job, p.started = job, time.monotonic()
        try:
            p.pipe.send((job.method, *job.args))
        except OSError:
            return self._fail(0, p, _death(p))[0]
        while True:
            for outcome in self.collect():
                if outcome.job is job:
                    return outcome

    def _poll(self, limit: float) -> list[Outcome]:
        until = min([limit, *(p.deadline for p in self.processes)])
        left = None if until == float("inf") else max(0.0, until - time.monotonic())
        ready = set(wait([p.pipe for p in self.processes], left))
        found = []
        for n, p in enumerate(self.processes):
            if p.pipe in ready:
                found += self._answer(n, p)
            elif p.job is not None and time.monotonic() >= p.deadline:
                found += self._fail(n, p, f"no answer in {p.job.seconds:.3g} s")
        return found

    def _answer(self, n: int, p: _Process) -> list[Outcome]:
        try:
            status, value = p.pipe.recv()
        except (EOFError, OSError):
            return self._fail(n, p, _death(p))
        job, p.job = p.job, None
        if job is None:
            return []
        if job.method == "open":
            if status != "ok":
                raise RuntimeError(f"a measuring process cannot start: {value}")
            return []
        took = time.monotonic() - p.started
        return [
            Outcome(job, value, "", took) if status == "ok" else Outcome(job, None, value, took)
        ]

    def _fail(self, n: int, p: _Process, reason: str) -> list[Outcome]:
        job = p.job
        if job is not None and job.method == "open":
            raise RuntimeError(f"a measuring process cannot start: {reason}")
        self._replace(n)
        if job is None:
            return []
        return [Outcome(job, None, reason, time.monotonic() - p.started)]

    def _replace(self, n: int) -> None:
        _end(self.processes[n])
        self.replaced += 1
        self.processes[n] = self._start(n)

    def _start(self, n: int) -> _Process:
        ours, theirs = _pipe()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        environment = {**os.environ, "PYTHONPATH": _with_root(os.environ.get("PYTHONPATH"))}
        popen = subprocess.Popen(
            [sys.executable, "-m", "tilecc.tuning.worker", str(theirs)],
            pass_fds=[theirs],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the caller
        )
        os.close(theirs)
        cores = {self.cores[n % len(self.cores)]} if self.cores else None
        args = (self.runner, self.file, list(sys.path), self.memory, cores)
        p = _Process(popen, ours, stderr, Job(None, "open", args, _START_SECONDS))
        ours.send(("open", *args))
        return p


def _pipe() -> tuple[Connection, int]:
    """Our end, and the file descriptor of the other."""
    import socket

    a, b = socket.socketpair()
    return Connection(a.detach()), b.detach()


def _with_root(path: str | None) -> str:
    return os.pathsep.join(filter(None, (_ROOT, path)))


def _end(p: _Process) -> None:
    p.pipe.close()
    p.popen.kill()
    p.popen.wait()
    p.stderr.close()


def _death(p: _Process) -> str:
    """Why a worker is gone: its signal or exit code, and the last that it wrote."""
    code = p.popen.wait()
    said = _last_words(p.stderr)
    if code < 0:
        try:
            number = signal.Signals(-code)
            reason = f"{_SIGNALS.get(number, 'ended by a signal')} ({number.name})"
        except ValueError:
            reason = f"ended by signal {-code}"
    else:
        reason = f"the process ended itself with {code}"
    return f"{reason}: {said}" if said else reason


def _last_words(stderr: IO[bytes]) -> str:
    """The first line of what a dead worker wrote, which says what happened if anything does."""
    stderr.seek(0)
    lines = stderr.read(20000).decode(errors="replace").splitlines()
    return next((line.strip()[:200] for line in lines if line.strip()), "")


def _free_memory(count: int) -> int | None:
    """Each worker's share of the memory that is free (Linux; elsewhere None)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((int(x.split()[1]) << 10 for x in lines if x.startswith("MemAvailable")), 0)
    return max(_LEAST_MEMORY, int(_SHARE * free / count))


def _pins() -> bool:
    return hasattr(os, "sched_getaffinity")


def usable_cores() -> Sequence[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if _pins() else range(os.cpu_count() or 1)

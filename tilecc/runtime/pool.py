"""The threads that kernels run on: one pool for the process, and dynamic chunks of tasks.

A call is a job: the calling thread and up to `threads - 1` helpers take chunks of its tasks until
none is left. The caller never waits for a helper that has not begun, so that a small call costs no
more than its own work. Compiled functions run without the GIL.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from tilecc.errors import ArgumentError

Work = Callable[[int, int], None]
"""Does tasks begin .. end."""

VARIABLE = "TILECC_NUM_THREADS"
# A chunk is this fraction of what is left for each thread: large first, single tasks at the end.
_SHARES = 4


def available_threads() -> int:
    """The number of threads for a call that names none: TILECC_NUM_THREADS, else all usable cores.

    Raises:
        ArgumentError: the variable is not a positive number.
    """
    text = os.environ.get(VARIABLE, "")
    if text:
        if not text.isascii() or not text.isdigit() or int(text) == 0:
            raise ArgumentError(f"{VARIABLE}={text!r} is not a positive number")
        return int(text)
    return usable_cores()


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def check_threads(threads: object) -> int | None:
    """`threads` if it is a positive number or None.

    Raises:
        ArgumentError: it is not.
    """
    if threads is None:
        return None
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ArgumentError(f"threads={threads!r} is not a positive number")
    return threads


class _Job:
    """The tasks of one launch, and who is at work on them."""

    def __init__(self, work: Work, tasks: int, threads: int) -> None:
        self.work, self.tasks, self.threads = work, tasks, threads
        self.next = 0
        self.active = 0  # helpers at work, of which there may be `allowed`
        self.allowed = 0
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        self.idle: threading.Lock | None = None  # held until the last helper has left

    def take(self) -> tuple[int, int]:
        """The next chunk; empty when there is none."""
        with self.lock:
            begin = self.next
            size = -(-(self.tasks - begin) // (_SHARES * self.threads))
            self.next = begin + size
        return begin, begin + size

    def do_chunk(self) -> bool:
        """Do a chunk; false if none is left or one has failed."""
        try:
            begin, end = self.take()
            if begin == end:
                return False
            self.work(begin, end)
            return True
        except BaseException as e:
            with self.lock:
                self.error = self.error or e
                self.next = self.tasks
            return False

    def help(self) -> None:
        """What a helper does with the job, which may be over by the time that it starts."""
        with self.lock:
            if self.next >= self.tasks or self.active >= self.allowed:
                return
            self.active += 1
        while self.active <= self.allowed and self.do_chunk():
            pass
        with self.lock:
            self.active -= 1
            if self.active == 0 and self.idle is not None:
                self.idle.release()

    def finish(self) -> None:
        """Wait for the helpers that have begun, and raise what any thread raised."""
        with self.lock:
            if self.active:
                self.idle = threading.Lock()
                self.idle.acquire()
        if self.idle is not None:
            self.idle.acquire()
        if self.error is not None:
            raise self.error


class ThreadPool:
    """Helpers that live as long as the process, as many as calls have asked for."""

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._queue: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._helpers = 0
        self._running: list[_Job] = []

    def run(self, work: Work, tasks: int, threads: int) -> None:
        """Do all tasks with at most `threads` threads, the caller's among them.

        Calls from several Python threads at once share the helpers: each other caller takes the
        place of one, so that no more threads compute than the largest of the calls asked for.
        """
        threads = min(threads, tasks)
        if tasks == 0:
            return
        job = _Job(work, tasks, max(1, threads))
        with self._lock:
            self._running.append(job)
            self._share()
        try:
            while job.do_chunk():
                pass
            job.finish()
        finally:
            with self._lock:
                self._running.remove(job)
                self._share()

    def _share(self) -> None:
        """Set how many helpers each running job may have, and call for those that it lacks."""
        callers = len(self._running)
        for job in self._running:
            job.allowed = max(0, job.threads - callers)
            for _ in range(job.allowed - job.active):
                self._queue.put(job)
            while self._helpers < job.allowed:
                self._helpers += 1
                args, name = (self._queue,), f"tilecc-{self._helpers}"
                threading.Thread(target=_serve, args=args, name=name, daemon=True).start()


def _serve(jobs: queue.SimpleQueue[_Job]) -> None:
    """A helper's life."""
    while True:
        job = jobs.get()
        job.help()
        del job  # what the work refers to is not kept until the next one comes


POOL = ThreadPool()

"""A process that does what could crash, hang or use up memory, and answers through a pipe.

    python -m tilecc.tuning.worker FD

It is told which runner to open (a function "module:name" that takes a payload), then to call the
runner's methods, until the pipe closes. It knows nothing of kernels: the runner does.
"""

from __future__ import annotations

import os
import pickle
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any


def main() -> None:
    """Answer until the other end is closed."""
    _die_with_parent()
    pipe = Connection(int(sys.argv[1]))
    runner: Any = None
    while True:
        try:
            what, *args = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if what == "open":
                runner = _open(*args)
                pipe.send(("ok", None))
            else:
                pipe.send(("ok", getattr(runner, what)(*args)))
        except MemoryError as e:
            pipe.send(("error", f"out of memory{f': {e}' if str(e) else ''}"))
        except Exception as e:
            text = str(e).strip() or "no message"
            pipe.send(("error", f"{type(e).__name__}: {text}"))


def _open(runner: str, payload: str, path: list[str], memory: int | None, cores: Any) -> Any:
    """The runner for the pickled object in the file `payload`.

    It runs on the given cores (None: any) and may take `memory` more bytes than when it starts.
    """
    sys.path[:] = path
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    module, _, name = runner.partition(":")
    with open(payload, "rb") as f:
        opened = getattr(import_module(module), name)(pickle.load(f))
    if memory is not None:
        _limit(memory)
    return opened


def _limit(more: int) -> None:
    """Let this process's address space grow by `more` bytes and no further."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as f:
            now = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + more, hard))
    except (ImportError, OSError, ValueError):
        return  # another system: its own limits hold


def _die_with_parent() -> None:
    """On Linux, be killed when the parent is: a kernel that loops for ever would outlive it."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes
    import signal

    parent_death = 1
    ctypes.CDLL(None, use_errno=True).prctl(parent_death, signal.SIGKILL)


if __name__ == "__main__":
    main()

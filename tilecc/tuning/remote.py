"""Candidates that are built here and measured on boards, through TVM's RPC tracker and servers.

    python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port 9190
    python -m tvm.exec.rpc_server --tracker 127.0.0.1:9190 --key board        (on each board)
    tilecc tune FILE --tracker 127.0.0.1:9190 --key board

Each worker of the pool asks for a board when it has something to measure, so that as many measure
at once as there are boards and workers. A board that is gone is replaced by another of the same
key; a candidate during which two are lost is taken to be the reason. Shared libraries are linked
here: that needs a C compiler.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tilecc.codegen import Program, lower
from tilecc.errors import CompileError
from tilecc.ir.core import Value
from tilecc.ir.expr import Env, evaluate
from tilecc.ir.parser import parse_ir
from tilecc.passes.base import Remarks
from tilecc.passes.tile import Tile
from tilecc.runtime.arguments import Binder
from tilecc.runtime.build import build
from tilecc.runtime.executable import Executable
from tilecc.tuning.candidates import Task
from tilecc.tuning.config import Config
from tilecc.tuning.pool import Pool
from tilecc.tuning.timing import Bench

RUNNER = "tilecc.tuning.remote:Runner"
# Seconds after which a server ends a session, whatever it is at: a kernel that loops for ever would
# hold the board. The last rounds of a shape must be done by then, or begin anew.
SESSION_SECONDS = 300
T = TypeVar("T")


@dataclass(frozen=True)
class Tracker:
    """Where a tracker listens, and the key of the boards."""

    host: str
    port: int
    key: str

    @staticmethod
    def at(address: str, key: str) -> Tracker:
        """The tracker at "host:port".

        Raises:
            CompileError: the address is not of that form.
        """
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise CompileError(f"--tracker {address!r} is not HOST:PORT")
        return Tracker(host, int(port), key)

    def pool(self, runner: str, task: Any, count: int) -> Pool:
        """A pool whose workers measure on boards; in place of `Pool` for `tune`."""
        return Pool(RUNNER, (self, task), count, pinned=False)


class Gone(Exception):
    """No board answers."""


class Runner(Bench):
    """Builds configurations here, and runs them on a board."""

    def __init__(self, payload: tuple[Tracker, Task]) -> None:
        self.tracker, task = payload
        super().__init__(parse_ir(task.source, "source"), task.target, task.shapes)
        self.loop = parse_ir(task.loop, "loop")
        self.session: Any = None

    def measure(self, config: Config, n: int) -> dict[str, Any]:
        """As `Bench.measure`, on a board."""
        try:
            return self._on_board(lambda: super(Runner, self).measure(config, n))
        finally:  # for another worker: there may be fewer boards than workers
            self.session, self.ready = None, {}

    def prepare(self, config: Config, n: int) -> None:
        """As `Bench.prepare`, on a board."""
        self._on_board(lambda: super(Runner, self).prepare(config, n))

    def sample(
        self, config: Config, n: int, threads: int, cores: Sequence[int], repeats: int
    ) -> tuple[float, float]:
        """Seconds of a call on one core of the board, shared out over `threads`."""

        def run() -> tuple[float, float]:
            if config not in self.ready:  # it was on a board that is gone
                super(Runner, self).prepare(config, n)
            inputs = self.inputs(n)[0]
            times = [sum(self.ready[config].kernel_seconds(inputs)) for _ in range(repeats)]
            seconds = sum(times) / repeats
            return seconds / threads, seconds

        return self._on_board(run)

    def _on_board(self, work: Callable[[], T]) -> T:
        """`work`, once more with another board if this one is lost."""
        for last in (False, True):
            try:
                return work()
            except Exception as e:
                if not _is_lost(e):
                    raise
                self.session, self.ready = None, {}
                if last:
                    raise Gone(f"two boards were lost while it ran: {_first_line(e)}") from e
        raise AssertionError("not reached")

    def _board(self) -> Any:
        if self.session is None:
            from tvm import rpc

            try:
                # TVM would try for minutes.
                with socket.create_connection((self.tracker.host, self.tracker.port), 10):
                    pass
                tracker = rpc.connect_tracker(self.tracker.host, self.tracker.port)
                self.session = tracker.request(
                    self.tracker.key, session_timeout=SESSION_SECONDS, max_retry=3
                )
            except Exception as e:
                where = f"{self.tracker.host}:{self.tracker.port}"
                raise Gone(f"no board {self.tracker.key} at {where}: {_first_line(e)}") from e
        return self.session

    def _build(self, config: Config) -> Any:
        tiled = Tile(config.tile).apply(self.loop, Remarks())
        program = lower(tiled, self.target, dict(config.options))
        if not isinstance(program, Program):
            raise CompileError(f"boards for {self.target.name} are not reached through RPC")
        library = build(program, self.target)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, f"k{abs(hash(config)):x}.so")
            library.module.export_library(path)
            self._board().upload(path)
            module = self._board().load_module(os.path.basename(path))
        binder = Binder(self.source.name, self.source.params, {})
        return _OnBoard(self._board(), module, Executable(tiled, program, _Names()), binder)


class _Names(dict[str, Any]):
    """Stands for functions that are on the board."""

    def __missing__(self, name: str) -> str:
        return name


class _OnBoard:
    """A compiled program on a board: its arrays are there, and so are the times."""

    def __init__(self, session: Any, module: Any, executable: Any, binder: Binder) -> None:
        self.session, self.module = session, module
        self.executable, self.binder = executable, binder
        self.held: dict[int, tuple[dict[Value, Any], list[tuple[str, list[Any], int]]]] = {}
        self.tasks: list[int] = []

    def call(self, inputs: Mapping[str, Any], threads: int) -> Any:
        """The outputs, as arrays of this machine."""
        values, calls = self._arranged(inputs)
        for name, args, tasks in calls:
            if tasks:
                self.module[name](*args, 0, tasks)
        outputs = tuple(values[v].numpy().view(v.type.dtype.numpy) for v in self.executable.returns)
        return outputs[0] if len(outputs) == 1 else outputs

    def kernel_seconds(self, inputs: Mapping[str, Any]) -> list[float]:
        """Seconds of each kernel on one core of the board."""
        _, calls = self._arranged(inputs)
        self.tasks = [tasks for _, _, tasks in calls]
        found = []
        for name, args, tasks in calls:
            timer = self.module.time_evaluator(name, self.session.cpu(0), number=1)
            found.append(float(timer(*args, 0, tasks).mean) if tasks else 0.0)
        return found

    def _arranged(
        self, inputs: Mapping[str, Any]
    ) -> tuple[dict[Value, Any], list[tuple[str, list[Any], int]]]:
        """Everything on the board, and the calls: a kernel's name, arguments and tasks."""
        key = id(inputs)
        if key in self.held:
            return self.held[key]
        bound = self.binder.bind((), dict(inputs))
        values: dict[Value, Any] = {}
        host: dict[Value, Any] = {}
        for p, q in zip(self.executable.params, self.binder.params, strict=True):
            given = inputs[q.name]
            host[p] = given
            values[p] = self._remote(np.asarray(given)) if p.type.axes else given
        env = Env(extent=bound.extents.__getitem__)
        for v in self.executable.allocs:
            shape = tuple(int(evaluate(a.extent, env)) for a in v.type.axes)
            values[v] = self._remote(np.zeros(shape, v.type.dtype.numpy))
        calls = []
        for k in self.executable.kernels:
            scratch = [self._remote(np.zeros(s.size, s.dtype.numpy)) for s in k.entry.scratch]
            args = [*(values[v] for v in k.entry.args), *scratch]
            calls.append((k.entry.name, args, k.tasks(bound.extents, host)))
        self.held[key] = values, calls
        return values, calls

    def _remote(self, array: Any) -> Any:
        """A copy on the board."""
        import tvm

        name = array.dtype.name
        made = tvm.runtime.empty(array.shape, name, self.session.cpu(0))
        made.copyfrom(np.ascontiguousarray(array))
        return made


def _is_lost(e: Exception) -> bool:
    """Whether an error says that the other side is gone, and not what it answered."""
    kind = type(e).__name__
    if isinstance(e, OSError) or kind in ("RPCSessionTimeoutError",):
        return True
    text = str(e)
    signs = ("Channel closes", "channel closed", "RPCSessionTimeoutError", "Cannot connect")
    return kind in ("RPCError", "RuntimeError", "InternalError", "TVMError") and any(
        s in text for s in (*signs, "Socket", "socket", "remote server")
    )


def _first_line(e: Exception) -> str:
    lines = [line for line in str(e).splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else type(e).__name__

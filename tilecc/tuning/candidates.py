"""Building, checking and timing configurations of one program: what a worker's runner does here."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilecc.check import Reference, random_inputs, reference
from tilecc.codegen import Program, lower
from tilecc.errors import CompileError
from tilecc.ir.core import Func
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.passes.base import Remarks
from tilecc.passes.tile import Tile
from tilecc.runtime.arguments import Binder
from tilecc.runtime.build import build
from tilecc.runtime.executable import Executable
from tilecc.target import Target
from tilecc.tuning.config import Config

RUNNER = "tilecc.tuning.candidates:Runner"
# Timed calls of a candidate: at least so many, for at least so long.
CALLS, SECONDS = 3, 0.06
# Lengths that no tile divides, at which a candidate must be right too.
RAGGED = 77


@dataclass(frozen=True)
class Inputs:
    """Extents and run-time numbers of a call, and the seed of the random tensors."""

    sizes: Mapping[str, int]
    scalars: Mapping[str, float]
    seed: int = 0


@dataclass(frozen=True)
class Shape:
    """One shape: candidates are timed on `timed`, and checked on each of `checked`."""

    timed: Inputs
    checked: tuple[Inputs, ...]
    references: tuple[Reference, ...]


@dataclass(frozen=True)
class Task:
    """A program to be tuned, as a worker is given it: IR, before any pass and before `tile`."""

    source: str
    loop: str
    target: Target
    shapes: tuple[Shape, ...]


def make_task(
    source: Func,
    loop: Func,
    target: Target,
    shapes: Sequence[Mapping[str, int]],
    scalars: Mapping[str, float],
) -> Task:
    """The task for shapes with sizes of all extents; `source` has static extents bound."""
    made = tuple(_shape(source, sizes, scalars) for sizes in shapes)
    return Task(print_ir(source), print_ir(loop), target, made)


def _shape(source: Func, sizes: Mapping[str, int], scalars: Mapping[str, float]) -> Shape:
    """A program below the graph has no reference that is quick on large inputs: small ones do."""
    timed = Inputs(dict(sizes), dict(scalars))
    small = Inputs({n: min(v, RAGGED) for n, v in sizes.items()}, scalars)
    checked = (timed, small) if source.level == "graph" else (small,)
    if timed.sizes == small.sizes:
        checked = (timed,)
    references = tuple(
        reference(source, c.sizes, random_inputs(source, c.sizes, c.scalars, c.seed))
        for c in checked
    )
    return Shape(timed, checked, references)


class Wrong(Exception):
    """A candidate's results are not right."""


class Runner:
    """Builds, checks and times configurations; arguments and answers are plain data."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.source = parse_ir(task.source, "source")
        self.loop = parse_ir(task.loop, "loop")
        self.ready: dict[Config, _Ready] = {}
        self.inputs = cache(self._inputs)

    def _inputs(self, n: int) -> list[dict[str, Any]]:
        """What shape `n` is timed on, then what it is checked on."""
        shape = self.task.shapes[n]
        return [
            random_inputs(self.source, c.sizes, c.scalars, c.seed)
            for c in (shape.timed, *shape.checked)
        ]

    def measure(self, config: Config, n: int) -> dict[str, Any]:
        """Build, check, and time on one thread: CPU seconds a call, so that others disturb less.

        `n` is the number of the shape.

        Raises:
            CompileError: it cannot be compiled.
            Wrong: its results are not right.
        """
        start = time.perf_counter()
        ready = self._build(config)
        built = time.perf_counter() - start
        error = self._check(ready, n)
        inputs = self.inputs(n)[0]
        samples: list[list[float]] = []
        begun = time.perf_counter()
        while len(samples) < CALLS or time.perf_counter() - begun < SECONDS:
            samples.append(ready.kernel_seconds(inputs))
        medians = [statistics.median(s) for s in zip(*samples, strict=True)]
        cores = int(self.task.target.cores.value)
        seconds = sum(
            s / cores * _idle(n, cores) for s, n in zip(medians, ready.tasks, strict=True)
        )
        return {
            "seconds": seconds,
            "cpu_seconds": sum(medians),
            "samples": len(samples),
            "error": error,
            "build_seconds": built,
        }

    def prepare(self, config: Config, n: int) -> None:
        """Build unless that is done, check on shape `n`, and keep it for `sample`.

        Raises:
            CompileError, Wrong: as in `measure`.
        """
        ready = self.ready.get(config) or self._build(config)
        self._check(ready, n)
        self.ready[config] = ready

    def sample(
        self, config: Config, n: int, threads: int, cores: Sequence[int], repeats: int
    ) -> tuple[float, float]:
        """Seconds, and CPU seconds, a call on shape `n`, on `threads` threads and any of `cores`,
        over `repeats` calls in a row.
        """
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)  # threads that are started from here on too
        ready, inputs = self.ready[config], self.inputs(n)[0]
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            ready.call(inputs, threads)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        return wall / repeats, cpu / repeats

    def _build(self, config: Config) -> _Ready:
        tiled = Tile(config.tile).apply(self.loop, Remarks())
        program = lower(tiled, self.task.target, dict(config.options))
        if not isinstance(program, Program):
            raise CompileError(f"this process has no device to run {self.task.target.name} on")
        library = build(program, self.task.target)
        return _Ready(tiled, program, library.functions, self.source)

    def _check(self, ready: _Ready, n: int) -> float:
        worst = 0.0
        wanted = self.task.shapes[n].references
        for inputs, want in zip(self.inputs(n)[1:], wanted, strict=True):
            out = ready.call(inputs, 1)
            found = want.check(out if isinstance(out, tuple) else (out,))
            if not found.ok:
                raise Wrong(f"differs by {found.error:.2e}, and {found.tolerance:.2e} is allowed")
            worst = max(worst, found.error)
        return worst


def _idle(tasks: int, cores: int) -> float:
    """How much longer the last round of tasks makes it, with some cores at rest."""
    return -(-tasks // cores) * cores / tasks if tasks else 1.0


class _Ready:
    """A compiled program whose kernels are timed one by one."""

    def __init__(
        self, tiled: Func, program: Any, functions: Mapping[str, Any], source: Func
    ) -> None:
        self.times = [_Timed(functions[k.name]) for k in program.kernels]
        timed = {k.name: t for k, t in zip(program.kernels, self.times, strict=True)}
        self.executable = Executable(tiled, program, timed)
        self.binder = Binder(source.name, source.params, {})

    def call(self, inputs: Mapping[str, Any], threads: int) -> Any:
        """The outputs."""
        return self.executable(self.binder.bind((), dict(inputs)), None, threads)

    def kernel_seconds(self, inputs: Mapping[str, Any]) -> list[float]:
        """CPU seconds of each kernel in one call on this thread."""
        for t in self.times:
            t.seconds, t.tasks = 0.0, 0
        self.call(inputs, 1)
        return [t.seconds for t in self.times]

    @property
    def tasks(self) -> list[int]:
        """Work items of each kernel in the last call that was timed."""
        return [t.tasks for t in self.times]


class _Timed:
    """A kernel's function, with the CPU time and the tasks of its calls added up."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds, self.tasks = 0.0, 0

    def __call__(self, *args: Any) -> None:
        start = time.thread_time()
        self.function(*args)
        self.seconds += time.thread_time() - start
        self.tasks += args[-1] - args[-2]


def spread(samples: list[float]) -> float:
    """Half the distance between quartiles, as a fraction of the median."""
    low, middle, high = np.percentile(samples, (25, 50, 75))
    return float((high - low) / 2 / middle) if middle else 0.0

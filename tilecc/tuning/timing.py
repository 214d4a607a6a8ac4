"""Checking and timing compiled configurations; needs neither TVM nor a compiler."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilecc.check import Reference, reference
from tilecc.inputs import random_inputs
from tilecc.ir.core import Func
from tilecc.target import Target
from tilecc.tuning.config import Config

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


def make_shape(source: Func, sizes: Mapping[str, int], scalars: Mapping[str, float]) -> Shape:
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


class Bench:
    """Checks and times configurations; arguments and answers are plain data.

    What makes their kernels is for its children to say.
    """

    def __init__(self, source: Func, target: Target, shapes: Sequence[Shape]) -> None:
        self.source, self.target, self.shapes = source, target, shapes
        self.ready: dict[Config, Ready] = {}
        self.inputs = cache(self._inputs)

    def _inputs(self, n: int) -> list[dict[str, Any]]:
        """What shape `n` is timed on, then what it is checked on."""
        shape = self.shapes[n]
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
        cores = int(self.target.cores.value)
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

    def _build(self, config: Config) -> Ready:
        """The configuration's kernel."""
        raise NotImplementedError

    def _check(self, ready: Ready, n: int) -> float:
        worst = 0.0
        wanted = self.shapes[n].references
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


class Ready:
    """A compiled program whose kernels are timed one by one."""

    def __init__(self, executable: Any, binder: Any) -> None:
        self.executable, self.binder = executable, binder
        self.times = []
        for kernel in executable.kernels:
            kernel.function = _Timed(kernel.function)
            self.times.append(kernel.function)

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

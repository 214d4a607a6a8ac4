"""`tc.tune`: the fastest kernel for some shapes on this machine, measured and remembered."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilecc.compiler import Compiler
from tilecc.cost.useful import useful_flops
from tilecc.errors import CompileError, Diagnostic
from tilecc.given import check_static, extent_names, load
from tilecc.runtime.pool import available_threads, check_threads
from tilecc.target import resolve
from tilecc.tuning.answers import answers
from tilecc.tuning.assign import assign
from tilecc.tuning.candidates import RUNNER, make_task
from tilecc.tuning.config import Config
from tilecc.tuning.database import Database
from tilecc.tuning.events import Finalist, Progress, ShapeResult
from tilecc.tuning.points import points
from tilecc.tuning.pool import Pool, usable_cores
from tilecc.tuning.search import Limits
from tilecc.tuning.session import FINALISTS, Session, Settings
from tilecc.tuning.subject import Subject, subject

if TYPE_CHECKING:
    from tilecc.dsl.specification import Spec
    from tilecc.ir.core import Func
    from tilecc.kernel import Kernel
    from tilecc.target import Target

# A kernel less is worth this fraction of the time of a shape.
TOLERANCE = 0.03
# Of each shape's best, how many are measured on the other shapes too.
ACROSS = 2


@dataclass(frozen=True)
class Tuned:
    """What `tune` found: by shape, and the kernel that dispatches over them."""

    subject: Subject
    shapes: tuple[ShapeResult, ...]
    chosen: tuple[Config | None, ...]
    """The configuration for each shape: not always its fastest, so that there are few of them."""
    interrupted: bool
    kernel: Kernel | None
    """None: nothing could be measured."""

    @property
    def configs(self) -> tuple[Config, ...]:
        """The distinct configurations."""
        return tuple(dict.fromkeys(c for c in self.chosen if c is not None))


def tune(
    spec: Spec | Func | str | os.PathLike[str],
    shapes: Sequence[Mapping[str, int]] | Mapping[str, int],
    target: str | Target = "cpu",
    dtype: Any = "float32",
    *,
    static: Mapping[str, int] | None = None,
    scalars: Mapping[str, float] | None = None,
    trials: int = 64,
    seconds: float | None = None,
    gain: float = 0.005,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    threads: int | None = None,
    workers: int | None = None,
    db: str | os.PathLike[str] | None = None,
    watch: Callable[[Progress], None] | None = None,
    pool: Callable[[str, Any, int], Any] = Pool,
) -> Tuned:
    """Measure configurations of a program and remember the fastest for each shape.

    Args:
        spec, target, dtype: as for `tc.compile`.
        shapes: extents by name, for each shape a number for all of them.
        static: extents to compile for beside those that must be numbers (head dimensions).
        scalars: values of run-time numbers, such as a window.
        trials, seconds: what a shape may cost, in configurations and in seconds.
        gain: a shape is done when the expected gain of the next trials is less than this fraction.
        tolerance: a shape takes another shape's configuration for less than this fraction of time.
        seed: of what is random in the search.
        threads: threads of a call; else all cores.
        workers: processes that build and measure; else one a core.
        db: file of the database; else TILECC_DB, else one in the user's cache.
        watch: is told of each measurement.
        pool: what runs jobs (see pool.py); the RPC tracker's is in remote.py.

    Ctrl-C ends it early: what was measured is kept, and what comes back says so.

    Raises:
        SpecError, CompileError, TargetError: as `tc.compile`; the program has no tiles to choose;
            or extents are missing, or static ones differ between shapes.
    """
    from tilecc.kernel import Kernel

    func, found = load(spec, dtype)
    wanted = [dict(shapes)] if isinstance(shapes, Mapping) else [dict(s) for s in shapes]
    compiler = Compiler(func, resolve(target), None)
    bound = bind_shapes(compiler, wanted, check_static(func, static or {}))
    what = subject(compiler, bound)
    count = workers or len(usable_cores())
    limits = Limits(trials, seconds, gain)
    calls = check_threads(threads) or available_threads()
    settings = Settings(limits, seed, calls, 2 * count, watch=watch)
    file = Database(db)
    with file:
        file.save(what.known)
        work = _Work(what, dict(scalars or {}), settings, file, pool, count)
        interrupted = work.run(wanted)
        chosen = work.choose(tolerance)
    kernel = None
    if any(c is not None for c in chosen):
        compiler.remembered = lambda run: answers(run, what.target, file)
        kernel = Kernel(compiler, bound, threads, found)
    return Tuned(what, tuple(work.results()), tuple(chosen), interrupted, kernel)


def bind_shapes(
    compiler: Compiler, shapes: Sequence[Mapping[str, int]], static: Mapping[str, int]
) -> dict[str, int]:
    """The static extents that all shapes share.

    Raises:
        CompileError: an extent is missing or unknown, or a static one differs between shapes.
    """
    names = extent_names(compiler.func)
    if not shapes:
        raise CompileError(Diagnostic("no shape to tune for", compiler.func.loc))
    bound = dict(static)
    for n, shape in enumerate(shapes):
        sizes = {**shape, **static}
        check_static(compiler.func, shape)
        missing = [name for name in names if name not in sizes]
        if missing:
            hint = "give a number for each of " + ", ".join(names)
            raise CompileError(Diagnostic(f"shape {n} has no {', '.join(missing)}", None, hint))
        for name in compiler.required(sizes):
            if bound.setdefault(name, sizes[name]) != sizes[name]:
                message = f"{name} is {bound[name]} and {sizes[name]}, and must be one number"
                raise CompileError(Diagnostic(message, None, "tune for each of them"))
    return bound


class _Work:
    """The sessions of all shapes, one after the other."""

    def __init__(
        self,
        what: Subject,
        scalars: Mapping[str, float],
        settings: Settings,
        db: Database,
        pool: Callable[[str, Any, int], Any],
        count: int,
    ) -> None:
        self.what, self.scalars, self.settings, self.db = what, scalars, settings, db
        self.pool, self.count = pool, count
        self.sessions: list[Session] = []
        self.finalists: list[list[Finalist]] = []
        self.remembered = self._remembered()

    def _remembered(self) -> list[tuple[str, Config]]:
        """What was chosen before: it must be beaten in the same rounds."""
        found = []
        for c in self.db.choices(self.what.key):
            config = Config.from_json(json.loads(c.config))
            found.append((c.bucket, self.what.from_canonical(config)))
        return found

    def run(self, shapes: Sequence[Mapping[str, int]]) -> bool:
        """Search and measure; gives whether it was interrupted."""
        what = self.what
        sized = [{**shape, **what.static} for shape in shapes]
        task = make_task(what.source, what.loop, what.target, sized, self.scalars)
        try:
            with self.pool(RUNNER, task, self.count) as pool:
                for n, sizes in enumerate(sized):
                    found = points(what.loop, what.target, sizes, self.scalars)
                    flops = useful_flops(what.loop, what.target, sizes, self.scalars)
                    session = Session(what, sizes, flops, found, pool, self.db, self.settings, n)
                    self.sessions.append(session)
                    self.finalists.append([])
                    session.run()
                for n, session in enumerate(self.sessions):
                    self.finalists[n] = session.finalists(self._others(session))
        except KeyboardInterrupt:
            return True
        return False

    def _others(self, session: Session) -> list[Config]:
        """What else is measured in a shape's last rounds: the choices for it and for others."""
        known = {p.config for p in session.search.points}
        before = [c for b, c in self.remembered if b == session.bucket]
        across = [
            c for s in self.sessions if s is not session for c, _ in s.search.ranking()[:ACROSS]
        ]
        return [c for c in dict.fromkeys([*before, *across]) if c in known]

    def choose(self, tolerance: float) -> list[Config | None]:
        """A configuration for each shape, saved for its bucket."""
        times = [self._times(n) for n in range(len(self.sessions))]
        chosen = assign(times, tolerance)
        for session, config, t in zip(self.sessions, chosen, times, strict=True):
            if config is not None:
                session.choose(config, t[config])
        return chosen

    def _times(self, n: int) -> dict[Config, float]:
        """Seconds by configuration, from the last rounds if they were run."""
        if self.finalists[n]:
            return {f.config: f.seconds for f in self.finalists[n]}
        return dict(self.sessions[n].search.ranking()[:FINALISTS])

    def results(self) -> list[ShapeResult]:
        """What was found for each shape that was begun."""
        return [s.result(f) for s, f in zip(self.sessions, self.finalists, strict=True)]

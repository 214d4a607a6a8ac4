"""One shape of one program: search, measure, check, remember, and measure the best again."""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilecc.tuning.config import Config
from tilecc.tuning.database import Chosen, Database, Trial
from tilecc.tuning.events import Finalist, Measurement, Progress, ShapeResult
from tilecc.tuning.points import Point
from tilecc.tuning.pool import Job, Outcome, usable_cores
from tilecc.tuning.search import Limits, Search
from tilecc.tuning.subject import Subject
from tilecc.tuning.timing import spread

# Seconds that a candidate may take to be built, checked and timed, before any is known.
PATIENCE = 30.0
FINALISTS, ROUNDS = 5, 9
_QUIET = 0.3  # of the cores' time, what may be lost to others (or to rest) without notice
_SAMPLE = 0.02  # a round of a finalist goes on for about as long as this


@dataclass
class Settings:
    """What a session may spend, and whom it tells."""

    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    threads: int = 1
    batch: int = 4
    patience: float = PATIENCE
    rounds: int = ROUNDS
    watch: Callable[[Progress], None] | None = None


class Session:
    """Measures one shape through `pool` (see pool.py: anything with its methods will do)."""

    def __init__(
        self,
        subject: Subject,
        sizes: Mapping[str, int],
        flops: float,
        points: list[Point],
        pool: Any,
        db: Database,
        settings: Settings,
        number: int = 0,
    ) -> None:
        """`number` is that of the shape in the pool's task."""
        self.number = number
        self.subject, self.sizes, self.flops = subject, dict(sizes), flops
        self.points, self.pool, self.db, self.settings = points, pool, db, settings
        self.bucket = str(subject.bucket(sizes))
        self.predicted = {p.config: p.seconds for p in points}
        self.search = Search([p for p in points if not p.refused], settings.limits, settings.seed)
        self.measurements: list[Measurement] = []
        self.begun = time.monotonic()

    def run(self) -> None:
        """Measure until the search is at its end; an interruption leaves all that was measured."""
        self._recall()
        order: deque[Config] = deque()  # proposed, their results not yet taken
        waiting: deque[Config] = deque()
        came: dict[Config, Outcome] = {}
        batch = self.settings.batch
        while True:
            # Results are taken in the order of proposals, and proposals made at fixed points of
            # that order, so that which worker is quicker changes nothing.
            while True:
                while len(order) <= batch and (new := self._propose(batch)):
                    order.extend(new)
                    waiting.extend(new)
                if not order or order[0] not in came:
                    break
                self._take(came.pop(order.popleft()))
            while waiting and self.pool.submit(self._job(waiting[0])):
                waiting.popleft()
            if not order:
                return
            for outcome in self.pool.collect():
                if outcome.job.tag in order:
                    came[outcome.job.tag] = outcome
                    self._save(outcome)

    def _propose(self, count: int) -> list[Config]:
        limit = self.settings.limits.seconds
        if limit is not None and time.monotonic() - self.begun > limit:
            self.search.ended = self.search.ended or f"{limit:g} seconds"
            return []
        return self.search.propose(count)

    def _job(self, config: Config) -> Job:
        return Job(config, "measure", (config, self.number), self.settings.patience)

    def _recall(self) -> None:
        """What earlier sessions measured, in the order of the points."""
        known = {t.config: t for t in self.db.trials(self.subject.key, self.bucket)}
        for p in self.search.points:
            t = known.get(self._name(p.config))
            if t is None:
                continue
            seconds = t.seconds if t.status == "ok" else None
            self.search.known(p.config, seconds, t.reason)
            self.measurements.append(
                Measurement(p.config, p.seconds, seconds, t.reason, t.details, earlier=True)
            )

    def _name(self, config: Config) -> str:
        return json.dumps(self.subject.to_canonical(config).to_json(), sort_keys=True)

    def _save(self, outcome: Outcome) -> None:
        """The outcome on file, before anything else is done with it."""
        config = outcome.job.tag
        value = outcome.value or {}
        self.db.save(
            Trial(
                self.subject.key,
                self.bucket,
                self._name(config),
                "failed" if outcome.reason else "ok",
                value.get("seconds"),
                self.predicted.get(config),
                outcome.reason,
                {**value, "sizes": self.sizes},
            )
        )

    def _take(self, outcome: Outcome) -> None:
        config, value = outcome.job.tag, outcome.value or {}
        self.search.result(config, value.get("seconds"), outcome.reason)
        m = Measurement(config, self.predicted[config], value.get("seconds"), outcome.reason, value)
        self.measurements.append(m)
        if self.settings.watch is not None:
            self.settings.watch(self._progress(m))

    def _progress(self, m: Measurement) -> Progress:
        elapsed = time.monotonic() - self.begun
        done, limits = self.search.trials, self.settings.limits
        total = min(limits.trials, done + len(self.search.points) - len(self.search.proposed))
        fresh = sum(not x.earlier for x in self.measurements)
        remaining = elapsed / fresh * max(0, total - fresh) if fresh else None
        if limits.seconds is not None and remaining is not None:
            remaining = min(remaining, max(0.0, limits.seconds - elapsed))
        good = [x for x in self.measurements if x.seconds is not None]
        best = min(good, key=lambda x: x.seconds or 0.0, default=None)
        return Progress(self.sizes, m, fresh, total, best, self.flops, elapsed, remaining)

    def finalists(self, more: list[Config]) -> list[Finalist]:
        """The best, and `more`, measured again in turns, on all threads, nothing else running."""
        wanted = [c for c, _ in self.search.ranking()[:FINALISTS]]
        wanted += [c for c in more if c not in wanted and c not in self.search.failed]
        timed = interleaved(self.pool, wanted, self.number, self.settings.rounds, self.settings)
        found = [
            Finalist(c, statistics.median(s), spread(s), self.predicted.get(c, float("nan")))
            for c, s in timed.items()
        ]
        return sorted(found, key=lambda f: (f.seconds, f.config))

    def result(self, finalists: list[Finalist]) -> ShapeResult:
        """All that was found."""
        first = self.search.points[0].config if self.search.points else None
        return ShapeResult(
            self.sizes,
            self.flops,
            tuple(finalists),
            tuple(self.measurements),
            tuple((p.config, p.refused) for p in self.points if p.refused),
            first,
            self.search.ended or "interrupted",
            time.monotonic() - self.begun,
        )

    def choose(self, config: Config, seconds: float) -> None:
        """Remember the choice for the shape's bucket."""
        key, threads = self.subject.key, self.settings.threads
        self.db.save(Chosen(key, self.bucket, self._name(config), seconds, threads, self.sizes))


def interleaved(
    pool: Any, configs: list[Config], number: int, rounds: int, settings: Settings
) -> dict[Config, list[float]]:
    """Seconds a call: `rounds` samples of each configuration in turns, without those that fail.

    One worker does all of it. If it dies, its replacement prepares what is left anew.
    """
    alive = list(configs)
    ready: set[Config] = set()
    samples: dict[Config, list[tuple[float, float]]] = {c: [] for c in configs}
    repeats: dict[Config, int] = {}

    def call(config: Config, method: str, *args: Any) -> Any:
        job = Job(config, method, (config, number, *args), settings.patience)
        outcome = pool.call(job)
        if outcome.reason:
            alive.remove(config)
            ready.clear()  # it may have been replaced
        return outcome.value

    while alive and any(len(samples[c]) < rounds for c in alive):
        for config in [c for c in alive if c not in ready]:
            call(config, "prepare")
            if config not in alive:
                break
            ready.add(config)
            once = call(config, "sample", settings.threads, list(usable_cores()), 1)
            if once is not None:
                repeats[config] = max(1, min(100, round(_SAMPLE / max(once[0], 1e-6))))
        if any(c not in ready for c in alive):
            continue
        for config in list(alive):
            taken = call(config, "sample", settings.threads, list(usable_cores()), repeats[config])
            if taken is None:
                break
            samples[config].append(taken)
    return _undisturbed({c: samples[c] for c in alive if samples[c]}, settings.threads)


def _undisturbed(
    samples: Mapping[Config, list[tuple[float, float]]], threads: int
) -> dict[Config, list[float]]:
    """Seconds as they passed; where others had much of the cores, those that were ours."""
    both = [pair for s in samples.values() for pair in s]
    waited = statistics.median(1 - cpu / (wall * threads) for wall, cpu in both) if both else 0.0
    if waited <= _QUIET:
        return {c: [wall for wall, _ in s] for c, s in samples.items()}
    return {c: [cpu / threads for _, cpu in s] for c, s in samples.items()}

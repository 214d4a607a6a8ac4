"""What a database knows about a program that is being compiled."""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilecc.errors import CompileError
from tilecc.pipeline import Compilation
from tilecc.target import Target
from tilecc.tuning.buckets import Bucket, nearest
from tilecc.tuning.canonical import Canonical, canonical, digest, machine, versions
from tilecc.tuning.config import Config
from tilecc.tuning.database import Chosen, Database


@dataclass(frozen=True)
class Answer:
    """The configuration for one bucket."""

    bucket: Bucket
    config: Config
    chosen: Chosen


@dataclass(frozen=True)
class Answers:
    """The configurations for a program by bucket; `extents` gives extents their canonical names."""

    answers: tuple[Answer, ...]
    extents: Mapping[str, str]

    def select(self, sizes: Mapping[str, int]) -> Answer | None:
        """The answer for a call with these extents (those that are static left out or not).

        See `nearest` of buckets.py.
        """
        named = {self.extents[n]: v for n, v in sizes.items() if n in self.extents}
        found = nearest([a.bucket for a in self.answers], named)
        return None if found is None else self.answers[found]

    @cached_property
    def first(self) -> Answer:
        """The answer whose configuration holds in most buckets, of the longest lengths."""
        counts: dict[Config, int] = {}
        for a in self.answers:
            counts[a.config] = counts.get(a.config, 0) + 1
        return max(self.answers, key=lambda a: (counts[a.config], a.bucket.lengths))

    @property
    def configs(self) -> tuple[Config, ...]:
        """The distinct configurations."""
        return tuple(dict.fromkeys(a.config for a in self.answers))

    def describe(self, config: Config) -> str:
        """Where a configuration comes from, in a line."""
        here = [a for a in self.answers if a.config == config]
        names = {v: k for k, v in self.extents.items()}
        buckets = "; ".join(dict.fromkeys(a.bucket.described(names) for a in here))
        best = min(here, key=lambda a: a.chosen.seconds)
        sizes = ", ".join(f"{n}={v}" for n, v in best.chosen.sizes.items())
        return f"tuned for {buckets}: {1e3 * best.chosen.seconds:.3g} ms measured for {sizes}"


def key_of(run: Compilation, target: Target) -> tuple[str, Canonical]:
    """A program's key, from a run of its first passes: the form after `simplify`, if that ran."""
    names = [s.name for s in run.stages]
    func = run.stage("simplify").func if "simplify" in names else run.stages[0].func
    form = canonical(func)
    return digest(form.text, machine(target), versions()), form


def answers(run: Compilation, target: Target, db: Database) -> Answers | None:
    """What `db` knows; None: nothing. A record that cannot be right is passed over."""
    key, form = key_of(run, target)
    try:
        found = db.choices(key)
    except sqlite3.Error as e:
        warnings.warn(f"{db.path} cannot be read ({e}): tiles are predicted", stacklevel=2)
        return None
    own = {v: k for k, v in form.axes.items()}
    usable = []
    for c in found:
        answer = _answer(c, own, target)
        if answer is not None:
            usable.append(answer)
    return Answers(tuple(usable), form.extents) if usable else None


def _answer(c: Chosen, own: Mapping[str, str], target: Target) -> Answer | None:
    from tilecc.codegen.space import check_options

    try:
        config = Config.from_json(json.loads(c.config))
        bucket = Bucket.from_text(c.bucket)
        check_options(dict(config.options), target)
    except (ValueError, CompileError):
        return None
    if not all(n > 0 for _, n in config.tile):
        return None
    return Answer(bucket, config.renamed(own), c)

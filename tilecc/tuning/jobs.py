"""Compiled candidates as one file, for a machine that has no compiler; and what it measured there.

The file is a container as `kernel.save` writes one (tilecc/saved/container.py) whose members are
saved kernels, one for each configuration. Measuring needs what loading a kernel needs, and no TVM.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilecc.errors import LoadError, TileccError
from tilecc.ir.parser import parse_ir
from tilecc.saved import container
from tilecc.saved.encode import target_data, target_from
from tilecc.tuning.config import Config
from tilecc.tuning.database import Chosen, Database, Trial
from tilecc.tuning.pool import Job, Pool, usable_cores
from tilecc.tuning.session import FINALISTS, Settings, interleaved
from tilecc.tuning.timing import Bench, Ready, make_shape, spread

if TYPE_CHECKING:
    from tilecc.compiler import Compiler
    from tilecc.tuning.points import Point
    from tilecc.tuning.subject import Subject

RUNNER = "tilecc.tuning.jobs:Runner"
_KIND = "tilecc jobs"


def export(
    path: str | os.PathLike[str],
    what: Subject,
    compiler: Compiler,
    sized: Sequence[Mapping[str, int]],
    chosen: Sequence[Point],
    scalars: Mapping[str, float],
    built: Callable[[Point, str], None] | None = None,
) -> list[tuple[Config, str]]:
    """Compile `chosen` and write them to `path`; gives those that do not compile, with reasons.

    `built` is told of each, with the reason why it is left out ("" if it is not).
    """
    members: dict[str, bytes] = {"source.tcir": _text(what)}
    configs: list[dict[str, Any]] = []
    failed: list[tuple[Config, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for p in chosen:
            reason = ""
            try:
                members[f"{len(configs)}.tcc"] = _saved(compiler, what, p.config, folder)
            except TileccError as e:
                reason = str(e)
                failed.append((p.config, reason))
            else:
                configs.append({**p.config.to_json(), "predicted": p.seconds})
            if built is not None:
                built(p, reason)
    manifest = {
        "kind": _KIND,
        "name": what.name,
        "key": what.key,
        "target": target_data(what.target),
        "axes": dict(what.form.axes),
        "shapes": [dict(s) for s in sized],
        "buckets": [str(what.bucket(s)) for s in sized],
        "scalars": dict(scalars),
        "configs": configs,
    }
    container.write(path, manifest, members)
    return failed


def _text(what: Subject) -> bytes:
    from tilecc.ir.printer import print_ir

    return print_ir(what.source).encode()


def _saved(compiler: Compiler, what: Subject, config: Config, folder: str) -> bytes:
    """One configuration as a saved kernel."""
    from tilecc.saved.save import Source, save

    compiled = compiler.passes(what.static, config)
    path = Path(folder) / "kernel.tcc"
    save(Source(compiler, [compiled], dict(what.static), None), path)
    return path.read_bytes()


@dataclass(frozen=True)
class Jobs:
    """What is in a file of jobs."""

    path: str
    manifest: Mapping[str, Any]
    members: Mapping[str, bytes]

    @property
    def configs(self) -> list[Config]:
        """The configurations, in the order of their predictions."""
        return [Config.from_json(c) for c in self.manifest["configs"]]


def read(path: str | os.PathLike[str]) -> Jobs:
    """The jobs in a file that `export` wrote.

    Raises:
        LoadError: it is no such file, or damaged.
    """
    manifest, members = container.read(path)
    if manifest.get("kind") != _KIND:
        raise LoadError(f"{os.fspath(path)} holds a kernel, and no jobs of the tuner")
    return Jobs(os.fspath(path), manifest, members)


class Runner(Bench):
    """Takes kernels from a file of jobs."""

    def __init__(self, path: str) -> None:
        jobs = read(path)
        source = parse_ir(jobs.members["source.tcir"].decode(), "source")
        scalars = jobs.manifest["scalars"]
        shapes = [make_shape(source, s, scalars) for s in jobs.manifest["shapes"]]
        super().__init__(source, target_from(jobs.manifest["target"]), shapes)
        self.members = {c: jobs.members[f"{n}.tcc"] for n, c in enumerate(jobs.configs)}

    def _build(self, config: Config) -> Ready:
        from tilecc.saved.load import LoadedKernel

        with tempfile.NamedTemporaryFile(suffix=".tcc") as f:
            f.write(self.members[config])
            f.flush()
            loaded = LoadedKernel(f.name)
        return Ready(loaded.executable(), loaded.binder)


def measure(
    jobs: Jobs,
    settings: Settings,
    workers: int | None = None,
    watch: Callable[[Mapping[str, Any]], None] | None = None,
    pool: Callable[[str, Any, int], Any] = Pool,
) -> list[dict[str, Any]]:
    """Measure all jobs on this machine: a record for each configuration and shape.

    Raises:
        RuntimeError: a measuring process cannot start.
    """
    records: list[dict[str, Any]] = []
    count = workers or len(usable_cores())
    with pool(RUNNER, os.path.abspath(jobs.path), count) as running:
        for n, bucket in enumerate(jobs.manifest["buckets"]):
            came = _measured(jobs, running, n, settings)
            good = sorted((v["seconds"], c) for c, v in came.items() if "seconds" in v)
            best = [c for _, c in good[:FINALISTS]]
            final = interleaved(running, best, n, settings.rounds, settings)
            for config, value in came.items():
                again = final.get(config)
                record = {
                    "key": jobs.manifest["key"],
                    "bucket": bucket,
                    "sizes": jobs.manifest["shapes"][n],
                    "config": config.to_json(),
                    "threads": settings.threads,
                    **value,
                }
                if again:
                    record |= {"final": statistics.median(again), "spread": spread(again)}
                records.append(record)
                if watch is not None:
                    watch(record)
    return records


def _measured(jobs: Jobs, pool: Any, n: int, settings: Settings) -> dict[Config, dict[str, Any]]:
    """Each configuration's measurement on shape `n`, or {"reason": ...}."""
    left = jobs.configs
    wanted = len(left)
    came: dict[Config, dict[str, Any]] = {}
    while len(came) < wanted:
        while left and pool.submit(Job(left[0], "measure", (left[0], n), settings.patience)):
            left.pop(0)
        for o in pool.collect():
            came[o.job.tag] = {"reason": o.reason} if o.reason else o.value
    return came


def write_results(path: str | os.PathLike[str], records: Sequence[Mapping[str, Any]]) -> None:
    """Records as lines of JSON."""
    Path(path).write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")


def take_results(
    path: str | os.PathLike[str], jobs_axes: Mapping[str, str], key: str, db: Database
) -> int:
    """Put another machine's results into a database; gives how many there are for `key`.

    `jobs_axes`: the canonical names of the program's axes.

    Raises:
        LoadError: it is no file of results.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        records = [r for r in map(json.loads, lines) if r["key"] == key]
        trials = [_trial(r, jobs_axes) for r in records]
        best: dict[str, Chosen] = {}
        for r, t in zip(records, trials, strict=True):
            seconds = r.get("final")
            if seconds is not None and (
                r["bucket"] not in best or seconds < best[r["bucket"]].seconds
            ):
                threads = int(r["threads"])
                best[r["bucket"]] = Chosen(
                    key, t.bucket, t.config, float(seconds), threads, r["sizes"]
                )
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as e:
        raise LoadError(f"{os.fspath(path)} holds no results of tilecc measure: {e}") from e
    db.save(*trials, *best.values())
    return len(trials)


def _trial(r: Mapping[str, Any], axes: Mapping[str, str]) -> Trial:
    config = Config.from_json(r["config"]).renamed(axes)
    name = json.dumps(config.to_json(), sort_keys=True)
    reason, seconds = r.get("reason", ""), r.get("seconds")
    status = "failed" if reason else "ok"
    return Trial(r["key"], r["bucket"], name, status, seconds, None, reason, {"sizes": r["sizes"]})

"""How good the tuner is: its first choice, its choice after 24 trials, the ranking, the pace.

    python benchmarks/tune.py [--sample 60] [--write results/tune]

For each shape the whole space is measured (or a random sample of it, with the best by prediction),
and with it configurations that the cost model refuses. The search is then run on those very
measurements. What it chose, what the model chose first, and the best of all are timed again in
turns: their ratios are what counts, beside the spread of the machine itself.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from cases import EXAMPLES

from tilecc.compiler import Compiler
from tilecc.given import load
from tilecc.target import resolve
from tilecc.tuning.api import bind_shapes
from tilecc.tuning.candidates import RUNNER, make_task
from tilecc.tuning.config import Config
from tilecc.tuning.events import spearman
from tilecc.tuning.points import Point, points
from tilecc.tuning.pool import Job, Pool, usable_cores
from tilecc.tuning.search import Limits, Search
from tilecc.tuning.session import Settings, interleaved
from tilecc.tuning.subject import subject
from tilecc.tuning.timing import spread

DECODE = """
import tilecc as tc
@tc.spec
def decode(q: tc.Tensor["b g r:R d"], k: tc.Tensor["b g j:N d"], v: tc.Tensor["b g j:N e:D"]):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j")
"""
# (name, spec, extents, run-time numbers, extents to compile for)
SHAPES: list[tuple[str, str, dict[str, int], dict[str, float], tuple[str, ...]]] = [
    ("dense 128", "attention", {"H": 8, "N": 128, "D": 64}, {}, ()),
    ("dense 1024", "attention", {"H": 8, "N": 1024, "D": 64}, {}, ()),
    ("dense 1000 d=128", "attention", {"H": 8, "N": 1000, "D": 128}, {}, ()),
    ("dense 4096", "attention", {"H": 4, "N": 4096, "D": 64}, {}, ()),
    ("causal 200", "causal", {"H": 8, "N": 200, "D": 64}, {}, ()),
    ("causal 1024", "causal", {"H": 8, "N": 1024, "D": 64}, {}, ()),
    ("causal 1024 d=128", "causal", {"H": 8, "N": 1024, "D": 128}, {}, ()),
    ("causal 4096", "causal", {"H": 4, "N": 4096, "D": 64}, {}, ()),
    ("window 256 of 1024", "sliding_window", {"H": 8, "N": 1024, "D": 64}, {"w": 256}, ()),
    ("window 512 of 4096", "sliding_window", {"H": 4, "N": 4096, "D": 64}, {"w": 512}, ()),
    ("decode 1024", "decode", {"G": 8, "R": 4, "N": 1024, "D": 128}, {}, ("R",)),
    ("decode 8192", "decode", {"G": 8, "R": 4, "N": 8192, "D": 128}, {}, ("R",)),
]
TRIALS, AGAIN, REFUSED, ROUNDS = 24, 16, 20, 15


@dataclass
class Line:
    """What was found for one shape; ratios are of times, 1 being the best of the space."""

    name: str
    dtype: str
    space: int
    measured: int
    first: float
    tuned: float
    spread: float
    correlation: float | None
    repeatability: float | None
    a_minute: float
    best: str
    failed: int


@click.command()
@click.option("--sample", type=click.IntRange(1), help="Of the space; else all of it.")
@click.option("--only", help="Shapes whose name has this in it.")
@click.option("--dtype", "dtypes", multiple=True, default=("float32", "bfloat16"))
@click.option("--write", type=click.Path(path_type=Path), help="Results, less .md and .json.")
def main(sample: int | None, only: str | None, dtypes: tuple[str, ...], write: Path | None) -> None:
    """Measure and print a table."""
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        decode = Path(folder) / "decode.py"
        decode.write_text(DECODE)
        for dtype in dtypes:
            for name, spec, sizes, scalars, static in SHAPES:
                if only and only not in name:
                    continue
                path = decode if spec == "decode" else EXAMPLES / f"{spec}.py"
                lines.append(_shape(name, path, dtype, {"B": 1, **sizes}, scalars, static, sample))
                click.echo(_row(lines[-1]), err=True)
                if write is not None:
                    text = json.dumps([asdict(x) for x in lines], indent=1)
                    write.with_suffix(".json").write_text(text + "\n")
                    write.with_suffix(".md").write_text(table(lines))
    click.echo(table(lines))


def _shape(
    name: str,
    path: Path,
    dtype: str,
    sizes: dict[str, int],
    scalars: dict[str, float],
    static: tuple[str, ...],
    sample: int | None,
) -> Line:
    func, _ = load(str(path), dtype)
    compiler = Compiler(func, resolve("cpu"), None)
    bound = bind_shapes(compiler, [sizes], {n: sizes[n] for n in static})
    what = subject(compiler, bound)
    everything = points(what.loop, what.target, sizes, scalars)
    rng = random.Random(0)
    good = [p for p in everything if not p.refused]
    refused = [p for p in everything if p.refused]
    chosen = good if sample is None else [*good[:TRIALS], *rng.sample(good, min(sample, len(good)))]
    extra = rng.sample(refused, min(REFUSED, len(refused)))
    count = len(usable_cores())
    task = make_task(what.source, what.loop, what.target, [sizes], scalars)
    settings = Settings(threads=count, rounds=ROUNDS)
    with Pool(RUNNER, task, count) as pool:
        pool.start_up()
        begun = time.monotonic()
        times, failed = _measure(pool, [p.config for p in [*chosen, *extra]])
        pace = 60 * (len(times) + failed) / (time.monotonic() - begun)
        again, _ = _measure(pool, [p.config for p in rng.sample(chosen, min(AGAIN, len(chosen)))])
        tuned = _search([p for p in good if p.config in times], times)
        fair = {c: t for c, t in times.items() if any(p.config == c for p in good)}
        best = sorted(fair, key=fair.__getitem__)[:5]
        final = interleaved(
            pool, list(dict.fromkeys([good[0].config, tuned, *best])), 0, ROUNDS, settings
        )
    medians = {c: statistics.median(s) for c, s in final.items()}
    least = min(medians.values())
    predicted = {p.config: p.seconds for p in everything}
    return Line(
        name=name,
        dtype=dtype,
        space=len(good),
        measured=len(times),
        first=least / medians[good[0].config],
        tuned=least / medians[tuned],
        spread=statistics.median(spread(s) for s in final.values()),
        correlation=spearman([predicted[c] for c in times], list(times.values())),
        repeatability=spearman([times[c] for c in again], list(again.values())),
        a_minute=pace,
        best=str(min(medians, key=medians.__getitem__)),
        failed=failed,
    )


def _measure(pool: Any, configs: list[Config]) -> tuple[dict[Config, float], int]:
    """Seconds of each configuration, and how many failed."""
    left = list(dict.fromkeys(configs))
    wanted, found, failed = len(left), {}, 0
    while len(found) + failed < wanted:
        while left and pool.submit(Job(left[0], "measure", (left[0], 0), 60.0)):
            left.pop(0)
        for o in pool.collect():
            if o.reason:
                failed += 1
            else:
                found[o.job.tag] = o.value["seconds"]
    return found, failed


def _search(known: list[Point], times: dict[Config, float]) -> Config:
    """What the search chooses after its trials, on measurements that there are."""
    search = Search(known, Limits(trials=TRIALS, gain=0.0))
    while proposed := search.propose(4):
        for c in proposed:
            search.result(c, times[c])
    return search.ranking()[0][0]


def table(lines: list[Line]) -> str:
    """Markdown, with geometric means and worst cases."""
    head = (
        "| shape | type | space | first choice | after 24 | spread | rank correlation "
        "| of two runs | a minute | failed | best |\n" + "|---" * 11 + "|\n"
    )
    text = head + "".join(_row(x) + "\n" for x in lines)
    for what in ("first", "tuned"):
        values = [getattr(x, what) for x in lines]
        if values:
            mean, worst = statistics.geometric_mean(values), min(values)
            text += f"\n{what}: geometric mean {mean:.3f}, worst {worst:.3f}\n"
    return text


def _row(x: Line) -> str:
    rho, two = ("-" if v is None else f"{v:.2f}" for v in (x.correlation, x.repeatability))
    return (
        f"| {x.name} | {x.dtype} | {x.measured} of {x.space} | {x.first:.2f} | {x.tuned:.2f} "
        f"| {x.spread:.1%} | {rho} | {two} | {x.a_minute:.0f} | {x.failed} | {x.best} |"
    )


if __name__ == "__main__":
    main()

"""Speed, memory and compile time of CPU kernels, beside torch, onnxruntime and flex_attention.

    python benchmarks/cpu.py            everything, some minutes
    python benchmarks/cpu.py --quick    short sequences, few rounds: does it run at all?

See README.md beside this file for what is measured and how.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import compile_times
import machine
from cases import Array, Case, cases
from peers import PEERS, Peer, Unavailable, prepare
from results import Line, Report, markdown
from rich.console import Console
from rounds import Contestant, interleave, peak_memory

import tilecc as tc
from tilecc.runtime.scratch import release_scratch

LENGTHS = (1000, 1037, 4096)
LENGTHS_NAME = "lengths"
OWN = "tilecc"

console = Console(stderr=True)


@click.command()
@click.option("--quick", is_flag=True, help="Short sequences, three rounds, no waiting.")
@click.option("--only", default="", help="Only cases whose name contains one of these (a,b).")
@click.option("--peers", default=",".join(PEERS), help="Peers to compare with (a,b), or none.")
@click.option("--rounds", default=15, show_default=True, help="Rounds that count.")
@click.option("--patience", default=120.0, show_default=True, help="Seconds a case may wait.")
@click.option("--threads", default=2, show_default=True, help="Threads of every contestant.")
@click.option("--no-speed", is_flag=True, help="Leave out the cases.")
@click.option("--no-compile", is_flag=True, help="Leave out compile times.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with every sample.")
@click.option("--write", type=click.Path(path_type=Path), help="Write PATH.md and PATH.json.")
def main(
    quick: bool,
    only: str,
    peers: str,
    rounds: int,
    patience: float,
    threads: int,
    no_speed: bool,
    no_compile: bool,
    as_json: bool,
    write: Path | None,
) -> None:
    """Measure everything, or what the options leave."""
    if quick:
        rounds, patience = 3, 0.0
    chosen = cases(1024, 2048) if quick else cases()
    wanted = [w.strip() for w in only.split(",") if w.strip()]
    chosen = [c for c in chosen if not wanted or any(w in c.name for w in wanted)]
    names = [p.strip() for p in peers.split(",") if p.strip() in PEERS]
    report = Report(machine.description(), _notes(threads, rounds, quick))
    parts: list[tuple[str, Callable[[], None]]] = []
    for case in [] if no_speed else chosen:
        one = functools.partial(_measure, case, names, rounds, patience, threads, report)
        parts.append((case.name, one))
    if not no_speed and (not wanted or any(w in LENGTHS_NAME for w in wanted)):
        divisor = 64 if quick else 1
        parts.append((LENGTHS_NAME, lambda: _lengths(rounds, patience, threads, divisor, report)))
    if not no_compile:
        parts.append(("compile times", lambda: _compile_times(2 if quick else 5, report)))
    for name, part in parts:
        console.print(f"[dim]{name} ...[/]")
        try:
            part()
        except Exception as e:  # the others are still worth having
            console.print_exception()
            report.missing.append(f"{name}: {type(e).__name__}: {e}")
        if write is not None:
            write.with_suffix(".md").write_text(markdown(report))
            write.with_suffix(".json").write_text(json.dumps(report.json(), indent=1) + "\n")
    click.echo(json.dumps(report.json(), indent=1) if as_json else markdown(report))


def _compile_times(repeats: int, report: Report) -> None:
    report.compile_times = compile_times.measure(repeats)


def _notes(threads: int, rounds: int, quick: bool) -> list[str]:
    today = datetime.datetime.now(datetime.timezone.utc).date()
    notes = [
        f"date: {today}",
        f"{threads} threads for every contestant; medians of {rounds} interleaved rounds",
        "the machine may be shared: under the tables stands what others took of it",
    ]
    return [*notes, "quick: short sequences, figures mean little"] if quick else notes


def _measure(
    case: Case, names: list[str], rounds: int, patience: float, threads: int, report: Report
) -> None:
    """All contestants of one case, and the machine's limits, in the same rounds."""
    q, k, v = case.inputs()
    kernel = tc.compile(case.load(), "cpu", case.dtype, case.static, threads=threads)
    arguments = case.arguments(q, k, v)
    ready = [Peer(OWN, lambda: kernel(*arguments), _plain, 0.0)]
    for name in names:
        try:
            ready.append(prepare(name, case, q, k, v, threads))
        except Unavailable as e:
            if str(e):
                report.missing.append(f"{case.name}: {name}: {e}")
    limits = _limits(case, threads, k, v)
    contestants = [Contestant(p.name, p.run) for p in ready]
    measured = [Contestant(limit.name, limit.run) for limit, _ in limits]
    report.quality[case.name] = str(interleave([*contestants, *measured], rounds, patience))
    for (limit, count), c in zip(limits, measured, strict=True):
        median, best = limit.amount / c.median / 1e9, limit.amount / c.best / 1e9
        report.limits.append(
            {
                "case": case.name,
                "name": limit.name,
                "threads": count,
                "unit": limit.unit,
                "median": median,
                "best": best,
                "core": limit.amount / c.core_median / 1e9,
            }
        )
    bound, limit = measured[0], limits[0][0]
    amount = case.flops if limit.unit == "GFLOP/s" else limit.amount
    own = contestants[0]
    report.scratch[case.name] = kernel.scratch_bytes
    for peer, c in zip(ready, contestants, strict=True):
        report.lines.append(
            Line.of(
                case.name,
                c,
                own,
                bound,
                amount=amount,
                limit=(limit.amount, limit.unit),
                error=case.error(peer.array(peer.run()), q, k, v),
                extra_bytes=_extra(peer, q, v),
            )
        )


def _plain(x: Any) -> Array:
    array: Array = x
    return array


def _limits(case: Case, threads: int, k: Array, v: Array) -> list[tuple[machine.Limit, int]]:
    """The limit that bounds the case first, and others for comparison."""
    if case.limit == "reading":
        return [(machine.read_limit([k, v], n), n) for n in dict.fromkeys((threads, 1))]
    fma = (machine.fma_limit(threads), threads)
    dot = machine.dot_limit(threads) if case.limit == "bf16 dot" else None
    return [(dot, threads), fma] if dot is not None else [fma]


def _extra(peer: Peer, q: Array, v: Array) -> int | None:
    """Bytes by which a call makes the process grow, the output left out."""
    release_scratch()
    output = q.size // q.shape[-1] * v.shape[-1] * q.itemsize
    peak = peak_memory(peer.run)
    return None if peak is None else max(0, peak - output)


def _lengths(rounds: int, patience: float, threads: int, divisor: int, report: Report) -> None:
    """One dynamic kernel on several lengths, the limit beside it."""
    kernel = None
    contestants, found = [], []
    for n in (max(1, length // divisor) for length in LENGTHS):
        case = Case("fp32 dense d=64", "attention", "float32", 64, n)
        kernel = kernel or tc.compile(case.load(), "cpu", case.dtype, case.static, threads=threads)
        q, k, v = case.inputs()
        run = functools.partial(kernel, q, k, v)
        contestants.append(Contestant(str(n), run))
        found.append({"n": n, "flops": case.flops, "error": case.error(run(), q, k, v)})
    limit = machine.fma_limit(threads)
    bound = Contestant(limit.name, limit.run)
    quality = interleave([*contestants, bound], rounds, patience)
    for x, c in zip(found, contestants, strict=True):
        scale = x.pop("flops") / limit.amount
        x["ms"] = 1e3 * c.median
        x["gflops"] = scale * limit.amount / c.median / 1e9
        x["of_limit"] = scale * bound.median / c.median
        x["core_of_limit"] = scale * bound.core_median / c.core_median
    assert kernel is not None
    report.dynamic = {
        "case": "fp32 dense d=64",
        "compilations": kernel.compilations,
        "lengths": found,
        "quality": str(quality),
    }


if __name__ == "__main__":
    main()

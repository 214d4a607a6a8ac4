"""`tilecc measure`: time the candidates that another machine compiled, on this one."""

from __future__ import annotations

import json
from typing import Any

import click

from tilecc.cli import options


@click.command("measure")
@click.argument("jobs", type=click.Path(exists=True, dir_okay=False), metavar="JOBS.tcj")
@click.option(
    "--out", type=click.Path(dir_okay=False), help="Results; else the jobs' name with .results."
)
@click.option("--threads", type=click.IntRange(1), help="Of a call; else all cores.")
@click.option("--workers", type=click.IntRange(1), help="Processes; else one a core.")
@options.as_json
def command(
    jobs: str, out: str | None, threads: int | None, workers: int | None, as_json: bool
) -> int:
    """Check and time each candidate in a file that `tilecc tune --export` wrote, and write what was
    found to a file for `tilecc tune --import`. Needs apache-tvm-ffi, and no TVM.

    Exits with 1 if nothing could be measured.

    \b
    Examples:
      tilecc measure JOBS.tcj
      tilecc measure JOBS.tcj --out RESULTS --threads 4
    """
    from tilecc.runtime.pool import available_threads
    from tilecc.tuning.jobs import measure, read, write_results
    from tilecc.tuning.session import Settings

    found = read(jobs)
    settings = Settings(threads=threads or available_threads())
    with options.progress(f"measuring {len(found.configs)} candidates"):
        records = measure(found, settings, workers)
    to = out or f"{jobs}.results"
    write_results(to, records)
    good = [r for r in records if "seconds" in r]
    if as_json:
        click.echo(json.dumps(records, indent=2))
    else:
        _show(records, good)
        click.echo(f"{len(good)} of {len(records)} measured: {to}")
    return 0 if good else 1


def _show(records: list[dict[str, Any]], good: list[dict[str, Any]]) -> None:
    from collections import Counter

    for r in sorted(good, key=lambda r: float(r.get("final", r["seconds"])))[:5]:
        config = {**r["config"]["tile"], **r["config"]["options"]}
        text = ", ".join(f"{n}={v}" for n, v in config.items())
        click.echo(f"{1e3 * float(r.get('final', r['seconds'])):10.3f} ms  {text}")
    reasons = Counter(r["reason"] for r in records if r.get("reason"))
    for reason, n in reasons.most_common(5):
        click.echo(f"failed  {n}: {reason}")

"""`tilecc db`: what the tuner's database holds, and moving it about."""

from __future__ import annotations

import json
from typing import Any

import click

from tilecc.cli import options

ACTIONS = ("show", "export", "merge", "prune")


@click.command("db")
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option("--db", type=click.Path(dir_okay=False), help="Database; else TILECC_DB, or a cache.")
@click.option(
    "--all", "everything", is_flag=True, help="prune: everything, not only what is stale."
)
@options.as_json
def command(action: str, file: str | None, db: str | None, everything: bool, as_json: bool) -> int:
    """Show what was tuned; export it as lines of JSON; merge another database or an export into it;
    prune what was measured for other machines or with other versions.

    \b
    Examples:
      tilecc db show
      tilecc db export tuned.jsonl
      tilecc db merge other.db
    """
    from tilecc.tuning.database import Database

    if action in ("export", "merge") and file is None:
        raise click.UsageError(f"db {action} takes a file")
    with Database(db) as data:
        if action == "show":
            _show(data, as_json)
        elif action == "export":
            click.echo(f"{data.export(str(file))} records to {file}")
        elif action == "merge":
            try:
                click.echo(f"{data.merge(str(file))} records from {file}")
            except (ValueError, OSError) as e:
                click.echo(f"error: {e}", err=True)
                return 1
        else:
            stale = [k.key for k in data.programs() if everything or not _current(k)]
            click.echo(f"{data.delete(stale)} records removed")
    return 0


def _current(known: Any) -> bool:
    """Whether a key is one that this machine and these versions would ask for."""
    from tilecc.target import resolve
    from tilecc.tuning.canonical import machine, versions

    return bool(known.versions == versions() and known.machine == machine(resolve("cpu")))


def _show(data: Any, as_json: bool) -> None:
    rows = []
    for p in data.programs():
        trials = data.trials(p.key)
        for c in data.choices(p.key):
            here = [t for t in trials if t.bucket == c.bucket]
            rows.append(
                {
                    "program": p.name,
                    "key": p.key,
                    "sizes": c.sizes,
                    "config": _named(json.loads(c.config), p.axes),
                    "seconds": c.seconds,
                    "threads": c.threads,
                    "trials": len(here),
                    "failed": sum(t.status != "ok" for t in here),
                    "current": _current(p),
                    "versions": p.versions,
                }
            )
    if as_json:
        click.echo(json.dumps({"path": str(data.path), "choices": rows}, indent=2))
        return
    click.echo(str(data.path))
    if not rows:
        click.echo("nothing is tuned yet")
        return
    from rich import box
    from rich.table import Table

    table = Table("program", "sizes", "tile and options", "ms", "trials", "", box=box.SIMPLE)
    for r in rows:
        config = {**r["config"]["tile"], **r["config"]["options"]}
        table.add_row(
            f"{r['program']} {r['key'][:8]}",
            _pairs(r["sizes"]),
            _pairs(config),
            f"{1e3 * r['seconds']:.3g}",
            str(r["trials"]),
            "" if r["current"] else "another machine or version",
        )
    options.print_table(table)


def _named(config: dict[str, dict[str, int]], axes: dict[str, str]) -> dict[str, dict[str, int]]:
    """With the program's own names of axes."""
    return {**config, "tile": {axes.get(a, a): n for a, n in config["tile"].items()}}


def _pairs(table: dict[str, int]) -> str:
    return ", ".join(f"{n}={v}" for n, v in table.items())

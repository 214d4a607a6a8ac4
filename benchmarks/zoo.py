"""Speed of the zoo beside compiled flex_attention; tiles and time; maps; pages.

    python benchmarks/zoo.py --write benchmarks/results/zoo
    python benchmarks/zoo.py --quick --only causal,tree

See README.md beside this file for what is measured and how.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import machine
import numpy as np
from cases import EXAMPLES, Array
from peers import flex_of
from results import Line, Report, markdown, table
from rich.console import Console
from rounds import Contestant, interleave
from zoo_cases import D, ZooCase, derived, zoo_cases
from zoo_parts import maps_alone, pages

import tilecc as tc
from tilecc.dsl.load import load_spec
from tilecc.given import extent_names

OWN, FLEX = "tilecc", "compiled flex_attention"
TILE = 64 * 64
console = Console(stderr=True)


@dataclass
class Zoo(Report):
    """The speeds, and what is said of tiles, maps and pages."""

    tiles: list[dict[str, Any]] = field(default_factory=list)
    maps: list[dict[str, Any]] = field(default_factory=list)
    pages: dict[str, Any] = field(default_factory=dict)


@click.command()
@click.option("--quick", is_flag=True, help="Short sequences, three rounds, no waiting.")
@click.option("--only", default="", help="Only rows with these names, maps, pages (a,b).")
@click.option("--rounds", default=11, show_default=True, help="Rounds that count.")
@click.option("--patience", default=60.0, show_default=True, help="Seconds a row may wait.")
@click.option("--threads", default=2, show_default=True, help="Threads of every contestant.")
@click.option("--no-peer", is_flag=True, help="Leave flex_attention out.")
@click.option("--write", type=click.Path(path_type=Path), help="Write PATH.md and PATH.json.")
def main(
    quick: bool,
    only: str,
    rounds: int,
    patience: float,
    threads: int,
    no_peer: bool,
    write: Path | None,
) -> None:
    """Measure all rows, or what the options leave."""
    n = 1024 if quick else 4096
    rounds, patience = (3, 0.0) if quick else (rounds, patience)
    report = Zoo(machine.description(), _notes(n, threads, rounds))
    chosen = {x.strip() for x in only.split(",") if x.strip()}
    parts: list[tuple[str, Callable[[], None]]] = [
        (c.name, functools.partial(_row, c, n, rounds, patience, threads, not no_peer, report))
        for c in zoo_cases()
    ]

    def add_maps() -> None:
        report.maps = maps_alone(n * 8, rounds, patience, threads)

    def add_pages() -> None:
        report.pages = pages(n * 2, rounds, patience, threads)

    parts += [("maps", add_maps), ("pages", add_pages)]
    for name, part in parts:
        if chosen and name not in chosen:
            continue
        console.print(f"[dim]{name} ...[/]")
        try:
            part()
        except Exception as e:  # the others are still worth having
            console.print_exception()
            report.missing.append(f"{name}: {type(e).__name__}: {e}")
        if write is not None:
            write.with_suffix(".md").write_text(text(report))
            write.with_suffix(".json").write_text(json.dumps(asdict(report), indent=1) + "\n")
    click.echo(text(report))


def _notes(n: int, threads: int, rounds: int) -> list[str]:
    return [
        f"date: {datetime.datetime.now(datetime.timezone.utc).date()}",
        f"fp32, N = {n}, d = {D}, {threads} threads for every contestant; "
        f"medians of {rounds} interleaved rounds",
        "the machine may be shared: under the tables stands what others took of it",
    ]


def _row(
    case: ZooCase,
    n: int,
    rounds: int,
    patience: float,
    threads: int,
    peer: bool,
    report: Zoo,
) -> None:
    """A row of the zoo, flex_attention and the limit, in the same rounds."""
    arguments = case.arguments(n)
    known = arguments | derived(case, arguments)
    static = {x: case.extents(n)[x] for x in case.static}
    spec = load_spec(str(EXAMPLES / "zoo" / f"{case.name}.py"))
    kernel = tc.compile(spec, "cpu", "float32", static, threads=threads)
    contestants = [Contestant(OWN, lambda: kernel(**arguments))]
    if peer:
        try:
            contestants.append(Contestant(FLEX, flex_of(case, known, threads)))
        except Exception as e:  # what it cannot compile
            report.missing.append(f"{case.name}: {FLEX}: {str(e).strip().splitlines()[0][:160]}")
    limit = machine.fma_limit(threads)
    bound = Contestant(limit.name, limit.run)
    report.quality[case.name] = str(interleave([*contestants, bound], rounds, patience))
    report.scratch[case.name] = kernel.scratch_bytes
    flops = 4.0 * case.pairs(known) * D
    own = contestants[0]
    for c in contestants:
        output: Array = np.asarray(c.run())
        report.lines.append(
            Line.of(
                case.name,
                c,
                own,
                bound,
                amount=flops,
                limit=(limit.amount, limit.unit),
                error=case.error(_as_given(case, output, c is own), known),
            )
        )
    _count(case, kernel, arguments, n, own.core_median, report)


def _as_given(case: ZooCase, output: Array, own: bool) -> Array:
    """An output in the row's own layout."""
    return output if own or case.layout == "bhnd" else output.swapaxes(1, 2)


def _count(
    case: ZooCase, kernel: tc.Kernel, arguments: dict[str, Any], n: int, core: float, report: Zoo
) -> None:
    """How many tiles are executed, and what one costs."""
    extents = set(extent_names(kernel.func)) - set(case.static)
    known = {x: case.extents(n)[x] for x in extents}
    known |= {k: x for k, x in arguments.items() if not _is_float(x)}
    tiles = kernel.tiles(**known)
    heads = case.heads if "h" not in tiles.axes else 1
    size = tiles.sizes[-1] * tiles.sizes[-2]
    report.tiles.append(
        {
            "case": case.name,
            "tile": " x ".join(map(str, tiles.sizes[-2:])),
            "full": tiles.full * heads,
            "partial": tiles.partial * heads,
            "empty": tiles.empty * heads,
            "us": 1e6 * core / (tiles.live * heads) * TILE / size,
        }
    )


def _is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind not in "ib"


def _over(value: float, base: float | None) -> str:
    """How often `base` goes into `value`; nothing where the row of `base` was not measured."""
    return f"{value / base:.2f}" if base else ""


def text(report: Zoo) -> str:
    """The report as a Markdown document."""
    parts = [markdown(report)]
    if report.tiles:
        columns = ("case", "tile", "full", "partial", "empty")
        us = {x["case"]: x["us"] for x in report.tiles}
        head = (*columns, "core us for 64 x 64", "of dense", "of causal")
        rows = [
            (
                *(str(x[k]) for k in columns),
                f"{x['us']:.1f}",
                *(_over(x["us"], us.get(base)) for base in ("cross_attention", "causal")),
            )
            for x in report.tiles
        ]
        parts += ["\n## Tiles executed, and the CPU time of one\n", *table(head, rows), ""]
    if report.maps:
        head = ("case", "N", "maps, ms", "kernel, ms", "share", "MiB")
        rows = [
            (
                *(x["case"], str(x["n"]), f"{x['map_ms']:.2f}", f"{x['main_ms']:.1f}"),
                *(f"{100 * x['share']:.2f} %", f"{x['bytes'] / 2**20:.2f}"),
            )
            for x in report.maps
        ]
        parts += ["\n## Maps of tiles, by CPU time\n", *table(head, rows), ""]
    if report.pages:
        x = report.pages
        parts += [
            "\n## Decoding from pages, and from one piece\n",
            f"{x['what']}: pages {x['paged_ms']:.3f} ms, one piece {x['contiguous_ms']:.3f} ms, "
            f"ratio {x['ratio']:.3f} (by CPU time {x['core_ratio']:.3f}); {x['quality']}\n",
        ]
    return "\n".join(parts)


if __name__ == "__main__":
    main()

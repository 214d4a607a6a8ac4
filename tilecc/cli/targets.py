"""`tilecc targets`: the machines that can be compiled for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tilecc.cli import options

if TYPE_CHECKING:
    from tilecc.target import Target


@click.command("targets")
@click.argument("name", required=False)
@options.as_json
def command(name: str | None, as_json: bool) -> None:
    """List the machines, or everything known of one, with the source of each number.

    \b
    Examples:
      tilecc targets
      tilecc targets h100
    """
    from tilecc.target import available, resolve

    if name is not None:
        machine = resolve(name)
        click.echo(json.dumps(describe(machine), indent=2)) if as_json else _show(machine)
        return
    machines = available()
    if as_json:
        click.echo(json.dumps([describe(m) for m in machines], indent=2))
        return
    from rich import box
    from rich.table import Table

    # Narrow, for a terminal of 80 columns; what commands take (names) is never cut or broken.
    table = Table(box=box.SIMPLE, padding=0, pad_edge=False)
    for name in ("target", "arch"):
        table.add_column(name, no_wrap=True)
    table.add_column("machine", overflow="fold")
    for name in ("cores", "SRAM", "memory"):
        table.add_column(name, overflow="fold")
    for name in ("fp32 TFLOP/s", "16-bit TFLOP/s"):
        table.add_column(name, justify="right", overflow="fold", min_width=7)
    for m in machines:
        table.add_row(m.name, m.arch, m.model, f"{m.cores.value:g}", *_columns(m))
    _print(table)


def _columns(m: Target) -> list[str]:
    sram = _size(m, m.sram.size)
    return [sram, _rate(m.bandwidth, "B/s"), *(_peak(m, t) for t in ("f32", "f16"))]


def _size(m: Target, size: int | None) -> str:
    if size is None:
        return ""
    if m.unit == "number":
        return f"{size} numbers"
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"


def _rate(x: float | None, unit: str) -> str:
    if x is None:
        return ""
    return f"{x / 1e12:.3g} T{unit}" if x >= 1e12 else f"{x / 1e9:.3g} G{unit}"


def _peak(m: Target, dtype: str) -> str:
    peak = m.peak(dtype)
    return "" if peak is None else f"{peak.flops / 1e12:.3g}" + (" *" if peak.estimate else "")


def _show(m: Target) -> None:
    from rich import box
    from rich.table import Table

    click.echo(f"{m.name}: {m.model} ({m.kind}, {m.arch})")
    table = Table("fact", "value", "source", box=box.SIMPLE)
    table.add_row("cores", f"{m.cores.value:g}", m.cores.source)
    if m.clock is not None:
        table.add_row("clock", f"{m.clock.value / 1e9:.3g} GHz", m.clock.source)
    for memory in m.memories:
        rate = _rate(memory.bandwidth, "B/s")
        text = ", ".join(filter(None, [_size(m, memory.size), rate, f"per {memory.per}"]))
        table.add_row(f"{memory.name} ({memory.space})", text, memory.source)
    for peak in m.peaks:
        name = f"{peak.dtype} peak ({peak.unit})"
        table.add_row(name, _rate(peak.flops, "FLOP/s") + " *" * peak.estimate, peak.source)
    _print(table)
    if m.features:
        click.echo(f"features: {' '.join(sorted(m.features))}")


def _print(table: Any) -> None:
    options.print_table(table)
    click.echo("* estimated")


def describe(m: Target) -> dict[str, Any]:
    """A machine as JSON: sizes in `unit`s, rates in bytes and operations per second."""
    from dataclasses import asdict

    found = asdict(m)
    found["features"] = sorted(m.features)
    return found

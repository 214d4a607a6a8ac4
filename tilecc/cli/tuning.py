"""What a person sees of the tuner: a line while it works, and a report at the end."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from tilecc.cli.options import print_table

if TYPE_CHECKING:
    from tilecc.tuning.api import Tuned
    from tilecc.tuning.events import Measurement, Progress, ShapeResult

BEST = 5


class Display:
    """A progress line on a terminal's stderr, and a log as lines of JSON."""

    def __init__(self, peak: float, log: str | None) -> None:
        from rich.console import Console

        self.peak = peak
        self.console = Console(stderr=True)
        self.status = self.console.status("compiling") if self.console.is_terminal else None
        self.log = open(log, "a", encoding="utf-8") if log else None  # noqa: SIM115

    def __enter__(self) -> Display:
        if self.status is not None:
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()
        if self.log is not None:
            self.log.close()

    def watch(self, p: Progress) -> None:
        """Show and log a measurement."""
        if self.log is not None:
            line = {"time": time.time(), "sizes": dict(p.sizes), **measurement_json(p.measurement)}
            self.log.write(json.dumps(line) + "\n")
            self.log.flush()
        if self.status is not None:
            self.status.update(progress_line(p, self.peak))


def progress_line(p: Progress, peak: float) -> str:
    """How far it is, the best so far, and what is left."""
    parts = [f"{p.done} of {p.trials}"]
    if p.best is not None and p.best.seconds:
        rate = p.flops / p.best.seconds
        share = f", {rate / peak:.0%} of peak" if peak else ""
        parts.append(
            f"best {_ms(p.best.seconds)} ms (predicted {_ms(p.best.predicted)} ms), "
            f"{rate / 1e9:.0f} GFLOP/s{share}: {p.best.config}"
        )
    if p.remaining is not None:
        parts.append(f"{p.remaining:.0f} s left")
    return "; ".join(parts)


def measurement_json(m: Measurement) -> dict[str, Any]:
    """A measurement for the log."""
    return {
        "config": m.config.to_json(),
        "predicted": m.predicted,
        "seconds": m.seconds,
        "reason": m.reason,
        "earlier": m.earlier,
        **{k: v for k, v in m.details.items() if k not in ("seconds", "sizes")},
    }


def to_json(tuned: Tuned, peak: float) -> dict[str, Any]:
    """Everything that was found."""
    return {
        "name": tuned.subject.name,
        "target": tuned.subject.target.name,
        "static": dict(tuned.subject.static),
        "key": tuned.subject.key,
        "interrupted": tuned.interrupted,
        "kernels": len(tuned.configs),
        "shapes": [
            {
                "sizes": dict(s.sizes),
                "chosen": c.to_json() if c else None,
                "first_choice": s.first.to_json() if s.first else None,
                "ended": s.ended,
                "seconds": s.seconds,
                "correlation": s.correlation,
                "refused": len(s.refused),
                "peak_fraction": s.flops / s.best.seconds / peak if s.best and peak else None,
                "finalists": [
                    {**f.config.to_json(), "seconds": f.seconds, "spread": f.spread}
                    for f in s.finalists
                ],
                "measurements": [measurement_json(m) for m in s.measurements],
            }
            for s, c in zip(tuned.shapes, tuned.chosen, strict=True)
        ],
    }


def report(tuned: Tuned, peak: float) -> None:
    """Tables for people."""
    for shape, chosen in zip(tuned.shapes, tuned.chosen, strict=True):
        sizes = ", ".join(f"{n}={v}" for n, v in shape.sizes.items())
        fresh = sum(not m.earlier for m in shape.measurements)
        known = len(shape.measurements) - fresh
        before = f", {known} known before" if known else ""
        click.echo(f"{sizes}: {fresh} measured in {shape.seconds:.0f} s{before} ({shape.ended})")
        if shape.finalists:
            _best(shape, peak)
        if shape.correlation is not None:
            click.echo(f"rank correlation of predicted and measured: {shape.correlation:.2f}")
        for line in losers(shape):
            click.echo(line)
        if chosen is not None:
            click.echo(f"chosen: {chosen}\n")
    if len(tuned.shapes) > 1:
        click.echo(f"{len(tuned.configs)} kernels for {len(tuned.shapes)} shapes")
    if tuned.interrupted:
        click.echo("interrupted: what was measured is kept", err=True)
    if tuned.kernel is None:
        click.echo("nothing could be measured", err=True)


def _best(shape: ShapeResult, peak: float) -> None:
    from rich import box
    from rich.table import Table

    table = Table("configuration", box=box.SIMPLE)
    for name in ("predicted ms", "measured ms", "spread", "GFLOP/s", "of peak"):
        table.add_column(name, justify="right")
    for f in shape.finalists[:BEST]:
        rate = shape.flops / f.seconds
        table.add_row(
            str(f.config),
            _ms(f.predicted),
            _ms(f.seconds),
            f"{f.spread:.1%}",
            f"{rate / 1e9:.1f}",
            f"{rate / peak:.0%}" if peak else "",
        )
    print_table(table)


def losers(shape: ShapeResult) -> list[str]:
    """Why the others lost, in a few lines."""
    found = []
    good = sorted(m.seconds for m in shape.measurements if m.seconds is not None)
    if len(good) > 1:
        slower = [s / good[0] for s in good[1:]]
        near = sum(s <= 1.05 for s in slower)
        found.append(
            f"slower: {len(slower)}, {near} of them by up to 5 %, "
            f"the slowest {slower[-1]:.1f} times"
        )
    for reason, n in Counter(m.reason for m in shape.failed).most_common(BEST):
        found.append(f"failed: {n}: {reason}")
    examples = {_kind(r): r for _, r in reversed(shape.refused)}
    for kind, n in Counter(_kind(r) for _, r in shape.refused).most_common(BEST):
        found.append(f"refused: {n}, such as: {examples[kind]}")
    return found


def _kind(reason: str) -> str:
    """The reason without its numbers."""
    return re.sub(r"\d+", "#", reason)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds == seconds else "?"

"""Results as tables of Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rounds import Contestant

MIB = 1 << 20
HEAD = (
    *("case", "contestant", "ms", "rate", "of limit", "tilecc is"),
    *("a core-second", "of limit", "tilecc is", "MiB", "error"),
)


@dataclass
class Line:
    """One contestant in one case: by time, and by CPU time of all its threads."""

    case: str
    contestant: str
    ms: float
    rate: float
    of_limit: float
    speedup: float | None
    """How many times as fast tilecc is; None for tilecc itself."""
    core_ms: float
    core_rate: float
    unit: str
    core_of_limit: float
    core_speedup: float | None
    extra_bytes: int | None
    """By which the process grows in a call, the output left out."""
    error: float
    samples_ms: list[float] = field(default_factory=list)
    core_samples_ms: list[float] = field(default_factory=list)

    @staticmethod
    def of(
        case: str,
        c: Contestant,
        own: Contestant,
        bound: Contestant,
        *,
        amount: float,
        limit: tuple[float, str],
        error: float,
        extra_bytes: int | None = None,
    ) -> Line:
        """Contestant `c`, which did `amount` in rounds with tilecc (`own`) and with `bound`.

        `limit`: what `bound` did in its time, and the unit of its rate.
        """
        done, unit = limit
        scale = amount / done  # seconds at the limit = scale x the limit's own
        return Line(
            case=case,
            contestant=c.name,
            ms=1e3 * c.median,
            rate=amount / c.median / 1e9,
            of_limit=scale * bound.median / c.median,
            speedup=None if c is own else c.median / own.median,
            core_ms=1e3 * c.core_median,
            core_rate=amount / c.core_median / 1e9,
            unit=unit,
            core_of_limit=scale * bound.core_median / c.core_median,
            core_speedup=None if c is own else c.core_median / own.core_median,
            extra_bytes=extra_bytes,
            error=error,
            samples_ms=[1e3 * s for s in c.seconds],
            core_samples_ms=[1e3 * s for s in c.core_seconds],
        )


@dataclass
class Report:
    """Everything that a run has found."""

    machine: dict[str, str]
    notes: list[str]
    lines: list[Line] = field(default_factory=list)
    limits: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    quality: dict[str, str] = field(default_factory=dict)
    scratch: dict[str, int] = field(default_factory=dict)
    """Bytes of scratch a thread of tilecc's kernel, by case."""
    compile_times: dict[str, Any] = field(default_factory=dict)
    dynamic: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """As a tree of plain values."""
        return asdict(self)


def cells(line: Line) -> tuple[str, ...]:
    """A line's texts, under `HEAD`."""
    return (
        line.case,
        line.contestant,
        f"{line.ms:.2f}",
        f"{line.rate:.0f} {line.unit}",
        f"{100 * line.of_limit:.0f} %",
        _times(line.speedup),
        f"{line.core_rate:.0f} {line.unit}",
        f"{100 * line.core_of_limit:.0f} %",
        _times(line.core_speedup),
        "" if line.extra_bytes is None else f"{line.extra_bytes / MIB:.1f}",
        f"{line.error:.0e}",
    )


def _times(x: float | None) -> str:
    return "" if x is None else f"{x:.2f} x"


def markdown(report: Report) -> str:
    """The report as a Markdown document."""
    parts = ["# Measured on this machine\n"]
    parts += [f"- {key}: {value}" for key, value in report.machine.items()]
    parts += [f"- {note}" for note in report.notes]
    if report.lines:
        parts += ["\n## Speed\n", *table(HEAD, [cells(line) for line in report.lines])]
        parts += ["", *(_footnote(report, case) for case in report.quality)]
    if report.limits:
        head = ("case", "limit", "threads", "median", "best", "a core-second", "unit")
        rows = [
            (
                x["case"],
                x["name"],
                f"{x['threads']}",
                f"{x['median']:.0f}",
                f"{x['best']:.0f}",
                f"{x['core']:.0f}",
                x["unit"],
            )
            for x in report.limits
        ]
        parts += ["\n## Limits, measured in the same rounds\n", *table(head, rows)]
    if report.missing:
        parts += ["\n## Not measured\n", *(f"- {m}" for m in report.missing)]
    if report.dynamic:
        parts += ["\n## One kernel, several lengths\n", *_dynamic(report.dynamic)]
    if report.compile_times:
        parts += ["\n## Compile times\n", *_compile_times(report.compile_times)]
    return "\n".join(parts) + "\n"


def _footnote(report: Report, case: str) -> str:
    scratch = report.scratch[case] / 1024
    return f"- {case}: {report.quality[case]}; tilecc's scratch {scratch:.0f} KiB a thread"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """A Markdown table, a text for each line."""
    widths = [max(len(r[k]) for r in (head, *rows)) for k in range(len(head))]

    def line(texts: Iterable[str]) -> str:
        return "| " + " | ".join(t.ljust(w) for t, w in zip(texts, widths, strict=True)) + " |"

    return [line(head), line("-" * w for w in widths), *(line(r) for r in rows)]


def _dynamic(found: dict[str, Any]) -> list[str]:
    head = ("N", "ms", "GFLOP/s", "of limit", "of limit by CPU time", "error")
    rows = [
        (
            f"{x['n']}",
            f"{x['ms']:.2f}",
            f"{x['gflops']:.0f}",
            f"{100 * x['of_limit']:.0f} %",
            f"{100 * x['core_of_limit']:.0f} %",
            f"{x['error']:.0e}",
        )
        for x in found["lengths"]
    ]
    return [
        f"{found['case']}, compilations: {found['compilations']} ({found['quality']})\n",
        *table(head, rows),
    ]


def _compile_times(found: dict[str, Any]) -> list[str]:
    head = ("spec", "when", "median s", "best s", "CPU s", "passes s", "TIR s", "LLVM s")
    rows, plain = [], [f"- import tilecc: {found['import tilecc']:.3f} s"]
    for spec, times in found.items():
        if not isinstance(times, dict):
            continue
        for when, x in times.items():
            if not isinstance(x, dict):
                plain.append(f"- {spec}, {when}: {x:.3f} s")
                continue
            m = x["median"]
            numbers = (m["total"], x["best"], m["core"], m["passes"], m["tir"], m["llvm"])
            rows.append((spec, when, *(f"{v:.2f}" for v in numbers)))
    return [*table(head, rows), "", *plain]

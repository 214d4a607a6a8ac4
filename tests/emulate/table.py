# ruff: noqa: E402, E501
"""Runs the sweep row by row, keeps what each run showed, and writes it down as a page.

python tests/emulate/table.py LOG [--only NAME ...] [--orders ROWSxCOLUMNS ...] [--write PAGE]

LOG gets a line of JSON for each run as it ends; runs that it has already are not done again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[n]) for n in (0, 1)]
sys.path.append(str(Path(__file__).parents[1] / "zoo"))

from sweep import LENGTHS, SEEDS, SPECS, TOLERANCE, Length, errors, faults, program_of, sample

Run = tuple[str, str, Length, int | None]
Rows = Sequence[dict[str, Any]]
HEAD = """# Every example on the emulator of sm_80

<!-- Written by tests/emulate/table.py. Do not edit. -->

    python tests/emulate/table.py LOG --write {page}

{runs} runs, {dates}, compiler of {commits}. Queries x keys: {lengths}; all in lockstep. Runs in random orders of warps and copies: {orders}. Largest error in parts of the largest magnitude of the float64 reference (allowed: {allowed}). A run is right if the error is allowed, there is no race, no undefined register or memory, no access out of bounds, the bytes of every tensor, read and written, are those of the cost model, and, where tiles divide the shape, nothing but whole sectors is used. Of tensors that are read at computed places (last column) the bytes that lanes ask for, each for itself, are those of the model.

"""


def runs(name: str, dtype: str, orders: Sequence[Length]) -> Iterator[Run]:
    """All lengths in lockstep, then all random orders at some lengths."""
    for seed in (None, *SEEDS):
        for at in LENGTHS if seed is None else orders:
            yield name, dtype, at, seed


def length(text: str) -> Length:
    """One of LENGTHS, as ROWSxCOLUMNS."""
    found = {f"{at.rows}x{at.columns}": at for at in LENGTHS}
    if text not in found:
        raise argparse.ArgumentTypeError(f"{text} is not one of {', '.join(found)}")
    return found[text]


def orders_run(rows: Rows) -> str:
    """How many runs in random orders there are of each length."""
    of = [tuple(r["run"][2:4]) for r in rows if r["run"][4] is not None]
    lengths = [(at.rows, at.columns) for at in LENGTHS]
    return ", ".join(f"{of.count(at)} at {at[0]} x {at[1]}" for at in lengths if at in of) or "none"


def key(run: Run) -> list[Any]:
    """A run as plain data."""
    name, dtype, at, seed = run
    return [name, dtype, at.rows, at.columns, seed]


def measured(run: Run) -> dict[str, Any]:
    """A run and what it showed."""
    name, dtype, at, seed = run
    row: dict[str, Any] = {"run": key(run), "date": time.strftime("%Y-%m-%d")}
    start = time.process_time()
    try:
        found, want = sample(name, dtype, at, seed)
        row["error"] = max(errors(found, want), default=0.0)
        row["faults"] = list(faults(found, want, dtype, at.even))
        model = found.predicted
        row["asked"] = dict(model.asked) if model is not None else None
        row["shared"] = found.shared
        row["ctas"] = found.ctas
    except Exception:
        row["faults"] = [traceback.format_exc(limit=-3)]
    row["seconds"] = round(time.process_time() - start, 2)
    return row


def known(log: Path) -> Rows:
    """The rows of a log, the last one of each run."""
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return list({tuple(row["run"]): row for row in rows}.values())


def page(rows: Rows, path: Path) -> str:
    """All rows as a page of markdown."""
    head = HEAD.format(
        page=path,
        runs=len(rows),
        dates=" to ".join(
            dict.fromkeys((min(r["date"] for r in rows), max(r["date"] for r in rows)))
        ),
        commits=", ".join(dict.fromkeys(r["commit"] for r in rows)),
        lengths=", ".join(f"{at.rows} x {at.columns}" for at in LENGTHS),
        orders=orders_run(rows),
        allowed=", ".join(f"{dtype} {most}" for dtype, most in TOLERANCE.items()),
    )
    columns = [x for t in TOLERANCE for x in (f"{t}: lockstep", "orders", "error")]
    lines = [" | ".join(["spec", *columns, "at computed places"])]
    lines.append(" | ".join(["---", *("---:" for _ in columns), "---"]))
    wrong = []
    for name in SPECS:
        own = [r for r in rows if r["run"][0] == name]
        cells = [name]
        for dtype in TOLERANCE:
            of = [r for r in own if r["run"][1] == dtype]
            for some in (False, True):
                part = [r for r in of if (r["run"][4] is not None) == some]
                cells.append(f"{sum(not r['faults'] for r in part)} of {len(part)}")
            errors_of = [r["error"] for r in of if "error" in r]
            cells.append(f"{max(errors_of):.1e}" if errors_of else "not run")
        cells.append(", ".join(dict.fromkeys(n for r in own for n in r.get("asked") or ())))
        lines.append(" | ".join(cells))
        kinds = list(dict.fromkeys(f.split("\n")[0] for r in own for f in r["faults"]))
        wrong += [f"- {name}, {len(kinds)} kinds, such as: `{kind}`" for kind in kinds[:1]]
    text = head + "\n".join(f"| {line} |" for line in lines) + "\n"
    return text + ("\nWhat is wrong:\n\n" + "\n".join(wrong) + "\n" if wrong else "")


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--only", nargs="*", default=SPECS, metavar="NAME")
    parser.add_argument(
        "--orders",
        nargs="+",
        type=length,
        default=LENGTHS[-1:],
        metavar="ROWSxCOLUMNS",
        help="the lengths of the runs in random orders; the longest if not given",
    )
    parser.add_argument("--write", type=Path, metavar="PAGE")
    args = parser.parse_args()
    done = [row["run"] for row in known(args.log)]
    last = ["git", "log", "-1", "--format=%h", "--", "tilecc"]
    commit = subprocess.run(last, capture_output=True, text=True, check=True).stdout.strip()
    for name in args.only:
        for dtype in TOLERANCE:
            for run in runs(name, dtype, args.orders):
                if key(run) in done:
                    continue
                row = {**measured(run), "commit": commit}
                with args.log.open("a") as log:
                    log.write(json.dumps(row) + "\n")
        program_of.cache_clear()
    if args.write:
        args.write.write_text(page(known(args.log), args.write))


if __name__ == "__main__":
    main()

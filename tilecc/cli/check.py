"""`tilecc check`: what a kernel's numbers are like, beside float64 and beside themselves."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click

from tilecc.cli import options
from tilecc.errors import CompileError, Diagnostic

if TYPE_CHECKING:
    from tilecc.numerics import Finding

# Sizes that tiles do not divide, where --shape gives none.
ODD = {1024: 333, 1: 3}


@click.command("check")
@options.program
@options.shared(
    options.target, options.dtype, options.shape, options.tile, options.split, options.scalars
)
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
@options.as_json
def command(
    file: str,
    target: str,
    dtype: str,
    shape: dict[str, int],
    tile: Any,
    split: Any,
    scalars: dict[str, float],
    seed: int,
    as_json: bool,
) -> int:
    """Check a kernel's numbers: errors against float64, logits of +-1e4, -inf, masked rows, and
    that a row is the same to the bit in each run, for any number of threads, and alone.

    Exits with 1 if one of the checks fails.

    \b
    Examples:
      tilecc check examples/causal.py
      tilecc check examples/with_lse.py --dtype bfloat16 --shape N=1000 --json
    """
    from tilecc.cli.program import load_program
    from tilecc.numerics import Numerics
    from tilecc.runtime.build import runs_here

    with options.progress(f"compiling {file}"):
        program = load_program(file, target, dtype, shape, tile, split)
        if program.compiler.level != "graph":
            hint = "give a spec, or IR of the graph"
            raise CompileError(Diagnostic(f"{file} is {program.compiler.level} IR", None, hint))
        if not runs_here(program.compiler.target):
            message = f"a kernel for {target} does not run on this machine"
            raise CompileError(Diagnostic(message, None, "tilecc emulate runs those for GPUs"))
        kernel = program.kernel()
    free = set(program.sizes) - set(program.given) - set(program.static)
    sizes = {n: ODD.get(v, v) if n in free else v for n, v in program.sizes.items()}
    numerics = Numerics(program.func, kernel, sizes, program.scalars(scalars), seed)
    findings = []
    with options.progress("checking"):
        findings = list(numerics.findings())
    ok = all(f.ok for f in findings)
    if as_json:
        click.echo(json.dumps(_json(kernel.name, dtype, sizes, findings), indent=2))
    else:
        _show(sizes, findings)
    return 0 if ok else 1


def _json(name: str, dtype: str, sizes: dict[str, int], findings: list[Finding]) -> dict[str, Any]:
    def number(x: Any) -> Any:
        return str(x) if isinstance(x, float) and not math.isfinite(x) else x

    return {
        "name": name,
        "dtype": dtype,
        "shape": sizes,
        "ok": all(f.ok for f in findings),
        "checks": [
            {
                "name": f.name,
                "ok": f.ok,
                "note": f.note,
                **{k: number(v) for k, v in f.numbers.items()},
            }
            for f in findings
        ],
    }


def _show(sizes: dict[str, int], findings: list[Finding]) -> None:
    click.echo(", ".join(f"{n}={v}" for n, v in sizes.items()))
    for f in findings:
        click.echo(
            f"{'ok    ' if f.ok else 'FAILED'}  {f.name}" + (f" ({f.note})" if f.note else "")
        )
        n = f.numbers
        if not n:
            continue
        click.echo(f"        error {n['max']:.2e}, RMS {n['rms']:.2e}, allowed {n['allowed']:.2e}")
        if n["max"]:
            click.echo(f"        worst: {n['worst']}: {n['got']:.9g}, wanted {n['wanted']:.9g}")
        special = [
            f"{n[k]} {what}"
            for k, what in (("rows_of_0", "rows of 0"), ("minus_infinities", "times -inf"))
            if n[k]
        ]
        if special:
            click.echo(f"        wanted, and got unless it says otherwise: {', '.join(special)}")

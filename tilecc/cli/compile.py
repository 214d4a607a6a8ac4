"""`tilecc compile`: the IR of any stage, and what the compiler decided."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Any

import click

from tilecc.cli import options

LAST = ("tir", "llvm", "asm")


@click.command("compile")
@options.program
@options.shared(options.target, options.dtype, options.shape, options.tile)
@click.option("--print-ir-after", "after", metavar="PASS|all", help="Print the IR after a pass.")
@click.option("--emit", metavar="STAGE", help="Print one stage: graph, a pass, tir, llvm or asm.")
@click.option("--locs", is_flag=True, help="Print source lines with the IR.")
@options.as_json
def command(
    file: str,
    target: str,
    dtype: str,
    shape: dict[str, int],
    tile: Any,
    after: str | None,
    emit: str | None,
    locs: bool,
    as_json: bool,
) -> None:
    """Compile a spec, or IR in a .tcir file, and print any of its stages.

    \b
    Examples:
      tilecc compile examples/causal.py --print-ir-after fuse
      tilecc compile examples/causal.py --target sm_80 --shape D=128 --emit tile > causal.tcir
      tilecc compile causal.tcir --emit asm
    """
    from tilecc.cli.program import load_program

    ir_only = after is not None or (emit is not None and emit not in LAST)
    with options.progress(f"compiling {file}"):
        program = load_program(file, target, dtype, shape, tile)
        kernel = program.kernel(build=not ir_only)
        wanted = _wanted(kernel.stages, after, emit)
        texts = {stage: kernel.ir(stage, locs=locs) for stage in wanted}
    if as_json:
        click.echo(json.dumps({**summary(kernel, program), "ir": texts}, indent=2))
        return
    if not texts:
        _show(kernel, program)
        return
    defaults = [f"{n}={v}" for n, v in program.static.items() if n not in program.given]
    if defaults:
        click.echo(f"note: {', '.join(defaults)} by default; --shape gives others", err=True)
    for stage, text in texts.items():
        head = "" if emit is not None and len(texts) == 1 else f"# {stage}\n"
        click.echo(head + text, nl=not text.endswith("\n") or len(texts) > 1)


def _wanted(stages: tuple[str, ...], after: str | None, emit: str | None) -> list[str]:
    """The stages to print: --emit's, and --print-ir-after's, which are of passes."""
    found: list[str] = []
    passes = [s for s in stages if s not in LAST]
    for name, flag, known in (
        (after, "--print-ir-after", passes),
        (emit, "--emit", list(stages)),
    ):
        if name is None:
            continue
        if name == "all":
            found += known
        elif name.replace("_", "-") in known:
            found.append(name.replace("_", "-"))
        else:
            near = get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"{flag} {name}{guess} (stages are {', '.join(known)})")
    return list(dict.fromkeys(found))


def summary(kernel: Any, program: Any) -> dict[str, Any]:
    """What the compiler decided, as JSON."""
    return {
        "name": kernel.name,
        "signature": kernel.signature,
        "target": kernel.target.name,
        "static": program.static,
        "tile": dict(kernel.tile),
        "stages": list(kernel.stages),
        "seconds": kernel.timings,
        "remarks": [
            {"pass": r.pass_name, "message": r.message, "loc": str(r.loc) if r.loc else None}
            for r in kernel.remarks
        ],
    }


def _show(kernel: Any, program: Any) -> None:
    click.echo(kernel.signature)
    static = ", ".join(
        f"{n}={v}" + ("" if n in program.given else " (default)") for n, v in program.static.items()
    )
    click.echo(f"target  {kernel.target.name} ({kernel.target.arch})")
    click.echo(f"static  {static or 'none'}")
    click.echo(f"tile    {kernel.tile}")
    times = ", ".join(f"{n} {s * 1e3:.1f}" for n, s in kernel.timings.items())
    click.echo(f"ms      {times}")
    for remark in kernel.remarks:
        click.echo(f"remark  {remark}")

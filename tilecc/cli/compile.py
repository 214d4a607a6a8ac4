"""`tilecc compile`: the IR of any stage, and what the compiler decided."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click

from tilecc.cli import options

LAST = ("tir", "llvm", "asm", "cuda", "ptx", "sass")
# What --emit gives beside the stages, of a kernel for a GPU.
BINARY, REPORT = "cubin", "resources"
_LABEL = 8  # where what is said of a label begins


@click.command("compile")
@options.program
@options.shared(
    options.target, options.dtype, options.shape, options.tile, options.split, options.tensor
)
@click.option("--print-ir-after", "after", metavar="PASS|all", help="Print the IR after a pass.")
@click.option(
    "--emit",
    metavar="STAGE",
    help="Print one stage: graph, a pass, tir, llvm or asm; for a GPU tir, cuda, ptx, sass, "
    "cubin or resources.",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Write to a file what --emit gives."
)
@click.option("--locs", is_flag=True, help="Print source lines with the IR.")
@options.as_json
def command(
    file: str,
    target: str,
    dtype: str,
    shape: dict[str, int],
    tile: Any,
    split: Any,
    tensor: str | None,
    after: str | None,
    emit: str | None,
    output: str | None,
    locs: bool,
    as_json: bool,
) -> None:
    """Compile a spec, or IR in a .tcir file, and print any of its stages.

    \b
    Examples:
      tilecc compile examples/causal.py --print-ir-after fuse
      tilecc compile examples/causal.py --target sm_80 --shape D=128 --emit tile > tiled.tcir
      tilecc compile tiled.tcir --emit asm
      tilecc compile examples/causal.py --dtype float16 --target sm_80 --emit resources --json
    """
    from tilecc.cli.program import load_program

    if output is not None and (emit is None or as_json):
        raise click.UsageError("--output is for what --emit gives, without --json")
    if emit == BINARY and as_json:
        raise click.UsageError("a cubin cannot be JSON: --emit sass, or resources")
    ir_only = after is not None or (emit is not None and emit not in LAST)
    with options.progress(f"compiling {file}"):
        program = load_program(file, target, dtype, shape, tile, split, tensor)
        kernel = program.kernel(build=not ir_only)
        extra = (BINARY, REPORT) if kernel.target.kind == "cuda" else ()
        wanted = _wanted(kernel.stages, after, emit, extra)
        cubins = kernel.cubins() if emit == BINARY else []
        report = kernel.resources() if emit == REPORT else ()
        texts = {stage: kernel.ir(stage, locs=locs) for stage in wanted}
    if emit == BINARY:
        _write_binaries(cubins, output)
        return
    if emit == REPORT:
        _write_text(_report(report, as_json), output)
        return
    if as_json:
        click.echo(json.dumps({**summary(kernel, program), "ir": texts}, indent=2))
        return
    if not texts:
        _show(kernel, program)
        return
    defaults = [f"{n}={v}" for n, v in program.static.items() if n not in program.given]
    if defaults:
        click.echo(f"note: {', '.join(defaults)} by default; --shape gives others", err=True)
    if output is not None:
        _write_text("\n".join(texts.values()), output)
        return
    for stage, text in texts.items():
        head = "" if emit is not None and len(texts) == 1 else f"# {stage}\n"
        click.echo(head + text, nl=not text.endswith("\n") or len(texts) > 1)


def _write_binaries(cubins: list[bytes], output: str | None) -> None:
    """One file of a kernel's machine code, on stdout where that is no terminal."""
    if len(cubins) != 1:
        raise click.UsageError(f"the program has {len(cubins)} kernels, and a cubin holds one")
    if output is None and sys.stdout.isatty():
        raise click.UsageError("a cubin is not text: redirect the output, or give --output FILE")
    with click.open_file(output or "-", "wb") as f:
        f.write(cubins[0])


def _write_text(text: str, output: str | None) -> None:
    with click.open_file(output or "-", "w", encoding="utf-8") as f:
        f.write(text if text.endswith("\n") else text + "\n")


def _report(kernels: Sequence[Any], as_json: bool) -> str:
    """Resources by kernel; JSON has those of the one with the longest main loop at the top too."""
    if not as_json:
        return "\n".join(map(str, kernels))
    found = [k.to_json() for k in kernels]
    main: dict[str, Any] = {}
    if found:
        main = max(found, key=lambda k: (k["multiply_adds"], k["instructions"]["total"]))
    return json.dumps({**main, "kernels": found}, indent=2)


def _wanted(
    stages: tuple[str, ...], after: str | None, emit: str | None, extra: tuple[str, ...]
) -> list[str]:
    """The stages to print: --emit's (or what it may name in `extra`, which are none), and
    --print-ir-after's, which are of passes."""
    found: list[str] = []
    passes = [s for s in stages if s not in LAST]
    for name, flag, known in (
        (after, "--print-ir-after", passes),
        (emit, "--emit", list(stages)),
    ):
        if name is None or (flag == "--emit" and name in extra):
            continue
        if name == "all":
            found += known
        elif name.replace("_", "-") in known:
            found.append(name.replace("_", "-"))
        else:
            near = get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            listed = [*known, *extra] if flag == "--emit" else known
            raise click.UsageError(f"{flag} {name}{guess} (stages are {', '.join(listed)})")
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
    options.say(f"ms      {times}", _LABEL)
    for remark in kernel.remarks:
        options.say(f"remark  {remark}", _LABEL)

"""`tilecc opt`: passes on IR text."""

from __future__ import annotations

import sys

import click

from tilecc.errors import CompileError


@click.command("opt")
@click.argument("file", metavar="FILE.tcir|-")
@click.option("--passes", default="", metavar="PIPELINE", help="Passes in order, with options.")
@click.option("--no-locs", is_flag=True, help="Leave out the source lines.")
@click.option("--remarks", is_flag=True, help="Print the passes' remarks on stderr.")
@click.option("--timings", is_flag=True, help="Print each pass's time on stderr.")
def command(file: str, passes: str, no_locs: bool, remarks: bool, timings: bool) -> None:
    """Run passes on IR text, and print what comes out. No passes: what was read, to the letter.

    \b
    Examples:
      tilecc compile examples/causal.py --emit graph > causal.tcir
      tilecc opt causal.tcir --passes "simplify,fuse,online-softmax,tile{i=64,j=64}"
    """
    from tilecc.ir.parser import parse_ir
    from tilecc.pipeline import PassManager

    manager = PassManager(passes)
    text, name = _read(file)
    run = manager.run(parse_ir(text, name))
    click.echo(run.stages[-1].text(locs=not no_locs), nl=False)
    for remark in run.remarks if remarks else ():
        click.echo(f"remark: {remark}", err=True)
    for stage, seconds in run.timings.items() if timings else ():
        click.echo(f"{seconds * 1e3:9.2f} ms  {stage}", err=True)


def _read(file: str) -> tuple[str, str]:
    try:
        if file == "-":
            return sys.stdin.read(), "<stdin>"
        with open(file, encoding="utf-8") as f:
            return f.read(), file
    except FileNotFoundError as e:
        raise click.UsageError(f"there is no file {file}") from e
    except (OSError, UnicodeDecodeError) as e:
        raise CompileError(f"{file} cannot be read: {e}") from e

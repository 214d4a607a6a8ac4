"""The command line. Each command is a module of this package, imported when it is called for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

import tilecc
from tilecc.errors import TileccError

# Commands in the order in which the help lists them, with the module of each.
COMMANDS = {
    "run": "tilecc.cli.run",
    "check": "tilecc.cli.check",
    "compile": "tilecc.cli.compile",
    "cost": "tilecc.cli.cost",
    "explain": "tilecc.cli.explain",
    "opt": "tilecc.cli.opt",
    "tune": "tilecc.cli.tune",
    "measure": "tilecc.cli.measure",
    "db": "tilecc.cli.db",
    "emulate": "tilecc.cli.emulate",
    "targets": "tilecc.cli.targets",
}
# What a user asked for wrongly, by the names of error classes (which are not imported for that).
_USAGE = {"PipelineError", "TargetError"}


class _Commands(click.Group):
    """A group that imports a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module(COMMANDS[cmd_name]).command
        return found


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tilecc.__version__, prog_name="tilecc")
def cli() -> None:
    """A tiling compiler for attention: specs in Python to fused, tiled kernels.

    \b
    Example:
      tilecc run examples/attention.py --shape N=4096,D=64
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Gives 0, 1 if a check or a compilation fails, 2 for bad usage."""
    try:
        result = cli.main(argv, prog_name="tilecc", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as e:
        e.show()
        return e.exit_code
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return 1
    except TileccError as e:
        click.echo(f"error: {e}", err=True)
        return 2 if type(e).__name__ in _USAGE else 1
    except MemoryError as e:
        message = f"not enough memory ({e})" if str(e) else "not enough memory"
        click.echo(f"error: {message}\n    give smaller sizes by --shape", err=True)
        return 1
    except BrokenPipeError:
        # What reads our output has had enough; Python would complain when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0

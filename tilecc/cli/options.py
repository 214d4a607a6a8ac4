"""Options that several commands share, and how their values are written."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class Program(click.ParamType[str]):
    """`FILE[:NAME]`, a spec in a Python file, or a file of IR."""

    name = "FILE[:NAME]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, if its file is there."""
        text = str(value)
        path, colon, name = text.rpartition(":")
        if not os.path.isfile(path if colon and name.isidentifier() else text):
            self.fail(f"there is no file {path or text}", param, ctx)
        return text


class Assignments(click.ParamType[Any]):
    """`N=4096,D=64`: numbers by name."""

    name = "NAME=NUMBER,..."

    def __init__(self, kind: Callable[[str], float] = int, example: str = "N=4096,D=64") -> None:
        self.kind, self.example = kind, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The numbers by name."""
        if isinstance(value, dict):
            return value
        found: dict[str, float] = {}
        for item in filter(None, (i.strip() for i in str(value).split(","))):
            name, equals, number = (part.strip() for part in item.partition("="))
            if not equals or not name.isidentifier():
                self.fail(f"{item!r} is not NAME=NUMBER, as in {self.example}", param, ctx)
            if name in found:
                self.fail(f"{name} is given twice", param, ctx)
            try:
                found[name] = self.kind(number)
            except ValueError:
                self.fail(f"{name}={number} is not a number", param, ctx)
            if self.kind is int and found[name] < 0:
                self.fail(f"{name}={number} is negative", param, ctx)
        return found


class TileSizes(Assignments):
    """`i=64,j=64`, or one number for all tiled axes."""

    name = "AXIS=SIZE,...|SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The sizes by axis, or the one size."""
        if str(value).strip().isdigit():
            found: Any = int(value)
        else:
            found = super().convert(value, param, ctx)
        if 0 in (found.values() if isinstance(found, dict) else [found]):
            self.fail("a tile has at least one element", param, ctx)
        return found


class Splitting(click.ParamType[Any]):
    """A number of parts, `auto`, `fill` or `none`."""

    name = "PARTS|auto|fill|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What `tilecc.compile` takes."""
        if isinstance(value, int) or value in ("auto", "fill"):
            return value
        if value == "none":
            return None
        if not (str(value).isascii() and str(value).isdigit() and int(value)):
            self.fail(f"{value!r} is neither a number of parts nor {self.name[6:]}", param, ctx)
        return int(value)


class FloatType(click.ParamType[str]):
    """The name of a float's element type."""

    name = "TYPE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, if there is such a type."""
        from tilecc.ir.dtypes import ALIASES, DTYPES

        name = str(value).removeprefix("torch.")
        floats = {n: t for n, t in DTYPES.items() if t.kind == "float"}
        known = [*floats, *(n for n, short in ALIASES.items() if short in floats)]
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            self.fail(f"{name!r} is no type of floats{guess} ({', '.join(known)})", param, ctx)
        return name


program = click.argument("file", type=Program(), metavar="FILE[:NAME]")
target = click.option(
    "--target",
    default="cpu",
    show_default=True,
    help="Machine: cpu (this one), canvas, an architecture (sm_80) or a name (a100).",
)
dtype = click.option(
    "--dtype",
    type=FloatType(),
    default="float32",
    show_default=True,
    help="Element type of tensors that have none of their own.",
)
shape = click.option(
    "--shape", type=Assignments(), default={}, metavar="N=4096,...", help="Extents by name."
)
tile = click.option(
    "--tile",
    type=TileSizes(example="i=64,j=64"),
    metavar="i=64,j=64",
    help="Tile sizes by axis, or one number for all tiled axes; else the cost model's choice.",
)
split = click.option(
    "--split",
    type=Splitting(),
    default="auto",
    show_default=True,
    metavar="PARTS|auto|fill|none",
    help="How programs share out the keys: in so many parts; where rows are few (auto); to fill "
    "all threads; not.",
)
tensor = click.option(
    "--tensor",
    metavar="tf32",
    help="What a GPU's tensor cores may round f32 to, to multiply it; else it is multiplied as it "
    "is.",
)
scalars = click.option(
    "--scalar",
    "scalars",
    type=Assignments(float, "w=256"),
    default={},
    metavar="w=256,...",
    help="Run-time numbers by name.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def shared(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, listed in the help in this order."""

    def decorate(f: F) -> F:
        for option in reversed(options):
            f = option(f)
        return f

    return decorate


WIDTH = 80
"""Columns of what is printed for people."""


def say(line: str, more: str | int) -> None:
    """Print a line, broken at spaces where it is too long; `more` is put before its other parts.

    As a number it is how far they are indented: as far as what the line says of its first word.
    """
    more = " " * more if isinstance(more, int) else more
    lead = len(line) - len(line.lstrip(" "))
    head, gap = line[:lead], line[lead:]
    # Spaces that align columns stay as they are.
    kept = re.sub(" {2,}", lambda spaces: "\0" * len(spaces[0]), gap)
    out = textwrap.wrap(
        kept,
        WIDTH,
        initial_indent=head,
        subsequent_indent=more,
        break_long_words=False,
        break_on_hyphens=False,
    )
    click.echo("\n".join(out).replace("\0", " ") or line)


def print_table(table: Any) -> None:
    """Print a rich table, as wide as it has to be where it cannot be made narrow enough."""
    from rich.console import Console

    console = Console()
    narrowest = Console(width=1000).measure(table).minimum
    if not console.is_terminal and narrowest > console.width:
        console = Console(width=narrowest)
    console.print(table)


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show on a terminal that something long is going on (on stderr, and nothing elsewhere)."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield

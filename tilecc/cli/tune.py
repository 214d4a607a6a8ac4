"""`tilecc tune`: measure configurations of a spec, and remember the fastest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tilecc.cli import options

if TYPE_CHECKING:
    from tilecc.cli.program import Sized
    from tilecc.tuning.api import Tuned
    from tilecc.tuning.subject import Subject


class Lengths(click.ParamType[Any]):
    """`N=64..8192`, all powers of two from the first to the last, or `N=100,1000`."""

    name = "NAME=FROM..TO|NAME=A,B,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The extent's name and its lengths."""
        if isinstance(value, tuple):
            return value
        name, equals, text = (part.strip() for part in str(value).partition("="))
        first, dots, last = text.partition("..")
        try:
            numbers = [int(n) for n in ((first, last) if dots else text.split(","))]
        except ValueError:
            numbers = []
        if not equals or not name.isidentifier() or not numbers or min(numbers) < 1:
            self.fail(f"{value!r} is not as N=64..8192 or N=100,1000", param, ctx)
        if dots and numbers[0] > numbers[1]:
            self.fail(f"{first} is greater than {last}", param, ctx)
        return name, _doubled(*numbers) if dots else list(dict.fromkeys(numbers))


def _doubled(first: int, last: int) -> list[int]:
    """first, twice that, ..., last."""
    found = [first]
    while found[-1] * 2 < last:
        found.append(found[-1] * 2)
    return list(dict.fromkeys([*found, last]))


@click.command("tune")
@options.program
@options.shared(options.target, options.dtype, options.shape, options.scalars)
@click.option("--lengths", type=Lengths(), help="Several lengths: N=64..8192, or N=100,1000.")
@click.option(
    "--trials", type=click.IntRange(0), default=64, show_default=True, help="For a shape."
)
@click.option("--seconds", type=click.FloatRange(0), help="At most so long for a shape.")
@click.option(
    "--gain",
    type=click.FloatRange(0),
    default=0.005,
    show_default=True,
    help="Stop when less than this fraction of the time is expected to be saved.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=0.03,
    show_default=True,
    help="Of the time, to have fewer kernels for several lengths.",
)
@click.option("--seed", default=0, show_default=True, help="Of the search.")
@click.option("--threads", type=click.IntRange(1), help="Of a call; else all cores.")
@click.option("--workers", type=click.IntRange(1), help="Processes; else one a core.")
@click.option("--db", type=click.Path(dir_okay=False), help="Database; else TILECC_DB, or a cache.")
@click.option("--tracker", metavar="HOST:PORT", help="Measure on boards of a TVM RPC tracker.")
@click.option("--key", default="board", show_default=True, help="Of the boards.")
@click.option(
    "--export",
    "export_to",
    type=click.Path(dir_okay=False),
    help="Measure nothing: write the compiled candidates as one file for `tilecc measure`.",
)
@click.option(
    "--import",
    "import_from",
    type=click.Path(exists=True, dir_okay=False),
    help="First take over what `tilecc measure` wrote.",
)
@click.option("--log", type=click.Path(dir_okay=False), help="Append each measurement, as JSON.")
@options.as_json
def command(
    file: str,
    target: str,
    dtype: str,
    shape: dict[str, int],
    scalars: dict[str, float],
    lengths: tuple[str, list[int]] | None,
    tracker: str | None,
    key: str,
    export_to: str | None,
    import_from: str | None,
    log: str | None,
    as_json: bool,
    **limits: Any,
) -> int:
    """Measure tile sizes and options of the code generator; `tilecc run` and `tc.compile` then use
    what was fastest. Ctrl-C ends it early and keeps everything.

    \b
    Examples:
      tilecc tune examples/causal.py --shape H=8,N=1024
      tilecc tune examples/attention.py --lengths N=64..4096 --trials 24 --dtype bfloat16
    """
    from tilecc.cli.program import load_program
    from tilecc.cli.tuning import Display, report, to_json
    from tilecc.runtime.build import runs_here
    from tilecc.runtime.peak import fma_peak
    from tilecc.runtime.pool import available_threads
    from tilecc.tuning.api import tune

    program = load_program(file, target, dtype, shape, None)
    if lengths is not None and lengths[0] not in program.sizes:
        known = ", ".join(program.sizes)
        raise click.UsageError(f"{program.func.name} has no extent {lengths[0]} ({known})")
    name, numbers = lengths or ("", [0])
    shapes = [{**program.sizes, **({name: n} if name else {})} for n in numbers]
    if export_to is not None:
        return _export(program, file, shapes, scalars, export_to, limits)
    if import_from is not None:
        _import(program, shapes, import_from, limits["db"])
    if tracker is not None:
        from tilecc.tuning.remote import Tracker

        limits["pool"] = Tracker.at(tracker, key).pool
    here = runs_here(program.compiler.target)
    peak = fma_peak(limits["threads"] or available_threads()) if here else 0.0
    with Display(peak, log) as display:
        tuned = tune(
            file,
            shapes,
            target,
            dtype,
            scalars=program.scalars(scalars),
            watch=display.watch,
            **limits,
        )
    click.echo(json.dumps(to_json(tuned, peak), indent=2)) if as_json else report(tuned, peak)
    return _status(tuned)


def _export(
    program: Sized,
    file: str,
    shapes: list[dict[str, int]],
    scalars: dict[str, float],
    to: str,
    limits: Any,
) -> int:
    """The best candidates by prediction, compiled, in one file."""
    from tilecc.tuning.jobs import export
    from tilecc.tuning.points import points

    what, bound = _subject(program, shapes)
    sized = [{**s, **bound} for s in shapes]
    ranked = points(what.loop, what.target, sized[0], program.scalars(scalars))
    chosen = [p for p in ranked if not p.refused][: limits["trials"]]
    with options.progress(f"compiling {len(chosen)} candidates of {file}"):
        numbers = program.scalars(scalars)
        failed = export(to, what, program.compiler, sized, chosen, numbers)
    for config, reason in failed:
        click.echo(f"left out {config}: {reason}", err=True)
    click.echo(f"{len(chosen) - len(failed)} of {len(ranked)} candidates: {to}")
    return 0 if len(failed) < len(chosen) else 1


def _import(program: Sized, shapes: list[dict[str, int]], source: str, db: str | None) -> None:
    from tilecc.tuning.database import Database
    from tilecc.tuning.jobs import take_results

    what, _ = _subject(program, shapes)
    with Database(db) as data:
        data.save(what.known)
        count = take_results(source, what.form.axes, what.key, data)
    click.echo(f"{count} results from {source}", err=True)


def _subject(program: Sized, shapes: list[dict[str, int]]) -> tuple[Subject, dict[str, int]]:
    from tilecc.tuning.api import bind_shapes
    from tilecc.tuning.subject import subject

    program.compiler.remembered = None
    bound = bind_shapes(program.compiler, shapes, {})
    return subject(program.compiler, bound), bound


def _status(tuned: Tuned) -> int:
    return 0 if tuned.kernel is not None else 1

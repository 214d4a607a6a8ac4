"""`tilecc cost`: memory traffic, footprint, arithmetic and the choice of tile sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tilecc.cli import options

if TYPE_CHECKING:
    from tilecc.cli.program import Sized
    from tilecc.cost import Report
    from tilecc.cost.visits import Tiles
    from tilecc.kernel import Kernel

_LABEL, _TILE = 11, 26  # where what is said of a label, and of a tile, begins
_FEW = 4  # so many tiles that fit are all listed


@click.command("cost")
@options.program
@options.shared(
    options.target,
    options.dtype,
    options.shape,
    options.tile,
    options.split,
    options.tensor,
    options.scalars,
)
@click.option("--tiles", "picture", is_flag=True, help="Draw the full, partial and empty tiles.")
@options.as_json
def command(
    file: str,
    target: str,
    dtype: str,
    shape: dict[str, int],
    tile: Any,
    split: Any,
    tensor: str | None,
    scalars: dict[str, float],
    picture: bool,
    as_json: bool,
) -> None:
    """Print what a spec moves, holds and computes, unfused and fused, as formulas and numbers.

    \b
    Examples:
      tilecc cost examples/attention.py --shape N=1024,D=64 --dtype float16 --target a100
      tilecc cost examples/attention.py --shape N=8,D=4 --dtype float16 --target canvas --tile 4
      tilecc cost examples/sliding_window.py --shape N=4096,D=64 --scalar w=512 --tiles
    """
    from tilecc.cli.program import load_program
    from tilecc.inputs import random_inputs

    with options.progress(f"compiling {file}"):
        program = load_program(file, target, dtype, shape, tile, split, tensor)
        program.compiler.to_run = False
        kernel = program.kernel(build=False)
        counts = {n: v for n, v in scalars.items() if n in kernel.counts}
        numbers = program.scalars({n: v for n, v in scalars.items() if n not in counts})
        # What data decides is a symbol (`counts`) or is counted for some data.
        of_data = bool(kernel.deciding) and not kernel.counts
        inputs = random_inputs(program.func, program.sizes, numbers) if of_data else None
        report = costs(kernel, program, {**numbers, **counts}, inputs)
        tiles = _tiles(kernel, program, numbers) if picture else None
        result = report.to_json() if as_json else {}
    if as_json:
        result |= {"tiles": tiles.to_json()} if tiles is not None else {}
        click.echo(json.dumps(result, indent=2))
        return
    show(report, program)
    if of_data:
        click.echo(f"data       numbers are for random {', '.join(kernel.deciding)}")
    if tiles is not None:
        click.echo(f"tiles      {'of random data, ' if kernel.deciding else ''}{tiles}")


def _tiles(kernel: Kernel, program: Sized, numbers: Mapping[str, float]) -> Tiles:
    """The map of tiles; what data decides is drawn for the data that `tilecc run` runs on."""
    from tilecc.inputs import random_inputs

    inputs = random_inputs(program.func, program.sizes, numbers) if kernel.deciding else {}
    given: dict[str, Any] = {**program.sizes, **numbers, **{n: inputs[n] for n in kernel.deciding}}
    return kernel.tiles(**given)


def costs(
    kernel: Kernel,
    program: Sized,
    scalars: Mapping[str, float],
    inputs: Mapping[str, Any] | None = None,
) -> Report:
    """The cost model's report for the program's sizes; with `inputs`, for the data in them."""
    arrays = {n: inputs[n] for n in kernel.deciding} if inputs is not None else {}
    report: Report = kernel.cost(**program.sizes, **scalars, **arrays)
    return report


def show(report: Report, program: Sized) -> None:
    """Print a report: traffic by tensor, tile sizes with the refused ones, arithmetic."""
    from rich import box
    from rich.table import Table

    sizes = ", ".join(f"{n}={v}" for n, v in {**program.sizes, **report.scalars}.items())
    defaults = "".join(f" ({n} by default)" for n in [", ".join(program.defaults)] if n)
    options.say(f"{report.tile_func.name} on {report.target.model}: {sizes}{defaults}", 4)
    head, rows = report.table()
    table = Table(box=box.SIMPLE)
    for name in head:
        right = name in ("numbers", "bytes")
        # A formula can be broken, a number cut short would be another one.
        cells = {"min_width": 12} if name == "formula" else {"no_wrap": True}
        table.add_column(name, justify="right" if right else "left", **cells)
    for row in rows:
        table.add_row(*row, end_section=row[0] != "")
    options.print_table(table)
    for line in _lines(report):
        options.say(line, _TILE if line.startswith(" ") else _LABEL)


def _lines(report: Report) -> list[str]:
    """Everything but the table of traffic."""
    tile = ", ".join(f"{a}={n}" for a, n in report.tile.items())
    lines = [f"{name:10} {said}" for name, said in report.sums.items()]
    lines += [f"tile       {tile or 'none'}", f"holds      {report.footprint_formula()} numbers"]
    if report.need is not None:
        lines[-1] += f": {report.need}{'' if report.need.fits else ', DOES NOT FIT'}"
    fitting = sum(c.fits for c in report.candidates)
    if report.candidates:
        lines.append(f"tried      {len(report.candidates)} tiles, of which {fitting} fit")
    for c in report.candidates:
        if c.fits and c.tile != report.tile and fitting > _FEW:
            continue
        sizes = ", ".join(f"{a}={n}" for a, n in c.tile.items())
        lines.append(f"  {sizes:15} {'fits   ' if c.fits else 'refused'} {c.reason}".rstrip())
    work, line = report.arithmetic, report.roofline
    factors = f" of {report.factors}" if report.factors != report.dtype.name else ""
    if work is not None and report.intensity is not None:
        lines.append(
            f"computes   {work.flops:,} operations in contractions{factors}, "
            f"{work.elementwise:,} on elements, {work.exps:,} exponentials; "
            f"{report.intensity:.1f} operations a byte"
        )
    if line is not None and line.seconds is not None:
        bound = f"bound by {line.bound}" if line.bound else "as far as is known"
        lines.append(f"roofline   {_time(line.seconds)}, {bound}")
    return lines


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def useful_flops(
    kernel: Kernel, program: Sized, scalars: Mapping[str, float], inputs: Mapping[str, Any]
) -> int:
    """Operations in contractions that no mask voids; of tile IR, and where data masks, all."""
    from tilecc.cost.useful import useful_flops as useful

    func = kernel.loop_func
    if func is not None and not kernel.deciding:
        return useful(func, kernel.target, program.sizes, scalars)
    work = costs(kernel, program, scalars, inputs).arithmetic
    assert work is not None, "all sizes are known"
    return work.flops

"""`tilecc emulate`: a GPU kernel run on this machine's CPU, checked and counted."""

from __future__ import annotations

import json
from typing import Any

import click

from tilecc.cli import options


@click.command("emulate")
@options.program
@options.shared(
    options.dtype, options.shape, options.tile, options.split, options.tensor, options.scalars
)
@click.option("--target", default="sm_80", show_default=True, help="GPU that it is compiled for.")
@click.option(
    "--ctas",
    type=click.IntRange(1),
    help="Run so many CTAs of each kernel, spread over the grid; else all.",
)
@click.option("--seed", type=click.IntRange(0), help="Run warps in a random order; else together.")
@click.option(
    "--ptx",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Run this PTX in place of the compiler's.",
)
@options.as_json
def command(
    file: str,
    dtype: str,
    shape: dict[str, int],
    tile: Any,
    split: Any,
    tensor: str | None,
    scalars: dict[str, float],
    target: str,
    ctas: int | None,
    seed: int | None,
    ptx: str | None,
    as_json: bool,
) -> int:
    """Compile a spec for a GPU and execute its PTX on random input, without a GPU.

    Reports races, undefined values, accesses out of bounds, bank conflicts, and the bytes that
    are requested beside the cost model's. Exits with 1 if there is any of the first three, if the
    result differs from float64 by more than rounding explains, or if bytes are not as predicted.

    \b
    Examples:
      tilecc emulate examples/causal.py --dtype float16 --shape N=296,D=64
      tilecc emulate examples/causal.py --dtype float16 --shape N=65536,D=128 --ctas 4 --seed 1
    """
    from tilecc.cli.program import load_program
    from tilecc.emulation.run import emulate
    from tilecc.inputs import random_inputs

    with options.progress(f"compiling {file}"):
        program = load_program(file, target, dtype, shape, tile, split, tensor)
        kernel = program.kernel(build=False)
    numbers = program.scalars(scalars)
    inputs = random_inputs(program.func, program.sizes, numbers)
    text = None
    if ptx is not None:
        with open(ptx, encoding="utf-8") as f:
            text = f.read()
    with options.progress("emulating"):
        found = emulate(kernel, *inputs.values(), ctas=ctas, seed=seed, ptx=text)
    if as_json:
        facts: dict[str, Any] = {"name": kernel.name, "target": kernel.target.name, "dtype": dtype}
        facts |= {"shape": program.sizes, "scalars": numbers, "tile": dict(kernel.tile)}
        click.echo(json.dumps({**facts, "seed": seed, **found.to_json()}, indent=2))
    else:
        sizes = ", ".join(f"{n}={v}" for n, v in {**program.sizes, **numbers}.items())
        click.echo(f"{kernel.name}: {sizes}, {dtype}, {kernel.target.name}")
        click.echo(str(found))
    return 0 if found.ok else 1

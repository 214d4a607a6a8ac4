"""`tilecc run`: compile, show what became of the spec, run it, check it, time it."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import click

from tilecc.cli import options
from tilecc.errors import CompileError, Diagnostic

if TYPE_CHECKING:
    from tilecc.check import Check
    from tilecc.cli.program import Sized
    from tilecc.kernel import Kernel

_LABEL = 8  # where what is said of a label begins


@click.command("run")
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
@click.option("--threads", type=click.IntRange(1), help="Threads; else all cores.")
@click.option("--repeat", type=click.IntRange(1), default=7, show_default=True, help="Timed calls.")
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
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
    threads: int | None,
    repeat: int,
    seed: int,
    as_json: bool,
) -> int:
    """Compile a spec and run it on random input: IR, cost, tile, error, time.

    Exits with 1 if the result differs from float64 by more than rounding explains.

    \b
    Examples:
      tilecc run examples/attention.py
      tilecc run examples/causal.py --shape H=8,N=4096,D=128 --dtype bfloat16 --threads 2
    """
    from tilecc.cli.program import load_program
    from tilecc.inputs import random_inputs
    from tilecc.runtime.build import runs_here
    from tilecc.runtime.pool import available_threads

    with options.progress(f"compiling {file}"):
        program = load_program(file, target, dtype, shape, tile, split, tensor)
        numbers = program.scalars(scalars)
        if not runs_here(program.compiler.target):
            hint = "`tilecc cost` and `tilecc compile` work for it"
            message = f"a kernel for {target} does not run on this machine"
            raise CompileError(Diagnostic(message, None, hint))
        start = time.perf_counter()
        kernel = program.kernel(threads)
        compile_seconds = time.perf_counter() - start
    inputs = random_inputs(program.func, program.sizes, numbers, seed)
    if not as_json:
        _show_program(kernel, program, numbers, inputs)
    with options.progress("running"):
        outputs = kernel(*inputs.values())
        seconds = _median(lambda: kernel(*inputs.values()), repeat)
    with options.progress("comparing with float64"):
        check = _check(kernel, program, numbers, inputs, outputs)
    count = threads or available_threads()
    result = {
        "name": kernel.name,
        "target": kernel.target.name,
        "dtype": dtype,
        "shape": program.sizes,
        "scalars": numbers,
        "tile": dict(kernel.tile),
        "threads": count,
        "compile_seconds": compile_seconds,
        "seconds": seconds,
        "error": check.error,
        "tolerance": check.tolerance,
        "compared": check.compared,
        "ok": check.ok,
        **_speed(kernel, program, numbers, inputs, seconds, count),
    }
    click.echo(json.dumps(result, indent=2)) if as_json else _show_result(result, check)
    return 0 if check.ok else 1


def _median(call: Any, repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _check(
    kernel: Kernel,
    program: Sized,
    numbers: dict[str, float],
    inputs: dict[str, Any],
    outputs: Any,
) -> Check:
    """Outputs against float64; IR below the graph is run on smaller inputs for that."""
    from tilecc.check import compare
    from tilecc.inputs import random_inputs

    sizes = program.sizes
    if program.compiler.level != "graph":
        sizes = {n: v if n in program.static else min(v, 70) for n, v in sizes.items()}
        inputs = random_inputs(program.func, sizes, numbers)
        outputs = kernel(*inputs.values())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return compare(program.func, sizes, inputs, outputs)


def _speed(
    kernel: Kernel,
    program: Sized,
    scalars: dict[str, float],
    inputs: dict[str, Any],
    seconds: float,
    threads: int,
) -> dict[str, Any]:
    """GFLOP/s, and the fraction of the measured peak."""
    from tilecc.cli.cost import useful_flops
    from tilecc.runtime.peak import fma_peak

    flops = useful_flops(kernel, program, scalars, inputs)
    peak = fma_peak(threads)
    return {
        "flops": flops,
        "gflops": flops / seconds / 1e9,
        "peak_gflops": peak / 1e9,
        "fraction_of_peak": flops / seconds / peak,
    }


def _show_program(
    kernel: Kernel, program: Sized, scalars: dict[str, float], inputs: dict[str, Any]
) -> None:
    from tilecc.cli.cost import costs, show

    stages = kernel.stages
    loop = "mask-tiles" if "mask-tiles" in stages else stages[0]
    click.echo(f"# before fusion\n{kernel.ir('graph') if 'graph' in stages else ''}")
    click.echo(f"# after fusion\n{kernel.ir(loop)}")
    for remark in kernel.remarks:
        options.say(f"# {remark}", "#   ")
    show(costs(kernel, program, scalars, inputs), program)


def _show_result(r: dict[str, Any], check: Check) -> None:
    sizes = ", ".join(f"{n}={v}" for n, v in {**r["shape"], **r["scalars"]}.items())
    options.say(f"ran     {sizes}, {r['dtype']}, {r['threads']} threads", _LABEL)
    part = "" if check.compared >= check.total else f", {check.compared} of {check.total} elements"
    verdict = "agrees with" if check.ok else "DIFFERS FROM"
    options.say(
        f"check   {verdict} float64: largest error {check.error:.2e}, "
        f"allowed {check.tolerance:.2e}{part}",
        _LABEL,
    )
    click.echo(f"compile {r['compile_seconds']:.2f} s")
    click.echo(f"time    {r['seconds'] * 1e3:.3f} ms (median)")
    options.say(
        f"speed   {r['gflops']:.1f} GFLOP/s, {r['fraction_of_peak']:.0%} of the fp32 FMA peak "
        f"measured here ({r['peak_gflops']:.0f} GFLOP/s)",
        _LABEL,
    )

"""Kernels that the compiler makes are clean; broken in each way of `mutants.py` they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import MUTATIONS

import tilecc as tc
from tilecc.check import random_inputs
from tilecc.cli.program import load_program
from tilecc.emulation.report import Emulation
from tilecc.toolchain import compile_cuda

EXAMPLES = Path(__file__).parents[2] / "examples"
# Shapes at which all of a kernel's loops run, and edges of tiles are cut off.
KERNELS = {
    "normalised_linear": {"N": 100, "D": 200, "E": 80},
    "causal": {"N": 200, "D": 64},
    "sliding_window": {"N": 200, "D": 64},
    "sigmoid_attention": {"N": 200, "D": 64},
    "padding_mask": {"N": 200, "D": 64},
}


def reports(found: Emulation) -> set[str]:
    """What tells that a kernel is broken."""
    kinds = {f.kind for f in found.findings}
    kinds |= {"wrong"} if not found.check.ok else set()
    kinds |= {"bytes"} if found.differences else set()
    return kinds | ({"conflicts"} if found.bank_conflicts else set())


@pytest.mark.parametrize(
    "name",
    [n if i == 0 else pytest.param(n, marks=pytest.mark.slow) for i, n in enumerate(KERNELS)],
)
def test_every_mutant_is_reported_and_the_kernel_is_not(name):
    path = str(EXAMPLES / f"{name}.py")
    program = load_program(path, "sm_80", "float16", KERNELS[name], 64)
    kernel = program.kernel(build=False)
    inputs = random_inputs(program.func, program.sizes, program.scalars({}))
    (device,) = kernel.program(kernel.compiled_for(program.sizes)).kernels
    text = compile_cuda(device.source, "sm_80", device.name).ptx
    for seed in (None, 0):
        assert reports(tc.emulate(kernel, seed=seed, **inputs)) == set()
    mutants = {kind: mutate(text) for kind, mutate in MUTATIONS.items()}
    applied = {kind: m for kind, m in mutants.items() if m is not None}
    assert len(applied) >= 8, sorted(applied)
    missed = [k for k, m in applied.items() if not reports(tc.emulate(kernel, ptx=m, **inputs))]
    assert missed == []

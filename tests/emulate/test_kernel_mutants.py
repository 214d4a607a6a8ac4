"""Kernels that the compiler makes are clean; broken in each way of `mutants.py` they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import MUTATIONS

import tilecc as tc
from tilecc.cli.program import load_program
from tilecc.emulation.report import Emulation
from tilecc.inputs import random_inputs
from tilecc.toolchain import compile_cuda

EXAMPLES = Path(__file__).parents[2] / "examples"
# Shapes at which all of a kernel's loops run, and edges of tiles are cut off.
KERNELS = {
    "normalised_linear": {"N": 100, "D": 200, "E": 80},
    "causal": {"N": 200, "D": 64},
    "sliding_window": {"N": 200, "D": 64},
    "sigmoid_attention": {"N": 200, "D": 64},
    "with_lse": {"N": 200, "D": 64},
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
    devices = kernel.program(kernel.compiled_for(program.sizes)).kernels
    texts = {d.name: compile_cuda(d.source, "sm_80", d.name).ptx for d in devices}
    main = max(texts, key=lambda n: len(texts[n]))  # of a program of several: the one with the loop
    for seed in (None, 0):
        assert reports(tc.emulate(kernel, seed=seed, **inputs)) == set()
    mutants = {kind: mutate(texts[main]) for kind, mutate in MUTATIONS.items()}
    applied = {kind: m for kind, m in mutants.items() if m is not None}
    assert len(applied) >= 8, sorted(applied)
    found = {k: reports(tc.emulate(kernel, ptx={main: m}, **inputs)) for k, m in applied.items()}
    assert [kind for kind, how in found.items() if not how] == []

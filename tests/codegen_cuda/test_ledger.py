"""What the cost model says of a GPU's memories is what kernels are launched with, to the byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tilecc as tc
from tilecc.codegen.program import DeviceProgram
from tilecc.compiler import Compiler
from tilecc.cost.choice import candidates
from tilecc.cost.limits import needs
from tilecc.given import load
from tilecc.target import resolve
from tilecc.toolchain import compile_cuda
from tilecc.toolchain.ptxas import usage

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGET = resolve("sm_80")


@tc.spec
def two_of_each(
    x: tc.Tensor["i:N d"], y: tc.Tensor["j:M d"], z: tc.Tensor["j:M e"], w: tc.Tensor["i:N j:M"]
):
    """Several tensors along both axes, and a sum beside a product."""
    s = tc.where(w > 0, tc.dot(x, y, over="d") + w, 0.0)
    return tc.dot(s, z, over="j"), tc.sum(s * s, over="j")


CASES = {
    "f32": ("causal.py", "float32", {"D": 72}),
    "f16": ("causal.py", "float16", {"D": 64}),
    "an odd head": ("attention.py", "bfloat16", {"D": 37}),
    "mixed heads": ("zoo/talking_heads.py", "bfloat16", {"D": 32, "H": 2}),
    "points": ("zoo/ipa.py", "float16", {"D": 24}),
    "no attention": ("normalised_linear.py", "float32", {"D": 100, "E": 30}),
    "several tensors": (two_of_each, "float16", {"D": 20, "E": 33}),
}


def compiled(source, dtype: str, tile, static: dict[str, int]):
    """A program, and its kernels for a tile (None: the one that is chosen)."""
    path = str(EXAMPLES / source) if isinstance(source, str) else source
    compiler = Compiler(load(path, dtype)[0], TARGET, tile)
    found = compiler.passes(static)
    program = compiler.lower(found)
    assert isinstance(program, DeviceProgram)
    return found, program


QUICK = ("mixed heads", "several tensors")


@pytest.mark.parametrize(
    "case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_shared_memory_to_the_byte(case):
    """For tiles that are offered: the chosen one, the smallest, the largest and one between."""
    source, dtype, static = CASES[case]
    first, program = compiled(source, dtype, None, static)
    offered = [c.tile for c in candidates(first.loop, TARGET, static) if c.fits]
    for tile in [None, offered[0], offered[len(offered) // 2], offered[-1]]:
        found, program = compiled(source, dtype, tile, static)
        need = {n.memory: n for n in needs([], TARGET, None, found.tiled)}
        assert need["shared memory"].needs == max(k.shared for k in program.kernels)
        assert all(n.fits for n in need.values())


@pytest.mark.slow
def test_what_is_chosen_does_not_spill():
    """A sum over heads, with 256 scores a thread for a tile whose factors alone would fit."""
    source, dtype, static = CASES["mixed heads"]
    found, program = compiled(source, dtype, None, static)
    for k in program.kernels:
        used = usage(compile_cuda(k.source, "sm_80", k.name).log)[k.name]
        assert used.spill_stores == used.spill_loads == used.static_shared == 0
    loop = found.loop
    refused = [c for c in candidates(loop, TARGET, static) if not c.fits]
    assert any("registers (a thread's)" in c.reason for c in refused)


def test_a_choice_for_a_gpu_needs_no_tvm():
    code = """
import sys
from tilecc.compiler import Compiler
from tilecc.given import load
from tilecc.target import resolve
found = Compiler(load(sys.argv[1], "float16")[0], resolve("sm_80"), None).passes({"D": 64})
assert found.tile and "tvm" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(EXAMPLES / "causal.py")], check=True)

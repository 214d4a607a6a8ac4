"""On a GPU: every example against float64, in each dtype (`pytest -m gpu`); without one, that the
benchmark says so, and that what it saves can be compared by the emulator instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilecc as tc
from tilecc.inputs import random_inputs

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))

import gpu  # noqa: E402

REASON = gpu.no_gpu()


def command(*args: str) -> subprocess.CompletedProcess:
    line = [sys.executable, str(BENCHMARKS / "gpu.py"), *args]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.skipif(not REASON, reason="there is a GPU")
def test_without_a_gpu_the_benchmark_says_so_and_succeeds(tmp_path):
    for args in ([], [str(tmp_path)]):
        done = command(*args)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"no GPU to run on: {REASON}\n"


def test_every_example_is_on_the_list():
    listed = {(name, dtype) for name, dtype, _ in gpu.wanted([])}
    names = {p.stem for p in (ROOT / "examples").glob("*.py")}
    assert listed == {(n, t) for n in names for t in gpu.DTYPES}
    assert {d for n, _, d in gpu.wanted(["causal"])} == {64, 128}


def test_what_the_benchmark_saves_is_right_in_the_emulator(tmp_path):
    assert gpu.build(tmp_path, ["sm_80"], ["product-d64.float16"]) == 0
    (file,) = tmp_path.glob("*.tcc")
    assert file.name == "logsumexp_of_product-d64.float16.tcc"
    kernel = tc.load(file)
    sizes = gpu.sizes(kernel, 40) | {"B": 1, "H": 1}
    inputs = random_inputs(kernel.func, sizes, {})
    found = tc.emulate(kernel, **inputs)
    assert found.check.ok and not found.races


@pytest.mark.gpu
@pytest.mark.skipif(bool(REASON), reason=REASON)
@pytest.mark.parametrize("n", gpu.LENGTHS)
@pytest.mark.parametrize("dtype", gpu.DTYPES)
@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "examples").glob("*.py")))
def test_examples_on_the_gpu(name, dtype, n, tmp_path):
    from gpu_compare import compare

    file = gpu.name_of(name, dtype, 64)
    assert gpu.build(tmp_path, ["sm_80"], [file]) == 0
    kernel = tc.load(tmp_path / file)
    line = compare(kernel, dtype, gpu.sizes(kernel, n), gpu.SCALARS)
    assert line.ok, str(line)


@pytest.mark.gpu
@pytest.mark.skipif(bool(REASON), reason=REASON)
def test_calls_follow_the_current_stream_and_wait_for_nothing(tmp_path):
    import torch

    kernel = tc.compile(str(ROOT / "examples/causal.py"), "sm_80", "float16", static={"D": 64})
    q, k, v = torch.randn((3, 1, 4, 300, 64), device="cuda").half()
    wanted = kernel(q, k, v)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):  # capturing fails on any wait
        out = kernel(q, k, v)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)
    np.testing.assert_array_less(0, out.abs().max().item())

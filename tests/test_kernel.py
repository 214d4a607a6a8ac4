"""tc.compile: specialisation, stages, IR in and out, hand-edited IR, what cannot be done."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import tilecc as tc
from tilecc.errors import ArgumentError, CompileError
from tilecc.ir.parser import parse_ir
from tilecc.pipeline import PipelineError
from tilecc.target import TargetError

EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "examples")
ATTENTION = os.path.join(EXAMPLES, "attention.py")


@tc.spec
def product(x: tc.Tensor["i:N d"], y: tc.Tensor["j:M d"]):
    return tc.max(tc.dot(x, y, over="d"), over="j")


def random(*shape, dtype="f4", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def attention(q, k, v):
    s = q.astype("f8") @ k.astype("f8").swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True, initial=-np.inf))
    return p @ v / p.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def kernel():
    return tc.compile(ATTENTION, static={"D": 16}, tile=32)


def test_one_kernel_for_all_lengths(kernel):
    for n in (0, 1, 31, 32, 33, 100):
        q, k, v = (random(2, 3, n, 16, seed=s) for s in range(3))
        np.testing.assert_allclose(kernel(q, k, v), attention(q, k, v), rtol=1e-5, atol=1e-5)
    assert kernel.compilations == 1


def test_specialised_at_the_first_call_and_kept():
    k = tc.compile(ATTENTION, tile=32)
    assert k.compilations == 0 and k.stages == ("graph", "simplify", "fuse")
    for d, count in ((16, 1), (16, 1), (8, 2), (16, 2)):
        q, kk, v = (random(1, 2, 40, d, seed=s) for s in range(3))
        np.testing.assert_allclose(k(q, kk, v), attention(q, kk, v), rtol=1e-5, atol=1e-5)
        assert k.compilations == count
    assert "tir" in k.stages


def test_threads_that_call_first_compile_once():
    k = tc.compile(product, tile=16)
    x, y = random(40, 8), random(30, 8)
    results = []
    threads = [threading.Thread(target=lambda: results.append(k(x, y))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 4 and k.compilations == 1
    for r in results:
        np.testing.assert_allclose(r, (x @ y.T).max(1), rtol=1e-5)


def test_a_static_extent_that_an_argument_contradicts(kernel):
    with pytest.raises(ArgumentError, match="q has 8 along axis d, where D = 16, for which"):
        kernel(*(random(1, 1, 4, 8) for _ in range(3)))


def test_stages(kernel):
    names = ("graph", "simplify", "fuse", "online-softmax", "mask-tiles", "exponents", "tile")
    assert kernel.stages == (*names, "tir", "llvm", "asm")
    assert set(kernel.timings) == set(kernel.stages) - {"graph", "asm"}
    for name in names:
        assert kernel.ir(name).startswith("func @attention(")
        assert parse_ir(kernel.ir(name, locs=True)).name == "attention"
    assert "attention.py:" in kernel.ir("fuse", locs=True)
    assert "prim_func" in kernel.ir("tir")
    assert "define" in kernel.ir("llvm") and ".globl" in kernel.ir("asm")
    with pytest.raises(PipelineError, match="no stage 'ptx'"):
        kernel.ir("ptx")


def test_facts(kernel):
    assert kernel.name == "attention" and kernel.target.kind == "cpu"
    assert kernel.signature.startswith("attention(q: f32[b:B, h:H, i:N, d:D], k: ")
    assert kernel.signature.endswith(" -> f32[b:B, h:H, i:N, e:D]")
    assert isinstance(kernel.spec, tc.Spec)
    assert dict(kernel.tile) == {"i": 32, "j": 32} and str(kernel.tile) == "i=32, j=32 (given)"
    assert kernel.scratch_bytes < 2**20
    assert any("fuse" in str(r) for r in kernel.remarks)


def test_tile_sizes_by_axis():
    k = tc.compile(product, static={"D": 8}, tile={"i": 16, "j": 48})
    assert dict(k.tile) == {"i": 16, "j": 48}


def test_the_cost_model_chooses_and_says_why():
    k = tc.compile(ATTENTION, target="canvas", static={"D": 4})
    assert dict(k.tile) == {"i": 4, "j": 4}
    text = str(k.tile)
    assert text.startswith("i=4, j=4 (the best of 2 that fit)\n")
    assert "i=8, j=8         refused needs 208 of 96 numbers" in text
    assert [c.tile["i"] for c in k.tile.candidates if not c.fits] == [8]


def test_cost(kernel):
    formulas = kernel.cost()
    assert formulas.fused.bytes is None and "N**2" in formulas.fused.formula
    numbers = kernel.cost(N=1024, B=2, H=3)
    q = 2 * 3 * 1024 * 16 * 4
    assert numbers.fused.bytes == 2 * q + 2 * q * 1024 // 32
    with pytest.raises(CompileError, match="attention has no extent 'M'"):
        kernel.cost(M=3)


def test_ir_from_a_file_is_compiled_from_its_level_on(kernel, tmp_path):
    q, k, v = (random(1, 2, 50, 16, seed=s) for s in range(3))
    want = kernel(q, k, v)
    for stage in ("graph", "fuse", "mask-tiles", "tile"):
        path = tmp_path / "attention.tcir"
        path.write_text(kernel.ir(stage))
        again = tc.compile(path, tile=32)
        assert again.spec is None and again.stages[0] == {"fuse": "loop", "mask-tiles": "loop"}.get(
            stage, stage
        )
        np.testing.assert_allclose(again(q, k, v), want, rtol=1e-5, atol=1e-5)


def test_the_result_follows_an_edit_of_the_tile_ir():
    k = tc.compile(product, static={"D": 8}, tile=16)
    text = k.ir("tile")
    store = next(line for line in text.splitlines() if "store" in line)
    value = store.split()[1].rstrip(",")
    type = next(line for line in text.splitlines() if f"{value} = " in line or f"{value}, " in line)
    edited = text.replace(
        store, f"    %twice = map {value} * 2.0 : reg f32[i:16]\n" + store.replace(value, "%twice")
    )
    assert edited != text, type
    x, y = random(40, 8), random(30, 8)
    out = tc.compile(parse_ir(edited))(x, y)
    np.testing.assert_allclose(out, 2 * (x @ y.T).max(1), rtol=1e-5)


def test_a_machine_that_is_not_here():
    k = tc.compile(product, target="canvas", static={"D": 4}, tile=2)
    assert "kernel grid" in k.ir("tile")
    with pytest.raises(CompileError, match="a kernel for canvas does not run on this machine"):
        k(random(4, 4), random(4, 4))


def test_ask_for_a_stage_too_early():
    k = tc.compile(product, tile=16)
    assert "stream j" in k.ir("fuse")
    with pytest.raises(CompileError, match=r"'tile' is not reached yet: D must be known\n"):
        k.ir("tile")
    with pytest.raises(CompileError, match="no tile is chosen yet: D must be known"):
        _ = k.tile


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"static": {"d": 4}}, CompileError, r"product has no extent 'd'\n .*extents are N, D, M"),
        ({"static": {"D": 4.5}}, CompileError, "static extent D is 4.5, not a whole number"),
        ({"static": {"D": -1}}, CompileError, "static extent D is -1, not a whole number"),
        ({"tile": 0}, CompileError, "the tile size of tile is 0, not a positive number"),
        ({"tile": {"i": 1.5}}, CompileError, "the tile size of i is 1.5, not a positive number"),
        ({"static": {"D": 4}, "tile": {"z": 8}}, CompileError, "axis z, which no kernel has"),
        ({"threads": 0}, ArgumentError, "threads=0 is not a positive number"),
        ({"target": "cpuu"}, TargetError, "unknown target 'cpuu'; did you mean cpu"),
        ({"dtype": "float31"}, tc.SpecError, "float31"),
    ],
)
def test_wrong_arguments_of_compile(kwargs, error, message):
    with pytest.raises(error, match=message):
        tc.compile(product, **kwargs)


def test_what_is_not_a_program(tmp_path):
    with pytest.raises(CompileError, match="is neither a spec, nor IR, nor a file"):
        tc.compile(lambda x: x)
    with pytest.raises(CompileError, match=r"none.tcir: No such file"):
        tc.compile(tmp_path / "none.tcir")


def test_everything_public_is_there_and_nothing_heavy_is_imported():
    code = (
        "import sys; import tilecc as tc\n"
        "assert not {'tvm', 'sympy', 'numpy', 'networkx'} & set(sys.modules)\n"
        "for name in dir(tc): getattr(tc, name)\n"
        "assert not {'tvm', 'sympy'} & set(sys.modules), sys.modules\n"
        "assert tc.inf == float('inf') and tc.softmax and tc.compile and tc.Kernel\n"
        "try: tc.nothing\n"
        "except AttributeError as e: assert 'nothing' in str(e)\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_costs_for_some_extents_say_which_others_they_need(kernel):
    with pytest.raises(CompileError, match=r"cost: B, H must be known for numbers") as e:
        kernel.cost(N=64)
    assert "add B=..., H=...; without any extent costs are formulas" in str(e.value)


def test_an_unknown_stage_names_near_ones(kernel):
    with pytest.raises(tc.PipelineError, match="there is no stage 'asmm'") as e:
        kernel.ir("asmm")
    assert "did you mean asm? stages for cpu are graph, simplify" in str(e.value)
    with pytest.raises(tc.TargetError):
        tc.compile("examples/attention.py", target="cpuu")

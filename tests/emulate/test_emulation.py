"""tc.emulate and `tilecc emulate`: compiled kernels, their errors, their bytes and the model's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilecc as tc
from tilecc.cli import main
from tilecc.cli.program import load_program
from tilecc.inputs import random_inputs
from tilecc.ir.parser import parse_ir
from tilecc.toolchain import compile_cuda

EXAMPLES = Path(__file__).parents[2] / "examples"
SHAPE = {"H": 2, "N": 150, "D": 32}
# Small tiles: the compiler takes most of the time of these tests.
TILE = 64


def sized(path: str, dtype: str = "float16", **shape: int):
    """A kernel for sm_80 and random arguments for it."""
    program = load_program(str(EXAMPLES / path), "sm_80", dtype, shape, TILE)
    inputs = random_inputs(program.func, program.sizes, program.scalars({}))
    return program.kernel(build=False), inputs


@pytest.fixture(scope="module")
def causal():
    return sized("causal.py", **SHAPE)


def ptx_of(kernel) -> str:
    (k,) = kernel.program(kernel.compiled_for(SHAPE)).kernels
    return compile_cuda(k.source, "sm_80", k.name).ptx


def attention(q, k, v, causal: bool) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhij,bhje->bhie", p / p.sum(-1, keepdims=True), v)


def test_a_kernel_is_right_and_reads_what_the_cost_model_says(causal):
    kernel, inputs = causal
    found = tc.emulate(kernel, **inputs)
    assert found.ok, str(found)
    assert found.complete and found.ctas == found.grid
    expected = attention(*inputs.values(), causal=True)
    assert np.abs(found.outputs[0] - expected).max() <= 2e-3 * np.abs(expected).max()
    assert found.bytes_read == found.predicted.bytes_read
    assert found.bytes_written == found.predicted.bytes_written == {"o": inputs["q"].nbytes}
    assert found.races == found.undefined == found.out_of_bounds == found.bank_conflicts == []
    assert 0 < found.max_error <= found.check.tolerance
    assert any(name.startswith("mma.sync") for name in found.instructions)


def test_in_random_order_it_is_the_same(causal):
    kernel, inputs = causal
    first, second = (tc.emulate(kernel, **inputs, seed=seed) for seed in (None, 3))
    assert second.ok, str(second)
    np.testing.assert_array_equal(first.outputs[0], second.outputs[0])
    assert first.bytes_read == second.bytes_read


def test_some_ctas(causal):
    kernel, inputs = causal
    found = tc.emulate(kernel, **inputs, ctas=2)
    assert found.ctas == 2 and not found.complete and found.ok, str(found)
    (out,) = found.outputs
    written = ~np.isnan(out)
    assert found.check.compared == written.sum() == sum(found.bytes_written.values()) // 2
    by_number = tc.emulate(kernel, **inputs, ctas=[0, found.grid - 1])
    np.testing.assert_array_equal(out, by_number.outputs[0])


def test_no_ctas(causal):
    kernel, inputs = causal
    found = tc.emulate(kernel, **inputs, ctas=[])
    assert found.ctas == 0 and found.check is None and found.max_error is None
    assert "no output was compared" in str(found)


def test_some_ctas_of_a_problem_that_is_too_large_for_the_reference():
    kernel, inputs = sized("causal.py", H=2, N=8192, D=32)
    found = tc.emulate(kernel, **inputs, ctas=[1, 3])
    assert found.ok and found.check.compared > 0, str(found)
    inputs["v"][..., 0] += 1  # the reference is of other values
    wrong = tc.emulate(kernel, **inputs, ctas=[1, 3], check=False)
    assert np.nanmax(np.abs(wrong.outputs[0] - found.outputs[0])) > 0.5
    assert wrong.max_error is None


def test_bf16():
    kernel, inputs = sized("attention.py", "bfloat16", N=100, D=32)
    found = tc.emulate(kernel, **inputs)
    assert found.ok, str(found)
    assert found.outputs[0].dtype == ml_dtypes.bfloat16
    expected = attention(*inputs.values(), causal=False)
    assert np.abs(found.outputs[0] - expected).max() <= 5e-3 * np.abs(expected).max()


def test_a_load_twice_breaks_the_equality(causal):
    """By hand in the PTX: into where the same bytes land once more, with its own wait."""
    kernel, inputs = causal
    text = ptx_of(kernel)
    copy = next(m for m in re.finditer(r"^.*cp\.async\.c[ag][^\n]*;", text, re.MULTILINE))
    twice = f"{copy[0]}\n cp.async.wait_all; bar.sync 0;\n{copy[0]}"
    found = tc.emulate(kernel, **inputs, ptx=text.replace(copy[0], twice, 1))
    assert found.check.ok and not found.findings, str(found)
    assert not found.ok
    (difference,) = found.differences
    assert re.fullmatch(r"reads \d+ bytes of q, and the cost model predicts \d+", difference)
    assert difference in str(found)


def test_tile_ir_that_a_person_edited():
    kernel, inputs = sized("attention.py", N=100, D=32)
    text = kernel.ir("tile")
    last = re.search(r"^( +)(%\S+) = map ([^\n]*)( : reg \S+\[i, e\])\n +store", text, re.MULTILINE)
    assert last is not None
    flipped = text.replace(last[0], last[0].replace("cast(", "cast(0.0 - ", 1))
    edited = tc.compile(parse_ir(flipped), target="sm_80", dtype="float16")
    before, after = (tc.emulate(k, **inputs) for k in (kernel, edited))
    np.testing.assert_array_equal(before.outputs[0], -after.outputs[0])
    assert after.ok, str(after)
    load = re.search(r"^ +%q_1 = load [^\n]*\n", text, re.MULTILINE)
    assert load is not None
    again = load[0].replace("%q_1 =", "%again =")
    twice = text.replace(load[0], f"{load[0]}{again}")
    twice = re.sub(r"contract %q_1, (%\S+) over", r"contract %again, \1 over", twice, count=1)
    found = tc.emulate(tc.compile(parse_ir(twice), target="sm_80"), **inputs)
    assert found.bytes_read["q"] == found.predicted.bytes_read["q"]
    assert found.bytes_read["q"] == 2 * before.bytes_read["q"]
    assert found.ok, str(found)


def test_arrays_that_are_not_aligned_take_another_kernel():
    kernel, inputs = sized("attention.py", N=70, D=32)
    aligned = tc.emulate(kernel, **inputs)
    wide = np.zeros((1, 1, 70, 33), np.float16)
    wide[..., 1:] = inputs["k"]
    found = tc.emulate(kernel, inputs["q"], wide[..., 1:], inputs["v"])
    assert found.ok, str(found)
    assert found.kernels[0].name != aligned.kernels[0].name
    np.testing.assert_allclose(found.outputs[0], aligned.outputs[0], atol=1e-3)


@pytest.mark.parametrize("n", [0, 1])
def test_few_rows(n):
    kernel, inputs = sized("causal.py", N=n, D=32)
    found = tc.emulate(kernel, **inputs)
    assert found.ok, str(found)
    assert found.outputs[0].shape == (1, 1, n, 32)


def test_a_kernel_for_the_cpu_is_refused():
    kernel = tc.compile(str(EXAMPLES / "attention.py"), static={"D": 64})
    with pytest.raises(tc.CompileError, match="is no GPU"):
        tc.emulate(kernel)


def test_wrong_arguments_are_reported_as_in_a_call(causal):
    kernel, inputs = causal
    with pytest.raises(tc.ArgumentError, match="argument q"):
        tc.emulate(kernel, inputs["q"].astype(np.float32), inputs["k"], inputs["v"])


def test_a_kernel_that_is_specialised_by_its_arguments():
    path = str(EXAMPLES / "attention.py")
    kernel = tc.compile(path, target="sm_80", dtype="float16", tile=TILE)
    for d in (16, 32):
        x = np.random.default_rng(d).standard_normal((3, 1, 1, 40, d)).astype(np.float16)
        assert tc.emulate(kernel, *x).ok
    assert kernel.compilations == 2


def test_the_command(capsys, tmp_path, causal):
    arguments = [str(EXAMPLES / "causal.py"), "--dtype", "float16", "--shape", "H=2,N=150,D=32"]
    arguments += ["--tile", str(TILE)]
    assert main(["emulate", *arguments, "--target", "sm_80", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["races"] == found["undefined"] == found["bank_conflicts"] == []
    assert 0 < found["max_error"] <= found["tolerance"]
    assert found["bytes"]["requested"] == found["bytes"]["predicted"]
    assert set(found["bytes"]["requested"]) == {"q", "k", "v", "o"}
    assert found["ctas"] == found["grid"] > 1
    broken = tmp_path / "broken.ptx"
    broken.write_text(re.sub(r"bar\.sync\s+0;", ";", ptx_of(causal[0])))
    assert main(["emulate", *arguments, "--ptx", str(broken)]) == 1
    text = capsys.readouterr().out
    assert "race: CTA" in text and "/tilecc/causal_0.cu:" in text
    assert re.search(r"contract %q, %k over d .*# .*causal\.py:9", text), text


def test_the_command_on_a_program_with_a_seed_of_its_own(capsys):
    """Random bits of the program (Philox) as in float64, beside the seed of the warps' order."""
    arguments = [str(EXAMPLES / "zoo" / "dropout.py"), "--dtype", "float16", "--tile", "32"]
    arguments += ["--shape", "N=33,M=20,D=16", "--scalar", "seed=5", "--seed", "1", "--json"]
    assert main(["emulate", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["compared"] == 33 * 16 and found["scalars"] == {"seed": 5}


def test_reads_at_computed_places():
    """Lanes that look up one bias ask for it once. What they ask for before that is counted."""

    @tc.spec
    def biased(x: tc.Tensor["i:N j:M"], bias: tc.Tensor["r:R"]):
        return x + bias.at(r=tc.minimum((tc.index("i") + tc.index("j")) // 4, tc.extent("r") - 1))

    kernel = tc.compile(biased, target="sm_80", dtype="float32", tile=16)
    rng = np.random.default_rng(0)
    x, bias = (rng.standard_normal(n).astype(np.float32) for n in ((20, 21), 7))
    found = tc.emulate(kernel, x, bias)
    assert found.ok, found
    # Two tiles of 16 for each of 20 rows: some place is read for positions beyond the axis, too.
    assert found.predicted.asked == {"bias": 20 * 2 * 16 * 4}
    assert found.bytes_read["bias"] == 2560 - found.shared["bias"]
    assert found.shared["bias"] > 0
    assert f"= 2560 predicted - {found.shared['bias']} shared by lanes" in str(found)
    assert found.bytes_read["x"] == found.predicted.bytes_read["x"] == x.nbytes
    json.dumps(found.to_json())
    (k,) = kernel.program(kernel.compiled_for({"N": 20, "M": 21, "R": 7})).kernels
    k = k.relaxed  # 21 numbers are no multiple of 16 bytes
    text = compile_cuda(k.source, "sm_80", k.name).ptx
    loads = re.findall(r"^.*ld\.global[^\n]*;", text, re.MULTILINE)
    twice = [tc.emulate(kernel, x, bias, ptx=text.replace(load, load + load)) for load in loads]
    assert all(f.check.ok and not f.findings and f.differences for f in twice)
    assert ["lanes ask for 5120 bytes of bias, and the cost model predicts 2560"] in [
        f.differences for f in twice
    ]

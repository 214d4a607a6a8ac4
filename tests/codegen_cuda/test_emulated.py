"""Generated kernels in the emulator: values against float64, races, conflicts, bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilecc as tc
from tilecc.cli.program import load_program
from tilecc.given import extent_names, load
from tilecc.inputs import random_inputs
from tilecc.ir.parser import parse_ir
from tilecc.passes.pipeline import _Loop

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem != "minilm")
SIZES = {"H": 2, "G": 1, "E": 72, "D": 64, "B": 1}


def emulated(name: str, dtype: str, n: int, tile=None, **sizes: int) -> dict:
    """The emulator's report on an example with sequences of length n (keys: n + 37)."""
    path = str(EXAMPLES / f"{name}.py")
    names = extent_names(load(path, dtype)[0])
    shape = {**SIZES, "N": n, "Nq": n, "Nk": n + 37, "V": n, **sizes}
    program = load_program(
        path, "sm_80", dtype, {k: v for k, v in shape.items() if k in names}, tile
    )
    inputs = random_inputs(program.func, program.sizes, program.scalars({}))
    kernel = program.kernel(build=False)
    return tc.emulate(kernel, **inputs).to_json()


def check(report: dict, dtype: str) -> None:
    """What every kernel must show; 16-bit ones without bank conflicts too."""
    assert report["ok"] and report["max_error"] <= report["tolerance"]
    assert not report["races"] and not report["undefined"]
    predicted = report["bytes"]["predicted"]
    if predicted is not None:  # which tiles a table of the user's skips, no formula says
        assert report["bytes"]["requested"] == predicted
    if dtype != "float32":
        assert not report["bank_conflicts"]


@pytest.mark.parametrize(
    ("name", "dtype", "n", "tile"),
    [
        ("attention", "float32", 20, {"i": 16, "j": 16}),
        ("normalised_linear", "float16", 20, {"i": 32, "e": 32, "d": 32}),
    ],
)
def test_a_sample(name, dtype, n, tile):
    check(emulated(name, dtype, n, tile, H=1), dtype)


@pytest.mark.parametrize("d", [24, 72])
def test_head_dimensions_that_no_instruction_divides(d):
    check(emulated("attention", "float16", 33, {"i": 32, "j": 16}, D=d, H=1), "float16")


@pytest.mark.parametrize("d", [20, 37])
def test_rows_that_are_no_multiple_of_16_bytes_are_written_without_a_gap(d):
    path, shape = str(EXAMPLES / "attention.py"), {"B": 1, "H": 1, "N": 32, "D": d}
    program = load_program(path, "sm_80", "bfloat16", shape, {"i": 32, "j": 16})
    inputs = random_inputs(program.func, program.sizes, {})
    found = tc.emulate(program.kernel(build=False), **inputs)
    assert found.ok, found
    o = found.traffic("write")["o"]
    assert o.sectors == o.ideal_sectors == 32 * d * 2 // 32
    assert not [a for a in found.bank_conflicts if "st.shared" in a.text]


def test_an_odd_tile_that_goes_through_shared_memory():
    """Pairs of 16-bit values must not be written where one of them is padding."""
    check(emulated("causal", "bfloat16", 5, {"i": 16, "j": 5}, D=8, H=1), "bfloat16")


def test_a_copy_in_one_loop_is_not_there_in_the_next():
    """With a single tile on the diagonal the first loop, over full tiles, runs no times at all."""
    path = str(EXAMPLES / "zoo" / "rope_interleaved.py")
    program = load_program(path, "sm_80", "float16", {"N": 5, "D": 16}, 16)
    inputs = random_inputs(program.func, program.sizes, {})
    found = tc.emulate(program.kernel(build=False), **inputs)
    assert found.ok, found


def test_all_lanes_exchange_what_a_reduction_compares():
    """f64 has no instruction for a maximum with NaN: what compares must not branch around it."""

    @tc.spec
    def extremes(x: tc.Tensor["i:N j:M"]):
        return tc.max(x, over="j"), tc.min(x, over="j")

    kernel = tc.compile(extremes, target="sm_80", dtype="float64", tile={"i": 16, "j": 16})
    x = np.random.default_rng(0).standard_normal((20, 21))
    x[3, 7] = np.nan
    found = tc.emulate(kernel, x)
    assert found.ok, found
    for got, want in zip(found.outputs, (x.max(1), x.min(1)), strict=True):
        np.testing.assert_array_equal(got, want)


REDUCED_WHILE_COPYING = """
func @mixed(%x: f16[i:N, d:32], %y: f16[j:64, d:32]) {
  %o = alloc : f32[i, j]
  kernel grid(%i_tile: ceildiv(N, 64)) tile(i=64) {
    %x_1 = load %x[%i_tile * 64 :+ i, 0 :+ d] pad i : sram f16[i:64, d:32]
    %h = map cast(%x_1, f32) * 0.25 : reg f32[i, d]
    %y_1 = load %y[0 :+ j, 0 :+ d] : sram f16[j:64, d]
    %m = reduce max %h over i, d : reg f32
    %p = map cast(%h, f16) : reg f16[i, d]
    %s = contract %p, %y_1 over d : reg f32[i, j]
    %t = map %s + %m : reg f32[i, j]
    store %t, %o[%i_tile * 64 :+ i, 0 :+ j] clip i
  }
  return %o
}
"""


def test_a_reduction_over_warps_does_not_end_copies_under_way():
    """Its barrier orders threads, and waits for no copy: what reads the copy still has to."""
    kernel = tc.compile(parse_ir(REDUCED_WHILE_COPYING), target="sm_80")
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((64, 32)).astype(np.float16) for _ in range(2))
    for seed in (None, 1):
        found = tc.emulate(kernel, x, y, seed=seed)
        assert found.ok, found


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 64, 192, 200, 296])
@pytest.mark.parametrize("name", SPECS)
def test_every_example_in_f32(name, n):
    """Types of 16 bits: tests/emulate/test_sweep.py."""
    check(emulated(name, "float32", n), "float32")


@pytest.mark.parametrize("eager", [False, True], ids=["as it is", "the next tile at once"])
def test_norms_of_keys_are_of_the_tile_at_hand(eager, monkeypatch):
    """Not of the next one, which is copied to the same place: also where that comes too early."""
    if eager:
        monkeypatch.setattr(_Loop, "_read_by", lambda self, load: set(self.users[load.result]))

    @tc.spec
    def cosine(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"], v: tc.Tensor["j:N d"]):
        s = tc.dot(q, k, over="d") * tc.rsqrt(tc.sum(k * k, over="d"))
        return tc.dot(tc.softmax(s, over="j"), v, over="j")

    q, k, v = np.random.default_rng(2).standard_normal((3, 150, 32)).astype("f2")
    k *= np.linspace(0.5, 2, 150, dtype="f2")[:, None]
    kernel = tc.compile(cosine, "sm_80", "float16", {"D": 32}, tile={"i": 64, "j": 32})
    found = tc.emulate(kernel, q, k, v)
    x, y, z = (a.astype("f8") for a in (q, k, v))
    p = np.exp(x @ y.T / np.linalg.norm(y, axis=1))
    assert np.abs(found.outputs[0] - p / p.sum(1, keepdims=True) @ z).max() < 2e-3
    assert not found.findings and not found.differences

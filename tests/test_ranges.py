"""Tile IR written by hand cannot make a kernel read or write beyond its tensors."""

import re

import numpy as np
import pytest

import tilecc as tc
from tilecc.analysis.ranges import keep_inside
from tilecc.ir.parser import parse_ir

TILE = tc.compile("examples/causal.py", static={"D": 16}, tile=16).ir("tile")


def inputs(n):
    return np.random.default_rng(n).standard_normal((3, 1, 2, n, 16)).astype("f4")


@pytest.mark.parametrize("n", [1, 15, 17, 40])
def test_a_kernel_without_pad_and_clip_stays_inside(n, tmp_path):
    """Each array lies in a larger one, whose other rows must neither be used nor change."""
    path = tmp_path / "edited.tcir"
    path.write_text(re.sub(r" (pad|clip) [ijde, ]+(?= :|  #|\n)", "", TILE))
    assert "pad" not in path.read_text() and "clip" not in path.read_text()
    q, k, v = inputs(n)
    want = tc.compile("examples/causal.py", static={"D": 16}, tile=16)(q, k, v)
    around = np.full((1, 2, n + 64, 16), 7.0, "f4")
    out = around[:, :, 32 : 32 + n]
    got = tc.compile(path)(q, k, v, out=out)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert (around[:, :, :32] == 7).all() and (around[:, :, 32 + n :] == 7).all()


def test_what_is_plainly_inside_stays():
    text = """func @rows(%x: f32[i:N, d:16]) {
  %y = alloc : f32[i, d]
  kernel grid(%i: N) {
    %a = load %x[%i, 0 :+ d] : sram f32[d:16]
    %b = load %x[%i * 2 :+ i, 8 :+ d] : sram f32[i:2, d]
    store %a, %y[%i, 0 :+ d]
  }
  return %y
}
"""
    func = keep_inside(parse_ir(text))
    loads = [op.attrs["pad"] for op in func.walk() if op.name == "load"]
    assert loads == [(), ("i", "d")]
    (store,) = (op for op in func.walk() if op.name == "store")
    assert store.attrs["clip"] == ()

"""Few query rows: heads that read the same keys are rows of one tile, on tensor cores."""

from __future__ import annotations

import numpy as np
import pytest

import tilecc as tc

RNG = np.random.default_rng(5)


@tc.spec
def mqa(q: tc.Tensor["b h i:M d"], k: tc.Tensor["b j:N d"], v: tc.Tensor["b j:N e:D"]):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def gqa(q: tc.Tensor["b h i:M d"], k: tc.Tensor["b hk:G j:N d"], v: tc.Tensor["b hk:G j:N e:D"]):
    g = tc.index("h") // (tc.extent("h") // tc.extent("hk"))
    s = tc.dot(q, k.at(hk=g), over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v.at(hk=g), over="j")


@tc.spec
def turned(
    q: tc.Tensor["h i:M d"],
    r: tc.Tensor["i:M h d"],
    k: tc.Tensor["j:N d"],
    v: tc.Tensor["j:N e:D"],
):
    """Two tensors whose rows lie in different orders."""
    s = tc.dot(q, k, over="d") + tc.dot(r, k, over="d")
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def normal(*shape):
    return RNG.standard_normal(shape).astype("f2")


def attention(s, v):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def emulated(spec, static, inputs, want, tile=None):
    """What a run reads of K, in tiles that hold all heads which read the same."""
    kernel = tc.compile(spec, "sm_80", "float16", {"D": 16, **static}, tile=tile)
    found = tc.emulate(kernel, *inputs, seed=0)
    assert np.abs(found.outputs[0] - want).max() < 2e-3 * np.abs(want).max()
    assert not found.findings and not found.differences
    assert "mma.sync" in kernel.ir("ptx")
    return found.bytes_read["k"]


def test_heads_fill_a_tile_of_decoding():
    """Any number of heads; the tile is offered by itself. K is read once for all of them."""
    q, k, v = normal(2, 12, 1, 16), normal(2, 37, 16), normal(2, 37, 16)
    x, y, z = q.astype("f8"), k[:, None].astype("f8"), v[:, None].astype("f8")
    want = attention(x @ y.swapaxes(-1, -2) / 4, z)
    assert emulated(mqa, {"M": 1}, (q, k, v), want) == k.nbytes


def test_heads_of_a_group_fill_a_tile():
    q, k, v = normal(1, 8, 1, 16), normal(1, 2, 37, 16), normal(1, 2, 37, 16)
    x, y, z = q.astype("f8"), k.repeat(4, 1).astype("f8"), v.repeat(4, 1).astype("f8")
    want = attention(x @ y.swapaxes(-1, -2) / 4, z)
    assert emulated(gqa, {"M": 1, "H": 8, "G": 2}, (q, k, v), want) == k.nbytes


def test_rows_that_are_no_power_of_two_in_any_order():
    q, r, k, v = normal(6, 3, 16), normal(3, 6, 16), normal(37, 16), normal(37, 16)
    x = q.astype("f8") + r.astype("f8").swapaxes(0, 1)
    want = attention(x @ k.T.astype("f8"), v.astype("f8"))
    tile = {"h": 8, "i": 3, "j": 32}
    assert emulated(turned, {"M": 3}, (q, r, k, v), want, tile) == k.nbytes


@pytest.mark.parametrize(("m", "packs"), [(1, True), (3, True), (16, False), (64, False)])
def test_heads_are_offered_where_queries_do_not_fill_a_tile(m, packs):
    kernel = tc.compile(mqa, "sm_80", "float16", {"D": 16, "M": m})
    offered = [c.tile for c in kernel.compiled_for({"D": 16, "M": m}).choice.candidates]
    heads = {t.get("h", 1) for t in offered}
    assert heads == (
        {1} if not packs else {1, *(n // (1 if m == 1 else 4) for n in (16, 32, 64, 128, 256))}
    )

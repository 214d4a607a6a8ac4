"""Kernels that share out the keys: against float64, one for all lengths, the same in a batch."""

from __future__ import annotations

import numpy as np
import pytest
from references import log_sum_exp, softmax

import tilecc as tc
from tilecc.errors import CompileError
from tilecc.machines import GENERIC_CPUS

SPLITS = (None, "auto", "fill", 3)


@tc.spec
def decode(
    q: tc.Tensor["b h i:1 d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    n: tc.Tensor["b", "int32"],  # noqa: UP037
) -> tuple[tc.Tensor["b h i e"], tc.Tensor["b h i"]]:
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") < n, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j"), tc.logsumexp(s, over="j")


@tc.spec
def causal(q: tc.Tensor["b h i:N d"], k: tc.Tensor["b h j:N d"], v: tc.Tensor["b h j:N e:D"]):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def gqa(q: tc.Tensor["b h d"], k: tc.Tensor["b g:G j:N d"], v: tc.Tensor["b g j:N e:D"]):
    g = tc.index("h") // 4
    s = tc.dot(q, k.at(g=g), over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v.at(g=g), over="j")


def inputs(rng, b, h, n, d=16, scale=1.0):
    q = rng.standard_normal((b, h, 1, d), np.float32) * np.float32(scale)
    k, v = rng.standard_normal((2, b, h, n, d), np.float32)
    lengths = rng.integers(0, n + 1, b).astype(np.int32)
    lengths[0] = 0
    return q, k, v, lengths


def reference(q, k, v, lengths):
    q, k, v = (x.astype("f8") for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = np.where(np.arange(s.shape[-1]) < lengths[:, None, None, None], s, -np.inf)
    return softmax(s) @ v, log_sum_exp(s)


@pytest.mark.parametrize("split", SPLITS)
def test_decode_at_lengths_around_the_parts(split):
    """Rows with no key at all, and parts with none, give 0 and -inf; one kernel for all lengths."""
    kernel = tc.compile(decode, static={"D": 16}, split=split, threads=2)
    assert ("split" in kernel.stages) == (split is not None)
    rng = np.random.default_rng(0)
    for n in (0, 1, 255, 256, 257, 2047, 8192, 8193, 20001):
        args = inputs(rng, 2, 2, n)
        for x, w in zip(kernel(*args), reference(*args), strict=True):
            np.testing.assert_allclose(x, w, rtol=2e-5, atol=2e-5)
        o, lse = kernel(*args)
        assert not o[0].any()
        assert np.isneginf(lse[0]).all()
    assert kernel.compilations == 1


@pytest.mark.parametrize("split", ["auto", 3])
def test_extreme_logits(split):
    kernel = tc.compile(decode, static={"D": 16}, split=split)
    args = inputs(np.random.default_rng(1), 3, 2, 20001, scale=1e4)
    for x, w in zip(kernel(*args), reference(*args), strict=True):
        np.testing.assert_allclose(x, w, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("split", [None, "auto", 3])
def test_a_row_does_not_depend_on_batch_nor_threads(split):
    """Bit for bit: where to cut depends on the number of keys alone."""
    kernel = tc.compile(decode, static={"D": 16}, split=split)
    q, k, v, lengths = inputs(np.random.default_rng(2), 5, 3, 9000)
    whole = kernel(q, k, v, lengths, threads=2)
    for b in range(5):
        one = slice(b, b + 1)
        alone = kernel(q[one], k[one], v[one], lengths[one], threads=1)
        for x, w in zip(alone, whole, strict=True):
            np.testing.assert_array_equal(x, w[one])


def test_groups_of_heads_stay_together():
    kernel = tc.compile(gqa, static={"D": 16}, dtype="bfloat16")
    assert kernel.tile["h"] == 4
    assert "split" in kernel.stages
    rng = np.random.default_rng(3)
    import ml_dtypes

    q = rng.standard_normal((1, 8, 16)).astype(ml_dtypes.bfloat16)
    k, v = (rng.standard_normal((1, 2, 9000, 16)).astype(ml_dtypes.bfloat16) for _ in range(2))
    wide = [x.astype("f8") for x in (q, k.repeat(4, 1), v.repeat(4, 1))]
    s = np.einsum("bhd,bhjd->bhj", wide[0], wide[1]) / 4
    want = np.einsum("bhj,bhje->bhe", softmax(s), wide[2])
    np.testing.assert_allclose(kernel(q, k, v).astype("f8"), want, atol=2e-3)


@pytest.mark.parametrize("split", [4, "fill"])
def test_long_contexts_are_split_when_asked(split):
    """With masks that cross the parts, and rows that a part has nothing for."""
    kernel = tc.compile(causal, static={"D": 16}, split=split, tile={"i": 16, "j": 32}, threads=2)
    rng = np.random.default_rng(4)
    for n in (1, 300, 1037):
        q, k, v = rng.standard_normal((3, 1, 1, n, 16), np.float32)
        s = q.astype("f8") @ k.swapaxes(-1, -2).astype("f8") / 4
        i, j = np.indices((n, n))
        want = softmax(np.where(j <= i, s, -np.inf)) @ v.astype("f8")
        np.testing.assert_allclose(kernel(q, k, v), want, rtol=2e-5, atol=2e-5)


def test_many_rows_are_not_split_unasked():
    assert "split" not in tc.compile(causal, static={"D": 16}).stages


@pytest.mark.parametrize("split", [0, -1, "some", True, 1.5])
def test_what_is_no_way_to_split(split):
    with pytest.raises(CompileError, match=r"(?s)no way to split.*number of parts"):
        tc.compile(causal, static={"D": 16}, split=split)


@pytest.mark.parametrize("machine", GENERIC_CPUS, ids=lambda m: m.name)
def test_tiles_of_few_rows_divide_their_parts(machine):
    """Or the tiles at both ends of each part run with mask code."""
    kernel = tc.compile(decode, target=machine, static={"D": 64})
    compiled = kernel.compiled_for({"B": 1, "H": 1, "N": 8192, "D": 64})
    (size,) = {int(n) for a, n in compiled.tile.items() if a == "j"}
    assert 2048 % size == 0

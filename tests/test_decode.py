"""Decode-shaped kernels (few query rows) against float64: groups, key lengths, dtypes, masks."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilecc as tc
from tilecc.target import resolve

# This machine as one that takes bf16 dot products if it has them at all.
DOT = replace(resolve("cpu"), features=resolve("cpu").features - {"amx-bf16"})
LENGTHS = (0, 1, 7, 63, 64, 65, 1000, 1037)
TYPES = {
    "float32": (np.dtype(np.float32), 3e-6),
    "float16": (np.dtype(np.float16), 2e-3),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), 1.6e-2),
}


def grouped(group):
    @tc.spec
    def decode(q: tc.Tensor["b h d"], k: tc.Tensor["b hk:G j:N d"], v: tc.Tensor["b hk:G j:N e:D"]):
        g = tc.index("h") // group
        s = tc.dot(q, k.at(hk=g), over="d") * tc.rsqrt(tc.extent("d"))
        return tc.dot(tc.softmax(s, over="j"), v.at(hk=g), over="j")

    return decode


@tc.spec
def one_query(
    q: tc.Tensor["b h i:1 d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    n: tc.Scalar("int32"),
):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") < n, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def lengths(
    q: tc.Tensor["b h d"],
    k: tc.Tensor["b hk:G j:N d"],
    v: tc.Tensor["b hk:G j:N e:D"],
    n: tc.Tensor["b", "int32"],  # noqa: UP037
):
    g = tc.index("h") // 4
    s = tc.dot(q, k.at(hk=g), over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") < n, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v.at(hk=g), over="j")


def make(rng, shape, t):
    return rng.standard_normal(shape).astype(np.float32).astype(t)


def reference(q, k, v, lengths=None):
    """q [b, h, d]; k, v [b, hk, n, d]; rows without a key are zero."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    s = np.einsum("bhd,bhjd->bhj", q, k) / np.sqrt(q.shape[-1])
    if lengths is not None:
        s = np.where(np.arange(s.shape[-1]) < np.asarray(lengths)[:, None, None], s, -np.inf)
    m = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isfinite(m), m, 0))
    total = p.sum(-1, keepdims=True)
    return np.einsum("bhj,bhje->bhe", p / np.where(total == 0, 1, total), v)


def check(got, want, bound):
    assert got.shape == want.shape
    assert np.abs(got.astype(np.float64) - want).max(initial=0) < bound


@pytest.mark.parametrize(
    ("group", "d", "dtype"),
    [
        *((4, 128, t) for t in TYPES),
        *((7, 72, t) for t in TYPES),
        (1, 64, "float32"),
        (3, 80, "bfloat16"),
        (5, 96, "float32"),
        (5, 96, "bfloat16"),
        (8, 128, "bfloat16"),
        (16, 64, "float32"),
        (2, 40, "float16"),
        (2, 96, "bfloat16"),
    ],
)
def test_grouped(group, d, dtype):
    t, bound = TYPES[dtype]
    kernel = tc.compile(grouped(group), DOT, dtype, {"D": d}, {"h": group, "j": 64})
    check_grouped(kernel, group, t, bound)


def check_grouped(kernel, group, t, bound):
    d = kernel.static["D"]
    rng = np.random.default_rng(group)
    for n in LENGTHS:
        q = make(rng, (2, 2 * group, d), t)
        k, v = make(rng, (2, 2, n, d), t), make(rng, (2, 2, n, d), t)
        check(kernel(q, k, v), reference(q, k, v), bound)


@pytest.mark.parametrize("group", [2, 4, 8])
def test_grouped_bf16_as_this_machine_does_it(group):
    t, bound = TYPES["bfloat16"]
    tile = {"h": group, "j": 64}
    kernel = tc.compile(grouped(group), dtype="bfloat16", static={"D": 96}, tile=tile)
    check_grouped(kernel, group, t, bound)


def test_dense_bf16_by_dot_products():
    @tc.spec
    def rows(q: tc.Tensor["i:M d"], k: tc.Tensor["j:N d"], v: tc.Tensor["j:N e:D"]):
        s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
        return tc.dot(tc.softmax(s, over="j"), v, over="j")

    kernel = tc.compile(rows, DOT, "bfloat16", {"D": 64}, {"i": 64, "j": 64})
    if "avx512bf16" in DOT.features:
        assert "dpbf16ps" in kernel.ir("asm")
    t, bound = TYPES["bfloat16"]
    rng = np.random.default_rng(0)
    for n in LENGTHS[1:]:
        q, k, v = make(rng, (70, 64), t), make(rng, (n, 64), t), make(rng, (n, 64), t)
        want = reference(q[None].swapaxes(0, 1)[None, :, 0], k[None, None], v[None, None])
        check(kernel(q, k, v)[None], want, bound)


@pytest.mark.parametrize("j", [8, 48, 256])
def test_key_tiles(j):
    kernel = tc.compile(grouped(4), static={"D": 64}, tile={"h": 4, "j": j})
    rng = np.random.default_rng(j)
    for n in LENGTHS:
        q, k, v = (make(rng, s, np.float32) for s in ((1, 8, 64), (1, 2, n, 64), (1, 2, n, 64)))
        check(kernel(q, k, v), reference(q, k, v), 3e-6)


def test_row_tile_that_is_no_group():
    """A tile of fewer heads than a group, and one that does not divide the heads."""
    rng = np.random.default_rng(0)
    q, k, v = (make(rng, s, np.float32) for s in ((1, 12, 64), (1, 3, 100, 64), (1, 3, 100, 64)))
    for h in (1, 2, 8):
        kernel = tc.compile(grouped(4), static={"D": 64}, tile={"h": h, "j": 32})
        check(kernel(q, k, v), reference(q, k, v), 3e-6)


@pytest.mark.parametrize("dtype", TYPES)
def test_one_query_up_to_a_length(dtype):
    t, bound = TYPES[dtype]
    kernel = tc.compile(one_query, dtype=dtype, static={"D": 128}, tile={"j": 64})
    rng = np.random.default_rng(1)
    for n in (1, 65, 300):
        q, k, v = (make(rng, s, t) for s in ((2, 3, 1, 128), (2, 3, n, 128), (2, 3, n, 128)))
        # Beyond the length, nothing counts.
        for length in (0, 1, 63, 64, 130, n, n + 5):
            k[:, :, length:] = np.nan
            got = kernel(q, k, v, length)[:, :, 0]
            want = reference(q[:, :, 0], np.nan_to_num(k.astype(np.float32)), v, [length, length])
            check(got, want, bound)
            k = make(rng, k.shape, t)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_length_for_each_batch(dtype):
    t, bound = TYPES[dtype]
    kernel = tc.compile(lengths, dtype=dtype, static={"D": 64}, tile={"h": 4, "j": 64})
    rng = np.random.default_rng(2)
    n = np.array([0, 1, 64, 100, 130], np.int32)
    q, k, v = (make(rng, s, t) for s in ((5, 8, 64), (5, 2, 130, 64), (5, 2, 130, 64)))
    check(kernel(q, k, v, n), reference(q, k, v, n), bound)


def test_rows_are_read_as_vectors():
    """What lies in a row is loaded at once, not gathered lane by lane (but for merged parts)."""
    kernel = tc.compile(grouped(4), "x86-64-v3", static={"D": 64}, tile={"h": 4, "j": 64})
    gathered = re.findall(r"insertelement <8 x float> %\w+, float %\w+, i64 7", kernel.ir("llvm"))
    assert len(gathered) < 8


def test_rows_of_bf16_become_f32_by_shift_and_mask():
    """Two vectors from one of pairs, where there is no dot product: nothing is spread in order."""
    t, bound = TYPES["bfloat16"]
    kernel = tc.compile(grouped(3), "x86-64-v3", "bfloat16", {"D": 72}, {"h": 3, "j": 64})
    assert re.search(r"and <8 x i32> .*-65536", kernel.ir("llvm"))
    if resolve("cpu").features >= kernel.target.features:
        check_grouped(kernel, 3, t, bound)

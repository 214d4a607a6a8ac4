"""Programs of other kinds than the examples: what once went wrong with them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilecc as tc
from tilecc.compiler import Compiler
from tilecc.target import resolve


def random(*shape, dtype="f4", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@tc.spec
def rotary(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"], v: tc.Tensor["j:N e:D"]):
    """Rotated queries and keys, by angles that are computed."""
    d, half = tc.index("d"), tc.extent("d") // 2
    pace = tc.exp2(tc.cast(d % half, "float32") * -0.5)
    i, j = (tc.cast(tc.index(a), "float32") * pace for a in "ij")
    sign, other = tc.where(d < half, -1.0, 1.0), (d + half) % tc.extent("d")
    rq = q * tc.cos(i) + sign * q.at(d=other) * tc.sin(i)
    rk = k * tc.cos(j) + sign * k.at(d=other) * tc.sin(j)
    return tc.dot(tc.softmax(tc.dot(rq, rk, over="d"), over="j"), v, over="j")


@tc.spec
def norm_linear(x: tc.Tensor["i:N d"], b: tc.Tensor["d:D"], w: tc.Tensor["d e"]):
    """A layer's norm with a bias, and the linear map after it."""
    y = x - tc.sum(x, over="d") / tc.extent("d")
    scale = tc.rsqrt(tc.sum(y * y, over="d") / tc.extent("d") + 1e-5)
    return tc.dot(y * scale + b, w, over="d")


@tc.spec
def points(q: tc.Tensor["i:N p c"], k: tc.Tensor["j:N p c"], v: tc.Tensor["j:N p c"]):
    """Attention by distance between points, which are what is averaged."""
    p = tc.softmax(-tc.sum((q - k) ** 2, over="p c"), over="j")
    return tc.dot(p, v, over="j")


@tc.spec
def box(
    q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"], v: tc.Tensor["j:N e:D"], w: tc.Scalar("int64")
):
    """Neighbours in an image whose rows are `w` long."""
    i, j = tc.index("i"), tc.index("j")
    near = (tc.abs(i // w - j // w) <= 1) & (tc.abs(i % w - j % w) <= 1)
    s = tc.where(near, tc.dot(q, k, over="d"), -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def running_sum(x: tc.Tensor["j:N"], _y: tc.Tensor["i:N"]):
    return tc.sum(tc.where(tc.index("j") <= tc.index("i"), x, 0.0), over="j")


@tc.spec
def two_axes(q: tc.Tensor["y x d"], k: tc.Tensor["u:Y w:X d"], v: tc.Tensor["u:Y w:X e:D"]):
    return tc.dot(tc.softmax(tc.dot(q, k, over="d"), over="u w"), v, over="u w")


@pytest.mark.parametrize("spec", [rotary, norm_linear, points, box])
def test_lengths_stay_symbolic(spec):
    compiler = Compiler(spec.trace("float32"), resolve("cpu"), None)
    assert "N" not in compiler.required(dict.fromkeys("NDEPC", 8))


def softmax(s):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def test_points_are_one_kernel():
    kernel = tc.compile(points)
    q, k, v = (random(37, 2, 3, seed=s) for s in range(3))
    s = -((q[:, None] - k[None]) ** 2).sum((-1, -2), dtype="f8")
    want = np.einsum("ij,jpc->ipc", softmax(s), v)
    np.testing.assert_allclose(kernel(q, k, v), want, rtol=1e-5, atol=1e-5)
    assert kernel.ir("fuse").count("kernel over") == 1


def test_divisions_of_coordinates_are_done_once_a_row():
    kernel = tc.compile(box, static={"D": 8}, tile=16)
    for n, w in ((0, 5), (1, 5), (60, 7), (100, 1), (100, 10)):
        q, k, v = (random(n, 8, seed=s) for s in range(3))
        i = np.arange(n)
        near = abs(i[:, None] // w - i // w) <= 1
        near &= abs(i[:, None] % w - i % w) <= 1
        s = np.where(near, q.astype("f8") @ k.T, -np.inf)
        want = softmax(s) @ v if n else v
        np.testing.assert_allclose(kernel(q, k, v, w), want, rtol=1e-5, atol=1e-5)
    for line in kernel.ir("tile").splitlines():
        if "// %w" in line or "% %w" in line:
            assert re.search(r": (reg )?i64(\[[ij]\S*\])?$", line), line


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_mask_that_holds_leaves_the_type(dtype):
    kernel = tc.compile(running_sum, dtype=dtype, tile=16)
    x = random(100, dtype=np.dtype(dtype))
    want = np.cumsum(x.astype("f8"))
    np.testing.assert_allclose(kernel(x, x).astype("f8"), want, rtol=1e-3, atol=2e-2)


def test_extents_that_are_zero():
    q, v = random(5, 0), random(5, 3)

    @tc.spec
    def average(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"], v: tc.Tensor["j:N e"]):
        return tc.dot(tc.softmax(tc.dot(q, k, over="d"), over="j"), v, over="j")

    kernel = tc.compile(average, static={"D": 0})
    np.testing.assert_allclose(kernel(q, q, v), np.tile(v.mean(0), (5, 1)), rtol=1e-5)
    none = tc.compile(norm_linear, static={"N": 0, "E": 24})
    assert none(random(0, 7), random(7), random(7, 24)).shape == (0, 24)


def test_an_axis_that_is_tiled_and_held_whole_is_compiled_for_each_length():
    """Rows x of queries come in tiles, those of keys (w) are whole in one: X has to be known."""
    kernel = tc.compile(two_axes, static={"D": 8})
    for y, x in ((9, 4), (5, 4), (3, 6)):
        q, k, v = (random(y, x, 8, seed=s) for s in range(3))
        s = np.einsum("yxd,uwd->yxuw", q.astype("f8"), k).reshape(y, x, y * x)
        want = softmax(s) @ v.reshape(y * x, 8)
        np.testing.assert_allclose(kernel(q, k, v), want, rtol=1e-5, atol=1e-5)
    assert kernel.compilations == 2, "one for each X, none for a Y"
    assert kernel.ir("fuse").count("kernel over") == 1

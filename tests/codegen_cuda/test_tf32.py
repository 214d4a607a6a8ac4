"""Products of f32 on tensor cores, rounded to tf32: only where that is asked for."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import tilecc as tc
from tilecc.errors import CompileError

RNG = np.random.default_rng(3)


@tc.spec
def attention(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"], v: tc.Tensor["j:N e:D"]):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def outer(x: tc.Tensor["i:N d"], y: tc.Tensor["i:N e:M"]):
    """The summed axis is innermost in neither factor."""
    return tc.dot(x, y, over="i")


def exact(name, *arrays):
    x = [a.astype("f8") for a in arrays]
    if name == "outer":
        return x[0].T @ x[1]
    s = x[0] @ x[1].T / np.sqrt(x[0].shape[1])
    p = np.exp(s - s.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True) @ x[2]


CASES = {
    "attention": (attention, {"D": 16}, [(21, 16)] * 3),
    "outer": (outer, {"D": 16, "M": 24}, [(45, 16), (45, 24)]),
}


@cache
def kernel_of(name):
    spec, static, _ = CASES[name]
    return tc.compile(spec, "sm_80", "float32", static, tile=16, tensor="tf32")


@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_rounded_factors(name):
    """Within the tolerance that is stated, and not those of f32; bytes and banks as for all."""
    shapes = CASES[name][2]
    inputs = [RNG.standard_normal(s).astype("f4") for s in shapes]
    kernel = kernel_of(name)
    products = kernel.ir("ptx").count("mma.sync.aligned.m16n8k8")
    assert products > 0
    found = tc.emulate(kernel, *inputs, seed=1)
    want = exact(name, *inputs)
    error = np.abs(found.outputs[0] - want).max() / np.abs(want).max()
    assert 1e-5 < error < 2e-3
    assert not found.findings and not found.differences
    assert not [a for a in found.bank_conflicts if "ld" not in a.text.split(".")[0]]


def test_a_product_takes_elements_of_tf32():
    """Factors with no more than 10 bits of fraction come out exactly; a bit more is rounded."""
    x = np.zeros((16, 16), "f4")
    x[0, 0], x[1, 1], x[2, 2] = 1 + 2**-10, 1 + 2**-11, 1 + 2**-12
    y = np.eye(16, 24, dtype="f4")
    out = tc.emulate(kernel_of("outer"), x, y).outputs[0]
    assert [out[0, 0], out[1, 1], out[2, 2]] == [1 + 2**-10, 1 + 2**-10, 1]


def test_it_is_not_done_unasked():
    kernel = tc.compile(attention, "sm_80", "float32", {"D": 24}, tile=32)
    assert "mma" not in kernel.ir("cuda") and "tf32" not in kernel.ir("tile")


def test_cost_says_what_is_multiplied():
    found = [
        tc.compile(attention, "sm_80", "float32", {"D": 24}, tile=32, tensor=t).cost(N=4096)
        for t in (None, "tf32")
    ]
    assert [c.factors for c in found] == ["f32", "tf32"]
    seconds = [c.roofline.compute for c in found]
    assert seconds[0] / seconds[1] == pytest.approx(156 / 19.5)


@pytest.mark.parametrize(
    ("target", "tensor", "message"),
    [
        ("cpu", "tf32", "needs tensor cores .mma.sync., and .* has none\n *leave it out"),
        ("sm_80", "fp8", "tensor='fp8' is nothing to multiply\n *there is 'tf32'"),
    ],
)
def test_what_there_is_not_is_refused(target, tensor, message):
    with pytest.raises(CompileError, match=message):
        tc.compile(attention, target, "float32", {"D": 24}, tensor=tensor)

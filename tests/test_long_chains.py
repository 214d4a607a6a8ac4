"""Long chains of scalar operations on a score: right, and code in proportion to the chain."""

import numpy as np
import pytest

import tilecc as tc
from tilecc.analysis.memo import Memo


def chain(turns, step):
    @tc.spec
    def chained(s: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
        for r in range(turns):
            s = step(s, r)
        return tc.dot(tc.softmax(s, over="j"), v, over="j")

    return chained


def tanh(s, r):
    return tc.tanh(s * 1.1 + 0.01 * r)


def choice(s, r):
    return tc.where(s > 0.1 * r, s * 1.02 + 0.01, s * 0.98)


def square(s, r):
    return s * s * 0.001 + s * 0.99


def code_size(turns, step):
    """Characters of TIR without indentation."""
    kernel = tc.compile(chain(turns, step), static={"D": 4}, tile=16)
    return sum(len(line.strip()) for line in kernel.ir("tir").splitlines())


@pytest.mark.parametrize("step", [tanh, choice, square])
def test_code_grows_with_the_chain(step):
    """More values than there are buffers for by default; each is still computed once."""
    size = {n: code_size(n, step) for n in (10, 40)}
    assert size[40] < 4.5 * size[10]


REFERENCE = {
    tanh: lambda s, r: np.tanh(s * 1.1 + 0.01 * r),
    choice: lambda s, r: np.where(s > 0.1 * r, s * 1.02 + 0.01, s * 0.98),
    square: lambda s, r: s * s * 0.001 + s * 0.99,
}


@pytest.mark.parametrize(("step", "turns"), [(choice, 120), (square, 100), (tanh, 90)])
def test_a_long_chain_is_right(step, turns):
    rng = np.random.default_rng(0)
    s, v = rng.standard_normal((19, 33), dtype="f4"), rng.standard_normal((33, 4), dtype="f4")
    got = tc.compile(chain(turns, step), static={"D": 4}, tile=16)(s, v)
    x = s.astype("f8")
    for r in range(turns):
        x = REFERENCE[step](x, r)
    p = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(got, p / p.sum(1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


def test_passes_take_a_thousand_maps():
    """No pass walks the graph by recursion: Python's stack would end at a few hundred."""
    kernel = tc.compile(
        chain(1000, lambda s, r: s * 1.001 + 0.01), static={"D": 4}, tile=16, target="sm_80"
    )
    assert "tile" in kernel.stages


def test_a_recursion_of_any_depth():
    calls = []

    def fibonacci(n):
        calls.append(n)
        return n if n < 2 else known(n - 1) + known(n - 2)

    known = Memo(fibonacci)
    assert known(3000) % 1_000_007 == _fibonacci(3000) % 1_000_007
    assert len(calls) < 4 * 3000
    circle = Memo(lambda n: circle((n + 1) % 3))
    with pytest.raises(ValueError, match="depends on itself"):
        circle(0)


def _fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a

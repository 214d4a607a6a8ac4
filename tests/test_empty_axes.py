"""Axes without elements: known when the kernel is compiled, or at the call alone."""

import numpy as np
import pytest

import tilecc as tc


@tc.spec
def causal(q: tc.Tensor["h i:N d"], k: tc.Tensor["h j:M d"], v: tc.Tensor["h j:M e"]):
    s = tc.where(tc.index("j") <= tc.index("i"), tc.dot(q, k, over="d"), -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j"), tc.logsumexp(s, over="j")


@pytest.mark.parametrize(
    ("static", "d", "e"), [({}, 8, 0), ({"M": 0}, 8, 8), ({"N": 4}, 0, 8), ({"N": 4}, 8, 0)]
)
def test_any_axis_may_be_empty(static, d, e):
    kernel = tc.compile(causal, static=static)
    for n, m in ((4, 0), (4, 5), (0, 5)):
        if static.get("N", n) != n or static.get("M", m) != m:
            continue
        q, k, v = np.ones((2, n, d), "f4"), np.ones((2, m, d), "f4"), np.ones((2, m, e), "f4")
        o, lse = kernel(q, k, v)
        seen = np.minimum(np.arange(n) + 1, m)
        with np.errstate(divide="ignore"):
            want = d + np.log(seen)
        np.testing.assert_array_equal(o, np.full((2, n, e), 1.0 if m else 0.0))
        np.testing.assert_allclose(lse, np.broadcast_to(want, (2, n)), rtol=1e-6)

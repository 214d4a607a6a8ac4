"""Comparisons of positions are made in 32 bits, and come out as in 64."""

import numpy as np
import pytest

import tilecc as tc

ENDS = [0, 1, 2**30 - 1, 2**30 + 7, 2**31 - 1, 2**31, 2**32 + 3, 2**62]


@tc.spec
def compared(
    x: tc.Tensor["i:M d"],
    y: tc.Tensor["j:N d"],
    near: tc.Tensor["j:N", "int32"],
    w: tc.Scalar("int64"),
):
    """One bit of the result for each comparison."""
    i, j = tc.index("i"), tc.index("j")
    conditions = (
        i - j < w,
        j <= i + w,
        2 * j - i >= w,
        i == j + w,
        -j != w - i,
        near < w,
        near == 3,
    )
    bits = sum(tc.where(c, 2.0**n, 0.0) for n, c in enumerate(conditions))
    return tc.dot(x, y, over="d") * 0.0 + bits


@pytest.fixture(scope="module")
def kernel():
    return tc.compile(compared, "cpu", static={"D": 8}, tile={"i": 16, "j": 8})


@pytest.mark.parametrize("sign", [1, -1])
def test_scalars_of_any_size(kernel, sign):
    m, n = 37, 29
    i, j = np.arange(m)[:, None].astype(object), np.arange(n)[None].astype(object)
    near = np.array([3, 0, -(2**31), 2**31 - 1] * 8, np.int32)[:n]
    x, y = np.ones((m, 8), np.float32), np.ones((n, 8), np.float32)
    for w in (sign * e for e in ENDS):
        at = near[None].astype(object)
        conditions = (
            *(i - j < w, j <= i + w, 2 * j - i >= w, i == j + w, -j != w - i),
            *(at < w, at == 3),
        )
        want = sum(
            np.broadcast_to(c, (m, n)).astype("f4") * 2.0**k for k, c in enumerate(conditions)
        )
        np.testing.assert_array_equal(kernel(x, y, near, w), want, err_msg=str(w))

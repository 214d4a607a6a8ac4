"""Comparisons of positions are made in 32 bits, and come out as in 64."""

import re

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


@tc.spec
def divided(
    x: tc.Tensor["i:M d"],
    y: tc.Tensor["j:N d"],
    start: tc.Tensor["i:M", "int32"],
    far: tc.Tensor["i:M", "int64"],
    w: tc.Scalar("int64"),
    v: tc.Scalar("int64"),
):
    """One bit of the result for each comparison of what a row has with what a column has."""
    i, j = tc.index("i"), tc.index("j")
    conditions = (
        i // w == j // w,
        j // w + v > i // w,
        j % w <= i % w + v,
        i % w != j % w,
        tc.abs(j % w - i) <= v,
        tc.abs(i // w - j // w) > v,
        (i - j) % w == 0,
        (i + j) % w != v,
        j - start >= v,
        2 * j < start + i + v,
        j * 3 >= far,
    )
    bits = sum(tc.where(c, 2.0**n, 0.0) for n, c in enumerate(conditions))
    return tc.dot(x, y, over="d") * 0.0 + bits


@pytest.fixture(scope="module")
def divisions():
    return tc.compile(divided, "cpu", static={"D": 8}, tile={"i": 16, "j": 8})


def test_rows_and_columns_are_compared_in_32_bits(divisions):
    """All but those that read 64-bit numbers from memory."""
    text = divisions.ir("tile")
    bits = next(x for x in text.splitlines() if "where" in x and "1024.0" in x)
    for n in range(10):
        condition = bits.split(f"{2.0**n}, ")[0].rsplit("where(", 1)[1]
        read = re.findall(r"%\w\w+", condition)
        assert read and all(re.search(rf"{x} = map .* : reg i32\[[ij]", text) for x in read), n
    assert "%far" in bits


# divisors that go into a tile many times, once or never, of both signs, and none
DIVISORS = [1, 3, 7, 8, 29, 100, 2**28 + 1, 2**31 + 5, 2**62, -1, -5, -33, -(2**40), 0]


@pytest.mark.parametrize("divisor", DIVISORS)
def test_divisors_of_any_size(divisions, divisor):
    m, n = 37, 29
    i, j = np.arange(m)[:, None].astype(object), np.arange(n)[None].astype(object)
    start = np.array([3, 0, -(2**31), 2**31 - 1] * 10, np.int32)[:m]
    far = np.array([0, 60, 2**62, -(2**62), 2**31] * 8, np.int64)[:m]
    x, y = np.ones((m, 8), np.float32), np.ones((n, 8), np.float32)

    def div(a):
        return a // divisor if divisor else a * 0

    def mod(a):
        return a % divisor if divisor else a * 0

    s, f = start[:, None].astype(object), far[:, None].astype(object)
    for v in (0, 2, -3, 2**30, 2**32, -(2**62)):
        conditions = (
            *(div(i) == div(j), div(j) + v > div(i), mod(j) <= mod(i) + v, mod(i) != mod(j)),
            *(abs(mod(j) - i) <= v, abs(div(i) - div(j)) > v, mod(i - j) == 0, mod(i + j) != v),
            *(j - s >= v, 2 * j < s + i + v, j * 3 >= f),
        )
        want = sum(
            np.broadcast_to(c, (m, n)).astype("f4") * 2.0**k for k, c in enumerate(conditions)
        )
        got = divisions(x, y, start, far, divisor, v)
        np.testing.assert_array_equal(got, want, err_msg=str(v))

"""simplify: what it takes out of sums leaves numbers in range."""

import numpy as np
import pytest

import tilecc as tc
from tilecc.ir.interp import interpret
from tilecc.pipeline import PassManager


def simplified(spec, arrays, dtype="float32"):
    """Outputs before and after, and the text after."""
    func = spec.trace(dtype)
    run = PassManager("simplify").run(func)
    with np.errstate(all="ignore"):
        before, after = interpret(func, arrays), interpret(run.func, arrays)
    return before, after, run.stages[-1].text(locs=False)


@tc.spec
def over_more_axes(x: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
    p = tc.exp(x - tc.max(x, over="i j"))
    return tc.dot(tc.cast(p / tc.sum(p, over="j"), "float16"), v, over="j")


@tc.spec
def over_another_axis(x: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
    p = tc.exp(x - tc.max(x, over="i"))
    return tc.dot(tc.cast(p / tc.sum(p, over="j"), "float16"), v, over="j")


@tc.spec
def by_a_number(x: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
    p = tc.exp(x - tc.max(x, over="j"))
    gate = tc.exp(0.0 - tc.min(x, over="j"))
    return tc.dot(tc.cast(p * gate * 0.001, "float16"), v, over="j")


@pytest.mark.parametrize(
    "spec", [over_more_axes, over_another_axis, by_a_number], ids=lambda s: s.name
)
def test_a_factor_stays_before_a_rounding_that_needs_it(spec):
    """Without it all of a row was below the smallest f16, and came out as 0."""
    x = np.random.default_rng(0).standard_normal((3, 4)).astype("f4")
    x[1] -= 30
    x[:, 2] -= 12
    v = np.ones((4, 2), "f4")
    (before,), (after,), _ = simplified(spec, {"x": x, "v": v})
    np.testing.assert_allclose(after, before, rtol=1e-3)


@tc.spec
def safe_norm(x: tc.Tensor["i:N j:M"]):
    m = tc.max(tc.abs(x), over="j")
    return m * tc.sqrt(tc.sum((x / m) * (x / m), over="j"))


@tc.spec
def cosine(x: tc.Tensor["i:N j:M"], y: tc.Tensor["k:K j:M"]):
    a = x / tc.max(tc.abs(x), over="j")
    b = y / tc.max(tc.abs(y), over="j")
    return tc.dot(a, b, over="j")


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_normalised_squares_and_products_do_not_overflow(size):
    x = (np.random.default_rng(0).standard_normal((3, 7)) * size).astype("f4")
    (before,), (after,), _ = simplified(safe_norm, {"x": x})
    np.testing.assert_allclose(before, np.sqrt((x.astype("f8") ** 2).sum(1)), rtol=1e-5)
    np.testing.assert_allclose(after, before, rtol=1e-5)
    (before,), (after,), _ = simplified(cosine, {"x": x, "y": x[:2].copy()})
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


def test_numbers_of_16_bits_cannot_overflow():
    _, _, text = simplified(cosine, {n: np.ones((2, 3), "f2") for n in "xy"}, "float16")
    assert "contract %x, %y over j" in text


@tc.spec
def variance_of_weights(x: tc.Tensor["i:N j:M"]):
    p = tc.softmax(x, over="j")
    return tc.sum(p * p, over="j")


def test_exponentials_of_a_row_cannot_either():
    _, _, text = simplified(variance_of_weights, {"x": np.ones((2, 3), "f4")})
    assert "map %p * %p" in text

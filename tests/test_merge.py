"""tc.merge: parts of the keys, merged in any order, are the whole; empty ones do not count."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from references import log_sum_exp, softmax

import tilecc as tc
from tilecc.errors import ArgumentError
from tilecc.ir.core import bind_extents
from tilecc.partial import merged
from tilecc.pipeline import PassManager


@tc.spec
def attention(
    q: tc.Tensor["b h i:M d"], k: tc.Tensor["b h j:N d"], v: tc.Tensor["b h j:N e:D"]
) -> tuple[tc.Tensor["b h i e"], tc.Tensor["b h i", "float32"]]:  # noqa: UP037
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j"), tc.logsumexp(s, over="j")


@pytest.fixture(scope="module")
def kernel():
    return tc.compile(attention, static={"D": 16}, tile={"i": 16, "j": 32})


def make(keys, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((2, 3, 5, 16), np.float32) * np.float32(scale)
    return q, *rng.standard_normal((2, 2, 3, keys, 16), np.float32)


def whole(q, k, v):
    q, k, v = (x.astype("f8") for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) / 4
    return softmax(s) @ v, log_sum_exp(s)


def pieces(kernel, q, k, v, cuts):
    bounds = [0, *cuts, k.shape[2]]
    return [kernel(q, k[:, :, a:b], v[:, :, a:b]) for a, b in itertools.pairwise(bounds)]


def agree(got, want, tolerance=3e-6):
    for x, w in zip(got, want, strict=True):
        np.testing.assert_allclose(x, w, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cuts", [(), (0,), (50,), (10, 10, 33), (1, 2, 99)])
def test_parts_make_the_whole(kernel, cuts):
    """Some of the parts are empty."""
    q, k, v = make(100)
    agree(tc.merge(*pieces(kernel, q, k, v, cuts)), whole(q, k, v))


def test_order_and_association_are_free(kernel):
    q, k, v = make(100, seed=1)
    want = whole(q, k, v)
    parts = pieces(kernel, q, k, v, (7, 7, 60))
    for order in itertools.permutations(parts):
        a, b, c, d = order
        agree(tc.merge(*order), want)
        agree(tc.merge(tc.merge(a, b), tc.merge(c, d)), want)
        agree(tc.merge(tc.merge(tc.merge(a, b), c), d), want)


def test_large_logits(kernel):
    """One part decides; the others' weights are 0 and not NaN."""
    q, k, v = make(100, scale=1e4, seed=2)
    got = tc.merge(*pieces(kernel, q, k, v, (30, 60)))
    agree(got, whole(q, k, v), 1e-5)


def test_what_saw_nothing_is_not_read():
    o = np.stack([np.full((2, 8), np.nan, "f4"), np.ones((2, 8), "f4")])
    lse = np.array([[-np.inf, -np.inf], [0.5, -np.inf]], "f4")
    out, total = tc.merge((o[0], lse[0]), (o[1], lse[1]))
    np.testing.assert_array_equal(out, [np.ones(8), np.zeros(8)])
    np.testing.assert_array_equal(total, np.array([0.5, -np.inf], "f4"))


def test_nan_in_a_part_that_counts_is_seen():
    o, lse = np.ones((1, 8), "f4"), np.zeros(1, "f4")
    out, total = tc.merge((o * np.nan, lse), (o, lse))
    assert np.isnan(out).all()
    assert np.isfinite(total).all()


def test_a_ring_of_workers(kernel):
    """Each worker has a part of the queries, and the keys come by: a merge for each step."""
    q, k, v = make(96, seed=3)
    o, lse = kernel(q, k[:, :, :0], v[:, :, :0])
    for step in range(4):
        part = slice(24 * step, 24 * step + 24)
        o, lse = tc.merge((o, lse), kernel(q, k[:, :, part], v[:, :, part]))
    agree((o, lse), whole(q, k, v))


def test_a_cascade_shares_the_prefix(kernel):
    """One prefix for all, read once by all rows together, and a suffix for each."""
    q, k, v = make(20, seed=4)
    prefix = np.random.default_rng(5).standard_normal((2, 1, 3, 70, 16), np.float32)
    rows = q.transpose(1, 0, 2, 3).reshape(1, 3, 10, 16)
    o, lse = kernel(rows, *prefix)
    o = o.reshape(3, 2, 5, 16).transpose(1, 0, 2, 3)
    lse = lse.reshape(3, 2, 5).transpose(1, 0, 2)
    keys, values = (
        np.concatenate([np.repeat(p, 2, 0), x], 2) for p, x in zip(prefix, (k, v), strict=True)
    )
    agree(tc.merge((o, lse), kernel(q, k, v)), whole(q, keys, values))


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 2e-3), ("bfloat16", 1e-2)])
def test_narrow_outputs(dtype, bound):
    t = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    rng = np.random.default_rng(6)
    o, lse = rng.standard_normal((3, 4, 8)).astype(t), rng.standard_normal((3, 4)).astype("f4")
    got, _ = tc.merge(*zip(o, lse, strict=True))
    want = np.einsum("pr,pre->re", softmax(lse.T.astype("f8")).T, o.astype("f8"))
    assert got.dtype == t
    np.testing.assert_allclose(got.astype("f8"), want, atol=bound)


def test_its_form_is_derived():
    """One walk over the parts, each sum with a repair: online-softmax's work, as for any spec."""
    func = bind_extents(merged.trace("float32"), {"E": 16})
    run = PassManager("simplify,fuse,online-softmax").run(func)
    (walk,) = [op for op in run.func.walk() if op.name == "stream"]
    updates = [op for op in walk.body.ops if op.name == "update"]
    assert [op.attrs["repair"] is None for op in updates] == [True, False, False]


O, LSE = np.zeros((2, 8), "f4"), np.zeros(2, "f4")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((), "merge has no parts"),
        ((O,), "part 0 is not a pair"),
        (((O, LSE), (O[:1], LSE[:1])), r"o of part 1 has shape \(1, 8\), that of part 0 \(2, 8\)"),
        (((O, LSE[:1]),), r"lse of part 0 has shape \(1,\), and o has \(2, 8\)"),
        (((O, LSE), (O.astype("f2"), LSE)), "o of part 1 is float16, that of part 0 float32"),
        (((O, LSE.astype("f8")),), "lse of part 0 is float64, not float32"),
    ],
)
def test_parts_that_do_not_fit(parts, message):
    with pytest.raises(ArgumentError, match=message):
        tc.merge(*parts)

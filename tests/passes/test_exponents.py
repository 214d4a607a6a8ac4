"""exponents: softmax is right for all finite scores, and its repairs move what was accumulated."""

import numpy as np
import pytest

import tilecc as tc
from tilecc.codegen.cpu.isa import isa_for
from tilecc.host import host
from tilecc.ir.interp import interpret
from tilecc.pipeline import PassManager

FRONT = "simplify,fuse,online-softmax,mask-tiles"
LOWEST = float(np.finfo("f4").min)
N, M, D = 5, 40, 4


@tc.spec
def attention(x: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
    s = x * 0.125
    return tc.dot(tc.softmax(s, over="j"), v, over="j"), tc.logsumexp(s, over="j")


@tc.spec
def unscaled(x: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
    return tc.dot(tc.softmax(x, over="j"), v, over="j"), tc.logsumexp(x, over="j")


@tc.spec
def by_hand(x: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
    s = x * 0.125
    p = tc.exp(s - tc.max(s, over="j"))
    l = tc.sum(p, over="j")
    return tc.dot(p, v, over="j") / l, tc.max(s, over="j") + tc.log(l)


@tc.spec
def sink(x: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
    s = x * 0.125
    m = tc.maximum(tc.max(s, over="j"), 0.5)
    p = tc.exp(s - m)
    l = tc.sum(p, over="j") + tc.exp(0.5 - m)
    return tc.dot(p, v, over="j") / l, m + tc.log(l)


@tc.spec
def probabilities(x: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
    s = x * 0.125
    return tc.dot(tc.softmax(s, over="j"), v, over="j"), tc.softmax(s, over="j")


@tc.spec
def least(x: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
    s = x * 0.125
    p = tc.exp(tc.min(s, over="j") - s)
    l = tc.sum(p, over="j")
    return tc.dot(p, v, over="j") / l, tc.log(l) - tc.min(s, over="j")


def reference(name, x):
    """Weights (without and with what shares the sum) and the logarithm of the sum, in float64."""
    s = x.astype("f8") * (1.0 if name == "unscaled" else 0.125)
    s = -s if name == "least" else s
    m = s.max(-1, keepdims=True)
    m = np.maximum(m, 0.5) if name == "sink" else np.where(m == -np.inf, 0, m)
    p = np.exp(s - m)
    l = p.sum(-1, keepdims=True) + (np.exp(0.5 - m) if name == "sink" else 0)
    with np.errstate(divide="ignore"):
        return np.where(l == 0, 0, p / np.where(l == 0, 1, l)), (m + np.log(l))[:, 0]


def _rng():
    return np.random.default_rng(3)


SCORES = {
    "ordinary": lambda: _rng().standard_normal((N, M)),
    "about 1e4": lambda: 1e4 + _rng().standard_normal((N, M)),
    "about -1e4": lambda: -1e4 + _rng().standard_normal((N, M)),
    "+-1e4": lambda: 1e4 * _rng().standard_normal((N, M)),
    "+-1e30": lambda: 1e30 * _rng().standard_normal((N, M)),
    "-1e9": lambda: -1e9 + _rng().standard_normal((N, M)),
    "steps of 16 from 2**27": lambda: 2.0**27 + 16 * _rng().integers(-3, 3, (N, M)),
    "steps of 256 from 2**31": lambda: 2.0**31 + 256 * _rng().integers(-3, 3, (N, M)),
    "down from -2**31": lambda: -(2.0**31) - 256.0 * np.arange(N * M).reshape(N, M),
    "up to 2**31": lambda: 2.0 ** (np.arange(N * M).reshape(N, M) % 32),
    "lowest": lambda: np.full((N, M), LOWEST),
    "lowest and -inf": lambda: np.where(_rng().random((N, M)) < 0.5, LOWEST, -np.inf),
    "lowest or ordinary": lambda: np.where(_rng().random((N, M)) < 0.7, LOWEST, 1.0),
    "lowest, then ordinary": lambda: np.where(np.arange(M) < M // 2, LOWEST, np.ones((N, 1))),
    "highest": lambda: np.full((N, M), -LOWEST),
    "lowest and highest": lambda: LOWEST * _rng().choice([-1.0, 1.0], (N, M)),
}
SPECS = {s.name: s for s in (attention, unscaled, by_hand, sink, probabilities, least)}


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("name", SPECS)
def test_weights_are_right_for_all_finite_scores(name, scores):
    """In f32, by chunks and tiles that make the reference move on the way."""
    x = SCORES[scores]().astype("f4")
    if name == "least" and "-inf" in scores:
        pytest.skip("a least score of -inf is another program")
    v = _rng().standard_normal((M, D)).astype("f4")
    weights, lse = reference(name, x)
    wanted = (weights @ v.astype("f8"), lse if name != "probabilities" else weights)
    run = PassManager(f"{FRONT},exponents,tile{{i=2,j=8}}").run(_bound(SPECS[name]))
    # Here x*c is rounded before the difference is taken: there is no fused multiply-add.
    finite = np.abs(x[np.isfinite(x)], dtype="f8")
    slack = 2e-6 + 2.0**-23 * np.max(finite[finite < 2**30], initial=0.0)
    for stage in ("exponents", "tile"):
        with np.errstate(all="ignore"):
            got = interpret(run.stage(stage).func, {"x": x, "v": v}, chunk=8)
        np.testing.assert_allclose(got[0], wanted[0], atol=slack, rtol=slack, err_msg=stage)
        np.testing.assert_allclose(got[1], wanted[1], atol=slack, rtol=slack + 3e-7, err_msg=stage)


def _bound(spec):
    from tilecc.ir.core import bind_extents

    return bind_extents(spec.trace("float32"), {"D": D})


@pytest.mark.skipif(not isa_for(host()).has_fma, reason="x*c is rounded before the difference")
@pytest.mark.parametrize("name", ["attention", "unscaled", "sink"])
def test_the_kernel_too(name):
    kernel = tc.compile(SPECS[name], static={"D": D}, tile={"i": 16, "j": 16})
    v = _rng().standard_normal((M, D)).astype("f4")
    for scores, make in SCORES.items():
        x = make().astype("f4")
        weights, lse = reference(name, x)
        got = kernel(x, v)
        np.testing.assert_allclose(got[0], weights @ v, atol=2e-6, rtol=2e-6, err_msg=scores)
        np.testing.assert_allclose(got[1], lse, atol=2e-6, rtol=3e-7, err_msg=scores)


def test_repairs_are_exact():
    """At scores of 1e4, tiles or none, one row is the same to a rounding or two of f32.

    With `old(m)*c - g` they differed by 6e-4.
    """
    x = (np.sort(_rng().standard_normal((N, M)) + 1e4, axis=1)).astype("f4")
    v = np.ones((M, D), "f4")
    kernels = [tc.compile(attention, static={"D": D}, tile={"i": 16, "j": n}) for n in (16, 64)]
    sums = [k(x, v)[1].astype("f8") for k in kernels]
    np.testing.assert_allclose(sums[0], sums[1], rtol=3e-7)
    outs = [k(x, _rng().standard_normal((M, D)).astype("f4"))[0] for k in kernels]
    np.testing.assert_allclose(outs[0], outs[1], rtol=1e-5, atol=1e-6)


def test_one_multiply_add_an_element_and_no_second_state():
    text = PassManager(f"{FRONT},exponents").run(_bound(attention)).stages[-1].text(locs=False)
    assert "exp2(%x * %a - %g)" in text
    assert "exp2(old(%m" in text
    plain = PassManager(f"{FRONT},exponents").run(_bound(unscaled)).stages[-1].text(locs=False)
    assert "exp2((%x - %" in plain


def test_other_exponentials_stay():
    @tc.spec
    def kernel_of(x: tc.Tensor["i:N j:M"], lse: tc.Tensor["i:N"]):
        return tc.sum(tc.exp(x * 0.5 - lse), over="j"), tc.sum(tc.exp2(x * 0.5), over="j")

    func = kernel_of.trace("float32")
    before = PassManager(FRONT).run(func).stages[-1].text(locs=False)
    after = PassManager(f"{FRONT},exponents").run(func).stages[-1].text(locs=False)
    assert before == after


def test_float64_takes_the_difference_first():
    run = PassManager(f"{FRONT},exponents").run(attention.trace("float64"))
    assert "exp2((%x - %" in run.stages[-1].text(locs=False)
    x = np.full((N, M), np.finfo("f8").min)
    v = _rng().standard_normal((M, D))
    out, _ = interpret(run.func, {"x": x, "v": v}, chunk=8)
    np.testing.assert_allclose(out, np.broadcast_to(v.mean(0), (N, D)), rtol=1e-12)


def test_constants_of_float64_kernels_are_not_rounded_to_f32():
    kernel = tc.compile(sink, dtype="float64", static={"D": D}, tile=16)
    x, v = _rng().standard_normal((N, M)), _rng().standard_normal((M, D))
    x[0] = -np.inf
    s = x * 0.125
    m = np.maximum(s.max(1, keepdims=True), 0.5)
    p = np.exp(s - m)
    l = p.sum(1, keepdims=True) + np.exp(0.5 - m)
    out, lse = kernel(x, v)
    np.testing.assert_allclose(out, p @ v / l, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(lse, (m + np.log(l))[:, 0], rtol=1e-13, atol=1e-15)

"""Programs with many masks: right, and no condition so long that TVM's simplifier chokes on it."""

import cProfile

import numpy as np

import tilecc as tc


@tc.spec
def sieve(s: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
    for p in (2, 3, 5, 7, 11, 13, 17, 19):
        s = tc.where(tc.index("j") % p != 1, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def test_eight_masks():
    kernel = tc.compile(sieve, static={"D": 4}, tile=16)
    rng = np.random.default_rng(0)
    s, v = rng.standard_normal((19, 133), dtype="f4"), rng.standard_normal((133, 4), dtype="f4")
    live = np.all([np.arange(133) % p != 1 for p in (2, 3, 5, 7, 11, 13, 17, 19)], axis=0)
    w = np.where(live, np.exp(s - s.max(1, keepdims=True)), 0)
    np.testing.assert_allclose(kernel(s, v), w / w.sum(1, keepdims=True) @ v, rtol=2e-5, atol=2e-6)
    branches = [x for x in kernel.ir("tir").splitlines() if x.lstrip().startswith("if ")]
    assert branches and all(x.count(" and ") <= 1 for x in branches)


def sieve_of(count):
    @tc.spec
    def sieved(s: tc.Tensor["i:N j:M"], v: tc.Tensor["j:M e:D"]):
        for p in range(2, count + 2):
            s = tc.where(tc.index("j") % p != 1, s, -tc.inf)
        return tc.dot(tc.softmax(s, over="j"), v, over="j")

    return sieved


def calls_of(count):
    """Python functions called while the passes run: as steady a measure as there is."""
    spec, profile = sieve_of(count), cProfile.Profile()
    profile.enable()
    tc.compile(spec, static={"D": 4}, target="sm_80", dtype="float16", tile=64)
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


def test_passes_take_time_in_proportion_to_the_masks():
    """Conditions are compared with those that are about the same thing, not each with each."""
    calls_of(2)  # imports what there is to import
    few, many = calls_of(8), calls_of(32)
    assert many < 6 * few

"""Programs with many masks: right, and no condition so long that TVM's simplifier chokes on it."""

import time

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


def test_passes_take_time_in_proportion_to_the_masks():
    """Conditions are compared with those that are about the same thing, not each with each."""
    seconds = {}
    for count in (3, 8, 32):  # the first imports what there is to import
        start = time.process_time()
        tc.compile(sieve_of(count), static={"D": 4}, target="sm_80", dtype="float16")
        seconds[count] = time.process_time() - start
    assert seconds[32] < 10 * seconds[8]

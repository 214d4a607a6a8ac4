"""Kernels for any number of rows, called with few: variants of one kernel, and the same results."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from references import softmax

import tilecc as tc


@tc.spec
def cross(q: tc.Tensor["b h i:M d"], k: tc.Tensor["b h j:N d"], v: tc.Tensor["b h j:N e:D"]):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def suffix(q: tc.Tensor["b h i:M d"], k: tc.Tensor["b h j:N d"], v: tc.Tensor["b h j:N e:D"]):
    """Causal, the queries being the last of the keys."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    seen = tc.index("j") - tc.extent("j") <= tc.index("i") - tc.extent("i")
    return tc.dot(tc.softmax(tc.where(seen, s, -tc.inf), over="j"), v, over="j")


def reference(q, k, v, causal):
    q, k, v = (x.astype("f8") for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        i, j = np.indices(s.shape[-2:])
        s = np.where(j - s.shape[-1] <= i - s.shape[-2], s, -np.inf)
    return softmax(s) @ v


def variants(kernel):
    (executable,) = kernel._variants.executables.values()
    return set(executable.variants)


@pytest.mark.parametrize("spec", [cross, suffix], ids=lambda s: s.name)
def test_any_number_of_rows_is_right(spec):
    """Around the sizes of variants; one kernel by its own account, and few variants."""
    kernel = tc.compile(spec, static={"D": 16})
    rng = np.random.default_rng(0)
    for rows in (0, 1, 4, 5, 16, 17):
        for keys in (1, 65, 3000):
            q = rng.standard_normal((1, 2, rows, 16), np.float32)
            k, v = rng.standard_normal((2, 1, 2, keys, 16), np.float32)
            want = reference(q, k, v, spec is suffix)
            np.testing.assert_allclose(kernel(q, k, v), want, rtol=2e-5, atol=2e-5)
    assert variants(kernel) == {1, 4, 16}
    assert kernel.compilations == 1


def test_a_variant_is_built_once_by_several_threads():
    kernel = tc.compile(cross, static={"D": 16})
    rng = np.random.default_rng(1)
    q, (k, v) = (
        rng.standard_normal((1, 1, 1, 16), "f4"),
        rng.standard_normal((2, 1, 1, 99, 16), "f4"),
    )
    results = []
    workers = [threading.Thread(target=lambda: results.append(kernel(q, k, v))) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert len(results) == 4
    assert all(np.array_equal(results[0], r) for r in results)
    assert variants(kernel) == {1}


@pytest.mark.parametrize("tile", [32, {"i": 32, "j": 32}])
def test_sizes_that_are_given_hold_for_all_calls(tile):
    kernel = tc.compile(cross, static={"D": 16}, tile=tile)
    assert not hasattr(next(iter(kernel._variants.executables.values())), "variants")


def test_rows_that_grow_with_the_keys_need_no_variants():
    @tc.spec
    def own(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"], v: tc.Tensor["j:N e:D"]):
        return tc.dot(tc.softmax(tc.dot(q, k, over="d"), over="j"), v, over="j")

    kernel = tc.compile(own, static={"D": 16})
    assert not hasattr(next(iter(kernel._variants.executables.values())), "variants")

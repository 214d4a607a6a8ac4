"""Random numbers by counter: known answers, one for every tile and level, and dropout."""

import math

import numpy as np
import pytest

import tilecc as tc
from tilecc.errors import SpecError
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.philox import philox, philox4x32
from tilecc.ir.printer import print_ir

# Counter, key, result: Random123's kat_vectors for philox4x32 with 10 rounds.
KNOWN = [
    ("00000000 " * 6, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 6, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text):
    return [int(w, 16) for w in text.split()]


@pytest.mark.parametrize(("given", "answer"), KNOWN)
def test_known_answers(given, answer):
    *counter, k0, k1 = words(given)
    assert [int(w) for w in philox4x32(tuple(counter), (k0, k1))] == words(answer)
    seed = int(np.uint64(k1 << 32 | k0).astype(np.int64))
    assert int(philox(seed, *counter)) == words(answer)[0]


@tc.spec
def raw(c: tc.Tensor["i:N x:X", "int64"], seed: tc.Scalar("int64")):
    return tc.random_bits(seed, over="i x") + 0 * c, tc.random_uniform(seed, over="x i") + 0.0 * c


SEEDS = [0, 1, 2**32, -1, 12345678901234567]


@pytest.mark.parametrize("tile", [16, {"i": 32, "x": 16}])
def test_the_kernel_and_interp_give_the_same_bits(tile):
    kernel = tc.compile(raw, tile=tile)
    c = np.zeros((37, 21), "i8")
    i, x = np.indices(c.shape)
    for seed in SEEDS:
        want = philox(seed, i, x, 0, 0)
        uniform = (philox(seed, x, i, 0, 0) >> 8) * 2.0**-24
        for got in (kernel(c, seed), interpret(raw.trace("float32"), {"c": c, "seed": seed})):
            np.testing.assert_array_equal(got[0], want)
            np.testing.assert_array_equal(got[1], uniform)


def test_the_text_is_read_back():
    text = print_ir(raw.trace("float32"))
    assert "philox(%seed, index(i), index(x), 0, 0)" in text
    assert print_ir(parse_ir(text)) == text


def test_numbers_are_random():
    """Each of 32 bits is set half of the time, words of neighbours and seeds do not correlate."""
    n = 256
    i, j = np.indices((n, n))
    a = philox(3, i, j, 0, 0)
    sigma = 0.5 / n
    for bit in range(32):
        assert abs(np.mean(a >> bit & 1) - 0.5) < 5 * sigma, bit
    u = a / 2**32 - 0.5
    others = [philox(4, i, j, 0, 0), philox(3, i + 1, j, 0, 0), philox(3, i, j + 1, 0, 0)]
    for other in [*others, philox(3, j, i, 0, 0) * (i != j)]:
        assert abs(np.mean(u * (other / 2**32 - 0.5)) * 12) < 5 / n
    counts = np.bincount((a >> 26).ravel(), minlength=64)
    chi = np.sum((counts - n * n / 64) ** 2 / (n * n / 64))
    assert 25 < chi < 120  # 63 degrees of freedom: 63 +- 11


@pytest.mark.parametrize("rate", [0.25, 1e-9, 0.0, 1.0])
def test_keep_probability_is_exact_in_32_bits(rate):
    threshold = round((1 - rate) * 2**32)

    @tc.spec
    def kept(c: tc.Tensor["i:N x:X", "int64"], seed: tc.Scalar("int64")):
        return tc.random_bits(seed, over="i x") + c < threshold

    func = kept.trace("float32")
    c = np.arange(2**16).reshape(256, 256) * 0
    (got,) = interpret(func, {"c": c, "seed": 5})
    sigma = math.sqrt(rate * (1 - rate)) / 256
    assert abs(np.mean(got) - (1 - rate)) <= 5 * sigma + 2.0**-32


def load():
    from tilecc.dsl.load import load_spec

    return load_spec("examples/zoo/dropout.py")


def reference(q, k, v, seed):
    s = np.einsum("bhid,bhjd->bhij", q.astype("f8"), k.astype("f8")) / math.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
    p /= p.sum(-1, keepdims=True)
    kept = philox(seed, *np.indices(p.shape)) < 3 * 2**30
    return np.where(kept, p, 0) / 0.75 @ v.astype("f8")


def inputs(n, m, d=16):
    rng = np.random.default_rng(n + m)
    shapes = [(2, 2, n, d), (2, 2, m, d), (2, 2, m, d)]
    return [rng.standard_normal(s).astype("f4") for s in shapes]


@pytest.fixture(scope="module", params=[16, {"i": 32, "j": 64}], ids=str)
def dropout(request):
    return tc.compile(load(), static={"D": 16}, tile=request.param)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (15, 17), (16, 64), (65, 33), (3, 130)])
def test_dropout(dropout, n, m):
    """One walk over the keys, no mask in memory, and the same mask for every tile."""
    q, k, v = inputs(n, m)
    for seed in (0, 2**40 + 3):
        np.testing.assert_allclose(dropout(q, k, v, seed), reference(q, k, v, seed), atol=3e-6)
    assert dropout.compilations == 1


def test_dropout_is_one_pass(dropout):
    text = dropout.ir("fuse"), dropout.ir("exponents")
    assert [t.count("stream j") for t in text] == [2, 1]
    assert "alloc" not in text[1]


def test_wrong_uses_are_refused():
    @tc.spec
    def wrong(x: tc.Tensor["i:N j:M"], seed: tc.Scalar("float32")):
        a = tc.random_bits(seed, over="i j")
        b = tc.random_bits(7, over="i k")
        c = tc.random_bits(7, over="i i")
        d = tc.random_uniform(x, over="i j")
        return a + b + c + d

    with pytest.raises(SpecError) as e:
        wrong.trace("float32")
    text = str(e.value)
    assert "the seed is f32, not an integer" in text
    assert "the seed is a tensor over i, j, not an integer" in text
    assert "random_bits over i i" in text and "name one to four different axes" in text
    assert text.count("test_random.py") >= 4

"""Specs through the whole compiler, each against the interpreter and numpy, on guarded arrays."""

import numpy as np
import pytest
from kernels import Built, arrays, compare, place

import tilecc as tc

Q, K, V = tc.Tensor["b h i:N d"], tc.Tensor["b h j:N d"], tc.Tensor["b h j:N e:E"]
SLOW_F16 = pytest.param("float16", marks=pytest.mark.slow)
PLACES = ("end", "start", "padded", "permuted", "broadcast", "reversed")


@tc.spec
def causal(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def cross(q: tc.Tensor["b h i:N d"], k: tc.Tensor["b h j:M d"], v: tc.Tensor["b h j:M e:E"]):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j"), tc.logsumexp(s, over="j")


@tc.spec
def biased(q: Q, k: K, v: V, pair: tc.Tensor["h i:N j:N"], mask: tc.Tensor["b j:N", "bool"]):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d")) + pair
    s = tc.where(mask, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def probabilities(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    p = tc.softmax(s, over="j")
    return tc.dot(p, v, over="j"), p


@tc.spec
def gqa(q: tc.Tensor["b h i:N d"], k: tc.Tensor["b g j:M d"], v: tc.Tensor["b g j:M e:E"]):
    group = tc.index("h") // (tc.extent("h") // tc.extent("g"))
    s = tc.dot(q, k.at(g=group), over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i") + 3, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v.at(g=group), over="j")


@tc.spec
def paged(
    q: tc.Tensor["b h d"],
    k: tc.Tensor["p r:16 h d"],
    v: tc.Tensor["p r:16 h e:E"],
    table: tc.Tensor["b t:T", "int32"],
    length: tc.Tensor["b", "int32"],
    keys: tc.Tensor["j:S", "float32"],
):
    page, row = table.at(t=tc.index("j") // 16), tc.index("j") % 16
    s = tc.dot(q, k.at(p=page, r=row), over="d") * tc.rsqrt(tc.extent("d")) + keys * 0.0
    s = tc.where(tc.index("j") < length, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v.at(p=page, r=row), over="j")


@tc.spec
def layer_norm(x: tc.Tensor["b i:N c"], w: tc.Tensor["c"], bias: tc.Tensor["c"]):
    mean = tc.sum(x, over="c") / tc.extent("c")
    y = x - mean
    var = tc.sum(y * y, over="c") / tc.extent("c")
    return y * tc.rsqrt(var + 1e-5) * w + bias, mean


@tc.spec
def softmax_rows(x: tc.Tensor["b i:N j:M"]):
    return tc.softmax(x, over="j")


@tc.spec
def elementwise(x: tc.Tensor["a b"], y: tc.Tensor["b"], z: tc.Tensor["a b", "int8"]):
    s = x * tc.sigmoid(y) + z
    return s, tc.where(s > 0.5, z, 3), s > 0.0


@tc.spec
def matmul(a: tc.Tensor["i:N k"], b: tc.Tensor["k j:M"]):
    return tc.dot(a, b, over="k")


@tc.spec
def matmul_t(a: tc.Tensor["i:N k"], b: tc.Tensor["j:M k"]):
    return tc.dot(a, b, over="k")


@tc.spec
def statistics(x: tc.Tensor["i:N j:M", "int32"]):
    return tc.min(x, over="j"), tc.prod(x, over="j"), tc.max(x, over="j") > tc.sum(x, over="j")


@tc.spec
def total(x: tc.Tensor["i:N j:M", "int32"]):
    return tc.sum(x, over=("i", "j")), tc.max(tc.max(x, over="j"), over="i")


@tc.spec
def mixed(
    q: tc.Tensor["b h i:N d", "float32"],
    k: tc.Tensor["b h j:N d", "bfloat16"],
    v: tc.Tensor["b h j:N e:E", "float16"],
    m1: tc.Tensor["b j:N", "int8"],
    m2: tc.Tensor["i:N j:N", "uint8"],
    m3: tc.Tensor["h j:N", "int32"],
    scale: tc.Scalar("float64"),
    row: tc.Scalar("int32"),
):
    s = tc.dot(q, k, over="d") * tc.cast(scale, "float32")
    keep = (m1 != 0) & (m2 > 0) & (m3 < 1) | (tc.index("i") == row)
    s = tc.where(keep, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def layers(x: tc.Tensor["l i:N d"], layer: tc.Scalar("int64")):
    return tc.sum(x.at(l=layer), over="d")


def softmax(s):
    with np.errstate(all="ignore"):
        p = np.exp(s - np.where(np.isneginf(m := s.max(-1, keepdims=True, initial=-np.inf)), 0, m))
        return p / p.sum(-1, keepdims=True)


def attention(q, k, v, bias=0.0):
    q, k, v = (np.asarray(x, "f8") for x in (q, k, v))
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias) @ v


def lower(n, m):
    return np.where(np.arange(m) <= np.arange(n)[:, None], 0.0, -np.inf)


# Head sizes (d, e), tile sizes of i and j, and lengths.
SHAPES = [
    ((1, 1), (1, 1), (0, 1, 5)),
    ((3, 5), (2, 3), (1, 7)),
    ((16, 16), (5, 16), (33,)),
    ((33, 16), (8, 48), (50, 96)),
    ((72, 40), (16, 64), (70,)),
    ((80, 80), (20, 100), (101,)),
    ((96, 33), (48, 16), (49, 97)),
    ((128, 160), (64, 48), (130,)),
    ((160, 128), (100, 64), (99, 201)),
    ((256, 256), (128, 100), (129,)),
]
QUICK = (1, 3, 6)


@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, marks=() if n in QUICK else pytest.mark.slow) for n, s in enumerate(SHAPES)],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_head_sizes_and_tiles(shape, dtype):
    (d, e), (ti, tj), lengths = shape
    built = Built(causal, {"i": ti, "j": tj}, {"D": d, "E": e}, dtype)
    for n in lengths:
        for how in PLACES:
            q, k, v = arrays(built.source, {"B": 2, "H": 3, "N": n, "D": d, "E": e}, n)
            (out,) = built.check([q, k, v], how=how)
            if how == "end":
                want = attention(q, k, v, lower(n, n))
                compare(out, want, 1e-5 if dtype == "float32" else 3e-2)


@pytest.mark.parametrize("n", [1, 70, 100])
@pytest.mark.parametrize("m", [1, 70, 100])
@pytest.mark.slow
def test_static_lengths_that_tiles_do_not_divide(n, m):
    built = Built(cross, {"i": 64, "j": 48}, {"N": n, "M": m, "D": 20, "E": 12})
    for how in ("end", "start", "padded"):
        built.check(
            arrays(built.source, {"B": 1, "H": 2, "N": n, "M": m, "D": 20, "E": 12}), how=how
        )


def test_static_lengths():
    built = Built(cross, {"i": 64, "j": 48}, {"N": 70, "M": 100, "D": 20, "E": 12})
    for how in ("end", "start", "padded"):
        built.check(
            arrays(built.source, {"B": 1, "H": 2, "N": 70, "M": 100, "D": 20, "E": 12}), how=how
        )


def test_no_keys():
    built = Built(cross, 16, {"D": 8, "E": 8})
    out, lse = built.check(arrays(built.source, {"B": 1, "H": 2, "N": 5, "M": 0, "D": 8, "E": 8}))
    assert np.isnan(out).all() or (out == 0).all()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("dtype", ["float32", SLOW_F16, "bfloat16", "float64"])
def test_pair_bias_and_mask(dtype):
    built = Built(biased, {"i": 32, "j": 32}, {"D": 24, "E": 16}, dtype)
    for n in (1, 31, 64, 75):
        for how in PLACES:
            built.check(
                arrays(built.source, {"B": 2, "H": 2, "N": n, "D": 24, "E": 16}, n), how=how
            )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_probabilities_returned(dtype):
    built = Built(probabilities, {"i": 16, "j": 32}, {"D": 8, "E": 8}, dtype)
    for n in (0, 1, 37, 64):
        _, p = built.check(arrays(built.source, {"B": 1, "H": 2, "N": n, "D": 8, "E": 8}, n))
        if n:
            compare(p.sum(-1, dtype="f8"), np.ones((1, 2, n)), 1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "tile",
    [{"h": 4, "i": 1, "j": 64}, {"h": 8, "i": 4, "j": 20}, {"h": 1, "i": 16, "j": 16}],
    ids=str,
)
def test_grouped_heads(dtype, tile):
    static = {"D": 32, "E": 32, "H": 8, "G": 2}
    try:
        built = Built(gqa, tile, static, dtype)
    except tc.CompileError as e:
        pytest.skip(str(e))
    for n, m in ((1, 1), (1, 67), (9, 70)):
        built.check(arrays(built.source, {"B": 2, "N": n, "M": m, **static}, n))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", SLOW_F16])
@pytest.mark.parametrize("tile", [16, {"j": 64}, {"h": 4, "j": 24}], ids=str)
def test_pages(dtype, tile):
    static = {"D": 32, "E": 16, "H": 4}
    built = Built(paged, tile, static, dtype)
    rng = np.random.default_rng(0)
    for pages, size in ((1, 5), (6, 83), (6, 96)):
        b, t = 3, -(-size // 16)
        length = np.array([size, max(size - 20, 1), 1])
        table = rng.permutation(np.arange(b * t) % pages).reshape(b, t)
        table[np.arange(t) * 16 >= length[:, None]] = 2**30  # never read
        ext = {"B": b, "P": pages, "T": t, "S": size, **static}
        q, k, v, *_ = ins = arrays(
            built.source, ext, size, table=table, length=length, keys=np.zeros(size)
        )
        ok = np.where(np.abs(table) < pages, table, 0)
        kk, vv = (
            x.astype("f8")[ok].reshape(b, t * 16, 4, -1)[:, :size].swapaxes(1, 2) for x in (k, v)
        )
        bias = np.where(np.arange(size) < length[:, None], 0, -np.inf)[:, None, None]
        want = attention(q[:, :, None], kk, vv, bias)[:, :, 0]
        built.check(ins, [want])


@pytest.mark.parametrize("c", [1, 7, 48, 70])
def test_layer_norm(c):
    built = Built(layer_norm, 16, {"C": c})
    for n in (0, 1, 17):
        ins = arrays(built.source, {"B": 2, "N": n, "C": c}, n)
        for how in PLACES:
            built.check(ins, how=how)
        x, w, b = (a.astype("f8") for a in ins)
        y = x - x.mean(-1, keepdims=True)
        want = y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-5) * w + b
        built.check(ins, [want, x.mean(-1)], 1e-4)


@pytest.mark.parametrize("tile", [1, 16, {"i": 5, "j": 7}, {"i": 3, "j": 64}], ids=str)
def test_softmax_of_rows(tile):
    built = Built(softmax_rows, tile)
    for n, m in ((1, 1), (7, 70), (3, 129), (2, 0)):
        ins = arrays(built.source, {"B": 2, "N": n, "M": m}, n)
        for how in PLACES:
            built.check(ins, how=how)
        built.check(ins, [softmax(ins[0].astype("f8"))])


def test_elementwise_of_three_types():
    built = Built(elementwise, None)
    for a, b in ((1, 1), (5, 70), (0, 3), (3, 0), (33, 16)):
        for how in PLACES:
            built.check(arrays(built.source, {"A": a, "B": b}, a), how=how)


@pytest.mark.parametrize("spec", [matmul, matmul_t])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "size", [(1, 1, 1), (5, 3, 7), pytest.param((70, 100, 33), marks=pytest.mark.slow)], ids=str
)
def test_products(spec, dtype, size):
    n, m, k = size
    built = Built(spec, 16 if n < 10 else 48, {"K": k, **({"M": m} if n == 5 else {})}, dtype)
    for rows in (n, n + 1, 3 * n + 2):
        for how in PLACES:
            ins = arrays(built.source, {"N": rows, "M": m, "K": k}, n)
            (out,) = built.check(ins, how=how)
        a, b = (x.astype("f8") for x in ins)
        want = (a @ (b if spec is matmul else b.T)) if how == "end" else None
        if want is not None:
            compare(out, want, 1e-5)


def test_reductions_of_integers():
    x = np.random.default_rng(0).integers(-3, 4, (21, 37)).astype("i4")
    most, sums = x.max(1), x.sum(1)
    want = x.min(1), x.prod(1, dtype="i8"), most > sums
    got = Built(statistics, 16).check([x], [np.asarray(w) for w in want], 0.0)
    assert [g.dtype.name for g in got] == ["int32", "int64", "bool"]
    Built(total, 16, {"M": 37}).check([x], [np.asarray(x.sum()), np.asarray(x.max())], 0.0)


def test_types_side_by_side():
    built = Built(mixed, {"i": 32, "j": 16}, {"D": 24, "E": 20})
    for n in (1, 45, 64):
        extents = {"B": 2, "H": 2, "N": n, "D": 24, "E": 20}
        ins = arrays(built.source, extents, n, scale=0.25, row=2)
        for how in PLACES:
            built.check(ins, how=how, tolerance=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cache_without_pages(dtype):
    static = {"D": 32, "E": 16, "H": 4}
    built = Built(paged, 16, static, dtype)
    extents = {"B": 2, "P": 0, "T": 3, "S": 40, **static}
    given = {"table": np.full((2, 3), 7), "length": [0, 0], "keys": np.zeros(40)}
    (out,) = built.check(arrays(built.source, extents, **given), [np.zeros((2, 4, 16))])
    assert out.shape == (2, 4, 16)


def test_a_layer_that_is_not_there_reads_no_other_memory():
    built = Built(layers, 16, {"D": 48})
    ins = arrays(built.source, {"L": 3, "N": 20, "D": 48}, layer=1)
    built.check(ins)
    for layer in (3, -1, 2**40, -(2**62)):
        built.run([place(ins[0]), np.asarray(layer)], {"L": 3, "N": 20, "D": 48})

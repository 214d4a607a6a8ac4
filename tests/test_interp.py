"""The interpreter against float64 numpy, at all levels of the IR."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from tilecc.errors import ArgumentError, IRError
from tilecc.ir.core import bind_extents
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.ir.verifier import verify

C = 1.4426950408889634  # log2(e)

GRAPH = """
func @causal(%q: f32[b:B, h:H, i:N, d:D], %k: f32[b, h, j:M, d], %v: f32[b, h, j, e:E]) {
  %s = contract %q, %k over d : f32[b, h, i, j]
  %s_1 = map %s * rsqrt(D) : f32[b, h, i, j]
  %s_2 = map where(index(j) + 2 <= index(i), %s_1, -inf) : f32[b, h, i, j]
  %p = softmax %s_2 over j : f32[b, h, i, j]
  %o = contract %p, %v over j : f32[b, h, i, e]
  %lse = logsumexp %s_2 over j : f32[b, h, i]
  return %o, %lse
}
"""

LOOP = """
func @causal(%q: f32[b:B, h:H, i:N, d:D], %k: f32[b, h, j:M, d], %v: f32[b, h, j, e:E]) {
  %o, %lse, %s_2 = kernel over b, h, i {
    %m, %l, %acc, %s = stream j WHERE {
      %s_1 = contract %q, %k over d : f32[b, h, i, j]
      %x = map where(index(j) + 2 <= index(i), %s_1 * rsqrt(D), -inf) : f32[b, h, i, j]
      %r = reduce max %x over j : f32[b, h, i]
      %m_1 = update max %r : f32[b, h, i]
      %g = map where(%m_1 == -inf, 0.0, %m_1) : f32[b, h, i]
      %p = map exp(%x - %g) : f32[b, h, i, j]
      %r_1 = reduce sum %p over j : f32[b, h, i]
      %l_1 = update sum %r_1 repair acc * exp(old(%m_1) - %g) : f32[b, h, i]
      %pv = contract %p, %v over j : f32[b, h, i, e]
      %acc_1 = update sum %pv repair acc * exp(old(%m_1) - %g) : f32[b, h, i, e]
      yield %m_1, %l_1, %acc_1, YIELD
    }
    %z = map where(%l == 0.0, 0.0, %acc / %l) : f32[b, h, i, e]
    %w = map where(%m == -inf, -inf, %m + log(%l)) : f32[b, h, i]
    yield %z, %w, %s
  }
  return %o, %lse, %s_2
}
"""

TILE = """
func @causal(%q: f32[b:B, h:H, i:N, d:4], %k: f32[b, h, j:M, d], %v: f32[b, h, j, e:3]) {
  %O = alloc : f32[b, h, i, e]
  %L = alloc : f32[b, h, i]
  kernel grid(%b: B, %h: H, %qi: ceildiv(N, 16)) {
    %q_t = load %q[%b, %h, %qi * 16 :+ i, 0 :+ d] pad i : sram f32[i:16, d:4]
    %m0 = map -inf : reg f32[i:16]
    %l0 = map 0.0 : reg f32[i:16]
    %a0 = map 0.0 : reg f32[i:16, e:3]
    %m, %l, %acc = for %kj in 0 .. minimum(ceildiv(M, 8), %qi * 2 + 2)
        carry(%m_c = %m0, %l_c = %l0, %a_c = %a0) {
      %k_t = load %k[%b, %h, %kj * 8 :+ j, 0 :+ d] pad j : sram f32[j:8, d:4]
      %v_t = load %v[%b, %h, %kj * 8 :+ j, 0 :+ e] pad j : sram f32[j:8, e:3]
      %s = contract %q_t, %k_t over d : reg f32[i:16, j:8]
      %live = map (%kj * 8 + index(j) + 2 <= %qi * 16 + index(i)) & (%kj * 8 + index(j) < M)
          : reg bool[i:16, j:8]
      %x = map where(%live, %s * 0.5, -inf) : reg f32[i:16, j:8]
      %r = reduce max %x over j : reg f32[i:16]
      %m1 = map maximum(%m_c, %r) : reg f32[i:16]
      %g = map where(%m1 == -inf, 0.0, %m1) : reg f32[i:16]
      %c = map exp(%m_c - %g) : reg f32[i:16]
      %p = map exp(%x - %g) : reg f32[i:16, j:8]
      %r_1 = reduce sum %p over j : reg f32[i:16]
      %l1 = map %l_c * %c + %r_1 : reg f32[i:16]
      %a = map %a_c * %c : reg f32[i:16, e:3]
      %a1 = contract %p, %v_t over j acc %a : reg f32[i:16, e:3]
      yield %m1, %l1, %a1
    }
    %z = map where(%l == 0.0, 0.0, %acc / %l) : reg f32[i:16, e:3]
    %w = map where(%m == -inf, -inf, %m + log(%l)) : reg f32[i:16]
    store %z, %O[%b, %h, %qi * 16 :+ i, 0 :+ e] clip i
    store %w, %L[%b, %h, %qi * 16 :+ i] clip i
  }
  return %O, %L
}
"""


def parse(text):
    func = parse_ir(text)
    verify(func)
    return func


def run(text, *inputs, **options):
    return interpret(parse(text), inputs, **options)


def qkv(n, m, b=2, h=2, d=4, e=3, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (b, h, n, d), (b, h, m, d), (b, h, m, e)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def reference(q, k, v):
    """Causal attention by two steps (rows 0 and 1 are masked throughout) in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    n, m = s.shape[2:]
    live = np.arange(m)[None, :] + 2 <= np.arange(n)[:, None]
    p = np.where(live, np.exp(s), 0)
    total = p.sum(-1)
    with np.errstate(all="ignore"):
        o = np.where(total[..., None] > 0, np.einsum("bhij,bhje->bhie", p, v) / total[..., None], 0)
        return o, np.log(total), np.where(live, s, -np.inf)


SIZES = [(0, 0), (0, 3), (3, 0), (1, 1), (7, 7), (17, 5), (15, 33), (16, 16), (63, 65), (65, 64)]


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_graph(n, m):
    q, k, v = qkv(n, m)
    for exact, tol in ((False, 3e-6), (True, 1e-13)):
        o, lse = run(GRAPH, q, k, v, exact=exact)
        want_o, want_lse, _ = reference(q, k, v)
        np.testing.assert_allclose(o, want_o, atol=tol)
        np.testing.assert_allclose(lse, want_lse, atol=tol)


@pytest.mark.parametrize("where", ["", "where index(j) + 2 <= index(i)"])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_loop(n, m, where):
    q, k, v = qkv(n, m)
    for emitted in ("%x", "%l_1") if not where else ("%l_1",):
        text = LOOP.replace("WHERE", where).replace("YIELD", emitted)
        for chunk in (1, 4, 16, 1000):
            got = run(text, q, k, v, chunk=chunk, exact=True)
            want = reference(q, k, v)
            for a, b in zip(got[: 3 if emitted == "%x" else 2], want, strict=False):
                np.testing.assert_allclose(a, b, atol=1e-13)


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_tile(n, m):
    q, k, v = qkv(n, m)
    for exact, tol in ((False, 3e-6), (True, 1e-13)):
        got = run(TILE, q, k, v, exact=exact)
        for a, b in zip(got, reference(q, k, v)[:2], strict=True):
            np.testing.assert_allclose(a, b, atol=tol)


def test_skipped_chunks_are_skipped():
    # NaN keys in chunks where the predicate is false must not be touched.
    q, k, v = qkv(8, 32)
    k[:, :, 16:] = np.nan
    v[:, :, 16:] = np.nan
    text = LOOP.replace("WHERE", "where index(j) + 2 <= index(i)").replace("YIELD", "%l_1")
    assert not np.isnan(run(text, q, k, v, chunk=16)[0]).any()


# element types


def evaluate(expr, result="f32[i:N]", params="%x: f32[i:N], %y: i64[i]", inputs=None, **options):
    text = f"func @f({params}) {{\n  %z = map {expr} : {result}\n  return %z\n}}"
    if inputs is None:
        inputs = np.array([1.5, -2.25, 3.0], np.float32), np.array([7, -7, 0])
    return run(text, *inputs, **options)[0]


@pytest.mark.parametrize(
    ("expr", "result", "want"),
    [
        ("%x * %y", "f32[i:N]", np.array([10.5, 15.75, 0], np.float32)),
        ("%x + index(i) * 0.1", "f32[i:N]", None),
        ("%y // 2", "i64[i:N]", np.array([3, -4, 0])),
        ("%y % 4", "i64[i:N]", np.array([3, 1, 0])),
        ("%y / 2", "f32[i:N]", np.array([3.5, -3.5, 0], np.float32)),
        ("ceildiv(%y, 2)", "i64[i:N]", np.array([4, -3, 0])),
        ("index(i) * N", "i64[i:N]", np.array([0, 3, 6])),
        ("%x > 0", "bool[i:N]", np.array([True, False, True])),
        ("(%x > 0) & ~(%y > 0)", "bool[i:N]", np.array([False, False, True])),
        ("where(%x > 0, %x, 0)", "f32[i:N]", np.array([1.5, 0, 3], np.float32)),
        ("cast(%x, i32)", "i32[i:N]", np.array([1, -2, 3], np.int32)),
        ("cast(%x, f64) / 3", "f64[i:N]", np.array([0.5, -0.75, 1.0])),
        ("rsqrt(N + 1)", "f32[i:N]", np.full(3, 0.5, np.float32)),
        ("maximum(%x, nan)", "f32[i:N]", np.full(3, np.nan, np.float32)),
        ("-inf", "f32[i:N]", np.full(3, -np.inf, np.float32)),
        ("-inf", "f64[i:N]", np.full(3, -np.inf)),
        ("-true + %y", "i64[i:N]", np.array([6, -8, -1])),
        ("%x == 1.5", "bool[i:N]", np.array([True, False, False])),
    ],
)
def test_expression_types(expr, result, want):
    got = evaluate(expr, result)
    if want is None:
        f = np.float32
        want = np.array([1.5, -2.25, 3.0], f) + np.arange(3).astype(f) * f(0.1)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_literals_fold_in_double_precision():
    got = evaluate("%x * (1 / 3)", params="%x: f64[i:N]", result="f64[i:N]", inputs=[[1.0]])
    assert got[0] == 1 / 3


def test_narrow_types_round_at_casts_only():
    x = np.array([1.0, 1.0 + 2**-7], ml_dtypes.bfloat16)
    text = "%x: bf16[i:N]"
    wide = evaluate("%x + 0.00001", params=text, inputs=[x])
    assert wide.dtype == np.float32 and wide[0] == np.float32(1) + np.float32(0.00001)
    narrow = evaluate("cast(%x + 0.00001, bf16)", "bf16[i:N]", params=text, inputs=[x])
    assert narrow.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(narrow, x)
    exact = evaluate("cast(%x + 0.00001, bf16)", "bf16[i:N]", params=text, inputs=[x], exact=True)
    assert exact.dtype == np.float64 and exact[0] == 1.00001


def test_inputs_are_rounded_to_their_type():
    got = evaluate("%x + 0", params="%x: f16[i:N]", inputs=[np.array([1.0001], np.float32)])
    assert got[0] == 1.0
    got = evaluate("%x + 0", params="%x: f16[i:N]", inputs=[np.array([1.0001])], exact=True)
    assert got[0] == 1.0001


# reductions and contractions

SPECIAL = np.array([[1, np.nan, 3], [-np.inf, np.inf, 0], [-np.inf, -np.inf, -np.inf]], np.float32)


@pytest.mark.parametrize("kind", ["max", "min", "sum", "prod"])
@pytest.mark.parametrize("x", [SPECIAL, np.zeros((2, 0), np.float32)])
def test_reduce(kind, x):
    text = f"""
    func @f(%x: f32[i:N, j:M]) {{
      %r = reduce {kind} %x over j : f32[i]
      return %r
    }}"""
    start = {"max": -np.inf, "min": np.inf, "sum": 0, "prod": 1}[kind]
    ufunc = {"max": np.maximum, "min": np.minimum, "sum": np.add, "prod": np.multiply}[kind]
    with np.errstate(all="ignore"):
        want = ufunc.reduce(x.astype(float), axis=1, initial=start)
    np.testing.assert_array_equal(run(text, x)[0], want)


def test_reduce_of_integers_and_bools():
    text = """
    func @f(%x: i32[i:N, j:M], %y: bool[i, j]) {
      %a = reduce max %x over i, j : i32
      %b = reduce sum %y over j : i64[i]
      %c = reduce max %y over j : bool[i]
      return %a, %b, %c
    }"""
    x, y = np.array([[1, -5], [2, 0]], np.int32), np.array([[True, True], [False, False]])
    a, b, c = run(text, x, y)
    assert a.dtype == np.int32 and a.shape == () and a == 2
    np.testing.assert_array_equal(b, [2, 0])
    np.testing.assert_array_equal(c, [True, False])
    a, b, c = run(text, x[:, :0], y[:, :0])
    assert a == np.iinfo(np.int32).min and not b.any() and not c.any()


def test_softmax_of_special_rows():
    text = """
    func @f(%x: f32[i:N, j:M]) {
      %p = softmax %x over j : f32[i, j]
      %l = logsumexp %x over j : f32[i]
      return %p, %l
    }"""
    x = np.array([[-np.inf] * 3, [np.nan, 0, -np.inf], [-np.inf, 1e4, 1e4]], np.float32)
    p, l = run(text, x)
    np.testing.assert_array_equal(p, [[0] * 3, [np.nan] * 3, [0, 0.5, 0.5]])
    np.testing.assert_array_equal(l, np.array([-np.inf, np.nan, 1e4 + np.log(2)], np.float32))
    p, l = run(text, x[:, :0])
    assert p.shape == (3, 0) and (l == -np.inf).all()


CONTRACTIONS = [  # a, b, over
    ("ik", "kj", "k"),
    ("bik", "bjk", "k"),
    ("kbi", "jkb", "k"),
    ("ik", "k", "k"),
    ("k", "k", "k"),
    ("ikl", "lk", "kl"),
    ("ikl", "kj", "kl"),
    ("bhik", "hk", "bk"),
]


@pytest.mark.parametrize(("a", "b", "over"), CONTRACTIONS)
def test_contract(a, b, over):
    sizes = dict(zip("bhijkl", (2, 3, 4, 5, 6, 7), strict=True))
    out = "".join(dict.fromkeys(c for c in a + b if c not in over))

    def axes(s, out=False):
        return "[" + ", ".join(f"{c}:{c.upper()}" for c in s) + "]" if s else ""

    text = f"""
    func @f(%a: f32{axes(a)}, %b: f32{axes(b)}) {{
      %c = contract %a, %b over {", ".join(over)} : f32{axes(out)}
      return %c
    }}"""
    rng = np.random.default_rng(0)
    for empty in ("", *over):
        x, y = (rng.standard_normal([0 if c in empty else sizes[c] for c in s]) for s in (a, b))
        got = run(text, x, y, exact=True)[0]
        np.testing.assert_allclose(got, np.einsum(f"{a},{b}->{out}", x, y), atol=1e-12)


def test_contract_keeps_ieee_rules():
    # 0 * inf is NaN in every shape that a matrix product may take.
    text = """
    func @f(%a: f32[i:I, k:K], %b: f32[j:J, k]) {
      %c = contract %a, %b over k : f32[i, j]
      return %c
    }"""
    for i, j, k in itertools.product((1, 2, 9), (1, 3, 17), (1, 5, 16)):
        a, b = np.zeros((i, k), np.float32), np.ones((j, k), np.float32)
        b[0, -1] = np.inf
        got = run(text, a, b)[0]
        assert np.isnan(got[:, 0]).all() and (got[:, 1:] == 0).all(), (i, j, k)


def test_contract_of_one_and_three_and_of_integers():
    text = """
    func @f(%a: i32[i:I, j:J], %b: f32[j], %c: f32[j, k:K]) {
      %s = contract %a over j : i64[i]
      %t = contract %a, %b, %c over j : f32[k, i]
      return %s, %t
    }"""
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(-9, 9, (3, 4)), rng.random(4), rng.random((4, 5))
    s, t = run(text, a, b, c, exact=True)
    np.testing.assert_array_equal(s, a.sum(1))
    np.testing.assert_allclose(t, np.einsum("ij,j,jk->ki", a, b, c))


# at

AT = """
func @f(%x: f32[n:P, d:D], %t: i64[j:N]) {
  %y = at %x[n = EXPR] : f32[j, d]  # spec.py:7
  %z = map where(COND, %y, -1.0) : f32[j, d]
  return %z
}
"""


def at(expr, cond, table, x=None):
    x = np.arange(8.0).reshape(4, 2) if x is None else x
    return run(AT.replace("EXPR", expr).replace("COND", cond), x, np.array(table))[0]


def test_at_gathers():
    np.testing.assert_array_equal(at("%t", "true", [3, 0, 3]), [[6, 7], [0, 1], [6, 7]])
    np.testing.assert_array_equal(at("index(j) // 2", "true", [0] * 3), [[0, 1], [0, 1], [2, 3]])


def test_at_outside_under_a_mask():
    got = at("%t", "(%t >= 0) & (%t < P)", [-1, 4, 1])
    np.testing.assert_array_equal(got, [[-1, -1], [-1, -1], [2, 3]])
    x = np.zeros((0, 2))
    np.testing.assert_array_equal(at("%t", "false", [0], x), [[-1, -1]])


@pytest.mark.parametrize("table", [[-1, 0], [0, 4]])
def test_at_outside_that_shows(table):
    with pytest.raises(IRError, match=r"spec\.py:7: at: a read outside of %x reaches an output"):
        at("%t", "true", table)


def test_at_of_nan_is_no_error():
    x = np.full((4, 2), np.nan)
    assert np.isnan(at("%t", "%t >= 0", [0, 1, 3], x)).all()
    assert np.isnan(at("%t", "%t >= 0", [0, -1, 3], x)).sum() == 4


def test_at_outside_with_weight_zero():
    text = """
    func @f(%x: f32[n:P, d:D], %s: f32[j:N], %n: i64) {
      %y = at %x[n = index(j)] : f32[j, d]
      %m = map where(index(j) < %n, %s, -inf) : f32[j]
      %p = softmax %m over j : f32[j]
      %o = contract %p, %y over j : f32[d]
      return %o
    }"""
    x = np.arange(6.0).reshape(3, 2)
    np.testing.assert_allclose(run(text, x, np.zeros(5), 3)[0], x.mean(0))
    with pytest.raises(IRError, match="read outside of %x"):
        run(text, x, np.zeros(5), 4)


def test_at_through_a_table_of_integers():
    text = """
    func @f(%x: f32[n:P], %t: i64[m:Q], %u: i64[j:N]) {
      %p = at %t[m = %u] : i64[j]
      %y = at %x[n = %p] : f32[j]
      %z = map where(%u < Q, %y, 0.0) : f32[j]
      return GIVEN
    }"""
    x, t = np.arange(5.0), np.array([4, 2, 0])
    np.testing.assert_array_equal(run(text.replace("GIVEN", "%z"), x, t, [1, 3, 0])[0], [2, 0, 4])
    for given in ("%p", "%y"):
        with pytest.raises(IRError, match="read outside of %t reaches"):
            run(text.replace("GIVEN", given), x, t, [1, 3, 0])


def test_at_in_a_stream_reads_the_whole_axis():
    text = """
    func @f(%x: f32[j:N], %y: f32[p:P, j]) {
      %o, %a = kernel {
        %s, %c = stream j {
          %a = at %x[j = N - 1 - index(j)] : f32[j]
          %b = at %y[p = index(j) % P] : f32[j]
          %c = map %a * %b : f32[j]
          %r = reduce sum %c over j : f32
          %s = update sum %r : f32
          yield %s, %c
        }
        yield %s, %c
      }
      return %o, %a
    }"""
    rng = np.random.default_rng(0)
    x, y = rng.random(11), rng.random((3, 11))
    want = x[::-1] * y[np.arange(11) % 3, np.arange(11)]
    for chunk in (1, 4, 11, 64):
        total, parts = run(text, x, y, exact=True, chunk=chunk)
        np.testing.assert_allclose(parts, want)
        np.testing.assert_allclose(total, want.sum())


def test_two_streams():
    text = """
    func @f(%x: f32[i:N, j:M]) {
      %o = kernel over i {
        %m, %y = stream j {
          %y = map %x * 2.0 : f32[i, j]
          %r = reduce max %y over j : f32[i]
          %m = update max %r : f32[i]
          yield %m, %y
        }
        %z, %w = stream j {
          %z = map %y - %m : f32[i, j]
          %s = reduce prod %z over j : f32[i]
          %w = update prod %s : f32[i]
          yield %z, %w
        }
        %v = map %z + %w : f32[i, j]
        yield %v
      }
      return %o
    }"""
    x = np.random.default_rng(0).random((3, 10))
    z = 2 * x - (2 * x).max(1, keepdims=True)
    for chunk in (1, 3, 16):
        got = run(text, x, exact=True, chunk=chunk)[0]
        np.testing.assert_allclose(got, z + z.prod(1, keepdims=True))
    assert run(text, np.zeros((3, 0)))[0].shape == (3, 0)


# tile IR

TILES = """
func @f(%x: f32[n:N, m:M], %t: i64[m]) {
  %O = alloc : f32[m, n]  # spec.py:3
  kernel grid(%a: ceildiv(N, 4), %b: ceildiv(M, 3)) {
    %y = load %x[XN :+ i, XM] PAD : sram f32[j:3, i:4]  # spec.py:4
    store %y, %O[OM, %a * 4 :+ i] CLIP  # spec.py:5
  }
  return %O
}
"""


def tiles(n=9, m=7, table=None, **parts):
    defaults = {"XN": "%a * 4", "XM": "%b * 3 :+ j", "PAD": "pad i, j"}
    defaults |= {"OM": "%b * 3 :+ j", "CLIP": "clip i, j"}
    text = TILES
    for name, part in (defaults | parts).items():
        text = text.replace(name, part)
    x = np.arange(1.0, 1 + n * m).reshape(n, m)
    return x, run(text, x, np.arange(m) if table is None else np.array(table))[0]


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 2), (1, 1), (4, 3), (9, 7), (8, 2)])
def test_load_and_store_boxes(n, m):
    x, got = tiles(n, m)
    np.testing.assert_array_equal(got, x.T)


def test_load_shifted_by_a_negative_amount_pads():
    x, got = tiles(XN="%a * 4 - 2")
    np.testing.assert_array_equal(got, np.vstack([np.zeros((2, 7)), x[:7]]).T)
    x, got = tiles(XN="%a * 4 - 20")
    assert not got.any()


def test_load_gathers():
    x, got = tiles(XM="minimum(M - 1, %b * 3 + index(j))")
    np.testing.assert_array_equal(got, x.T)
    x, got = tiles(XM="M - 1 - (%b * 3 + index(j))")
    np.testing.assert_array_equal(got, x[:, ::-1].T)


def test_store_scatters():
    x, got = tiles(OM="M - 1 - (%b * 3 + index(j))")
    np.testing.assert_array_equal(got, x[:, ::-1].T)


def test_gather_through_a_loaded_table():
    text = """
    func @f(%x: f32[n:N, d:2], %t: i64[m:M]) {
      %O = alloc : f32[m, d]
      kernel grid(%a: ceildiv(M, 4)) {
        %p = load %t[%a * 4 :+ j] pad j : sram i64[j:4]
        %y = load %x[%p, 0 :+ d] PAD : sram f32[j:4, d:2]
        store %y, %O[%a * 4 :+ j, 0 :+ d] clip j
      }
      return %O
    }"""
    x, t = np.arange(10.0).reshape(5, 2), np.array([4, 0, 2, 2, 7])
    np.testing.assert_array_equal(run(text.replace("PAD", ""), x, t[:4])[0], x[t[:4]])
    with pytest.raises(IRError, match=r"coordinate 7 of axis n of %x is outside 0 \.\. 5"):
        run(text.replace("PAD", ""), x, t)
    got = run(text.replace("PAD", "pad j"), x, t)[0]
    np.testing.assert_array_equal(got, [*x[t[:4]], [0, 0]])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"PAD": "pad j"}, r"spec\.py:4: load: coordinate 8 to 11 of axis n of %x is outside"),
        ({"PAD": "pad i"}, r"spec\.py:4: load: coordinate 6 to 8 of axis m of %x"),
        ({"CLIP": "clip i"}, r"spec\.py:5: store: coordinate 6 to 8 of axis m of %O"),
        ({"OM": "%b * 3 + 1 :+ j"}, r"spec\.py:3: alloc: 9 elements of %O are never stored"),
        ({"XM": "%b * 9 :+ j", "PAD": "pad i, j", "OM": "%b * 9 :+ j"}, r"never stored: \(3, 0\)"),
        ({"XM": "index(j) + M", "PAD": "pad i"}, r"spec\.py:4: load: coordinate 7 of axis m"),
    ],
)
def test_tile_errors(parts, message):
    with pytest.raises(IRError, match=message):
        tiles(**parts)


def test_points_integers_and_empty_tensors():
    text = """
    func @f(%x: i32[i:N], %y: bool[j:M]) {
      %A = alloc : i32[k:2]
      %B = alloc : bool[k]
      kernel grid(%a: 2) {
        %x_1 = load %x[%a + 1] : reg i32
        %y_1 = load %y[%a + index(l)] pad l : reg bool[l:2]
        %y_2 = reduce max %y_1 over l : reg bool
        store %x_1, %A[%a]
        store %y_2, %B[%a]
      }
      return %A, %B
    }"""
    a, b = run(text, [1, 2, 3], [False, True])
    assert a.dtype == np.int32 and b.dtype == np.bool_
    np.testing.assert_array_equal(a, [2, 3])
    np.testing.assert_array_equal(b, [True, True])
    np.testing.assert_array_equal(run(text, [1, 2, 3], np.zeros(0, bool))[1], [False, False])
    with pytest.raises(IRError, match=r"load: coordinate 2 of axis i of %x is outside 0 \.\. 2"):
        run(text, [1, 2], [False, True])


def test_workspace_between_kernels_and_if():
    text = """
    func @f(%x: f32[i:N]) {
      %W = alloc : f32[i]
      %O = alloc : f32[i]
      kernel grid(%a: N) {
        %y = load %x[%a] : reg f32
        %z = if %a % 2 == 0 {
          %u = map %y * 2.0 : reg f32
          yield %u
        } else {
          %u = map -%y : reg f32
          yield %u
        }
        store %z, %W[N - 1 - %a]
      }
      kernel grid(%a: N) {
        %y = load %W[%a] : reg f32
        %n = map %y + 1.0 : reg f32
        store %n, %O[%a]
        store %n, %W[%a]
        %e = for %k in 0 .. 3 carry(%c = %y) {
          %d = map %c + cast(%k, f32) : reg f32
          yield %d
        }
        %e_1 = map %e : reg f32
        store %e_1, %O[%a]
      }
      return %O, %W
    }"""
    x = np.arange(5, dtype=np.float32)
    w = np.where(np.arange(5) % 2 == 0, 2 * x, -x)[::-1]
    got = run(text, x)
    np.testing.assert_array_equal(got[0], w + 3)
    np.testing.assert_array_equal(got[1], w + 1)


def test_a_loaded_tile_is_a_copy():
    text = """
    func @f(%x: f32[i:4]) {
      %W = alloc : f32[i]
      %O = alloc : f32[i]
      kernel grid(%a: 1) {
        %y = load %x[0 :+ i] : reg f32[i:4]
        store %y, %W[0 :+ i]
        %z = load %W[0 :+ i] : reg f32[i:4]
        %n = map -%z : reg f32[i:4]
        store %n, %W[0 :+ i]
        store %z, %O[0 :+ i]
      }
      return %W, %O
    }"""
    x = np.arange(1, 5, dtype=np.float32)
    w, o = run(text, x)
    np.testing.assert_array_equal(w, -x)
    np.testing.assert_array_equal(o, x)


# arguments


def test_inputs_by_name_and_scalars():
    text = """
    func @f(%x: f32[i:N], %w: i64, %c: f32) {
      %y = map where(index(i) < %w, %x * %c, 0.0) : f32[i]
      return %y
    }"""
    x = np.ones(4, np.float32)
    got = interpret(parse(text), {"w": 2, "c": 3.0, "x": x})[0]
    np.testing.assert_array_equal(got, [3, 3, 0, 0])
    with pytest.raises(ArgumentError, match=r"missing inputs \['c'\], unknown inputs \['z'\]"):
        interpret(parse(text), {"w": 2, "z": 3.0, "x": x})
    with pytest.raises(ArgumentError, match="takes 3 inputs"):
        interpret(parse(text), [x])
    with pytest.raises(ArgumentError, match="argument w has dtype f64, wanted i64"):
        interpret(parse(text), [x, 2.5, 1.0])


def test_unknown_input_type():
    func = parse("func @f(%x: f32[i:N]) {\n  return %x\n}")
    with pytest.raises(ArgumentError, match=r"argument x: .*complex128"):
        interpret(func, [np.zeros(3, complex)])


def test_shape_errors():
    q, k, v = qkv(5, 6)
    func = parse(TILE)
    with pytest.raises(ArgumentError) as e:
        interpret(func, [q, k[:, :, :4], v[..., :2]])
    assert "argument v: axis j has extent 6, but M is 4 (axis j of argument k)" in str(e.value)
    assert "argument v: axis e has extent 2, wanted 3" in str(e.value)
    with pytest.raises(ArgumentError, match=r"argument q: has 3 axes, wanted \[b, h, i, d\]"):
        interpret(func, [q[0], k, v])


def test_computed_extents():
    text = """
    func @f(%x: f32[i:N, j:(N * 2)]) {
      %y = map %x + cast(N, f32) : f32[i, j]
      return %y
    }"""
    assert run(text, np.ones((2, 4), np.float32))[0][0, 0] == 3
    with pytest.raises(ArgumentError, match="axis j has extent 5, wanted 4"):
        run(text, np.ones((2, 5), np.float32))
    text = text.replace("N * 2", "Q * 2")
    with pytest.raises(ArgumentError, match="axis j: extent Q is not determined"):
        run(text, np.ones((2, 4), np.float32))
    assert interpret(parse(text), [np.ones((2, 4))], extents={"Q": 2})[0].shape == (2, 4)


def test_extents_that_are_bound_stay_64_bits_wide():
    """A number takes the type of what it meets, and an extent does not."""
    func = parse_ir(
        "func @f(%n: i32[b:B], %x: f32[i:N]) {\n"
        "  %a = map %n * 2 - N * 3 : i64[b]\n"
        "  %c = map where(%n < N, %n, 0) + N // 2 : i64[b]\n"
        "  %y = map %x * N : f32[i]\n"
        "  return %a, %c, %y\n}\n"
    )
    bound = bind_extents(func, {"N": 3})
    verify(bound)
    inputs = [np.array([2**31 - 1, -(2**31)], "i4"), np.ones(3, "f4")]
    for x, w in zip(interpret(bound, inputs), interpret(func, inputs), strict=True):
        np.testing.assert_array_equal(x, w)
    assert "%x * 3 :" in print_ir(bound)

"""Specs and helpers that the tests of simplify share."""

from __future__ import annotations

from collections import Counter

import numpy as np

import tilecc.dsl as tc
from tilecc.ir.core import Func
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.ir.verifier import verify
from tilecc.passes.base import Remarks
from tilecc.passes.simplify import Simplify

Q = tc.Tensor["b h i:N d"]
K = tc.Tensor["b h j:M d"]
V = tc.Tensor["b h j:M e"]
HEADS = tc.Tensor["h"]
PER_D = tc.Tensor["d"]
LIVE = tc.Tensor["b i:N j:M", "int32"]
INTS_B = tc.Tensor["b", "int32"]
INTS_I = tc.Tensor["i:N", "int32"]
INTS_J = tc.Tensor["j:M", "int32"]
SIZES = {"B": 2, "H": 2, "N": 5, "M": 7, "D": 4, "E": 3, "G": 1}


def simplify(func: Func, remarks: Remarks | None = None) -> Func:
    out = Simplify().apply(func, Remarks() if remarks is None else remarks)
    verify(out)
    text = print_ir(out)
    assert print_ir(parse_ir(text)) == text
    return out


def graph(fn, dtype="float32") -> Func:
    return tc.spec(fn).trace(dtype)


def arrays(func: Func, sizes=SIZES, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    out = {}
    for p in func.params:
        shape = [a.static if a.static is not None else sizes[a.extent.name] for a in p.type.axes]
        x = rng.standard_normal(shape) * scale
        kind = p.type.dtype.kind
        if kind != "float":
            x = rng.integers(0, 4, shape)
        out[p.name] = x.astype(p.type.dtype.numpy)
    return out


def same(func: Func, inputs=None, sizes=SIZES, tol=1e-9) -> Func:
    """Simplifies and compares in float64, on random inputs where none are given."""
    new = simplify(func)
    cases = [inputs] if inputs else [arrays(func, sizes), arrays(func, sizes, 100.0, 1)]
    for x in cases:
        before = interpret(func, x, exact=True, extents=sizes)
        after = interpret(new, x, exact=True, extents=sizes)
        for a, b in zip(before, after, strict=True):
            np.testing.assert_allclose(b, a, rtol=tol, atol=tol)
    return new


def kinds(func: Func) -> Counter[str]:
    return Counter(
        f"{op.name} {op.attrs['kind']}" if op.name == "reduce" else op.name for op in func.walk()
    )


def structure(func: Func) -> list[str]:
    """Operations with the axes of results, in an order that the text's order does not change."""
    return sorted(
        f"{op.name} {op.attrs.get('kind', '')} {','.join(op.results[0].type.names)}"
        for op in func.walk()
        if op.results
    )


def composite(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def by_hand(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    e = tc.exp(s - tc.max(s, over="j"))
    return tc.dot(e / tc.sum(e, over="j"), v, over="j")


def base_two(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * (tc.rsqrt(tc.extent("d")) * 1.4426950408889634)
    e = tc.exp2(s - tc.max(s, over="j"))
    return tc.dot(e / tc.sum(e, over="j"), v, over="j")


def scale_after(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d")
    e = tc.exp((s - tc.max(s, over="j")) / tc.sqrt(tc.extent("d")))
    return tc.dot(e / tc.sum(e, over="j"), v, over="j")


def scale_in_q(q: Q, k: K, v: V):
    s = tc.dot(q * tc.rsqrt(tc.extent("d")), k, over="d")
    e = tc.exp(s - tc.max(s, over="j"))
    return tc.dot(e / tc.sum(e, over="j"), v, over="j")


def divide_last(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") / tc.sqrt(tc.extent("d"))
    e = tc.exp(s - tc.max(s, over="j"))
    return tc.dot(e, v, over="j") / tc.sum(e, over="j")


def reciprocal(q: Q, k: K, v: V):
    s = tc.dot(k, q, over="d") * tc.rsqrt(tc.extent("d"))
    e = tc.exp(s - tc.max(s, over="j"))
    r = 1.0 / tc.sum(e, over="j")
    o = tc.dot(v, e * r, over="j")
    return o


def sum_first(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    top = -tc.max(s, over="j")
    total = tc.sum(tc.exp(s + top), over="j")
    return tc.dot(tc.exp(top + s), v, over="j") / total


def product_by_hand(q: Q, k: K, v: V):
    s = tc.sum(q * k, over="d") * tc.rsqrt(tc.extent("d"))
    e = tc.exp(s - tc.max(s, over="j"))
    return tc.sum(e * v / tc.sum(e, over="j"), over="j")


def minus_min(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    e = tc.exp(s - tc.max(s, over="j"))
    return tc.dot(e * (tc.rsqrt(tc.extent("d")) / tc.sum(e, over="j")), v, over="j") * tc.sqrt(
        tc.extent("d")
    )


WAYS = [
    composite, by_hand, base_two, scale_after, scale_in_q, divide_last, reciprocal, sum_first,
    product_by_hand, minus_min,
]  # fmt: skip


def mask_first(q: Q, k: K, v: V):
    s = tc.where(tc.index("j") <= tc.index("i"), tc.dot(q, k, over="d"), -tc.inf)
    return tc.dot(tc.softmax(s * tc.rsqrt(tc.extent("d")), over="j"), v, over="j")


def mask_last(q: Q, k: K, v: V):
    s = tc.rsqrt(tc.extent("d")) * tc.dot(q, k, over="d")
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def mask_negated(q: Q, k: K, v: V):
    s = tc.rsqrt(tc.extent("d")) * tc.dot(q, k, over="d")
    s = tc.where(~(tc.index("j") <= tc.index("i")), -tc.inf, s)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def masked(q: Q, k: K, v: V, live: LIVE):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(live != 0, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j"), tc.logsumexp(s, over="j")


def scores_back(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    p = tc.softmax(s, over="j")
    return tc.dot(p, v, over="j"), p


def softmax_one(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    m = tc.maximum(tc.max(s, over="j"), 0.0)
    e = tc.exp(s - m)
    return tc.dot(e / (tc.sum(e, over="j") + tc.exp(-m)), v, over="j")


def sink(q: Q, k: K, v: V, logit: HEADS):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    m = tc.maximum(tc.max(s, over="j"), logit)
    e = tc.exp(s - m)
    return tc.dot(e, v, over="j") / (tc.sum(e, over="j") + tc.exp(logit - m))


def sigmoid_attention(q: Q, k: K, v: V, bias: tc.Scalar("float32")):
    s = tc.dot(q * tc.rsqrt(tc.extent("d")), k, over="d")
    return tc.dot(tc.sigmoid(s + bias - tc.log(tc.extent("j"))), v, over="j")


def alibi(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") / tc.sqrt(tc.extent("d"))
    slope = tc.exp2(-8.0 * (tc.index("h") + 1) / tc.extent("h"))
    s = s + slope * (tc.index("j") - tc.index("i"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def softcap(q: Q, k: K, v: V, cap: tc.Scalar("float32")):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(cap * tc.tanh(s / cap), over="j"), v, over="j")


def softcap_constant(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(20.0 * tc.tanh(s / 20.0), over="j"), v, over="j")


def gqa(q: Q, k: tc.Tensor["b g j:M d"], v: tc.Tensor["b g j:M e"]):
    group = tc.index("h") // (tc.extent("h") // tc.extent("g"))
    s = tc.dot(q, (k * tc.rsqrt(tc.extent("d"))).at(g=group), over="d")
    return tc.dot(tc.softmax(s, over="j"), v.at(g=group), over="j")


def layer_norm(x: tc.Tensor["i:N d"], gamma: PER_D, beta: PER_D):
    n = tc.extent("d")
    mean = tc.sum(x, over="d") / n
    var = tc.sum((x - mean) * (x - mean), over="d") / n
    return (x - mean) * tc.rsqrt(var + 1e-5) * gamma + beta


def differential(q: Q, k: K, q2: Q, k2: K, v: V, lam: tc.Scalar("float32")):
    c = tc.rsqrt(tc.extent("d"))
    p = tc.softmax(tc.dot(q, k, over="d") * c, over="j")
    p2 = tc.softmax(tc.dot(q2, k2, over="d") * c, over="j")
    return tc.dot(p - lam * p2, v, over="j")


def distances(x: tc.Tensor["i:N d"], y: tc.Tensor["j:M d"], v: tc.Tensor["j:M e"]):
    d2 = tc.sum((x - y) * (x - y), over="d")
    return tc.dot(tc.softmax(-d2, over="j"), v, over="j")


def integers(x: INTS_I, y: INTS_J):
    t = x * 3 + y * 0 - (tc.index("i") // 2) % 3
    return tc.sum(t * 2, over="j"), tc.max(t, over="j"), tc.where(x > y, t, 7)


def row_masks(q: Q, k: K, v: V, n: INTS_B):
    s = tc.dot(q, k, over="d")
    s = tc.where(tc.index("j") < n, tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf), -tc.inf)
    p = tc.where(tc.index("i") < n, tc.softmax(s * 0.125, over="j"), 0.0)
    return tc.dot(p, v, over="j")


def extrema(x: tc.Tensor["i:N j:M"]):
    return tc.max(x * 3.0, over="j"), tc.min(x * -2.0 / 3.0, over="j"), tc.max(-x, over="j")


OTHERS = [
    scores_back, softmax_one, sink, sigmoid_attention, alibi, softcap, softcap_constant, gqa,
    layer_norm, differential, distances, integers, row_masks, extrema, mask_first, mask_last,
]  # fmt: skip

"""simplify and rounding: what may move past a cast, and what may not."""

from __future__ import annotations

import numpy as np
import pytest
from simplify_cases import (
    HEADS,
    K,
    Q,
    V,
    arrays,
    by_hand,
    composite,
    graph,
    layer_norm,
    same,
    scale_in_q,
    simplify,
    softmax_one,
)

import tilecc.dsl as tc
from tilecc.ir.interp import interpret
from tilecc.ir.printer import print_ir
from tilecc.passes.base import Remarks


def half_scaled_query(q: Q, k: K, v: V):
    s = tc.dot(tc.cast(q * tc.rsqrt(tc.extent("d")), "float16"), k, over="d")
    return tc.cast(tc.dot(tc.cast(tc.softmax(s, over="j"), "float16"), v, over="j"), "float16")


def test_16_bit_operands_are_scaled_after_the_product():
    remarks = Remarks()
    new = simplify(graph(half_scaled_query, "float16"), remarks)
    for op in new.walk():
        if op.name == "contract":
            assert [v.type.dtype.name for v in op.operands] == ["f16", "f16"], print_ir(new)
    assert new.body.ops[0].name == "contract"
    text = print_ir(new, locs=False)
    assert "exp2(%s * " in text and "cast(%p, f16)" in text
    assert all("rounding to f16" in r.message for r in remarks.items)
    first = half_scaled_query.__code__.co_firstlineno
    assert sorted(r.loc.line for r in remarks.items) == [first + 1, first + 2]


def wide(q: Q, k: K, v: V):
    s = tc.dot(tc.cast(q, "float32"), tc.cast(k, "float32"), over="d")
    return tc.dot(
        tc.softmax(s * tc.rsqrt(tc.extent("d")), over="j"), tc.cast(v, "float32"), over="j"
    )


def plain_softmax(x: tc.Tensor["i:N j:M"]):
    return tc.softmax(x, over="j")


def test_exact_widening_leaves_no_casts():
    text = print_ir(same(graph(wide, "float16")), locs=False)
    assert text.count("cast") == 1, text  # that of the result
    text = print_ir(same(graph(plain_softmax, "float16")), locs=False)
    assert "reduce max %x over j" in text and "exp2(%x * " in text


def half_without_maximum(q: Q, k: K, v: V):
    e = tc.exp(tc.dot(q, k, over="d"))
    return tc.dot(tc.cast(e / tc.sum(e, over="j"), "float16"), v, over="j")


def test_a_factor_stays_before_a_rounding_that_would_overflow():
    f = graph(half_without_maximum, "float16")
    x = arrays(f, scale=3.0)
    new = simplify(f)
    (o,) = interpret(new, x)
    assert np.isfinite(o).all()
    assert "cast(%e" in print_ir(new, locs=False) and " / " in print_ir(new)
    assert "f16" not in [
        op.result.type.dtype.name
        for op in simplify(graph(half_without_maximum, "float32")).walk()
        if op.name == "contract"
    ]


def half_softmax_one(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    m = tc.maximum(tc.max(s, over="j"), 0.0)
    e = tc.exp(s - m)
    return tc.dot(tc.cast(e / (tc.sum(e, over="j") + tc.exp(-m)), "float16"), v, over="j")


def half_sink(q: Q, k: K, v: V, logit: HEADS):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    m = tc.maximum(tc.max(s, over="j"), logit)
    e = tc.exp(s - m)
    l = tc.sum(e, over="j") + tc.exp(logit - m)
    return tc.dot(tc.cast(e * (1.0 / l), "float16"), v, over="j")


def half_distances(x: tc.Tensor["i:N d"], y: tc.Tensor["j:M d"], v: tc.Tensor["j:M e"]):
    d2 = tc.sum((x - y) * (x - y), over="d")
    return tc.dot(tc.cast(tc.softmax(d2 * -0.5, over="j"), "float16"), v, over="j")


def half_clamped(q: Q, k: K, v: V):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    e = tc.exp(s - tc.maximum(tc.max(s, over="j"), 0.0))
    return tc.dot(tc.cast(e / tc.sum(e, over="j"), "float16"), v, over="j")


def test_a_normaliser_of_one_or_more_moves_past_the_rounding():
    for fn, moves in (
        (half_softmax_one, 1),
        (half_sink, 1),
        (half_distances, 1),
        (half_clamped, 0),
    ):
        remarks = Remarks()
        new = simplify(graph(fn, "float16"), remarks)
        (remark,) = remarks.items
        assert ("moves" in remark.message) == bool(moves), remark
        assert ("stays" in remark.message) != bool(moves), remark
        assert ("/ %" not in print_ir(new).split("cast(")[1]) == bool(moves), print_ir(new)


def test_bf16_has_the_range_of_f32():
    def spec(q: Q, k: K, v: V):
        e = tc.exp(tc.dot(q, k, over="d"))
        return tc.dot(tc.cast(e / tc.sum(e, over="j"), "bfloat16"), v, over="j")

    text = print_ir(simplify(graph(spec, "bfloat16")), locs=False)
    assert "cast(exp2(" in text or "cast(%e" in text
    assert "/ %" in text.splitlines()[-3]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("fn", [composite, by_hand, scale_in_q, softmax_one, layer_norm])
def test_other_dtypes(fn, dtype):
    f = graph(fn, dtype)
    new = simplify(f)
    x = arrays(f)
    for a, b, old in zip(interpret(f, x), interpret(new, x), f.returns, strict=True):
        assert a.dtype == b.dtype == old.type.dtype.numpy
        tol = {"float16": 1e-2, "bfloat16": 6e-2, "float64": 1e-12}[dtype]
        np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=tol, atol=tol)

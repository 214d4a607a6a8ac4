"""simplify keeps a graph's meaning, and brings the ways of writing softmax to one form."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from simplify_cases import (
    OTHERS,
    SIZES,
    WAYS,
    alibi,
    arrays,
    by_hand,
    composite,
    graph,
    kinds,
    mask_first,
    mask_last,
    mask_negated,
    masked,
    row_masks,
    same,
    simplify,
    sink,
    softcap,
    softcap_constant,
    softmax_one,
    structure,
)

import tilecc.dsl as tc
from tilecc.ir.interp import interpret
from tilecc.ir.printer import print_ir


@pytest.mark.parametrize("fn", WAYS, ids=lambda f: f.__name__)
def test_ways_of_softmax_come_out_alike(fn):
    new = same(graph(fn))
    assert kinds(new) == {
        "contract": 2, "reduce max": 1, "reduce sum": 1, "map": 3, "return": 1,
    }, print_ir(new)  # fmt: skip

    def axes(f):
        return Counter(",".join(sorted(x.split()[-1].split(","))) for x in structure(f))

    assert axes(new) == axes(simplify(graph(composite))), print_ir(new)
    p = next(op for op in new.walk() if op.name == "map" and "exp2" in print_ir(new))
    assert p is not None


def test_golden_causal():
    def causal(q: tc.Tensor["b h i:N d"], k: tc.Tensor["b h j:N d"], v: tc.Tensor["b h j:N e:D"]):
        s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
        s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
        return tc.dot(tc.softmax(s, over="j"), v, over="j")

    text = print_ir(same(graph(causal)), locs=False)
    assert text == GOLDEN_CAUSAL


GOLDEN_CAUSAL = """\
func @causal(%q: f32[b:B, h:H, i:N, d:D], %k: f32[b, h, j:N, d], %v: f32[b, h, j, e:D]) {
  %s = contract %q, %k over d : f32[b, h, i, j]
  %s_1 = map where(index(j) <= index(i), %s, -inf) : f32[b, h, i, j]
  %m = reduce max %s_1 over j : f32[b, h, i]
  %g = map where(%m == -inf, 0.0, %m) * (rsqrt(D) * 1.4426950408889634) : f32[b, h, i]
  %p = map exp2(%s_1 * (rsqrt(D) * 1.4426950408889634) - %g) : f32[b, h, i, j]
  %o = contract %p, %v over j : f32[b, h, i, e]
  %l = reduce sum %p over j : f32[b, h, i]
  %o_1 = map %o * where(%l == 0.0, 0.0, 1.0 / %l) : f32[b, h, i, e]
  return %o_1
}
"""


@pytest.mark.parametrize("fn", [mask_first, mask_last, mask_negated], ids=lambda f: f.__name__)
def test_a_mask_before_and_after_the_scale(fn):
    new = same(graph(fn))
    assert structure(new) == structure(simplify(graph(mask_last)))
    assert print_ir(new, locs=False).count("where(index(j) <= index(i), %s, -inf)") == 1


def test_masked_rows_and_infinite_scores():
    func = graph(masked)
    x = arrays(func)
    x["live"][:, 0] = 0
    x["live"][0, :] = 0
    o, lse = interpret(simplify(func), x, exact=True)
    assert np.all(o[:, :, 0] == 0) and np.all(lse[:, :, 0] == -np.inf)
    assert np.all(np.isfinite(o)) and np.any(o != 0)
    same(func, x)
    x["q"][1, 0, 2] = -np.inf
    x["k"][...] = abs(x["k"])
    same(func, x)  # scores of -inf throughout
    x = arrays(func)
    x["q"][0, 0, 1, 0] = np.nan
    o, lse = interpret(same(func, x), x, exact=True)
    assert np.isnan(o[0, 0, 1]).all() and np.isnan(lse[0, 0, 1])
    x = arrays(func)
    x["q"] *= 1e4
    new = same(func, x)
    o, _ = interpret(new, x)  # in f32
    assert np.isfinite(o).all()


def test_softmax_and_logsumexp_share_their_work():
    new = simplify(graph(masked))
    assert kinds(new) == {
        "contract": 2, "reduce max": 1, "reduce sum": 1, "map": 5, "return": 1,
    }, print_ir(new)  # fmt: skip


@pytest.mark.parametrize("fn", WAYS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("sizes", [{"M": 0}, {"N": 0}, {"M": 1}])
def test_empty_axes_keep_their_result(fn, sizes):
    same(graph(fn), sizes={**SIZES, **sizes})


@pytest.mark.parametrize("fn", OTHERS, ids=lambda f: f.__name__)
def test_meaning_is_kept(fn):
    same(graph(fn))
    for size in (0, 1):
        same(graph(fn), sizes={**SIZES, "M": size, "N": size})


ONE_PASS = {
    softmax_one: 4, sink: 4, softcap_constant: 4, alibi: 5, softcap: 5, row_masks: 4,
}  # fmt: skip


@pytest.mark.parametrize("fn", ONE_PASS, ids=lambda f: f.__name__)
def test_variants_have_the_operations_of_softmax(fn):
    new = simplify(graph(fn))
    assert kinds(new) == {
        "contract": 2, "reduce max": 1, "reduce sum": 1, "map": ONE_PASS[fn], "return": 1,
    }, print_ir(new)  # fmt: skip


def test_operations_keep_lines():
    f = graph(by_hand)
    new = simplify(f)
    lines = {op.loc.line for op in f.walk()}
    assert all(op.loc is not None and op.loc.line in lines for op in new.walk())
    (exponent,) = [op for op in new.walk() if op.name == "map" and "exp2" in repr(op.expr)]
    assert exponent.loc.line == by_hand.__code__.co_firstlineno + 2


def test_it_is_idempotent_and_does_not_edit():
    for fn in [*WAYS, *OTHERS]:
        f = graph(fn)
        before = print_ir(f)
        once = simplify(f)
        assert print_ir(f) == before
        assert structure(simplify(once)) == structure(once), fn.__name__

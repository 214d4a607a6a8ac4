"""Which loops a kernel's operations share, and what its stores are, told from plans and TIR."""

import numpy as np
import pytest

import tilecc as tc
from tilecc.codegen.cpu.isa import isa_for
from tilecc.codegen.cpu.layout import choose_layout, kept_loads
from tilecc.codegen.cpu.nests import Branch, Loop, Nest, Planner, in_order
from tilecc.ir.parser import parse_ir


@tc.spec
def neighbours(
    q: tc.Tensor["h i:N d"],
    k: tc.Tensor["h j:N d"],
    v: tc.Tensor["h j:N e:D"],
    width: tc.Scalar("int64"),
):
    """Attention to the row of an image that a pixel is in: a mask that divides positions."""
    same = tc.index("i") // width == tc.index("j") // width
    s = tc.where(same, tc.dot(q, k, over="d"), -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def biased(
    q: tc.Tensor["h i:N d"],
    k: tc.Tensor["h j:N d"],
    v: tc.Tensor["h j:N e:D"],
    bias: tc.Tensor["h i:N j:N"],
):
    """Attention with a bias for each pair, a tile of which is turned before it is read."""
    s = tc.dot(q, k, over="d") + bias
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def nests(plan):
    """All nests of a plan, those of nested blocks included."""
    for item in plan.items:
        match item:
            case Nest():
                yield item
            case Loop(_, body):
                yield from nests(body)
            case Branch(_, then, other):
                yield from nests(then)
                yield from nests(other)


@pytest.mark.parametrize("spec", [neighbours, biased])
def test_scores_are_masked_as_they_leave_their_accumulators(spec):
    """The greatest score is taken in the nest that makes scores, whatever a mask or bias reads."""
    kernel = tc.compile(spec, "cpu", "float32", {"D": 16}, tile={"i": 32, "j": 32})
    func, isa = parse_ir(kernel.ir("tile")), isa_for(kernel.target)
    main = [op for op in func.body.ops if op.name == "kernel"][-1]
    layout = choose_layout(main, isa)
    planned = list(nests(Planner(main.body, kept_loads(main, layout, isa), layout).plan))
    assert sum(n.contraction is not None for n in planned) == 4
    for nest in planned:
        greatest = [op for op in nest.ops if op.name == "reduce" and op.attrs["kind"] == "max"]
        assert not greatest or nest.contraction is not None


def test_results_that_lie_across_the_lanes_are_turned():
    """Rows of attention's result are written as vectors, not element by element."""
    kernel = tc.compile(neighbours, "cpu", "float32", {"D": 16}, tile={"i": 32, "j": 32})
    assert ".raw4" in kernel.ir("tir")
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 50, 16), np.float32)
    i = np.arange(50) // 7
    s = np.where(i[:, None] == i, q.astype("f8") @ k.astype("f8").swapaxes(1, 2), -np.inf)
    p = np.exp(s - s.max(2, keepdims=True))
    want = p / p.sum(2, keepdims=True) @ v
    np.testing.assert_allclose(kernel(q, k, v, 7), want, atol=1e-5)


ORDER = """
func @f(%q: f32[i:64, d:16], %k: f32[j:64, d], %w: i64) {{
  %o = alloc : f32[i]
  kernel grid(%i_tile: 1) tile(i=64, j=64) {{
    %a = load %q[0 :+ i, 0 :+ d] : sram f32[i:64, d:16]
    %b = load %k[0 :+ j, 0 :+ d] : sram f32[j:64, d]
    %s = contract %a, %b over d : reg f32[i, j]
    %y = map index(j) // %w : reg i64[j]
    %x = map where(%y == index(i), %s, -inf) : reg f32[i, j]
    {between}
    %m = reduce max %x over j : reg f32[i]
    store %m, %o[0 :+ i]
  }}
  return %o
}}
"""


@pytest.mark.parametrize("between", ["", "store %y, %p[0 :+ j]\n    %z = load %p[0] : i64"])
def test_what_a_mask_reads_comes_before_the_scores(between):
    text = ORDER.format(between=between)
    if between:
        text = text.replace("%o = alloc : f32[i]", "%o = alloc : f32[i]\n  %p = alloc : i64[j]")
    func = parse_ir(text)
    (kernel,) = (op for op in func.body.ops if op.name == "kernel")
    names = [op.result.name for op in in_order(kernel.body) if op.results]
    # Nothing is moved where the block writes what it reads again.
    assert (names.index("y") < names.index("s")) == (not between)
    assert sorted(names) == sorted(op.result.name for op in kernel.body.ops if op.results)


@pytest.mark.parametrize("tile", [3, 4, 8])
def test_sums_along_lanes_and_across_them_share_no_nest(tile):
    """Few rows: scores as [j, i] and as [i, j] have lanes along axes of their own."""

    @tc.spec
    def both(a: tc.Tensor["i:N d"], b: tc.Tensor["j:M d"], c: tc.Tensor["j:M d"]):
        s, t = tc.dot(b, a, over="d"), tc.dot(a, c, over="d")
        return tc.logsumexp(s, over="j") - tc.logsumexp(t, over="j")

    a, b, c = (np.random.default_rng(n).standard_normal((n, 4)).astype("f4") for n in (13, 7, 7))
    found = tc.compile(both, static={"D": 4}, tile={"i": tile, "j": 4})(a, b, c)
    x, y, z = (v.astype("f8") for v in (a, b, c))
    want = np.log(np.exp(x @ y.T).sum(1)) - np.log(np.exp(x @ z.T).sum(1))
    np.testing.assert_allclose(found, want, atol=1e-5)

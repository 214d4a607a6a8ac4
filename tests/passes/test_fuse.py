"""fuse: which operations share a kernel, which do not and why, and that the meaning stays."""

import numpy as np
import pytest
from programs import compiled

import tilecc as tc
from tilecc.analysis.roles import static_extents
from tilecc.errors import CompileError
from tilecc.ir.expr import Env, evaluate
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.ir.verifier import verify
from tilecc.passes.base import Remarks
from tilecc.passes.fuse import Fuse
from tilecc.passes.simplify import Simplify

SIZES = {"B": 2, "N": 6, "M": 5, "L": 7, "D": 4, "E": 3, "F": 3}


def fuse(source):
    """A spec or IR text before and after, and the remarks. Checks validity and meaning."""
    if isinstance(source, str):
        func = parse_ir(source)
    else:
        func = Simplify().apply(source.trace("float32"), Remarks())
    verify(func)
    before, remarks = print_ir(func), Remarks("fuse")
    out = Fuse().apply(func, remarks)
    assert print_ir(func) == before, "the input was edited"
    verify(out)
    assert print_ir(parse_ir(print_ir(out))) == print_ir(out)
    check_meaning(func, out)
    return func, out, [str(r) for r in remarks.items]


def check_meaning(func, out):
    rng = np.random.default_rng(0)
    env = Env(extent=SIZES.__getitem__)
    inputs = []
    for p in func.params:
        shape = [int(evaluate(a.extent, env)) for a in p.type.axes]
        x = (
            rng.standard_normal(shape)
            if p.type.dtype.kind == "float"
            else rng.integers(0, 2, shape)
        )
        inputs.append(np.asarray(x).astype(p.type.dtype.numpy))
    want = interpret(func, inputs, exact=True)
    for chunk in (1, 2, 3, 16):
        got = interpret(out, inputs, exact=True, chunk=chunk)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-12)


def kernels(func):
    """For each kernel: the parallel axes, the axes of its streams, how many results."""
    out = []
    for op in func.body.ops[:-1]:
        assert op.name == "kernel"
        streams = [s.attrs["axis"] for s in op.body.ops if s.name == "stream"]
        out.append((" ".join(op.over), " ".join(streams), len(op.results)))
    return out


# Roles


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("attention", ("b h i", "j j", 1)),
        ("causal", ("b h i", "j j", 1)),
        ("gqa", ("b h i", "j j", 1)),
        ("sink", ("b h i", "j j", 1)),
        ("softcap", ("b h i", "j j", 1)),
        ("with_lse", ("b h i", "j j", 2)),
        ("cross_attention", ("b h i", "j j", 1)),
        ("sigmoid_attention", ("b h i", "j", 1)),
        ("softmax_one", ("b h i", "j j", 1)),
    ],
)
def test_attention_is_one_kernel(name, want):
    run = compiled(name, pipeline="simplify,fuse", static=None)
    assert kernels(run.func) == [want]
    (remark,) = [r for r in run.remarks if r.pass_name == "fuse"]
    assert remark.message.startswith("one kernel of") and remark.loc is not None


def test_extents_of_inner_axes_must_become_numbers():
    from tilecc.analysis.roles import static_extents

    assert static_extents(compiled("causal", pipeline="simplify,fuse", static=None).func) == {"D"}


def test_an_axis_of_the_output_is_not_parallel_where_something_is_reduced_over_it():
    """j is in the output, and the first of the two products sums over it."""

    @tc.spec
    def chain(x: tc.Tensor["i:N j:M"], y: tc.Tensor["j:M k:L"]):
        a = tc.dot(x, y, over="j")
        return tc.dot(a, y * 2.0, over="k")

    _, out, _ = fuse(chain)
    for op in out.body.ops[:-1]:
        reduced = {a for r in op.body.walk() for a in r.attrs.get("over", ()) if r is not op}
        assert not reduced & set(op.over)


def test_rank_0_output():
    @tc.spec
    def norm(x: tc.Tensor["i:N j:M"]):
        return tc.sqrt(tc.sum(x * x, over=("i", "j")))

    _, out, _ = fuse(norm)
    assert kernels(out) == [("", "i", 1)]


def test_two_passes_over_an_axis_become_two_streams():
    @tc.spec
    def softmax(x: tc.Tensor["i:N j:M"]):
        return tc.softmax(x, over="j")

    _, out, _ = fuse(softmax)
    # max; sum of exp; and the output, emitted chunk by chunk.
    assert kernels(out) == [("i", "j j j", 1)]
    *_, last = [op for op in out.body.ops[0].body.ops if op.name == "stream"]
    assert last.result.type.names == ("i", "j")


def test_walks_over_two_axes_in_turn_share_a_kernel():
    """A maximum over two sets of keys: complete before the sums over either begin."""

    @tc.spec
    def joint(x: tc.Tensor["i:N j:M"], y: tc.Tensor["i:N t:L"]):
        m = tc.maximum(tc.max(x, over="j"), tc.max(y, over="t"))
        return tc.sum(tc.exp(x - m), over="j") + tc.sum(tc.exp(y - m), over="t")

    _, out, _ = fuse(joint)
    assert kernels(out) == [("i", "j t j t", 1)]


@pytest.mark.parametrize("batched", [True, False])
def test_a_bias_of_features_is_computed_where_it_is_added(batched):
    """It is the same for each b, and repeated: else it would be written, positions by positions."""
    b = "b " if batched else ""

    @tc.spec
    def program(
        q: tc.Tensor["b i:N d"],
        k: tc.Tensor[f"{b}j:N d"],
        v: tc.Tensor[f"{b}j:N e:D"],
        w: tc.Tensor["f:F"],
        u: tc.Tensor["f:F"],
    ):
        apart = tc.log(1.0 + tc.abs(tc.index("i") - tc.index("j")))
        bias = tc.dot(tc.maximum(apart * w, 0.0), u, over="f")
        return tc.dot(tc.softmax(tc.dot(q, k, over="d") + bias, over="j"), v, over="j")

    _, out, _ = fuse(program)
    if batched:
        assert kernels(out) == [("b i", "j j", 1)]
    else:  # tiles of b share the keys: they are rows, and so share the bias
        assert "b" not in kernels(out)[0][0].split()


def test_of_two_products_in_a_row_the_long_axis_is_not_whole_in_a_tile():
    """Linear attention: d lies last in memory, so it is the head dimension, and not j."""

    @tc.spec
    def linear(q: tc.Tensor["i:N d:4"], k: tc.Tensor["j:N d:4"], v: tc.Tensor["j:N e:4"]):
        kv = tc.dot(k, v, over="j")
        total = tc.dot(q, tc.sum(k, over="j"), over="d")
        return tc.dot(q, kv, over="d") / total

    _, out, _ = fuse(linear)
    assert [k[1] for k in kernels(out)] == ["j", "d"]
    assert not static_extents(out)


def test_siblings_share_a_kernel():
    @tc.spec
    def statistics(x: tc.Tensor["i:N j:M"]):
        return tc.max(x, over="j"), tc.min(x, over="j"), tc.sum(x, over="j")

    _, out, _ = fuse(statistics)
    assert kernels(out) == [("i", "j", 3)]


# Merges that are refused


def refusal(source, words):
    _, out, remarks = fuse(source)
    assert len(kernels(out)) > 1
    found = [r for r in remarks if words in r]
    assert found, remarks
    return out, found


def two_layers(j, n, m):
    """Attention on the result of attention."""

    @tc.spec
    def layers(
        q: tc.Tensor["i:N d"],
        k: tc.Tensor[f"j:{j} d"],
        v: tc.Tensor[f"j:{j} d"],
        k2: tc.Tensor[f"n:{n} d"],
        v2: tc.Tensor[f"n:{n} e:{m}"],
    ):
        y = tc.dot(tc.softmax(tc.dot(q, k, over="d"), over="j"), v, over="j")
        return tc.dot(tc.softmax(tc.dot(y, k2, over="d"), over="n"), v2, over="n")

    return layers


@pytest.mark.parametrize(
    ("extents", "reason"),
    [
        (("N", "N", "D"), "its extent N is also that of i, which is tiled"),
        (("M", "L", "E"), "axis j is walked tile by tile, and would have to be whole in a tile"),
    ],
)
def test_two_layers_of_attention_are_two_kernels(extents, reason):
    out, found = refusal(two_layers(*extents), reason)
    assert [k[:2] for k in kernels(out)] == [("i", "j j"), ("i", "n n")]
    assert all("test_fuse.py:" in r for r in found)


@pytest.mark.parametrize("e", ["D", "E"])
def test_a_projection_of_the_result_is_a_kernel_of_its_own(e):
    """Either reduction could be the one to stream: the keys' it is, whatever comes after."""

    @tc.spec
    def project(
        q: tc.Tensor["b i:N d"],
        k: tc.Tensor["b j:M d"],
        v: tc.Tensor[f"b j:M e:{e}"],
        w: tc.Tensor[f"e:{e} f:F"],
    ):
        p = tc.softmax(tc.dot(q, k, over="d"), over="j")
        return tc.dot(tc.dot(p, v, over="j"), w, over="e")

    _, out, _ = fuse(project)
    first, second = kernels(out)
    assert first[:2] == ("b i", "j j")
    assert second[1] == "e"


def test_weights_do_not_make_a_head_dimension_a_long_axis():
    """c is summed along rows of queries and latent keys, and comes first in the weights."""

    @tc.spec
    def latent(
        q: tc.Tensor["h i:N c"],
        r: tc.Tensor["h i:N p"],
        kv: tc.Tensor["j:M c"],
        kr: tc.Tensor["j:M p"],
        w: tc.Tensor["h c e"],
    ):
        s = tc.dot(q, kv, over="c") + tc.dot(r, kr, over="p")
        return tc.dot(tc.dot(tc.softmax(s, over="j"), kv, over="j"), w, over="c")

    func = Simplify().apply(latent.trace("float32"), Remarks())
    out = Fuse().apply(func, Remarks())
    assert [k[1] for k in kernels(out)] == ["j j", "c"]
    assert static_extents(out) == {"C", "P"}


def test_scores_of_transposed_queries_and_keys_stay_in_the_kernel():
    """Memory does not say which axis is long; that a maximum is taken along j does."""

    @tc.spec
    def transposed(q: tc.Tensor["d i:N"], k: tc.Tensor["d j:M"], v: tc.Tensor["j:M e:D"]):
        return tc.dot(tc.softmax(tc.dot(q, k, over="d"), over="j"), v, over="j")

    _, out, _ = fuse(transposed)
    assert [k[1] for k in kernels(out)] == ["j j"]
    assert static_extents(out) == {"D"}


def test_a_mask_that_is_reduced_stays_in_the_kernel():
    """Of several rounds of hashes one has to match: a mask of all positions is in no memory."""

    @tc.spec
    def hashed(
        q: tc.Tensor["i:N d"],
        k: tc.Tensor["j:M d"],
        v: tc.Tensor["j:M e:D"],
        a: tc.Tensor["r i:N", "int32"],
        b: tc.Tensor["r j:M", "int32"],
    ):
        met = tc.max(tc.where(a == b, 1, 0), over="r") > 0
        s = tc.where(met, tc.dot(q, k, over="d"), -tc.inf)
        return tc.dot(tc.softmax(s, over="j"), v, over="j")

    func = Simplify().apply(hashed.trace("float32"), Remarks())
    out = Fuse().apply(func, Remarks())
    assert [k[1] for k in kernels(out)] == ["j j"]
    assert static_extents(out) == {"D", "R"}


def test_what_comes_before_attention_is_fused_into_it():
    @tc.spec
    def normed(q: tc.Tensor["i:N d"], k: tc.Tensor["j:M d"], v: tc.Tensor["j:M e:E"]):
        q = q * tc.rsqrt(tc.sum(q * q, over="d") + 1.0)
        return tc.dot(tc.softmax(tc.dot(q, k, over="d"), over="j"), v, over="j")

    _, out, _ = fuse(normed)
    assert kernels(out) == [("i", "j j", 1)]


def test_reductions_of_rows_and_of_columns_do_not_share_a_kernel():
    @tc.spec
    def both(x: tc.Tensor["i:N j:M"]):
        return tc.max(x, over="j"), tc.sum(x, over="i")

    out, _ = refusal(both, "does not share a kernel with")
    assert kernels(out) == [("i", "j", 1), ("j", "i", 1)]


def test_a_kernel_keeps_its_parallel_axes():
    @tc.spec
    def share(x: tc.Tensor["i:N j:M"]):
        return x / tc.sum(x, over=("i", "j"))

    out, _ = refusal(share, "no axis would be left to run in parallel, of i, j")
    assert kernels(out) == [("", "i", 1), ("i j", "", 1)]


def test_normalised_twice():
    """Each normalisation walks the other's parallel axis."""

    @tc.spec
    def sinkhorn(x: tc.Tensor["i:N j:M"]):
        y = x / tc.sum(x * x, over="j")
        return y / tc.sum(y * y, over="i")

    _, out, _ = fuse(sinkhorn)
    assert all(over for over, _, _ in kernels(out))


def test_a_merge_takes_what_lies_in_between():
    """exp(x - f(max x)): producer and consumer of x merge together with the path past them."""
    text = """
    func @f(%q: f32[i:N, d:4], %k: f32[j:M, d]) {
      %x = contract %q, %k over d : f32[i, j]
      %m = reduce max %x over j : f32[i]
      %a = map %m * 2.0 : f32[i]
      %b = map %a + 1.0 : f32[i]
      %p = map exp(%x - %b) : f32[i, j]
      %l = reduce sum %p over j : f32[i]
      return %l
    }"""
    _, out, _ = fuse(text)
    assert kernels(out) == [("i", "j j", 1)]


@pytest.mark.parametrize("direct", [True, False])
def test_what_is_read_through_an_access_map_is_in_memory(direct):
    """Also where the same operation reads it directly."""

    expr = "%y * %z" if direct else "%z + 1.0"
    text = f"""
    func @f(%x: f32[i:N, d:4], %w: f32[d, e:3]) {{
      %y = contract %x, %w over d : f32[i, e]
      %z = at %y[i = index(i) // 2] : f32[i, e]
      %o = map {expr} : f32[i, e]
      return %o
    }}"""
    _, out, _ = fuse(text)
    inside = {r for k in out.body.ops[:-1] for op in k.body.walk() for r in op.results}
    views = [op for op in out.walk() if op.name == "at"]
    assert len(kernels(out)) == 2 and views
    assert not inside & {v for op in views for v in op.operands}


def test_access_maps_of_access_maps():
    """The inner one is computed: its elements are reached by other coordinates than its axes."""
    text = """
    func @f(%x: f32[i:N, j:M], %t: i32[i]) {
      %a = at %x[i = %t] : f32[i, j]
      %b = at %a[j = index(j) // 2] : f32[i, j]
      %r = reduce sum %b over j : f32[i]
      %s = reduce max %b over j : f32[i]
      return %r, %s
    }"""
    _, out, _ = fuse(text)
    assert kernels(out) == [("i j", "", 1), ("i", "j", 2)]


# Results


@pytest.mark.parametrize(
    ("body", "returned"),
    [
        ("", "%x, %x, %s"),
        ("%y = map %x * 2.0 : f32[i, j]", "%y, %y"),
        ("%y = at %x[i = index(i) // 2] : f32[i, j]", "%y"),
        ("%y = reduce sum %x over j : f32[i]\n%z = map %y + %s : f32[i]", "%z, %y, %x"),
    ],
)
def test_every_result_has_memory_of_its_own(body, returned):
    _, out, _ = fuse(f"func @f(%x: f32[i:N, j:M], %s: f32) {{\n{body}\nreturn {returned}\n}}")
    assert len(set(out.returns)) == len(out.returns) == returned.count("%")
    assert all(v.owner is not None and v.owner.name == "kernel" for v in out.returns)


def test_no_results():
    _, out, _ = fuse("func @f(%x: f32[i:N]) {\n  return\n}")
    assert kernels(out) == []


def test_an_intermediate_that_is_returned_is_emitted():
    @tc.spec
    def scores(q: tc.Tensor["i:N d"], k: tc.Tensor["j:M d"], v: tc.Tensor["j:M e:E"]):
        p = tc.softmax(tc.dot(q, k, over="d"), over="j")
        return tc.dot(p, v, over="j"), p

    _, out, _ = fuse(scores)
    assert sum(n for _, _, n in kernels(out)) >= 2
    assert out.returns[1].type.names == ("i", "j")


def test_unused_operations_are_harmless():
    text = """
    func @f(%x: f32[i:N, j:M]) {
      %a = map %x * 2.0 : f32[i, j]
      %u = at %x[i = index(i) // 2] : f32[i, j]
      %r = reduce sum %x over j : f32[i]
      return %r
    }"""
    fuse(text)


def test_kernels_stand_in_an_order_that_can_run():
    text = """
    func @f(%x: f32[i:N, j:M]) {
      %r = reduce sum %x over i, j : f32
      %a = map %x * 2.0 : f32[i, j]
      %b = map %a + %r : f32[i, j]
      %c = reduce max %b over i : f32[j]
      %d = map %b - %c : f32[i, j]
      return %d, %a, %r
    }"""
    fuse(text)  # the verifier checks that each value is defined before its use


def test_fusing_is_deterministic():
    texts = {print_ir(fuse(two_layers("M", "L", "E"))[1], locs=False) for _ in range(5)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%y = softmax %x over j : f32[i, j]", "softmax is still whole: run simplify first"),
        ("%y = logsumexp %x over j : f32[i]", "logsumexp is still whole: run simplify first"),
        (
            "%y = kernel over i {\n %z = map %x : f32[i, j]\n yield %z\n }",
            "kernel cannot be fused again",
        ),
    ],
)
def test_what_cannot_be_fused(text, message):
    func = parse_ir(f"func @f(%x: f32[i:N, j:M]) {{\n{text}  # spec.py:3\nreturn %y\n}}")
    with pytest.raises(CompileError, match=message):
        Fuse().apply(func, Remarks())

"""The DSL: specs trace to the graph they mean, with types, names and source lines."""

import glob
import inspect
import os
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest

import tilecc as tc
from tilecc.dsl import load_spec
from tilecc.errors import SpecError
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir

Q, K, V = tc.Tensor["b h i:N d"], tc.Tensor["b h j:N d"], tc.Tensor["b h j:N e:D"]
EXAMPLES = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "..", "examples", "*.py")))
SPECS = [f for f in EXAMPLES if f"def {os.path.basename(f)[:-3]}(" in Path(f).read_text()]


def ops(spec, dtype="float32"):
    """The operations of a spec as text, without its line numbers, header and end."""
    return [line.strip() for line in print_ir(spec.trace(dtype), locs=False).splitlines()[1:-1]]


def run(spec, dtype="float64", **arrays):
    return interpret(spec.trace(dtype), arrays)


def rand(*shape, seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape)


def softmax(s):
    s = s - s.max(-1, keepdims=True)
    p = np.exp(s)
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("file", SPECS, ids=os.path.basename)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_examples_trace_and_round_trip(file, dtype):
    func = load_spec(file).trace(dtype)
    assert func.name == os.path.basename(file)[:-3]
    text = print_ir(func)
    assert print_ir(parse_ir(text)) == text
    for op in func.walk():
        assert op.loc is not None and op.loc.file.endswith(f"examples/{func.name}.py")


def test_attention_reads_as_it_is_written():
    file = next(f for f in SPECS if f.endswith("/causal.py"))
    want = inspect.cleandoc("""
        func @causal(%q: f32[b:B, h:H, i:N, d:D], %k: f32[b, h, j:N, d], %v: f32[b, h, j, e:D]) {
          %s = contract %q, %k over d : f32[b, h, i, j]
          %s_1 = map %s * rsqrt(D) : f32[b, h, i, j]
          %s_2 = map where(index(j) <= index(i), %s_1, -inf) : f32[b, h, i, j]
          %p = softmax %s_2 over j : f32[b, h, i, j]
          %o = contract %p, %v over j : f32[b, h, i, e]
          return %o
        }
        """)
    assert print_ir(load_spec(file).trace(), locs=False).strip() == want


def test_source_lines():
    @tc.spec
    def two(x: tc.Tensor["i"]):
        y = tc.exp(x)
        return y + 1.0

    first = inspect.currentframe().f_lineno - 3
    lines = [op.loc.line for op in two.trace().walk()]
    assert lines == [first, first + 1, first + 1]


# Types.


def test_sixteen_bits_are_rounded_by_casts_of_their_own():
    @tc.spec
    def f(q: Q, k: K, v: V):
        return tc.dot(tc.softmax(tc.dot(q, k, over="d"), over="j"), v, over="j")

    assert ops(f, "bfloat16") == [
        "%o = contract %q, %k over d : f32[b, h, i, j]",
        "%p = softmax %o over j : f32[b, h, i, j]",
        "%p_1 = map cast(%p, bf16) : bf16[b, h, i, j]",
        "%o_1 = contract %p_1, %v over j : f32[b, h, i, e]",
        "%o_2 = map cast(%o_1, bf16) : bf16[b, h, i, e]",
        "return %o_2",
    ]
    assert not any("cast" in line for line in ops(f, "float32"))


def test_own_cast_and_own_dtype_are_left_alone():
    @tc.spec
    def f(
        a: tc.Tensor["i j"], w: tc.Tensor["j k", "float32"], c: tc.Tensor["k n", "float16"]
    ) -> tc.Tensor["i n", "float32"]:
        y = tc.dot(a, w, over="j")  # w is stored in f32 and stays so
        return tc.dot(y.astype("float32"), c, over="k")

    text = "\n".join(ops(f, "float16"))
    assert "f16)" not in text and "cast(%y, f32)" in text


def test_return_annotation_fixes_order_and_dtype():
    @tc.spec
    def f(x: tc.Tensor["i j"]) -> tuple[tc.Tensor["j i", "float64"], tc.Tensor["i"], tc.Tensor]:
        return x * 2, x.sum("j"), x > 0

    types = [(str(v.type.dtype), v.type.names) for v in f.trace("float16").returns]
    assert types == [("f64", ("j", "i")), ("f16", ("i",)), ("bool", ("i", "j"))]
    x = rand(2, 3)
    out = run(f, x=x)
    np.testing.assert_array_equal(out[0], 2 * x.T)


def test_integers_and_predicates():
    @tc.spec
    def f(n: tc.Tensor["i", "int32"], x: tc.Tensor["i"]):
        even = n % 2 == 0
        return even, n // 3, tc.sum(even, over="i"), even * x, tc.where(even ^ (n > 2), x, -x), n**3

    n, x = np.arange(-3, 5, dtype=np.int32), rand(8)
    out = run(f, n=n, x=x)
    even = n % 2 == 0
    want = [even, n // 3, even.sum(), even * x, np.where(even ^ (n > 2), x, -x), n**3]
    for got, w in zip(out, want, strict=True):
        np.testing.assert_array_equal(got, w)
    assert [o.dtype.kind for o in out] == ["b", "i", "i", "f", "f", "i"]


def test_scalar_functions():
    @tc.spec
    def f(x: tc.Tensor["i"], y: tc.Tensor["i"]):
        a = tc.abs(x)
        return (
            tc.exp(x), tc.exp2(x), tc.log(a), tc.log2(a), tc.sqrt(a), tc.rsqrt(a), tc.tanh(x),
            tc.sigmoid(x), tc.sin(x), tc.cos(x), tc.floor(x), tc.maximum(x, y), tc.minimum(x, y),
            tc.pow(a, y), a**0.5, x**2, x**3, 2**x, abs(-x), 1 - x, 3 / x, x.prod("i"), x.min("i"),
            tc.logsumexp(x, over="i"), +x, x - np.float32(0.5), np.float64(0.5) - x,
        )  # fmt: skip

    x, y = rand(5), rand(5, seed=1)
    a = abs(x)
    want = [
        np.exp(x), 2**x, np.log(a), np.log2(a), a**0.5, a**-0.5, np.tanh(x), 1 / (1 + np.exp(-x)),
        np.sin(x), np.cos(x), np.floor(x), np.maximum(x, y), np.minimum(x, y), a**y, a**0.5,
        x**2, x**3, 2**x, a, 1 - x, 3 / x, x.prod(), x.min(), np.log(np.exp(x).sum()), x,
        x - 0.5, 0.5 - x,
    ]  # fmt: skip
    for got, w in zip(run(f, x=x, y=y), want, strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-12)


def test_plain_numbers_compute_at_once():
    assert tc.sqrt(64) == 8.0 and isinstance(tc.exp2(3), float)
    assert tc.maximum(2, 3) == 3 and tc.where(True, 1, 2) == 1


def test_double_precision_is_not_lost_on_coordinates():
    @tc.spec
    def f(x: tc.Tensor["i d"]):
        return x * tc.rsqrt(tc.extent("d")) + tc.index("i") * 0.1 + tc.index("d") / 3

    x = rand(4, 3)
    want = x / np.sqrt(3) + np.arange(4)[:, None] * 0.1 + np.arange(3) / 3
    np.testing.assert_allclose(run(f, x=x)[0], want, rtol=1e-15)


# Expressions of coordinates and scalars.


def test_expressions_without_tensors_become_part_of_their_use():
    @tc.spec
    def f(x: tc.Tensor["i j"], w: tc.Scalar("int64"), c: tc.Scalar("float32")):
        near = (tc.index("i") - tc.index("j") < w) & ~(tc.index("i") % 4 == 1)
        return tc.where(near, x * (2 * c), 0.0)

    assert len(ops(f)) == 3
    x = rand(6, 5)
    i, j = np.ogrid[:6, :5]
    want = np.where((i - j < 2) & (i % 4 != 1), x * 1.0, 0)
    np.testing.assert_array_equal(run(f, x=x, w=2, c=0.5)[0], want)


def test_expressions_alone_become_maps_with_their_axes():
    @tc.spec
    def f(x: tc.Tensor["i j"]):
        diff = tc.index("i") - tc.index("j")
        return diff, diff.max(over="j"), tc.dot(x, tc.index("j"), over="j"), tc.extent("i") * 2

    x = rand(3, 4)
    i, j = np.ogrid[:3, :4]
    for got, want in zip(run(f, x=x), [i - j, (i - j).max(1), x @ np.arange(4), 6], strict=True):
        np.testing.assert_allclose(got, want)


def test_long_expressions_do_not_explode():
    @tc.spec
    def f(x: tc.Tensor["i"]):
        n = tc.index("i")
        for _ in range(40):
            n = (n * 5 + n // 3) % 1009
        return x + n

    n = np.arange(7)
    for _ in range(40):
        n = (n * 5 + n // 3) % 1009
    np.testing.assert_array_equal(run(f, x=np.zeros(7))[0], n)


# Reading at coordinates.


def test_at_argument_replaces_axes():
    @tc.spec
    def f(k: tc.Tensor["p:P slot:4 d"], table: tc.Tensor["b n", "int32"], q: tc.Tensor["b j d"]):
        page = table.at(n=tc.index("j") // 4)
        return tc.dot(q, k.at(p=page, slot=tc.index("j") % 4), over="d")

    k, q = rand(5, 4, 3), rand(2, 10, 3)
    table = np.random.default_rng(0).integers(0, 5, (2, 3)).astype(np.int32)
    j = np.arange(10)
    want = (q * k[table[:, j // 4], j % 4]).sum(-1)
    np.testing.assert_allclose(run(f, k=k, table=table, q=q)[0], want)


def test_at_computed_tensor_reads_arguments_only():
    @tc.spec
    def f(x: tc.Tensor["i d"], y: tc.Tensor["j:N d"], t: tc.Tensor["n:N", "int32"]):
        s = tc.dot(tc.exp(x), y, over="d") + tc.index("j")
        m = tc.softmax(s, over="i")
        return m.at(j=t.at(n=tc.extent("j") - 1 - tc.index("n"))), s.at(j=tc.index("i")), s.at(i=0)

    func = f.trace()
    assert all(op.operands[0].owner is None for op in func.walk() if op.name == "at")
    x, y, t = rand(4, 3), rand(6, 3), np.array([3, 1, 0, 5, 5, 2], np.int32)
    s = np.exp(x) @ y.T + np.arange(6)
    out = run(f, x=x, y=y, t=t)
    np.testing.assert_allclose(out[0], softmax(s.T).T[:, t[::-1]])
    np.testing.assert_allclose(out[1], s[np.arange(4), np.arange(4)])
    np.testing.assert_allclose(out[2], s[0])


def test_at_of_at_composes():
    @tc.spec
    def f(x: tc.Tensor["i j"], z: tc.Tensor["k"]):
        return x.at(i=tc.index("j")).at(j=tc.index("k") + 1) + z

    x = rand(5, 5)
    np.testing.assert_allclose(run(f, x=x, z=np.zeros(3))[0], np.diag(x)[1:4])


# Declarations.


def test_an_axis_that_no_argument_has():
    @tc.spec
    def pages(k: tc.Tensor["page slot d"], table: tc.Tensor["n", "int32"]):
        j = tc.axis("j", tc.extent("n") * tc.extent("slot"))
        keys = k.at(page=table.at(n=j // tc.extent("slot")), slot=j % tc.extent("slot"))
        return keys * tc.cast(j, "float32")

    assert ops(pages)[0].endswith(": i32[j:(N * SLOT)]")
    k, table = rand(5, 3, 2), np.array([4, 0], "i4")
    (got,) = run(pages, k=k, table=table)
    np.testing.assert_allclose(got, k[table].reshape(6, 2) * np.arange(6)[:, None])
    assert "J" not in pages.signature.extents


def test_a_negative_extent_is_0():
    @tc.spec
    def rest(x: tc.Tensor["i"], y: tc.Tensor["k"]):
        j = tc.axis("j", tc.extent("i") - tc.extent("k"))
        return x.at(i=j + tc.extent("k")) + 0 * tc.sum(y, over="k")

    assert ops(rest)[0].endswith("[j:maximum(I - K, 0)]")
    for i, k in ((5, 2), (2, 5)):
        (got,) = run(rest, x=rand(i), y=rand(k))
        np.testing.assert_allclose(got, rand(i)[k:])


def test_annotated_form_signature_and_extents():
    def f(
        q: Annotated[tc.Tensor, "b i:N d"],
        _ids: Annotated[tc.Tensor, "b j:N slot:16", "int32"],
        *,
        w: tc.Scalar("float32"),
    ):
        return q * w + tc.index("j")

    spec = tc.spec(name="renamed")(f)
    sig = spec.signature
    assert spec.name == spec.trace().name == "renamed"
    assert [a.name for a in sig.arguments] == ["q", "_ids", "w"]
    assert [str(a.dtype) for a in sig.arguments] == ["None", "i32", "f32"]
    assert sig.arguments[2].is_scalar and sig.axes["slot"].static == 16
    assert sig.extents == {"B": ("q", "b"), "N": ("q", "i"), "D": ("q", "d")}
    assert spec.trace() is spec.trace("f32") is not spec.trace("f16")


def test_a_mask_does_not_reorder_what_it_masks():
    @tc.spec
    def f(q: Q, k: K, v: V, a: tc.Tensor["b i:N", "int32"], c: tc.Tensor["b j:N", "int32"]):
        s = tc.where(a == c, tc.dot(q, k, over="d"), -tc.inf)
        return tc.dot(tc.softmax(s, over="j"), v, over="j")

    assert f.trace().returns[0].type.names == ("b", "h", "i", "e")


def test_postponed_annotations(tmp_path):
    (tmp_path / "late.py").write_text(
        "from __future__ import annotations\nimport tilecc as tc\nX = tc.Tensor['i']\n"
        "@tc.spec\ndef late(x: X, w: tc.Scalar('int64')) -> tc.Tensor['i', 'float64']:\n"
        "    return x + w\n"
    )
    func = load_spec(str(tmp_path / "late.py")).trace("f16")
    assert [str(v.type.dtype) for v in [*func.params, *func.returns]] == ["f16", "i64", "f64"]


def test_specs_and_functions_inline():
    @tc.spec
    def scores(q: Q, k: K):
        return tc.dot(q, k, over="d")

    @tc.spec
    def f(q: Q, k: K):
        return tc.softmax(scores(q, k), over="j")

    assert [op.name for op in f.trace().walk()] == ["contract", "softmax", "return"]


def test_an_output_is_a_value_of_its_own():
    @tc.spec
    def f(x: tc.Tensor["i"]):
        y = x + 1
        return x, y, y

    func = f.trace()
    assert len(set(func.returns)) == 3 and all(v.owner for v in func.returns)


def test_what_no_output_needs_is_dropped():
    @tc.spec
    def f(x: tc.Tensor["i j"]):
        tc.exp(x)
        return x.sum("i j")

    assert [op.name for op in f.trace().walk()] == ["reduce", "return"]


# Files.


def test_load_spec_chooses(tmp_path):
    header = "import tilecc as tc\n"
    one = "@tc.spec\ndef {0}(x: tc.Tensor['i']):\n    return x + 1\n"
    (tmp_path / "zoo.py").write_text(header + one.format("zoo") + one.format("other"))
    (tmp_path / "single.py").write_text(header + one.format("only"))
    assert load_spec(f"{tmp_path}/zoo.py").name == "zoo"
    assert load_spec(f"{tmp_path}/zoo.py:other").name == "other"
    assert load_spec(f"{tmp_path}/single.py").name == "only"
    with pytest.raises(SpecError, match=r"no spec 'third'.*\n.*zoo, other"):
        load_spec(f"{tmp_path}/zoo.py:third")

"""split: the same results from parts, merged by the repairs; what cannot be is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from programs import compiled
from references import REFERENCES
from test_examples import EXAMPLES, HEADS, extents_for, inputs_for, spec_of, wanted

from tilecc.errors import CompileError
from tilecc.ir.core import bind_extents
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.passes.base import Remarks
from tilecc.passes.split import Split
from tilecc.pipeline import PassManager

FRONT = "simplify,fuse,online-softmax,mask-tiles,exponents"
WAYS = ("split{chunk=24}", "split{chunk=100}", "split{parts=3}", "split{workers=2}")
TILE = "tile{i=16,j=24}"
UNSPLIT = {"normalised_linear"}  # its streams are over axes that its examples here make short


def loop_of(name):
    func = bind_extents(spec_of(name).trace("float32"), {"D": 8})
    return PassManager(FRONT).run(func).func


def loop(name, way):
    return PassManager(way).run(loop_of(name))


CASES = [(n, WAYS[0]) for n in EXAMPLES if n in REFERENCES and n not in UNSPLIT]
CASES += [(n, way) for n in ("causal", "with_lse", "sink") for way in WAYS[1:]]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_parts_give_what_the_whole_gives(name, way):
    """In float64, where only the order of sums differs, at lengths around the parts'."""
    run = loop(name, way)
    assert run.func.body.ops[-2].name == "kernel"
    for rows, columns in ((7, 0), (7, 1), (33, 47), (33, 210)):
        extents = extents_for(name, rows, columns if name == "cross_attention" else rows)
        if name != "cross_attention" and columns > rows:
            extents |= dict.fromkeys(("N", "Nq", "Nk", "V"), columns)
        inputs = inputs_for(name, extents)
        want = wanted(name, inputs)
        got = interpret(run.func, inputs, exact=True, chunk=16)
        for x, w in zip(got, want, strict=True):
            np.testing.assert_allclose(x, w, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "way"),
    [("causal", WAYS[1]), ("with_lse", WAYS[2]), ("padding_mask", WAYS[1]), ("gqa", WAYS[3])],
)
def test_tiles_of_parts_give_the_same(name, way):
    run = loop(name, way)
    tiled = PassManager(TILE).run(run.func).func
    extents = extents_for(name, 270, 270) | HEADS
    inputs = inputs_for(name, {**extents, "B": 2, "H": 1, "G": 1})
    for x, w in zip(interpret(tiled, inputs), wanted(name, inputs), strict=True):
        np.testing.assert_allclose(x, w, rtol=2e-5, atol=2e-5)


def test_text_of_a_split_program_can_be_read_back():
    func = loop("with_lse", "split{chunk=2048}").func
    text = print_ir(func)
    assert print_ir(parse_ir(text)) == text


def test_tiles_that_divide_a_part_need_no_mask_for_it():
    run = compiled("attention", pipeline=f"{FRONT},split{{chunk=512}},tile{{64}}")
    first = run.func.body.ops[3]
    full = next(op for op in first.body.walk() if op.name == "for")
    assert not any("index" in repr(op.attrs.get("expr")) for op in full.body.ops)


STREAM = """func @f(%x: f32[i:M, j:N], %y: f32[i, j]) {
  %a, %b = kernel over i {
    %m = stream j {
      %r = reduce max %x over j : f32[i]  # user.py:3
      %m1 = update max %r : f32[i]
      yield %m1
    }
    SECOND
  }
  return %a, %b
}
"""
TWICE = """%n = stream j {
      %z = map %y * %m : f32[i, j]  # user.py:5
      %t = reduce max %z over j : f32[i]
      %n1 = update max %t : f32[i]
      yield %n1
    }
    yield %m, %n"""
WRITTEN = """%w = map %m + 1.0 : f32[i]
    %z = stream j {
      %u = map %y * %w : f32[i, j]  # user.py:6
      yield %u
    }
    yield %m, %z"""


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (TWICE, "j is not split: the kernel walks again after %m, for want of a repair"),
        (WRITTEN, "j is not split: the kernel walks again after %m, for want of a repair"),
    ],
)
def test_what_has_no_repair_stays_whole_and_says_so(second, reason):
    func = parse_ir(STREAM.replace("SECOND", second))
    remarks = Remarks()
    out = Split(chunk=16).apply(func, remarks)
    assert print_ir(out) == print_ir(func)
    assert [r.message for r in remarks.items] == [reason]


WRITTEN_ALONE = """func @f(%x: f32[i:M, j:N]) {
  %a, %z = kernel over i {
    %m, %u = stream j {
      %r = reduce max %x over j : f32[i]
      %m1 = update max %r : f32[i]
      %u1 = map %x * 2.0 : f32[i, j]  # user.py:4
      yield %m1, %u1
    }
    yield %m, %u
  }
  return %a, %z
}
"""


def test_what_is_written_for_each_position_stays_whole():
    remarks = Remarks()
    Split(chunk=16).apply(parse_ir(WRITTEN_ALONE), remarks)
    (remark,) = remarks.items
    assert remark.message == "j is not split: %u1 is written for each j"
    assert str(remark.loc) == "user.py:4"


def test_other_reducers_are_merged_too():
    """prod and min, and a maximum of a linear map, whose repair adds."""
    func = parse_ir(
        """func @f(%x: f32[i:M, j:N]) {
  %a, %b, %c = kernel over i {
    %p, %n, %t = stream j {
      %r = reduce prod %x over j : f32[i]
      %p1 = update prod %r : f32[i]
      %s = reduce min %x over j : f32[i]
      %n1 = update min %s : f32[i]
      %y = map %x - %n1 : f32[i, j]
      %z = reduce max %y over j : f32[i]
      %t1 = update max %z repair where(acc == -inf, acc, acc + (old(%n1) - %n1)) : f32[i]
      yield %p1, %n1, %t1
    }
    yield %p, %n, %t
  }
  return %a, %b, %c
}
"""
    )
    out = Split(chunk=5).apply(func, Remarks())
    assert len(out.body.ops) == 3
    x = np.random.default_rng(0).uniform(0.5, 1.5, (3, 23)).astype("f4")
    p, n, t = interpret(out, [x], exact=True, chunk=4)
    np.testing.assert_allclose(p, x.astype("f8").prod(1))
    np.testing.assert_allclose(n, x.min(1))
    np.testing.assert_allclose(t, (x - x.min(1, keepdims=True)).max(1), rtol=1e-6)


def test_a_part_has_positions():
    func = loop("attention", "split").func
    with pytest.raises(CompileError, match="chunk is a positive number"):
        Split(chunk=0).apply(func, Remarks())


def test_one_part_is_the_kernel_as_it_was():
    """An extent that is known and no longer than a part: a merge would only cost."""
    func = bind_extents(loop_of("causal"), {"N": 24})
    assert print_ir(PassManager(WAYS[0]).run(func).func) == print_ir(func)
    assert print_ir(PassManager("split{parts=1}").run(func).func) == print_ir(func)

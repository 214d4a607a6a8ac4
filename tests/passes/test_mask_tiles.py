"""mask-tiles: the predicate it finds, what it refuses, and that skipping changes nothing."""

import numpy as np
import pytest

from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.ir.verifier import verify
from tilecc.passes.base import Remarks
from tilecc.passes.mask_tiles import MaskTiles

PARAMS = """%q: f32[h:H, i:M, d:8], %k: f32[h, j:N, d], %v: f32[h, j, e:8], %w: i64, %p: i64,
 %flag: bool, %cap: f32, %pad: bool[j], %doc: i64[i], %key: i64[j], %bias: f32[h, i, j]"""

# The online form: MASK makes %x from the scores %s.
ONLINE = """
func @f(PARAMS) {
  %o, %lse = kernel over h, i {
    %m, %l, %acc = stream j {
      %s = contract %q, %k over d : f32[h, i, j]
MASK
      %r = reduce max %x over j : f32[h, i]
      %m1 = update max %r : f32[h, i]
      %g = map where(%m1 == -inf, 0.0, %m1 * 1.4) : f32[h, i]
      %pr = map exp2(%x * 1.4 - %g) : f32[h, i, j]
      %r1 = reduce sum %pr over j : f32[h, i]
      %l1 = update sum %r1 repair acc * exp2(old(%m1) * 1.4 - %g) : f32[h, i]
      %pv = contract %pr, %v over j : f32[h, i, e]
      %acc1 = update sum %pv repair acc * exp2(old(%m1) * 1.4 - %g) : f32[h, i, e]
      yield %m1, %l1, %acc1
    }
    %z = map where(%l == 0.0, 0.0, %acc / %l) : f32[h, i, e]
    %lse1 = map where(%m == -inf, -inf, %m * 1.4 + log2(%l)) : f32[h, i]
    yield %z, %lse1
  }
  return %o, %lse
}
"""

# One state, a sum: MASK makes %x, which is contracted with %v.
SUM = """
func @f(PARAMS) {
  %o = kernel over h, i {
    %acc = stream j {
      %s = contract %q, %k over d : f32[h, i, j]
MASK
      %pv = contract %x, %v over j : f32[h, i, e]
      %acc1 = update sum %pv : f32[h, i, e]
      yield %acc1
    }
    yield %acc
  }
  return %o
}
"""


def build(template, mask):
    lines = "".join(f"      {line}  # mask.py:{n}\n" for n, line in enumerate(mask.split("; "), 1))
    text = template.replace("PARAMS", PARAMS.replace("\n", ""))
    func = parse_ir(text.replace("MASK\n", lines))
    verify(func)
    return func


def masked(template, mask):
    remarks = Remarks("mask-tiles")
    func = build(template, mask)
    before = print_ir(func)
    out = MaskTiles().apply(func, remarks)
    assert print_ir(func) == before, "the input was edited"
    verify(out)
    assert print_ir(parse_ir(print_ir(out))) == print_ir(out)
    return func, out, [str(r) for r in remarks.items]


def wheres(func):
    """The predicates as printed."""
    lines = [s for s in print_ir(func, locs=False).splitlines() if "= stream" in s]
    return [s.split("where ", 1)[1].rstrip(" {") if "where " in s else None for s in lines]


T = "f32[h, i, j]"
CASES = {
    "causal": (ONLINE, f"%x = map where(index(j) <= index(i), %s, -inf) : {T}",
               "index(j) <= index(i)"),
    "excluding form": (ONLINE, f"%x = map where(index(j) > index(i), -inf, %s) : {T}",
                       "index(j) <= index(i)"),
    "two masks in a row": (
        ONLINE,
        f"%a = map where(index(j) <= index(i), %s, -inf) : {T}; "
        f"%x = map where(index(i) - index(j) < %w, %a, -inf) : {T}",
        "(index(j) > index(i) - %w) & (index(j) <= index(i))",
    ),
    "nested, scaled after the mask": (
        ONLINE,
        f"%x = map where(index(i) - index(j) < 5, where(index(j) <= index(i), %s, -inf), -inf)"
        f" * 0.25 : {T}",
        "(index(j) >= index(i) - 4) & (index(j) <= index(i))",
    ),
    "prefix": (ONLINE, f"%x = map where((index(j) < %p) | (index(j) <= index(i)), %s, -inf) : {T}",
               "(index(j) < %p) | (index(j) <= index(i))"),
    "bias added after the mask": (
        ONLINE, f"%x = map where(index(j) <= index(i), %s, -inf) + %bias : {T}",
        "index(j) <= index(i)"),
    "additive mask": (
        ONLINE, f"%x = map %s + where(index(j) <= index(i), 0.0, -inf) : {T}",
        "index(j) <= index(i)"),
    "mask as a value of its own": (
        ONLINE,
        "%c = map index(j) <= index(i) : bool[i, j]; "
        f"%c1 = map %c & (index(i) - index(j) < %w) : bool[i, j]; "
        f"%x = map where(%c1, %s, -inf) : {T}",
        "(index(j) > index(i) - %w) & (index(j) <= index(i))",
    ),
    "flag": (ONLINE, f"%x = map where(%flag | (index(j) <= index(i)), %s, -inf) : {T}",
             "(index(j) <= index(i)) | %flag"),
    "per head": (
        ONLINE, f"%x = map where(index(i) - index(j) < (index(h) + 1) * 2, %s, -inf) : {T}",
        "index(j) >= index(i) - index(h) * 2 - 1"),
    "blocks": (ONLINE, f"%x = map where(index(i) // 4 == index(j) // 4, %s, -inf) : {T}",
               "index(j) // 4 == index(i) // 4"),
    "sigmoid": (
        SUM,
        f"%x = map sigmoid(where(index(j) <= index(i), %s, -inf)) : {T}",
        "index(j) <= index(i)"),
    "product with a mask": (SUM, f"%x = map tanh(%s) * (index(j) <= index(i)) : {T}",
                            "index(j) <= index(i)"),
    "square of a masked value": (
        SUM, f"%a = map where(index(j) < %p, %s, 0.0) : {T}; %x = map %a * abs(%a) : {T}",
        "index(j) < %p"),
    "decay": (
        SUM,
        f"%x = map %s * exp2(where(index(j) <= index(i), (index(j) - index(i)) * 0.1, -inf)) : {T}",
        "index(j) <= index(i)"),
    "guarded by a maximum": (
        SUM,
        "%m = map where(index(j) <= index(i), %s, -inf) : f32[h, i, j]; "
        f"%x = map exp(%m - maximum(%cap, -3.0)) : {T}",
        "index(j) <= index(i)"),
    "sum of two masked values": (
        SUM,
        f"%a = map where(index(j) < %p, %s, 0.0) : {T}; "
        f"%x = map %a - where(index(j) <= index(i), %s, 0.0) : {T}",
        "(index(j) < %p) | (index(j) <= index(i))"),
    # Data: ids and masks in memory are as good as coordinates.
    "causal and padding": (
        ONLINE, f"%x = map where((index(j) <= index(i)) & %pad, %s, -inf) : {T}",
        "(index(j) <= index(i)) & %pad"),
    "causal and documents": (
        ONLINE,
        f"%a = map where(%doc == %key, %s, -inf) : {T}; "
        f"%x = map where(index(j) <= index(i), %a, -inf) : {T}",
        "(%key == %doc) & (index(j) <= index(i))"),
    "documents through views": (
        ONLINE,
        "%a = at %doc[i = minimum(index(j) // 2, M - 1)] : i64[j]; "
        f"%x = map where(%a == %doc, %s, -inf) : {T}",
        "%doc == %a"),
    "global tokens": (
        ONLINE,
        "%a = at %pad[j = minimum(index(i), N - 1)] : bool[i]; "
        f"%x = map where(%a | %pad | (abs(index(i) - index(j)) < 2), %s, -inf) : {T}",
        "%a | %pad | (index(j) >= index(i) - 1) & (index(j) <= index(i) + 1)"),
    "data in a conjunction in a union": (
        ONLINE,
        f"%x = map where((index(j) < 2) | ((index(j) <= index(i)) & %pad), %s, -inf) : {T}",
        "(index(j) <= 1) | (index(j) <= index(i)) & %pad"),
    "data in a union": (ONLINE, f"%x = map where(%pad | (index(j) <= index(i)), %s, -inf) : {T}",
                        "(index(j) <= index(i)) | %pad"),
    "a bias as a mask": (
        ONLINE, f"%x = map where((%bias > 0.0) & (index(j) <= index(i)), %s, -inf) : {T}",
        "index(j) <= index(i)"),
    "a comparison of floats": (
        ONLINE, f"%x = map where((index(j) * 1.0 < %cap) & (index(j) <= index(i)), %s, -inf) : {T}",
        "index(j) <= index(i)"),
    "scores": (ONLINE, f"%x = map where(%s > 0.5, %s, -inf) : {T}", None),
    # Not the identity at masked positions.
    "no mask": (ONLINE, f"%x = map %s * 2.0 : {T}", None),
    "a finite stand-in": (ONLINE, f"%x = map where(index(j) <= index(i), %s, -1e9) : {T}", None),
    "cap after the mask": (
        ONLINE, f"%x = map tanh(where(index(j) <= index(i), %s, -inf)) * 5.0 : {T}", None),
    "a scale of unknown sign": (
        ONLINE, f"%x = map where(index(j) <= index(i), %s, -inf) * %cap : {T}", None),
    "-inf less something that may be -inf": (
        SUM,
        f"%m = map where(index(j) <= index(i), %s, -inf) : {T}; "
        f"%x = map exp(%m - where(%flag, -inf, %cap)) : {T}",
        None),
    "not a zero": (SUM, f"%x = map exp(where(index(j) <= index(i), %s, 0.0)) : {T}", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_predicate(name):
    template, mask, want = CASES[name]
    assert wheres(masked(template, mask)[1]) == [want]


@pytest.mark.parametrize("name", [n for n, (_, _, want) in CASES.items() if want])
def test_skipping_changes_nothing(name):
    template, mask, _ = CASES[name]
    before, after, _ = masked(template, mask)
    rng = np.random.default_rng(3)
    # One row at a time with chunks of one position skips all that the predicate lets be skipped.
    for m, n, w, p in [(1, 9, 3, 4), (7, 11, 2, 0), (6, 6, 0, 6), (1, 1, 1, 1), (12, 5, 3, 2)]:
        inputs = [
            rng.standard_normal((2, m, 8)), rng.standard_normal((2, n, 8)),
            rng.standard_normal((2, n, 8)), np.int64(w), np.int64(p), np.bool_(False),
            np.float64(2.5), rng.random(n) < 0.6, rng.integers(0, 2, m), rng.integers(0, 2, n),
            rng.standard_normal((2, m, n)),
        ]  # fmt: skip
        want = interpret(before, inputs, chunk=n, exact=True)
        for chunk in (1, 3, 16):
            got = interpret(after, inputs, chunk=chunk, exact=True)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_remark_on_data_names_the_line_and_the_tensor():
    _, _, remarks = masked(*CASES["a bias as a mask"][:2])
    assert remarks == [
        "mask.py:1: mask-tiles: no tile is skipped by the condition %bias > 0.0: "
        "it depends on data (%bias)"
    ]


def test_views_that_the_predicate_reads_move_in_front_of_the_stream():
    _, out, _ = masked(*CASES["documents through views"][:2])
    (kernel,) = (op for op in out.body.ops if op.name == "kernel")
    assert [op.name for op in kernel.body.ops[:2]] == ["at", "stream"]
    assert kernel.body.ops[1].operands[0] is kernel.body.ops[0].result


def test_remark_on_floats():
    (remark,) = masked(*CASES["a comparison of floats"][:2])[2]
    assert "index(j) * 1.0 < %cap: it is not integer arithmetic" in remark


def test_no_remark_where_there_is_no_mask():
    assert masked(*CASES["no mask"][:2])[2] == []
    assert masked(*CASES["causal"][:2])[2] == []


def test_a_finite_stand_in_is_told():
    _, _, remarks = masked(*CASES["a finite stand-in"][:2])
    assert any("masked positions add to %m1 is not proved" in r for r in remarks)


def test_a_state_that_masked_positions_change_prevents_skipping():
    func = parse_ir("""
func @f(%x: f32[i:N, j:N]) {
  %a, %b = kernel over i {
    %a, %b = stream j {
      %y = map where(index(j) <= index(i), %x, 0.0) : f32[i, j]
      %r = reduce sum %y over j : f32[i]
      %u = update sum %r : f32[i]
      %r1 = reduce sum %x over j : f32[i]  # plain.py:7
      %u1 = update sum %r1 : f32[i]  # plain.py:8
      yield %u, %u1
    }
    yield %a, %b
  }
  return %a, %b
}
""")
    remarks = Remarks("mask-tiles")
    assert wheres(MaskTiles().apply(func, remarks)) == [None]
    (remark,) = remarks.items
    assert remark.loc is not None and remark.loc.line == 8
    assert "%u1 is not proved to be nothing" in remark.message


STATES = """
func @f(%x: f32[i:N, j:N], %t: f32[j]) {
  %o = kernel over i {
    %a = stream j {
      %y = map where(index(j) <= index(i), %x, 0.0) : f32[i, j]
      %z = map where(index(i) - index(j) < 3, %x, 0.0) : f32[i, j]
      %r = reduce sum %y over j : f32[i]
      %r1 = reduce sum %z over j : f32[i]
BODY
      yield YIELD
    }
    yield %a
  }
  return %o
}
"""


def states(body, result="%u"):
    func = parse_ir(STATES.replace("BODY", body).replace("YIELD", result))
    verify(func)
    remarks = Remarks("mask-tiles")
    return wheres(MaskTiles().apply(func, remarks))[0], [r.message for r in remarks.items]


def test_a_function_of_what_was_reduced():
    assert states("%t1 = map %r * 3.0 : f32[i]\n%u = update sum %t1 : f32[i]")[0] is not None
    assert states("%t1 = map %r + 3.0 : f32[i]\n%u = update sum %t1 : f32[i]")[0] is None


def test_a_product_of_two_sums_rests_on_one_of_them():
    # A chunk whose positions are dead for one sum or the other, but not all for the same, counts.
    where, _ = states("%t1 = map %r * %r1 : f32[i]\n%u = update sum %t1 : f32[i]")
    assert where == "index(j) <= index(i)"


def test_masks_that_exclude_nothing_together():
    where, _ = states(
        "%y1 = map %y + %z : f32[i, j]\n%r2 = reduce sum %y1 over j : f32[i]\n"
        "%u = update sum %r2 : f32[i]"
    )
    assert where is None  # j <= i or j > i - 3 is every position


def test_an_output_for_each_position_prevents_skipping():
    func = parse_ir("""
func @f(%x: f32[i:N, j:N]) {
  %a, %b = kernel over i {
    %a, %b = stream j {
      %y = map where(index(j) <= index(i), %x, 0.0) : f32[i, j]
      %r = reduce sum %y over j : f32[i]
      %u = update sum %r : f32[i]
      yield %u, %y
    }
    yield %a, %b
  }
  return %a, %b
}
""")
    remarks = Remarks("mask-tiles")
    assert wheres(MaskTiles().apply(func, remarks)) == [None]
    assert "%y is written for each j" in remarks.items[0].message


def test_a_repair_that_depends_on_the_position_prevents_skipping():
    body = "%d = reduce sum %t over j : f32[]\n%u = update sum %r repair acc * %d : f32[i]"
    where, remarks = states(body.replace("f32[]", "f32"))
    assert where is None
    assert "the repair of %u depends on the position" in remarks[0]


def test_an_axis_that_is_only_contracted_is_projected_away():
    func = parse_ir("""
func @f(%q: f32[i:N, d:D], %k: f32[j:N, d]) {
  %o = kernel over i {
    %a = stream j {
      %k1 = map where((index(j) <= 5) & (index(d) < 3), %k, 0.0) : f32[j, d]
      %s = contract %q, %k1 over d : f32[i, j]
      %r = reduce sum %s over j : f32[i]
      %u = update sum %r : f32[i]
      yield %u
    }
    yield %a
  }
  return %o
}
""")
    assert wheres(MaskTiles().apply(func, Remarks())) == ["index(j) <= 5"]


def test_two_pass_loops_and_repetition():
    # Both passes get the predicate; running the pass again changes nothing.
    func = parse_ir("""
func @f(%x: f32[i:N, j:N]) {
  %o = kernel over i {
    %m = stream j {
      %y = map where(index(j) <= index(i), %x, -inf) : f32[i, j]
      %r = reduce max %y over j : f32[i]
      %u = update max %r : f32[i]
      yield %u
    }
    %g = map where(%m == -inf, 0.0, %m) : f32[i]
    %l = stream j {
      %y1 = map where(index(j) <= index(i), %x, -inf) : f32[i, j]
      %p = map exp(%y1 - %g) : f32[i, j]
      %r1 = reduce sum %p over j : f32[i]
      %u1 = update sum %r1 : f32[i]
      yield %u1
    }
    yield %l
  }
  return %o
}
""")
    once = MaskTiles().apply(func, Remarks())
    assert wheres(once) == ["index(j) <= index(i)"] * 2
    assert print_ir(MaskTiles().apply(once, Remarks())) == print_ir(once)
    unguarded = print_ir(func).replace("exp(%y1 - %g)", "exp(%y1 - %m)")
    remarks = Remarks()
    assert wheres(MaskTiles().apply(parse_ir(unguarded), remarks)) == [
        "index(j) <= index(i)",
        None,  # -inf - -inf is NaN in a row without live positions, and skipping would give 0
    ]
    (remark,) = remarks.items
    assert "masked positions add to %u1 is not proved" in remark.message

"""Integer, logic and bit instructions against values worked out by hand from the PTX manual."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import lanes, s32, u32, u64

BIG = 2**31

TABLE = [
    ("add.s32 %d0, %a0, %a1;", [s32(1, 2**31 - 1, -5), s32(2, 1, 3)], s32(3, -BIG, -2)),
    ("add.u32 %d0, %a0, 4294967295;", [u32(5, 0)], u32(4, 2**32 - 1)),
    ("add.s64 %d0, %a0, -8;", [u64(8, 0)], u64(0, -8)),
    ("add.s16 %d0, %a0, %a0;", [np.int16([20000])], np.int16([-25536])),
    ("sub.s32 %d0, %a0, %a1;", [s32(1, -BIG), s32(2, 1)], s32(-1, BIG - 1)),
    ("mul.lo.s32 %d0, %a0, %a1;", [s32(-3, 65536), s32(7, 65536)], s32(-21, 0)),
    ("mul.hi.s32 %d0, %a0, %a1;", [s32(-1, 65536), s32(1, 65536)], s32(-1, 1)),
    ("mul.hi.u32 %d0, %a0, %a1;", [u32(2**32 - 1), u32(2**32 - 1)], u32(2**32 - 2)),
    ("mul.lo.s64 %d0, %a0, %a1;", [u64(-3), u64(5)], u64(-15)),
    ("mul.hi.u64 %d0, %a0, %a1;", [u64(2**64 - 1), u64(2**64 - 1)], u64(2**64 - 2)),
    ("mul.hi.s64 %d0, %a0, %a1;", [u64(-2, -1), u64(3, -1)], u64(-1, 0)),
    ("mul.wide.s32 %d0, %a0, %a1;", [s32(-2, BIG - 1), s32(3, 4)], u64(-6, 4 * (BIG - 1))),
    ("mul.wide.u32 %d0, %a0, %a1;", [u32(2**32 - 1), u32(2)], u64(2**33 - 2)),
    ("mul.wide.s16 %d0, %a0, %a1;", [np.int16([-3]), np.int16([1000])], s32(-3000)),
    ("mad.lo.s32 %d0, %a0, %a1, %a2;", [s32(3), s32(-4), s32(5)], s32(-7)),
    ("mad.hi.u32 %d0, %a0, %a1, %a2;", [u32(2**31), u32(6), u32(10)], u32(13)),
    ("mad.wide.u32 %d0, %a0, %a1, %a2;", [u32(2**31), u32(4), u64(1)], u64(2**33 + 1)),
    ("mad.wide.s32 %d0, %a0, %a1, %a2;", [s32(-1), s32(4), u64(1)], u64(-3)),
    ("div.s32 %d0, %a0, %a1;", [s32(7, -7, 7, -7), s32(2, 2, -2, -2)], s32(3, -3, -3, 3)),
    ("rem.s32 %d0, %a0, %a1;", [s32(7, -7, 7, -7), s32(2, 2, -2, -2)], s32(1, -1, 1, -1)),
    ("div.u32 %d0, %a0, %a1;", [u32(2**32 - 1), u32(16)], u32(2**28 - 1)),
    ("rem.u32 %d0, %a0, %a1;", [u32(2**32 - 1), u32(10)], u32(5)),
    ("div.u64 %d0, %a0, %a1;", [u64(2**40 + 1), u64(3)], u64(366503875925)),
    ("rem.u64 %d0, %a0, %a1;", [u64(2**64 - 1), u64(10)], u64(5)),
    ("div.s64 %d0, %a0, %a1;", [u64(-9), u64(4)], u64(-2)),
    ("min.s32 %d0, %a0, %a1;", [s32(-1, 4), s32(1, 3)], s32(-1, 3)),
    ("max.s32 %d0, %a0, %a1;", [s32(-1, 4), s32(1, 3)], s32(1, 4)),
    ("min.u32 %d0, %a0, %a1;", [u32(-1), u32(1)], u32(1)),
    ("max.u32 %d0, %a0, %a1;", [u32(-1), u32(1)], u32(-1)),
    ("min.s64 %d0, %a0, %a1;", [u64(-1), u64(1)], u64(-1)),
    ("abs.s32 %d0, %a0;", [s32(-5, 5, -BIG)], s32(5, 5, -BIG)),
    ("neg.s32 %d0, %a0;", [s32(-5, 5, 0)], s32(5, -5, 0)),
    ("sad.s32 %d0, %a0, %a1, %a2;", [s32(3), s32(-4), s32(100)], s32(107)),
    ("shl.b32 %d0, %a0, %a1;", [u32(1, 1, 1, 3), u32(0, 31, 32, 31)], u32(1, BIG, 0, BIG)),
    ("shl.b64 %d0, %a0, 40;", [u64(3)], u64(3 << 40)),
    ("shr.u32 %d0, %a0, %a1;", [u32(BIG, BIG, 7), u32(31, 32, 1)], u32(1, 0, 3)),
    ("shr.s32 %d0, %a0, %a1;", [s32(-8, -8, 8), u32(1, 40, 40)], s32(-4, -1, 0)),
    ("shr.u64 %d0, %a0, 32;", [u64(2**63)], u64(2**31)),
    ("shr.s64 %d0, %a0, 63;", [u64(-2)], u64(-1)),
    ("and.b32 %d0, %a0, 12;", [u32(10)], u32(8)),
    ("or.b32 %d0, %a0, %a1;", [u32(10), u32(5)], u32(15)),
    ("xor.b32 %d0, %a0, %a1;", [u32(12), u32(10)], u32(6)),
    ("not.b32 %d0, %a0;", [u32(0, 5)], u32(-1, -6)),
    ("cnot.b32 %d0, %a0;", [u32(0, 5)], u32(1, 0)),
    ("and.b64 %d0, %a0, %a1;", [u64(2**40 + 3), u64(2**40 + 5)], u64(2**40 + 1)),
    # 0xE8 is the majority of three bits, 0x96 their parity
    ("lop3.b32 %d0, %a0, %a1, %a2, 0xE8;", [u32(12), u32(10), u32(6)], u32(14)),
    ("lop3.b32 %d0, %a0, %a1, %a2, 0x96;", [u32(12), u32(10), u32(6)], u32(0)),
    ("popc.b32 %d0, %a0;", [u32(0, 255, -1)], u32(0, 8, 32)),
    ("popc.b64 %d0, %a0;", [u64(-1, 2**40)], u32(64, 1)),
    ("clz.b32 %d0, %a0;", [u32(0, 1, BIG, 65535)], u32(32, 31, 0, 16)),
    ("clz.b64 %d0, %a0;", [u64(0, 1, 2**63)], u32(64, 63, 0)),
    ("bfind.u32 %d0, %a0;", [u32(0, 1, BIG + 1)], u32(-1, 0, 31)),
    ("bfind.shiftamt.u32 %d0, %a0;", [u32(0, 1, BIG)], u32(-1, 31, 0)),
    ("bfind.s32 %d0, %a0;", [s32(-1, -2, 4)], u32(-1, 0, 2)),
    ("brev.b32 %d0, %a0;", [u32(1, 0xF0, 0x12345678)], u32(BIG, 0x0F000000, 0x1E6A2C48)),
    ("brev.b64 %d0, %a0;", [u64(1)], u64(2**63)),
    ("bfe.u32 %d0, %a0, 4, 8;", [u32(0xABCDE)], u32(0xCD)),
    ("bfe.s32 %d0, %a0, 4, 8;", [u32(0xABCDE)], s32(-51)),
    ("bfe.u32 %d0, %a0, 28, 8;", [u32(0xF0000000)], u32(15)),
    ("bfe.s32 %d0, %a0, 0, 0;", [s32(-1)], s32(0)),
    ("bfe.s32 %d0, %a0, 28, 8;", [u32(0xF0000000)], s32(-1)),
    ("bfi.b32 %d0, %a0, %a1, 8, 4;", [u32(0x5), u32(0xFFFFFFFF)], u32(0xFFFFF5FF)),
    ("bfi.b64 %d0, %a0, %a1, 32, 32;", [u64(7), u64(9)], u64((7 << 32) + 9)),
    ("prmt.b32 %d0, %a0, %a1, 0x5410;", [u32(0x33221100), u32(0x77665544)], u32(0x55441100)),
    ("prmt.b32 %d0, %a0, %a1, 0x7632;", [u32(0x33221100), u32(0x77665544)], u32(0x77663322)),
    ("prmt.b32 %d0, %a0, %a1, 0x0089;", [u32(0x000080FF), u32(0)], u32(0xFFFFFFFF)),
    ("shf.l.wrap.b32 %d0, %a0, %a1, 8;", [u32(0xAABBCCDD), u32(0x11223344)], u32(0x223344AA)),
    ("shf.r.wrap.b32 %d0, %a0, %a1, 8;", [u32(0xAABBCCDD), u32(0x11223344)], u32(0x44AABBCC)),
    ("shf.r.clamp.b32 %d0, %a0, %a1, 40;", [u32(0xAABBCCDD), u32(0x11223344)], u32(0x11223344)),
    ("shf.l.clamp.b32 %d0, %a0, %a1, 32;", [u32(0xAABBCCDD), u32(0x11223344)], u32(0xAABBCCDD)),
    ("mov.b64 %d0, {%a0, %a1};", [u32(1), u32(2)], u64(2**33 + 1)),
    ("mov.b64 {%r1, %d0}, %a0;", [u64(2**33 + 1)], u32(2)),
    ("mov.b64 {%d0, _}, %a0;", [u64(2**33 + 1)], u32(1)),
    ("mov.b32 {%h0, %h1}, %a0; mov.b32 %d0, {%h1, %h0};", [u32(0x11112222)], u32(0x22221111)),
    ("{ .reg .b32 t; add.s32 t, %a0, 1; mov.u32 %d0, t; }", [u32(4)], u32(5)),
    # bytes from the low one on: 255 and 1; -1 and 1, times 2 and 3
    ("dp4a.u32.u32 %d0, %a0, %a1, %a2;", [u32(0x01FF), u32(0x0302), u32(7)], u32(520)),
    ("dp4a.s32.s32 %d0, %a0, %a1, %a2;", [u32(0x01FF), u32(0x0302), s32(-7)], s32(-6)),
    ("dp4a.s32.u32 %d0, %a0, %a0, 0;", [u32(0x80000000)], s32(-128 * 128)),
    ("dp2a.lo.s32.u32 %d0, %a0, %a1, %a2;", [u32(0x0001FFFF), u32(0x0302), s32(1)], s32(2)),
    (
        "dp2a.hi.u32.u32 %d0, %a0, %a1, %a2;",
        [u32(0x0001FFFF), u32(0x03020000), u32(1)],
        u32(2 * 65535 + 4),
    ),
]


@pytest.mark.parametrize(("text", "inputs", "expected"), TABLE, ids=[t for t, _, _ in TABLE])
def test_by_hand(text, inputs, expected):
    (found,) = lanes(text, inputs, expected.dtype)
    np.testing.assert_array_equal(found, expected)


COMPARISONS = [
    ("setp.lt.s32", s32(-1, 1), s32(1, 1), (1, 0)),
    ("setp.lt.u32", u32(-1, 1), u32(1, 2), (0, 1)),
    ("setp.lo.u32", u32(-1, 1), u32(1, 2), (0, 1)),
    ("setp.ls.u32", u32(2, 3), u32(2, 2), (1, 0)),
    ("setp.hi.u32", u32(-1, 1), u32(1, 2), (1, 0)),
    ("setp.hs.u32", u32(2, 1), u32(2, 2), (1, 0)),
    ("setp.ge.s32", s32(1, -1), s32(1, 1), (1, 0)),
    ("setp.gt.s64", u64(-1, 2), u64(1, 1), (0, 1)),
    ("setp.eq.b32", u32(3, 4), u32(3, 3), (1, 0)),
    ("setp.ne.b64", u64(3, 2**40), u64(3, 0), (0, 1)),
    ("setp.le.s32", s32(1, 2), s32(1, 1), (1, 0)),
]


@pytest.mark.parametrize(("op", "a", "b", "expected"), COMPARISONS, ids=[c[0] for c in COMPARISONS])
def test_comparisons(op, a, b, expected):
    text = f"{op} %p1|%p2, %a0, %a1; selp.u32 %d0, 1, 0, %p1; selp.u32 %d1, 1, 0, %p2;"
    yes, no = lanes(text, [a, b], np.uint32, np.uint32)
    assert yes.tolist() == list(expected)
    assert no.tolist() == [1 - x for x in expected]


@pytest.mark.parametrize(
    ("join", "expected"), [("and", (1, 0, 0, 0)), ("or", (1, 1, 1, 0)), ("xor", (0, 1, 1, 0))]
)
def test_a_comparison_joined_with_a_predicate(join, expected):
    text = f"setp.ne.s32 %p3, %a2, 0; setp.lt.{join}.s32 %p1, %a0, %a1, %p3;"
    (found,) = lanes(
        f"{text} selp.u32 %d0, 1, 0, %p1;",
        [s32(0, 0, 2, 2), s32(1, 1, 1, 1), s32(1, 0, 1, 0)],
        "u4",
    )
    assert found.tolist() == list(expected)


def test_a_negated_predicate_joined():
    text = "setp.ne.s32 %p3, %a0, 0; setp.eq.and.s32 %p1, 0, 0, !%p3; selp.u32 %d0, 1, 0, %p1;"
    (found,) = lanes(text, [s32(1, 0)], "u4")
    assert found.tolist() == [0, 1]


def test_logic_on_predicates():
    text = (
        "setp.ne.s32 %p1, %a0, 0; setp.ne.s32 %p2, %a1, 0; and.pred %p3, %p1, %p2;"
        "or.pred %p4, %p1, %p2; xor.pred %p5, %p1, %p2; not.pred %p6, %p1; mov.pred %p7, %p2;"
        "selp.u32 %d0, 1, 0, %p3; selp.u32 %d1, 1, 0, %p4; selp.u32 %d2, 1, 0, %p5;"
        "selp.u32 %d3, 1, 0, %p6; selp.u32 %d4, 1, 0, %p7;"
    )
    found = lanes(text, [s32(0, 0, 1, 1), s32(0, 1, 0, 1)], *["u4"] * 5)
    expected = [[0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0], [0, 1, 0, 1]]
    assert [x.tolist() for x in found] == expected


def test_set_and_slct():
    text = (
        "set.lt.u32.s32 %d0, %a0, %a1; set.eq.f32.s32 %d1, %a0, %a1; slct.s32.s32 %d2, 7, 8, %a0;"
    )
    ones, one, by_sign = lanes(text, [s32(-1, 1), s32(1, 1)], "u4", "f4", "i4")
    assert ones.tolist() == [2**32 - 1, 0]
    assert one.tolist() == [0.0, 1.0]
    assert by_sign.tolist() == [8, 7]


def test_predicated_instructions_leave_other_lanes_alone():
    text = (
        "mov.u32 %d0, 1; setp.gt.s32 %p1, %a0, 0; @%p1 mov.u32 %d0, 2; @!%p1 add.s32 %d0, %d0, 8;"
    )
    (found,) = lanes(text, [s32(1, -1)], "u4")
    assert found.tolist() == [2, 9]


def test_special_registers():
    text = (
        "mov.u32 %d0, %laneid; mov.u32 %d1, %warpid; mov.u32 %d2, %ntid.x; mov.u32 %d3, %ctaid.x;"
        "mov.u32 %d4, %lanemask_lt;"
    )
    found = lanes(text, [np.arange(64, dtype=np.uint32)], *["u4"] * 5)
    assert [int(x[37]) for x in found] == [5, 1, 64, 0, 31]

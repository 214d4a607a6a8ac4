"""Floating-point instructions and conversions against values worked out by hand from the manual."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import bf16x2, f16x2, f32, lanes, s32, u32, u64

INF, NAN = math.inf, math.nan
TINY = 2.0**-130  # subnormal in f32
ULP = 2.0**-23

TABLE = [
    ("add.f32 %d0, %a0, %a1;", [f32(1, INF), f32(2, -INF)], f32(3, NAN)),
    ("add.ftz.f32 %d0, %a0, %a1;", [f32(TINY, -TINY), f32(0, -0.0)], f32(0, -0.0)),
    ("add.f32 %d0, %a0, %a1;", [f32(TINY), f32(0)], f32(TINY)),
    ("add.rz.f32 %d0, %a0, %a1;", [f32(1, -1), f32(0.75 * ULP, -0.75 * ULP)], f32(1, -1)),
    ("add.rp.f32 %d0, %a0, %a1;", [f32(1, 1), f32(2.0**-60, 0)], f32(1 + ULP, 1)),
    ("add.rm.f32 %d0, %a0, %a1;", [f32(1), f32(-(2.0**-60))], f32(1 - ULP / 2)),
    ("add.sat.f32 %d0, %a0, %a1;", [f32(0.75, -2, NAN), f32(0.75, 1, 1)], f32(1, 0, 0)),
    ("sub.f32 %d0, %a0, %a1;", [f32(1), f32(4)], f32(-3)),
    ("mul.f32 %d0, %a0, %a1;", [f32(3, INF), f32(-2, 0)], f32(-6, NAN)),
    ("mul.ftz.f32 %d0, %a0, %a1;", [f32(2.0**-100, TINY), f32(2.0**-40, 2.0**100)], f32(0, 0)),
    ("mul.rz.f32 %d0, %a0, %a0;", [f32(1 + ULP)], f32(1 + 2 * ULP)),
    ("mul.rp.f32 %d0, %a0, %a0;", [f32(1 + ULP)], f32(1 + 3 * ULP)),
    # the product is 1 - 2**-46, which a product rounded by itself would lose
    ("fma.rn.f32 %d0, %a0, %a1, %a2;", [f32(1 + ULP), f32(1 - ULP), f32(-1)], f32(-(ULP**2))),
    # 1 + 2**-24 + 2**-60 rounds up; rounding twice would round to even, down
    (
        "fma.rn.f32 %d0, %a0, %a1, %a2;",
        [f32(2.0**-30), f32(2.0**-30), f32(1)],
        f32(1),
    ),
    (
        "fma.rn.f32 %d0, %a0, %a1, %a2;",
        [f32(1 + 2.0**-12), f32(2.0**-24 + 2.0**-47), f32(1)],
        f32(1 + ULP),
    ),
    ("fma.rz.f32 %d0, %a0, %a1, %a2;", [f32(1), f32(0.75 * ULP), f32(1)], f32(1)),
    ("fma.rm.f32 %d0, %a0, %a1, %a2;", [f32(1), f32(-0.1 * ULP), f32(-1)], f32(-1 - ULP)),
    ("fma.rn.ftz.f32 %d0, %a0, %a1, %a2;", [f32(TINY), f32(2.0**127), f32(5)], f32(5)),
    ("mad.rn.f32 %d0, %a0, %a1, %a2;", [f32(2), f32(3), f32(1)], f32(7)),
    ("div.rn.f32 %d0, %a0, %a1;", [f32(1, 1, 0), f32(3, 0, 0)], f32(1 / 3, INF, NAN)),
    ("div.approx.f32 %d0, %a0, %a1;", [f32(6, 1, INF), f32(3, 2.0**127, 2.0**127)], f32(2, 0, NAN)),
    ("div.full.f32 %d0, %a0, %a1;", [f32(2.0**127), f32(2.0**127)], f32(1)),
    ("min.f32 %d0, %a0, %a1;", [f32(1, NAN, 0.0, NAN), f32(2, 5, -0.0, NAN)], f32(1, 5, -0.0, NAN)),
    ("max.f32 %d0, %a0, %a1;", [f32(1, NAN, -0.0), f32(2, 5, 0.0)], f32(2, 5, 0.0)),
    ("max.NaN.f32 %d0, %a0, %a1;", [f32(1, NAN), f32(2, 5)], f32(2, NAN)),
    ("max.ftz.f32 %d0, %a0, %a1;", [f32(TINY), f32(-1)], f32(0)),
    ("abs.f32 %d0, %a0;", [f32(-1, -0.0, -INF)], f32(1, 0, INF)),
    ("abs.ftz.f32 %d0, %a0;", [f32(-TINY)], f32(0)),
    ("neg.f32 %d0, %a0;", [f32(-1, 0)], f32(1, -0.0)),
    ("rcp.approx.ftz.f32 %d0, %a0;", [f32(4, -0.0, INF, TINY)], f32(0.25, -INF, 0, INF)),
    ("rcp.rn.f32 %d0, %a0;", [f32(3)], f32(1 / 3)),
    ("rsqrt.approx.f32 %d0, %a0;", [f32(4, 0, -0.0, -1, INF)], f32(0.5, INF, -INF, NAN, 0)),
    ("sqrt.rn.f32 %d0, %a0;", [f32(9, 2, -1, -0.0)], f32(3, math.sqrt(2), NAN, -0.0)),
    ("sqrt.approx.ftz.f32 %d0, %a0;", [f32(9)], f32(3)),
    ("ex2.approx.ftz.f32 %d0, %a0;", [f32(3, -INF, INF, -140, NAN)], f32(8, 0, INF, 0, NAN)),
    ("ex2.approx.f32 %d0, %a0;", [f32(-130)], f32(TINY)),
    ("lg2.approx.f32 %d0, %a0;", [f32(8, 0, -1, INF)], f32(3, -INF, NAN, INF)),
    ("sin.approx.f32 %d0, %a0;", [f32(0, math.pi / 2)], f32(0, 1)),
    ("cos.approx.ftz.f32 %d0, %a0;", [f32(0, math.pi)], f32(1, -1)),
    ("tanh.approx.f32 %d0, %a0;", [f32(0, 100, -INF)], f32(0, 1, -1)),
    ("copysign.f32 %d0, %a0, %a1;", [f32(-1, 1), f32(3, -4)], f32(-3, 4)),
    ("mov.f32 %d0, 0fC0490FDB;", [f32(0)], f32(-3.14159274)),
    ("selp.f32 %d0, %a0, 0f3F800000, 1;", [f32(5)], f32(5)),
    ("add.f64 %d0, %a0, 0d3FF0000000000000;", [np.float64([2])], np.float64([3])),
    ("mul.f64 %d0, %a0, %a0;", [np.float64([1.5])], np.float64([2.25])),
    (
        "fma.rn.f64 %d0, %a0, %a1, %a2;",
        [np.float64([1 + 2**-52]), np.float64([1 - 2**-52]), np.float64([-1])],
        np.float64([-(2.0**-104)]),
    ),
    ("div.rn.f64 %d0, %a0, %a1;", [np.float64([1]), np.float64([8])], np.float64([0.125])),
    ("min.f64 %d0, %a0, %a1;", [np.float64([1, NAN]), np.float64([3, 2])], np.float64([1, 2])),
    ("neg.f64 %d0, %a0;", [np.float64([2])], np.float64([-2])),
    ("sqrt.rn.f64 %d0, %a0;", [np.float64([9])], np.float64([3])),
    # halves in pairs: the low one first
    ("add.f16x2 %d0, %a0, %a1;", [f16x2((1, 2)), f16x2((3, -2))], f16x2((4, 0))),
    ("add.rn.f16x2 %d0, %a0, %a1;", [f16x2((2048, 65504)), f16x2((1, 65504))], f16x2((2048, INF))),
    ("sub.f16x2 %d0, %a0, %a1;", [f16x2((1, 2)), f16x2((3, -2))], f16x2((-2, 4))),
    ("mul.f16x2 %d0, %a0, %a1;", [f16x2((3, 0.5)), f16x2((3, 0.5))], f16x2((9, 0.25))),
    (
        "fma.rn.f16x2 %d0, %a0, %a1, %a2;",
        [f16x2((1 + 2**-10, 2)), f16x2((1 - 2**-10, 3)), f16x2((-1, 1))],
        f16x2((-(2**-20), 7)),
    ),
    (
        "fma.rn.relu.f16x2 %d0, %a0, %a1, %a2;",
        [f16x2((1, 1)), f16x2((1, 1)), f16x2((-3, 3))],
        f16x2((0, 4)),
    ),
    ("max.f16x2 %d0, %a0, %a1;", [f16x2((1, NAN)), f16x2((2, -2))], f16x2((2, -2))),
    ("min.f16x2 %d0, %a0, %a1;", [f16x2((1, 5)), f16x2((2, -2))], f16x2((1, -2))),
    ("neg.f16x2 %d0, %a0;", [f16x2((1, -2))], f16x2((-1, 2))),
    ("abs.f16x2 %d0, %a0;", [f16x2((-1, 2))], f16x2((1, 2))),
    ("ex2.approx.f16x2 %d0, %a0;", [f16x2((3, -INF))], f16x2((8, 0))),
    ("tanh.approx.f16x2 %d0, %a0;", [f16x2((0, 30))], f16x2((0, 1))),
    # 256 + 1 is half way between two values of eight bits: to even
    (
        "fma.rn.bf16x2 %d0, %a0, %a1, %a2;",
        [bf16x2((1, 2)), bf16x2((1, 3)), bf16x2((256, 1))],
        bf16x2((256, 7)),
    ),
    # 256 + 3 is half way again, and to even is up
    (
        "fma.rn.bf16x2 %d0, %a0, %a1, %a2;",
        [bf16x2((3, 1)), bf16x2((1, 1)), bf16x2((256, 1))],
        bf16x2((260, 2)),
    ),
    ("max.bf16x2 %d0, %a0, %a1;", [bf16x2((1, NAN)), bf16x2((2, -2))], bf16x2((2, -2))),
    ("neg.bf16x2 %d0, %a0;", [bf16x2((1, -2))], bf16x2((-1, 2))),
    ("add.f16 %d0, %a0, %a1;", [np.float16([1]), np.float16([2])], np.float16([3])),
    ("mul.f16 %d0, %a0, %a1;", [np.float16([300]), np.float16([300])], np.float16([INF])),
    (
        "fma.rn.f16 %d0, %a0, %a1, %a2;",
        [np.float16([2]), np.float16([3]), np.float16([1])],
        np.float16([7]),
    ),
    ("add.ftz.f16 %d0, %a0, %a0;", [np.float16([2**-20])], np.float16([0])),
    ("max.f16 %d0, %a0, %a1;", [np.float16([1]), np.float16([2])], np.float16([2])),
]


@pytest.mark.parametrize(("text", "inputs", "expected"), TABLE)
def test_by_hand(text, inputs, expected):
    (found,) = lanes(text, inputs, expected.dtype)
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected)
        return
    if "approx" in text:
        np.testing.assert_allclose(found, expected, rtol=2.0**-21, atol=1e-7)
        return
    np.testing.assert_array_equal(found, expected)
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))


H = np.float16
CONVERSIONS = [
    ("cvt.s32.s8 %d0, %a0;", [u32(0x1FF, 0x7F)], s32(-1, 127)),
    ("cvt.u32.u16 %d0, %a0;", [np.uint16([65535])], u32(65535)),
    ("cvt.s32.s16 %d0, %a0;", [np.int16([-2])], s32(-2)),
    ("cvt.s64.s32 %d0, %a0;", [s32(-1)], u64(-1)),
    ("cvt.u64.u32 %d0, %a0;", [s32(-1)], u64(2**32 - 1)),
    ("cvt.u32.u64 %d0, %a0;", [u64(2**32 + 7)], u32(7)),
    ("cvt.u16.u32 %d0, %a0;", [u32(65537)], np.uint16([1])),
    ("cvt.sat.s8.s32 %d0, %a0;", [s32(300, -300, 5)], s32(127, -128, 5)),
    ("cvt.sat.u8.s32 %d0, %a0;", [s32(300, -300, 5)], u32(255, 0, 5)),
    ("cvt.rn.f32.s32 %d0, %a0;", [s32(-7, 2**24 + 1)], f32(-7, 2**24)),
    ("cvt.rp.f32.s32 %d0, %a0;", [s32(2**24 + 1)], f32(2**24 + 2)),
    ("cvt.rz.f32.s32 %d0, %a0;", [s32(-(2**24) - 3)], f32(-(2**24) - 2)),
    ("cvt.rm.f32.u64 %d0, %a0;", [u64(2**64 - 1)], f32(2.0**64 - 2.0**40)),
    ("cvt.rn.f32.u32 %d0, %a0;", [u32(2**32 - 1)], f32(2.0**32)),
    ("cvt.rn.f32.u64 %d0, %a0;", [u64(2**63)], f32(2.0**63)),
    ("cvt.rn.f64.s32 %d0, %a0;", [s32(-7)], np.float64([-7])),
    ("cvt.rn.f16.s32 %d0, %a0;", [s32(3, 100000)], H([3, INF])),
    ("cvt.rni.s32.f32 %d0, %a0;", [f32(0.5, 1.5, 2.5, -0.5)], s32(0, 2, 2, 0)),
    (
        "cvt.rzi.s32.f32 %d0, %a0;",
        [f32(1.9, -1.9, 1e20, -1e20, NAN)],
        s32(1, -1, 2**31 - 1, -(2**31), 0),
    ),
    ("cvt.rmi.s32.f32 %d0, %a0;", [f32(1.9, -1.1)], s32(1, -2)),
    ("cvt.rpi.s32.f32 %d0, %a0;", [f32(1.1, -1.9)], s32(2, -1)),
    ("cvt.rzi.u32.f32 %d0, %a0;", [f32(-5, 3e9, 1e20)], u32(0, 3000000000, 2**32 - 1)),
    ("cvt.rzi.s64.f32 %d0, %a0;", [f32(2.0**40, -1e30, NAN)], u64(2**40, -(2**63), 2**63)),
    ("cvt.rzi.u64.f64 %d0, %a0;", [np.float64([2.0**63, 1e30])], u64(2**63, 2**64 - 1)),
    ("cvt.rni.f32.f32 %d0, %a0;", [f32(0.5, 1.5, -0.2)], f32(0, 2, -0.0)),
    ("cvt.rmi.f32.f32 %d0, %a0;", [f32(-0.5, INF)], f32(-1, INF)),
    ("cvt.rpi.ftz.f32.f32 %d0, %a0;", [f32(TINY)], f32(0)),
    ("cvt.sat.f32.f32 %d0, %a0;", [f32(2, -1, 0.5, NAN)], f32(1, 0, 0.5, 0)),
    ("cvt.ftz.f32.f16 %d0, %a0;", [H([2**-20, 1])], f32(2.0**-20, 1)),
    ("cvt.f64.f32 %d0, %a0;", [f32(0.5)], np.float64([0.5])),
    ("cvt.rn.f32.f64 %d0, %a0;", [np.float64([1 + 2**-25, 1e300])], f32(1, INF)),
    ("cvt.rp.f32.f64 %d0, %a0;", [np.float64([1 + 2**-25])], f32(1 + ULP)),
    (
        "cvt.rn.f16.f32 %d0, %a0;",
        [f32(1 + 2**-11, 1 + 3 * 2**-11, 65520, 2**-25)],
        H([1, 1 + 2**-9, INF, 0]),
    ),
    ("cvt.rz.f16.f32 %d0, %a0;", [f32(1 + 3 * 2**-11, -65520)], H([1 + 2**-10, -65504])),
    ("cvt.rn.f16x2.f32 %d0, %a0, %a1;", [f32(1), f32(2)], f16x2((2, 1))),
    ("cvt.rn.relu.f16x2.f32 %d0, %a0, %a1;", [f32(-1), f32(2)], f16x2((2, 0))),
    ("cvt.rn.bf16x2.f32 %d0, %a0, %a1;", [f32(257), f32(259)], bf16x2((260, 256))),
    ("cvt.rz.bf16x2.f32 %d0, %a0, %a1;", [f32(257), f32(259)], bf16x2((258, 256))),
    (
        "cvt.rna.tf32.f32 %d0, %a0;",
        [f32(1 + 2**-11, 1 + 2**-12)],
        f32(1 + 2**-10, 1).view(np.uint32),
    ),
]


@pytest.mark.parametrize(("text", "inputs", "expected"), CONVERSIONS)
def test_conversions(text, inputs, expected):
    (found,) = lanes(text, inputs, expected.dtype)
    np.testing.assert_array_equal(found, expected)


def test_bf16_from_f32():
    (found,) = lanes("cvt.rn.bf16.f32 %d0, %a0;", [f32(257, 3.0, NAN)], np.uint16)
    values = found.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(values, f32(256, 3, NAN))


COMPARISONS = [
    ("lt", (1, 0, 0)), ("ltu", (1, 0, 1)), ("equ", (0, 1, 1)), ("eq", (0, 1, 0)),
    ("ne", (1, 0, 0)), ("neu", (1, 0, 1)), ("gt", (0, 0, 0)), ("gtu", (0, 0, 1)),
    ("le", (1, 1, 0)), ("leu", (1, 1, 1)), ("ge", (0, 1, 0)), ("geu", (0, 1, 1)),
    ("num", (1, 1, 0)), ("nan", (0, 0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected"), COMPARISONS)
def test_comparisons_with_nan(op, expected):
    text = f"setp.{op}.f32 %p1, %a0, %a1; selp.u32 %d0, 1, 0, %p1;"
    (found,) = lanes(text, [f32(1, 2, NAN), f32(2, 2, 2)], "u4")
    assert found.tolist() == list(expected)


def test_comparison_flushes():
    text = "setp.gt.ftz.f32 %p1, %a0, %a1; selp.u32 %d0, 1, 0, %p1;"
    assert lanes(text, [f32(TINY), f32(0)], "u4")[0].tolist() == [0]
    assert lanes(text.replace(".ftz", ""), [f32(TINY), f32(0)], "u4")[0].tolist() == [1]


def test_halves_compare():
    text = "setp.gt.f16 %p1, %a0, %a1; selp.u32 %d0, 1, 0, %p1;"
    assert lanes(text, [H([2, NAN]), H([1, 1])], "u4")[0].tolist() == [1, 0]


def test_classes():
    text = "".join(
        f"testp.{c}.f32 %p1, %a0; selp.u32 %d{i}, 1, 0, %p1;"
        for i, c in enumerate(("finite", "infinite", "number", "notanumber", "normal", "subnormal"))
    )
    found = lanes(text, [f32(1, INF, NAN, TINY)], *["u4"] * 6)
    expected = [[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    assert [x.tolist() for x in found] == expected


def exact_fma(a: float, b: float, c: float) -> np.float32:
    """a * b + c by fractions, rounded to nearest even by the standard library's division."""
    from fractions import Fraction

    x = Fraction(a) * Fraction(b) + Fraction(c)
    candidates = [np.float32(float(x))]
    for goal in (-INF, INF):
        candidates.append(np.nextafter(candidates[0], np.float32(goal)))
    return min(
        candidates,
        key=lambda y: (abs(Fraction(float(y)) - x), int(np.float32(y).view(np.uint32)) & 1),
    )


def test_fma_rounds_once():
    rng = np.random.default_rng(0)
    a = (1 + rng.integers(0, 2**12, 512) * 2.0**-12).astype(np.float32)
    b = (2.0**-24 * (1 + rng.integers(0, 2**12, 512) * 2.0**-12)).astype(np.float32)
    c = (1 + rng.integers(0, 8, 512) * ULP).astype(np.float32)
    (found,) = lanes("fma.rn.f32 %d0, %a0, %a1, %a2;", [a, b, c], np.float32)
    assert found.tolist() == [float(exact_fma(*map(float, v))) for v in zip(a, b, c, strict=True)]

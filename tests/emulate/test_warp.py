"""Shuffles, votes and reductions by hand from the manual; fragments against documented layouts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import lanes, run, s32, u32

LANE = np.arange(32, dtype=np.uint32)

SHUFFLES = [
    ("bfly.b32 %d0|%p1, %a0, 1, 31, -1;", LANE ^ 1, np.ones(32)),
    ("bfly.b32 %d0|%p1, %a0, 16, 31, -1;", LANE ^ 16, np.ones(32)),
    ("up.b32 %d0|%p1, %a0, 2, 0, -1;", np.where(LANE >= 2, LANE - 2, LANE), LANE >= 2),
    ("down.b32 %d0|%p1, %a0, 3, 31, -1;", np.where(LANE <= 28, LANE + 3, LANE), LANE <= 28),
    ("idx.b32 %d0|%p1, %a0, 5, 31, -1;", np.full(32, 5), np.ones(32)),
    # width 8: c = (32 - 8) << 8 | 31 for idx and bfly and down
    ("idx.b32 %d0|%p1, %a0, 3, 6175, -1;", LANE // 8 * 8 + 3, np.ones(32)),
    (
        "down.b32 %d0|%p1, %a0, 1, 6175, -1;",
        np.where(LANE % 8 < 7, LANE + 1, LANE),
        LANE % 8 < 7,
    ),
    ("bfly.b32 %d0|%p1, %a0, 8, 6175, -1;", np.where(LANE < 8, LANE, LANE ^ 8), None),
]


@pytest.mark.parametrize(("form", "source", "valid"), SHUFFLES, ids=[s[0] for s in SHUFFLES])
def test_shuffle(form, source, valid):
    values = LANE * 10 + 3
    text = f"shfl.sync.{form} selp.u32 %d1, 1, 0, %p1;"
    found, p = lanes(text, [values], "u4", "u4")
    if valid is None:  # lanes of the upper segments may read the lower ones, and not the reverse
        bound = LANE & 24 | 7
        valid = bound >= (LANE ^ 8)
        source = np.where(valid, LANE ^ 8, LANE)
    np.testing.assert_array_equal(found, values[np.asarray(source, int)])
    np.testing.assert_array_equal(p, valid)


def test_votes():
    text = (
        "setp.ne.s32 %p1, %a0, 0; vote.sync.all.pred %p2, %p1, -1; vote.sync.any.pred %p3, %p1, -1;"
        "vote.sync.uni.pred %p4, %p1, -1; vote.sync.ballot.b32 %d3, !%p1, -1;"
        "selp.u32 %d0, 1, 0, %p2; selp.u32 %d1, 1, 0, %p3; selp.u32 %d2, 1, 0, %p4;"
        "activemask.b32 %d4;"
    )
    mixed = lanes(text, [(LANE % 2).view(np.int32)], *["u4"] * 5)
    assert [int(x[9]) for x in mixed] == [0, 1, 0, 0x55555555, 2**32 - 1]
    alike = lanes(text, [s32(1)], *["u4"] * 5)
    assert [int(x[0]) for x in alike] == [1, 1, 1, 0, 2**32 - 1]


def test_a_vote_of_some_lanes():
    text = (
        "setp.lt.u32 %p1, %a0, 8; mov.u32 %d0, 7; @%p1 bra IN; bra OUT;"
        "IN: setp.eq.u32 %p2, %a0, 3; vote.sync.ballot.b32 %d0, %p2, 255; OUT:"
    )
    (found,) = lanes(text, [LANE], "u4")
    assert found.tolist() == [8] * 8 + [7] * 24


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("add.s32", 496), ("min.s32", 0), ("max.u32", 31),
        ("and.b32", 0), ("or.b32", 31), ("xor.b32", 0),
    ],
)  # fmt: skip
def test_redux(op, expected):
    (found,) = lanes(f"redux.sync.{op} %d0, %a0, -1;", [LANE], "u4")
    assert found.tolist() == [expected] * 32


# -- matrices


def a_fragment(matrix: np.ndarray, per_register: int) -> list[np.ndarray]:
    """Registers of A (16 x K) by the manual's figures, lane by lane."""
    k = matrix.shape[1]
    registers = []
    for half_k in range(k // (4 * per_register)):
        for half_row in range(2):
            word = [
                [
                    matrix[
                        lane // 4 + 8 * half_row,
                        half_k * 4 * per_register + lane % 4 * per_register + e,
                    ]
                    for e in range(per_register)
                ]
                for lane in range(32)
            ]
            registers.append(np.array(word, matrix.dtype).view(np.uint32)[:, 0])
    return registers


def b_fragment(matrix: np.ndarray, per_register: int) -> list[np.ndarray]:
    """Registers of B (K x 8)."""
    registers = []
    for part in range(matrix.shape[0] // (4 * per_register)):
        word = [
            [
                matrix[part * 4 * per_register + lane % 4 * per_register + e, lane // 4]
                for e in range(per_register)
            ]
            for lane in range(32)
        ]
        registers.append(np.array(word, matrix.dtype).view(np.uint32)[:, 0])
    return registers


def c_fragment(matrix: np.ndarray) -> list[np.ndarray]:
    """Registers of C (16 x 8) of 32 bits."""
    return [
        np.array(
            [matrix[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] for lane in range(32)],
            matrix.dtype,
        )
        for i in range(4)
    ]


CASES = [
    ("m16n8k16.row.col.f32.f16.f16.f32", np.float16, 16, np.float32),
    ("m16n8k8.row.col.f32.f16.f16.f32", np.float16, 8, np.float32),
    ("m16n8k16.row.col.f32.bf16.bf16.f32", ml_dtypes.bfloat16, 16, np.float32),
    ("m16n8k8.row.col.f32.bf16.bf16.f32", ml_dtypes.bfloat16, 8, np.float32),
    ("m16n8k8.row.col.f32.tf32.tf32.f32", np.float32, 8, np.float32),
    ("m16n8k4.row.col.f32.tf32.tf32.f32", np.float32, 4, np.float32),
    ("m16n8k32.row.col.s32.s8.s8.s32", np.int8, 32, np.int32),
    ("m16n8k16.row.col.s32.s8.s8.s32", np.int8, 16, np.int32),
]


@pytest.mark.parametrize(("form", "dtype", "k", "out"), CASES, ids=[c[0] for c in CASES])
def test_mma(form, dtype, k, out):
    rng = np.random.default_rng(3)
    per_register = 4 // np.dtype(dtype).itemsize
    a = rng.integers(-8, 8, (16, k)).astype(dtype)
    b = rng.integers(-8, 8, (k, 8)).astype(dtype)
    c = rng.integers(-99, 99, (16, 8)).astype(out)
    ra, rb, rc = a_fragment(a, per_register), b_fragment(b, per_register), c_fragment(c)
    names = [f"%a{i}" for i in range(len(ra) + len(rb) + 4)]
    groups = [names[: len(ra)], names[len(ra) : -4], names[-4:]]
    operands = ", ".join("{" + ", ".join(g) + "}" for g in groups)
    text = f"mma.sync.aligned.{form} {{%d0, %d1, %d2, %d3}}, {operands};"
    found = lanes(text, [*ra, *rb, *rc], *[out] * 4)
    expected = a.astype(np.float64) @ b.astype(np.float64) + c
    for x, y in zip(found, c_fragment(expected), strict=True):
        np.testing.assert_array_equal(x, y)


def test_mma_with_half_accumulators():
    rng = np.random.default_rng(4)
    a = rng.integers(-4, 4, (16, 16)).astype(np.float16)
    b = rng.integers(-4, 4, (16, 8)).astype(np.float16)
    c = rng.integers(-9, 9, (16, 8)).astype(np.float16)
    words = [
        np.array([c[r // 4 + 8 * i, r % 4 * 2 :][:2] for r in range(32)]).view(np.uint32)[:, 0]
        for i in range(2)
    ]
    text = (
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%d0, %d1}, {%a0, %a1, %a2, %a3},"
        "{%a4, %a5}, {%a6, %a7};"
    )
    found = lanes(text, [*a_fragment(a, 2), *b_fragment(b, 2), *words], "u4", "u4")
    expected = a.astype(float) @ b.astype(float) + c
    for i in range(2):
        halves = found[i].view(np.float16).reshape(32, 2)
        want = [expected[r // 4 + 8 * i, r % 4 * 2 :][:2] for r in range(32)]
        np.testing.assert_array_equal(halves, want)


def test_tf32_ignores_the_low_bits():
    one = u32(*[0x3F800FFF] * 32)  # 1 and bits below tf32's
    zero = u32(*[0] * 32)
    text = (
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%d0, %d1, %d2, %d3},"
        "{%a0, %a0, %a0, %a0}, {%a0, %a0}, {%a1, %a1, %a1, %a1};"
    )
    assert lanes(text, [one, zero], *["f4"] * 4)[0].tolist() == [8.0] * 32


FILL = """
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %rd0, %r0, 16;
  add.s64 %rd1, %source, %rd0;
  ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
  shl.b32 %r5, %r0, 4;
  mov.u32 %r6, tile;
  add.s32 %r7, %r6, %r5;
  st.shared.v4.u32 [%r7], {%r1, %r2, %r3, %r4};
  bar.warp.sync -1;
"""


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(count, transposed):
    source = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)  # row i of matrix m at 128 m + 16 i
    out = np.zeros((count, 32), np.uint32)
    registers = ", ".join(f"%r{10 + i}" for i in range(count))
    stores = "".join(
        f"add.s64 %rd4, %rd3, {128 * i}; st.global.u32 [%rd4], %r{10 + i};" for i in range(count)
    )
    body = f"""{FILL}
      ldmatrix.sync.aligned.m8n8.x{count}{".trans" * transposed}.shared.b16 {{{registers}}}, [%r7];
      mul.wide.u32 %rd2, %r0, 4;
      add.s64 %rd3, %out, %rd2;
      {stores}
      ret;"""
    shared = ".shared .align 16 .b8 tile[512];"
    found = run(body, source=source, out=out, declarations=shared)
    assert not found.findings and not found.bank_conflicts
    for i in range(count):
        matrix = source[i].T if transposed else source[i]
        halves = out[i].view(np.uint16).reshape(32, 2)
        want = [matrix[lane // 4, lane % 4 * 2 :][:2] for lane in range(32)]
        np.testing.assert_array_equal(halves, want)

"""Divergence and reconvergence, barriers, schedules; what is not known is refused."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import HEADER, kernel, lanes, run, s32, u32

from tilecc import emulator
from tilecc.emulator.flow import analyse

LANE = np.arange(32, dtype=np.uint32)
SCHEDULES = ["lockstep", 0, 1]


def test_if_and_else_meet_again():
    text = """
      setp.lt.u32 %p1, %a0, 10;
      @%p1 bra LESS;
      mov.u32 %d0, 100;
      bra.uni JOIN;
    LESS:
      mov.u32 %d0, 200;
    JOIN:
      activemask.b32 %d1;
      add.u32 %d0, %d0, %a0;"""
    values, mask = lanes(text, [LANE], "u4", "u4")
    assert values.tolist() == [200 + i if i < 10 else 100 + i for i in range(32)]
    assert mask.tolist() == [2**32 - 1] * 32


def test_registers_that_need_not_be_kept():
    """What one block assigns for all that run it, and nobody else reads, waits for no others."""
    text = """
      setp.lt.u32 %p1, %a0, 10;
      mov.u32 %r1, 7;
      @%p1 bra LESS;
      add.u32 %r2, %a0, 1;
      add.u32 %d0, %r2, %r1;
      bra.uni JOIN;
    LESS:
      add.u32 %r3, %a0, 2;
      @%p1 add.u32 %r4, %r3, 3;
      add.u32 %d0, %r3, %r4;
    JOIN:
      add.u32 %d0, %d0, %r1;"""
    (values,) = lanes(text, [LANE], "u4")
    assert values.tolist() == [2 * i + 14 if i < 10 else i + 15 for i in range(32)]
    (function,) = emulator.parse(kernel(text)).functions.values()
    used = {"%p1", "%r1", "%r2", "%r3", "%r4", "%d0"}
    assert used & analyse(function).local == {"%r2", "%r3"}


def test_blocks_out_of_order_meet_again():
    """Compilers place a branch's target before the code that falls through to it."""
    text = """
      setp.lt.u32 %p1, %a0, 10;
      @%p1 bra FAR;
      bra.uni NEAR;
    JOIN:
      activemask.b32 %d1;
      bra.uni DONE;
    FAR:
      mov.u32 %d0, 1;
      bra.uni JOIN;
    NEAR:
      mov.u32 %d0, 2;
      bra.uni JOIN;
    DONE:"""
    values, mask = lanes(text, [LANE], "u4", "u4")
    assert values.tolist() == [1] * 10 + [2] * 22
    assert mask.tolist() == [2**32 - 1] * 32


def test_a_loop_of_different_lengths():
    text = """
      mov.u32 %d0, 0;
      mov.u32 %r1, 0;
    LOOP:
      setp.ge.u32 %p1, %r1, %a0;
      @%p1 bra END;
      add.u32 %d0, %d0, %r1;
      add.u32 %r1, %r1, 1;
      bra LOOP;
    END:
      activemask.b32 %d1;"""
    values, mask = lanes(text, [LANE], "u4", "u4")
    assert values.tolist() == [i * (i - 1) // 2 for i in range(32)]
    assert mask.tolist() == [2**32 - 1] * 32


def test_a_loop_in_a_loop_with_two_exits():
    """The inner loop ends where its counter is the lane, the outer one at 3, or at once if odd."""
    text = """
      mov.u32 %d0, 0;
      mov.u32 %r1, 0;
    OUTER:
      mov.u32 %r2, 0;
    INNER:
      add.u32 %d0, %d0, 1;
      add.u32 %r2, %r2, 1;
      setp.lt.u32 %p1, %r2, %a0;
      @%p1 bra INNER;
      and.b32 %r3, %a0, 1;
      setp.eq.u32 %p2, %r3, 1;
      @%p2 bra OUT;
      add.u32 %r1, %r1, 1;
      setp.lt.u32 %p3, %r1, 3;
      @%p3 bra OUTER;
    OUT:
      activemask.b32 %d1;"""
    values, mask = lanes(text, [LANE], "u4", "u4")
    assert values.tolist() == [max(i, 1) * (1 if i % 2 else 3) for i in range(32)]
    assert mask.tolist() == [2**32 - 1] * 32


def test_threads_leave_early():
    body = """
      mov.u32 %r1, %tid.x;
      setp.ge.u32 %p1, %r1, 40;
      @%p1 ret;
      bar.sync 0;
      mul.wide.u32 %rd1, %r1, 4;
      add.s64 %rd2, %out, %rd1;
      st.global.u32 [%rd2], %r1;
      exit;"""
    out = np.full(64, 99, np.uint32)
    found = run(body, threads=64, out=out)
    assert out.tolist() == [*range(40), *[99] * 24]
    assert not found.findings  # lanes that have left do not keep others waiting


def test_a_barrier_that_some_lanes_pass_by():
    body = """
      mov.u32 %r1, %tid.x;
      setp.ge.u32 %p1, %r1, 40;
      @%p1 bra OVER;
      bar.sync 0;
    OVER:
      bar.sync 0;
      ret;"""
    found = run(body, threads=64, a=np.zeros(1))
    assert {f.kind for f in found.findings} == {"divergent"}


def test_a_block_that_is_no_multiple_of_a_warp():
    body = """
      mov.u32 %r1, %tid.x;
      mov.u32 %r2, %tid.y;
      mad.lo.u32 %r3, %r2, 5, %r1;
      mul.wide.u32 %rd1, %r3, 4;
      add.s64 %rd2, %out, %rd1;
      st.global.u32 [%rd2], %r3;
      ret;"""
    out = np.zeros(40, np.uint32)
    text = kernel(body, "out")
    found = emulator.run(text, None, [out], (1, 1), (5, 7), names=["out"])
    assert out[:35].tolist() == list(range(35)) and not out[35:].any()
    assert found.bytes_written == {"out": 140}


EXCHANGE = """
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, tile;
  shl.b32 %r2, %r0, 2;
  add.s32 %r3, %r1, %r2;
  st.shared.u32 [%r3], %r0;
  bar.sync 0;
  xor.b32 %r4, %r2, 252;
  add.s32 %r5, %r1, %r4;
  ld.shared.u32 %r6, [%r5];
  mov.u32 %r8, %ctaid.x;
  mad.lo.u32 %r9, %r8, 64, %r0;
  mul.wide.u32 %rd1, %r9, 4;
  add.s64 %rd2, %out, %rd1;
  st.global.u32 [%rd2], %r6;
  ret;"""
TILE = ".shared .align 16 .b8 tile[256];"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_exchange_through_a_barrier(schedule):
    out = np.zeros(192, np.uint32)
    found = run(EXCHANGE, threads=64, grid=3, out=out, declarations=TILE, schedule=schedule)
    assert out.tolist() == list(range(63, -1, -1)) * 3
    assert not found.findings
    assert found.ctas == 3


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_some_ctas(schedule):
    out = np.zeros(192, np.uint32)
    text = kernel(EXCHANGE, "out", TILE)
    found = emulator.run(text, None, [out], 3, 64, ctas=[2], schedule=schedule)
    assert out.tolist() == [0] * 128 + list(range(63, -1, -1))
    assert found.ctas == 1 and found.instructions["st.shared.u32"] == 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_barriers_of_some_warps(schedule):
    """Warp 1 hands a value to warp 0 over barrier 1, warp 2 has nothing to do with it."""
    body = """
      mov.u32 %r0, %tid.x;
      shr.u32 %r1, %r0, 5;
      mov.u32 %r2, tile;
      setp.eq.u32 %p1, %r1, 1;
      setp.eq.u32 %p2, %r1, 2;
      @%p2 bra DONE;
      @%p1 bra GIVE;
      bar.sync 1, 64;
      ld.shared.u32 %r3, [%r2];
      mul.wide.u32 %rd1, %r0, 4;
      add.s64 %rd2, %out, %rd1;
      st.global.u32 [%rd2], %r3;
      bra DONE;
    GIVE:
      mov.u32 %r4, 42;
      setp.eq.u32 %p3, %r0, 32;
      @%p3 st.shared.u32 [%r2], %r4;
      ARRIVE
    DONE:
      ret;"""
    for arrive in ("bar.arrive 1, 64;", "bar.sync 1, 64;"):
        out = np.zeros(32, np.uint32)
        text = body.replace("ARRIVE", arrive)
        found = run(text, threads=96, out=out, declarations=TILE, schedule=schedule)
        assert out.tolist() == [42] * 32
        assert not found.findings
    without = run(body.replace("ARRIVE", ""), threads=96, out=out, declarations=TILE)
    assert {f.kind for f in without.findings} == {"deadlock"}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_barrier_reductions(schedule):
    body = """
      mov.u32 %r0, %tid.x;
      setp.lt.u32 %p1, %r0, 40;
      bar.red.popc.u32 %r1, 0, %p1;
      bar.red.or.pred %p2, 0, %p1;
      bar.red.and.pred %p3, 0, !%p1;
      selp.u32 %r2, 2, 1, %p2;
      selp.u32 %r3, 2, 1, %p3;
      mul.wide.u32 %rd1, %r0, 4;
      add.s64 %rd2, %out, %rd1;
      mad.lo.u32 %r4, %r1, 100, %r2;
      mad.lo.u32 %r4, %r3, 10, %r4;
      st.global.u32 [%rd2], %r4;
      ret;"""
    out = np.zeros(64, np.uint32)
    assert not run(body, threads=64, out=out, schedule=schedule).findings
    assert out.tolist() == [4012] * 64


def test_counts_of_instructions_are_by_warp():
    found = run("mov.u32 %r0, 1; bar.sync 0; ret;", threads=96, grid=2, a=np.zeros(1))
    assert found.instructions["mov.u32"] == 6
    assert found.instructions["bar.sync"] == 6
    assert found.instructions["ld.param.u64"] == 6


UNKNOWN = [
    ("frobnicate.u32 %r0, %r1;", "unknown opcode frobnicate"),
    ("add.frob.u32 %r0, %r1, 1;", "unknown modifier .frob"),
    ("add.u33 %r0, %r1, 1;", "known type"),
    ("mul.u32 %r0, %r1, 1;", "expected one of .lo, .hi, .wide"),
    ("add.u32 %r0, %r1;", "takes 2 sources"),
    ("add.u32 %rX, %r1, 1;", "unknown register %rX"),
    ("mov.u32 %r0, %clock;", "unknown register %clock"),
    ("mov.u32 %r0, nowhere;", "unknown name nowhere"),
    ("shfl.bfly.b32 %r0, %r1, 1, 31;", "expected one of .sync"),
    ("cvt.f16.f32 %h0, %f1;", "expected one of .rn"),
    ("cvt.rn.satfinite.f16.f32 %h0, %f1;", "unknown modifier .satfinite"),
    ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r0], {%r1};", "unknown opcode stmatrix"),
    ("wgmma.fence.sync.aligned;", "unknown opcode wgmma"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%f0, %f1, %f2, %f3},"
     "{%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f4, %f5, %f6, %f7};", "combination"),
    ("mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%f0, %f1, %f2, %f3},"
     "{%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f4, %f5, %f6, %f7};", "expected one of .col"),
    ("cp.async.cg.shared.global [%r0], [%rd0], 8;", "a form of cp.async"),
    ("cp.async.bulk.commit_group;", "unknown modifier .bulk"),
    ("ld.global.frob.u32 %r0, [%rd0];", "unknown modifier .frob"),
    ("ld.shared.nc.u32 %r0, [%r1];", ".nc is for .global"),
    ("call.uni foo;", "unknown opcode call"),
    ("max.f32 %f0, %f1, %f2, %f3;", "takes 2 sources"),
    ("setp.lt.b32 %p0, %r0, %r1;", "expected one of .eq, .ne"),
    ("bra NOWHERE;", "no such label"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), UNKNOWN, ids=[t for t, _ in UNKNOWN])
def test_what_is_not_known_is_refused(text, message):
    with pytest.raises(emulator.EmulatorError, match=r"PTX line \d+") as e:
        run(f"{text}\nret;", a=np.zeros(1))
    assert message in str(e.value)


def test_text_that_is_no_ptx():
    with pytest.raises(emulator.EmulatorError, match="line 4"):
        emulator.parse(f"{HEADER}hello world")
    with pytest.raises(emulator.EmulatorError, match="line 2"):
        emulator.parse("// one\n?")
    with pytest.raises(emulator.EmulatorError, match="is missing"):
        emulator.parse(".entry k() { ret;")


def test_arguments_that_do_not_fit():
    text = kernel("ret;", "a b")
    one = np.zeros(1, np.float32)
    with pytest.raises(emulator.EmulatorError, match="takes 2 arguments, 1 are given"):
        emulator.run(text, None, [one], 1, 32)
    with pytest.raises(emulator.EmulatorError, match="no kernel 'other'"):
        emulator.run(text, "other", [one, one], 1, 32)
    with pytest.raises(emulator.EmulatorError, match="1 to 1024 threads"):
        emulator.run(text, None, [one, one], 1, 2048)
    with pytest.raises(emulator.EmulatorError, match="the grid has CTAs 0 to 3"):
        emulator.run(text, None, [one, one], 4, 32, ctas=[4])


def test_no_cta_runs_nothing():
    out = np.zeros(1, np.uint32)
    assert emulator.run(kernel("ret;", "out"), None, [out], 0, 32).ctas == 0


def test_a_loop_without_end_is_given_up():
    with pytest.raises(emulator.EmulatorError, match="does not come to an end"):
        emulator.run(kernel("L: bra L;"), None, [np.zeros(1)], 1, 32, most_blocks=100)


def test_parameters_by_value():
    text = f"""{HEADER}
    .visible .entry k(.param .u64 out, .param .u32 n, .param .f32 x, .param .u8 b,
                      .param .align 8 .b8 s[16])
    {{
      .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .f32 %f<2>; .reg .b16 %h<2>;
      ld.param.u64 %rd0, [out];
      ld.param.u32 %r0, [n];
      ld.param.f32 %f0, [x];
      ld.param.s8 %h0, [b];
      ld.param.v2.u32 {{%r1, %r2}}, [s+8];
      cvt.s32.s16 %r3, %h0;
      st.global.u32 [%rd0], %r0;
      st.global.f32 [%rd0+4], %f0;
      st.global.u32 [%rd0+8], %r3;
      st.global.v2.u32 [%rd0+16], {{%r1, %r2}};
      ret;
    }}"""
    out = np.zeros(6, np.int32)
    structure = np.array([1, 2, 3, 4], np.int32).tobytes()
    emulator.run(text, None, [out, -7, 1.5, -3, structure], 1, 1)
    assert out.tolist() == [-7, int(np.float32(1.5).view(np.int32)), -3, 0, 3, 4]


def test_line_numbers_of_the_source():
    text = f"""{HEADER}
    .visible .entry k(.param .u64 a)
    {{
      .reg .b32 %r<3>;
      .loc 1 17 3
      add.u32 %r1, %r2, 1;
      .loc 2 5 1, function_name $L__info_string0, inlined_at 1 30 9
      add.u32 %r0, %r2, 1;
      ret;
    }}
    .file 1 "kernel.cu"
    .file 2 "helper.h"
    .section .debug_str {{
    $L__info_string0:
    .b8 95,0
    }}"""
    found = emulator.run(text, None, [np.zeros(1)], 1, 32)
    assert [str(f.loc) for f in found.findings] == ["kernel.cu:17", "kernel.cu:30"]
    assert found.findings[0].text == "add.u32 %r1, %r2, 1;"
    assert text.split("\n")[found.findings[0].line - 1].strip() == found.findings[0].text


def test_lanes_helper_checks_itself():
    assert lanes("add.u32 %d0, %a0, 1;", [u32(1, 2)], "u4")[0].tolist() == [2, 3]
    assert s32(-1).tolist() == [-1]

"""Loads, stores, copies and atomics; what they find wrong, and what they count."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import HEADER, kernel, run

from tilecc import emulator
from tilecc.emulator import report

TILE = ".shared .align 16 .b8 tile[1024];"
START = "mov.u32 %r0, %tid.x; mul.wide.u32 %rd0, %r0, SIZE; add.s64 %rd1, %a, %rd0;"


def kinds(found: emulator.Result) -> list[str]:
    return [f.kind for f in found.findings]


# -- global memory


def test_vectors_and_traffic():
    body = """
      mov.u32 %r0, %tid.x;
      mul.wide.u32 %rd0, %r0, 16;
      add.s64 %rd1, %a, %rd0;
      add.s64 %rd2, %b, %rd0;
      ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f0, %f1, %f2, %f3}, [%rd1];
      st.global.v2.f32 [%rd2], {%f3, %f2};
      st.global.cs.v2.f32 [%rd2+8], {%f1, %f0};
      ret;"""
    a, b = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    found = run(body, a=a, b=b)
    np.testing.assert_array_equal(b.reshape(-1, 4), a.reshape(-1, 4)[:, ::-1])
    read, write = found.traffic("read")["a"], found.traffic("write")["b"]
    assert (read.requests, read.bytes, read.sectors, read.ideal_sectors) == (1, 512, 16, 16)
    # each store writes half of every sector
    assert (write.requests, write.bytes, write.sectors, write.ideal_sectors) == (2, 512, 32, 16)
    assert found.bytes_read == {"a": 512} and found.bytes_written == {"b": 512}
    assert [x.direction for x in found.global_accesses] == ["read", "write", "write"]


def test_shared_addresses_count_once_and_warps_apart():
    body = """
      ld.global.u32 %r1, [%a];
      mov.u32 %r0, %tid.x;
      shr.u32 %r2, %r0, 2;
      mul.wide.u32 %rd0, %r2, 4;
      add.s64 %rd1, %a, %rd0;
      ld.global.u32 %r3, [%rd1+4];
      ret;"""
    found = run(body, threads=64, a=np.zeros(32, np.uint32))
    assert found.bytes_read == {"a": 2 * 4 + 2 * 8 * 4}
    # the second load of warp 1 begins at byte 36 and of warp 0 at byte 4: two sectors each
    assert found.traffic("read")["a"].sectors == 2 + 4


def test_only_lanes_that_take_part_count():
    body = """
      mov.u32 %r0, %tid.x;
      setp.lt.u32 %p1, %r0, 3;
      mul.wide.u32 %rd0, %r0, 4;
      add.s64 %rd1, %a, %rd0;
      @%p1 ld.global.u32 %r1, [%rd1];
      ret;"""
    assert run(body, threads=64, a=np.zeros(3, np.uint32)).bytes_read == {"a": 12}


@pytest.mark.parametrize(
    ("load", "store", "dtype"),
    [
        ("ld.global.u8 %r1", "st.global.u8 [%rd2], %r1", np.uint8),
        ("ld.global.s8 %r1", "st.global.b32 [%rd2], %r1", np.int8),
        ("ld.global.u16 %h1", "st.global.u16 [%rd2], %h1", np.uint16),
        ("ld.global.b16 %h1", "st.global.b16 [%rd2], %h1", ml_dtypes.bfloat16),
        ("ld.global.f64 %fd1", "st.global.f64 [%rd2], %fd1", np.float64),
        ("ld.global.u64 %rd5", "st.global.u64 [%rd2], %rd5", np.uint64),
        ("ld.global.s16 %r1", "st.global.b32 [%rd2], %r1", np.int16),
    ],
)
def test_widths(load, store, dtype):
    a = (np.arange(32) - 16).astype(dtype)
    wide = np.int32 if "b32" in store else dtype
    b = np.zeros(32, wide)
    size, out = np.dtype(dtype).itemsize, np.dtype(wide).itemsize
    body = f"""
      mov.u32 %r0, %tid.x;
      mul.wide.u32 %rd0, %r0, {size};
      add.s64 %rd1, %a, %rd0;
      mul.wide.u32 %rd0, %r0, {out};
      add.s64 %rd2, %b, %rd0;
      {load}, [%rd1];
      {store};
      ret;"""
    assert not run(body, a=a, b=b).findings
    np.testing.assert_array_equal(b.astype(np.float64), a.astype(wide).astype(np.float64))


def test_strided_arrays():
    """A transposed view and one that runs backwards: the kernel gets the address of element 0."""
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    body = """
      ld.global.f32 %f0, [%a+4];
      ld.global.f32 %f1, [%b-4];
      st.global.v2.f32 [%c], {%f0, %f1};
      ret;"""
    c = np.zeros(2, np.float32)
    found = run(body, threads=1, a=whole.T[2:4], b=whole[::-1, ::-1], c=c)
    assert c.tolist() == [3.0, 62.0]
    assert not found.findings


def test_views_are_as_aligned_as_their_memory():
    a = np.zeros(66, np.float16)
    body = f"{START.replace('SIZE', '4')} ld.global.u32 %r1, [%rd1]; ret;"
    assert not run(body, a=a[2:]).findings
    assert kinds(run(body, a=a[1:])) == [report.MISALIGNED]


@pytest.mark.parametrize("where", ["[%rd1+4]", "[%rd1-4]", "[%rd1+1000000]"])
@pytest.mark.parametrize("access", ["ld.global.f32 %f0, {}", "st.global.f32 {}, %f1"])
def test_out_of_bounds(where, access):
    body = f"mov.f32 %f1, 0f00000000; {START.replace('SIZE', '4')} {access.format(where)}; ret;"
    a, b = np.zeros(32, np.float32), np.zeros(32, np.float32)
    found = run(body, a=a, b=b)
    assert kinds(found) == [report.OUT_OF_BOUNDS]
    assert found.findings[0].count == (32 if "1000000" in where else 1)
    assert "of a, which has 128" in found.findings[0].message


def test_an_address_that_is_in_no_tensor():
    found = run("mov.u64 %rd1, 64; ld.global.f32 %f0, [%rd1]; ret;", a=np.zeros(4))
    assert "address 0x40, which is in no tensor" in found.findings[0].message


def test_an_empty_tensor():
    found = run("ld.global.f32 %f0, [%a]; ret;", a=np.zeros(0, np.float32))
    assert kinds(found) == [report.OUT_OF_BOUNDS]


def test_read_only_arrays():
    a = np.zeros(4, np.float32)
    a.flags.writeable = False
    body = "mov.f32 %f0, 0f3F800000; st.global.f32 [%a], %f0; ret;"
    assert kinds(run(body, threads=1, a=a)) == [report.READ_ONLY]
    assert not a.any()


GLOBAL_RACES = [
    # two CTAs write the same, by two warps, with a barrier between
    ("mov.u32 %r1, 7; st.global.u32 [%rd1], %r1;", 32, 2, [report.RACE]),
    ("mov.u32 %r1, 7; st.global.u32 [%a], %r1;", 64, 1, [report.RACE]),
    ("mov.u32 %r1, 7; st.global.u32 [%a], %r1;", 32, 1, []),
    ("st.global.u32 [%a], %r0;", 32, 1, [report.RACE]),
    ("st.global.u32 [%rd1], %r0; bar.sync 0; ld.global.u32 %r1, [%a+4];", 64, 1, []),
    ("st.global.u32 [%rd1], %r0; ld.global.u32 %r1, [%a+4];", 64, 1, [report.RACE]),
    ("ld.global.u32 %r1, [%a+4]; st.global.u32 [%rd1], %r0;", 64, 1, [report.RACE]),
    ("ld.global.u32 %r1, [%a+4]; bar.sync 0; st.global.u32 [%rd1], %r0;", 64, 1, []),
    ("ld.global.u32 %r1, [%a+4]; bar.sync 0; st.global.u32 [%rd1], %r0;", 64, 2, [report.RACE]),
    ("ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r0;", 64, 1, []),
    ("red.global.add.u32 [%a], 1;", 64, 3, []),
    ("red.global.add.u32 [%a], 1; ld.global.u32 %r1, [%a];", 64, 1, [report.RACE]),
]


@pytest.mark.parametrize(("text", "threads", "grid", "expected"), GLOBAL_RACES)
def test_global_races(text, threads, grid, expected):
    body = f"{START.replace('SIZE', '4')} {text} ret;"
    found = run(body, threads=threads, grid=grid, a=np.zeros(64, np.uint32))
    assert sorted(set(kinds(found))) == expected


def test_bytes_are_judged_one_by_one():
    body = f"{START.replace('SIZE', '1')} st.global.u8 [%rd1], %r0; ret;"
    assert not run(body, threads=64, a=np.zeros(64, np.uint8)).findings


# -- other spaces


def test_generic_addresses():
    body = """
      mov.u32 %r0, %tid.x;
      mov.u64 %rd0, tile;
      cvta.shared.u64 %rd1, %rd0;
      mul.wide.u32 %rd2, %r0, 4;
      add.s64 %rd3, %rd1, %rd2;
      add.s64 %rd4, %a, %rd2;
      ld.u32 %r1, [%rd4];
      st.u32 [%rd3], %r1;
      bar.warp.sync -1;
      xor.b64 %rd5, %rd3, 4;
      ld.u32 %r2, [%rd5];
      st.u32 [%rd4], %r2;
      cvta.to.shared.u64 %rd6, %rd3;
      cvt.u32.u64 %r3, %rd6;
      ld.shared.u32 %r4, [%r3];
      isspacep.shared %p1, %rd3;
      isspacep.global %p2, %rd4;
      selp.u32 %r5, 1, 0, %p1;
      selp.u32 %r6, %r5, 0, %p2;
      add.s64 %rd7, %b, %rd2;
      add.u32 %r6, %r6, %r4;
      st.u32 [%rd7], %r6;
      ret;"""
    a, b = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    found = run(body, a=a, b=b, declarations=TILE)
    assert a.tolist() == [i ^ 1 for i in range(32)]
    assert b.tolist() == [i + 1 for i in range(32)]
    assert not found.findings
    assert found.bytes_read == {"a": 128}


def test_local_memory_is_each_threads_own():
    body = """
      .local .align 16 .b8 depot[32];
      mov.u32 %r0, %tid.x;
      mov.u64 %rd0, depot;
      st.local.v2.u32 [%rd0+8], {%r0, %r0};
      ld.local.u32 %r1, [%rd0+12];
      ld.local.u32 %r2, [%rd0+READ];
      mul.wide.u32 %rd1, %r0, 4;
      add.s64 %rd2, %a, %rd1;
      st.global.u32 [%rd2], %r1;
      ret;"""
    a = np.zeros(64, np.uint32)
    assert not run(body.replace("READ", "8"), threads=64, a=a).findings
    assert a.tolist() == list(range(64))
    assert kinds(run(body.replace("READ", "0"), a=a)) == [report.UNINITIALISED]
    assert kinds(run(body.replace("READ", "32"), a=a)) == [report.OUT_OF_BOUNDS]


@pytest.mark.parametrize("space", ["shared", "local"])
@pytest.mark.parametrize(
    ("pragma", "expected"),
    [
        ('.pragma "used_bytes_mask 63";', []),
        ('.pragma "used_bytes_mask 0xff";', [report.UNINITIALISED]),
        ("", [report.UNINITIALISED]),
    ],
)
def test_bytes_of_a_load_that_are_not_used(space, pragma, expected):
    """Compilers read three of four halves by one load, and say so. Nothing else is meant."""
    body = f"""
      .{space} .align 8 .b8 room[256];
      mov.u32 %r0, %tid.x;
      mov.u32 %r1, room;
      mad.lo.u32 %r1, %r0, {8 if space == "shared" else 0}, %r1;
      mov.b16 %h0, 7;
      st.{space}.u16 [%r1], %h0;
      st.{space}.u32 [%r1+4], %r0;
      st.{space}.u16 [%r1+2], %h0;
      bar.sync 0;
      mul.wide.u32 %rd0, %r0, 8;
      add.s64 %rd1, %a, %rd0;
      {pragma}
      ld.{space}.v4.u16 {{%h1, %h2, %h3, %h4}}, [%r1];
      st.global.u16 [%rd1], %h1;
      ret;"""
    a = np.zeros(128, np.uint16)
    used = body.replace(f"st.{space}.u32 [%r1+4], %r0;", f"st.{space}.u16 [%r1+4], %h0;")
    assert kinds(run(used, a=a)) == expected
    assert kinds(run(body, a=a)) == []


def test_module_variables():
    declarations = """
      .const .align 4 .b8 table[8] = {1, 0, 0, 0, 255, 255};
      .global .align 4 .u32 counter = 5;
      .global .align 4 .f32 numbers[2] = {0f3F800000, 0f40000000};"""
    body = """
      ld.const.u32 %r1, [table];
      ld.const.u32 %r2, [table+4];
      ld.global.u32 %r3, [counter];
      mov.u64 %rd1, numbers;
      ld.global.f32 %f1, [%rd1+4];
      st.global.v2.u32 [%a], {%r1, %r2};
      st.global.u32 [%a+8], %r3;
      st.global.f32 [%a+12], %f1;
      ret;"""
    a = np.zeros(4, np.uint32)
    found = run(body, threads=1, a=a, declarations=declarations)
    assert a[:3].tolist() == [1, 65535, 5] and a[3:].view(np.float32)[0] == 2.0
    assert found.bytes_read == {}


# -- shared memory

SHARED_RACES = [
    ("st.shared.u32 [%r3], %r0; bar.sync 0; ld.shared.u32 %r5, [%r4];", []),
    ("st.shared.u32 [%r3], %r0; ld.shared.u32 %r5, [%r4];", [report.RACE]),
    ("st.shared.u32 [%r3], %r0; ld.shared.u32 %r5, [%r3];", []),
    # a neighbour in the same warp needs bar.warp.sync
    ("st.shared.u32 [%r3], %r0; ld.shared.u32 %r5, [%r6];", [report.RACE]),
    ("st.shared.u32 [%r3], %r0; bar.warp.sync -1; ld.shared.u32 %r5, [%r6];", []),
    ("st.shared.u32 [%r3], %r0; bar.warp.sync -1; ld.shared.u32 %r5, [%r4];", [report.RACE]),
    # written again before the others have read
    (
        "st.shared.u32 [%r3], %r0; bar.sync 0; ld.shared.u32 %r5, [%r4];"
        "st.shared.u32 [%r3], %r0;",
        [report.RACE],
    ),
    (
        "st.shared.u32 [%r3], %r0; bar.sync 0; ld.shared.u32 %r5, [%r4]; bar.sync 0;"
        "st.shared.u32 [%r3], %r0;",
        [],
    ),
    (
        "st.shared.u32 [%r3], %r0; bar.warp.sync -1; ld.shared.u32 %r5, [%r6];"
        "st.shared.u32 [%r3], %r0;",
        [report.RACE],
    ),
    ("ld.shared.u32 %r5, [%r3];", [report.UNINITIALISED]),
    ("st.shared.u32 [%r2], %r1;", [report.RACE]),  # both warps
    ("st.shared.u16 [%r2], %h1; bar.sync 0; ld.shared.u32 %r5, [%r2];",
     [report.RACE, report.UNINITIALISED]),
    ("st.shared.u32 [%r3+1020], %r0;", [report.OUT_OF_BOUNDS]),
    ("st.shared.u32 [%r3+2], %r0;", [report.MISALIGNED]),
    ("st.shared.u32 [%r3], %r0; bar.sync 0; red.shared.add.u32 [%r2], 1;", []),
    ("st.shared.u32 [%r3], %r0; red.shared.add.u32 [%r2], 1;", [report.RACE]),
    ("red.shared.add.u32 [%r2], 1;", [report.UNINITIALISED]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SHARED_RACES)
@pytest.mark.parametrize("schedule", ["lockstep", 0])
def test_shared_memory(text, expected, schedule):
    body = f"""
      mov.u32 %r0, %tid.x;
      mov.u32 %r1, 1;
      mov.b16 %h1, 1;
      mov.u32 %r2, tile;
      mad.lo.u32 %r3, %r0, 4, %r2;
      xor.b32 %r5, %r0, 32;
      mad.lo.u32 %r4, %r5, 4, %r2;
      xor.b32 %r5, %r0, 1;
      mad.lo.u32 %r6, %r5, 4, %r2;
      {text}
      ret;"""
    found = run(body, threads=64, a=np.zeros(1), declarations=TILE, schedule=schedule)
    reported = set(kinds(found))
    if report.RACE in expected:  # in some orders what is read has not been written yet
        reported -= {report.UNINITIALISED} - set(expected)
    assert sorted(reported) == expected, [str(f) for f in found.findings]


BANKS = [  # byte offset of a lane, bytes, wavefronts of a warp, without conflicts
    ("mul.lo.u32 %r2, %r0, 4;", "u32 [%r3], %r0", 1, 1),
    ("mul.lo.u32 %r2, %r0, 8;", "u32 [%r3], %r0", 2, 1),
    ("mul.lo.u32 %r2, %r0, 128; and.b32 %r2, %r2, 1023;", "u32 [%r3], %r1", 8, 1),
    ("mul.lo.u32 %r2, %r0, 8;", "v2.u32 [%r3], {%r0, %r0}", 2, 2),
    ("mul.lo.u32 %r2, %r0, 16;", "v4.u32 [%r3], {%r0, %r0, %r0, %r0}", 4, 4),
    ("mul.lo.u32 %r2, %r0, 32;", "v4.u32 [%r3], {%r0, %r0, %r0, %r0}", 8, 4),
    ("mov.u32 %r2, 0;", "u32 [%r3], %r1", 1, 1),
    ("mul.lo.u32 %r2, %r0, 2;", "u16 [%r3], %h1", 1, 1),
]


@pytest.mark.parametrize(("offset", "store", "steps", "ideal"), BANKS)
def test_bank_conflicts(offset, store, steps, ideal):
    body = f"""
      mov.u32 %r0, %tid.x;
      mov.u32 %r1, 1;
      mov.b16 %h1, 1;
      {offset}
      mov.u32 %r4, tile;
      add.u32 %r3, %r4, %r2;
      st.shared.{store};
      ret;"""
    found = run(body, a=np.zeros(1), declarations=TILE)
    (access,) = found.shared_accesses
    assert (access.wavefronts, access.ideal, access.requests) == (steps, ideal, 1)
    assert bool(found.bank_conflicts) == (steps > ideal)
    assert access.text.startswith("st.shared")


def test_dynamic_shared_memory():
    declarations = ".extern .shared .align 16 .b8 dynamic[]; .shared .align 4 .b8 fixed[20];"
    body = """
      mov.u32 %r1, dynamic; mov.u32 %r2, fixed; sub.u32 %r3, %r1, %r2;
      st.global.u32 [%a], %r3; st.shared.u32 [%r2+16], %r1; st.shared.u32 [%r1+60], %r1; ret;"""
    a = np.zeros(1, np.uint32)
    assert not run(body, threads=1, shared=64, a=a, declarations=declarations).findings
    assert a[0] == 32
    found = run(body, threads=1, shared=60, a=a, declarations=declarations)
    assert kinds(found) == [report.OUT_OF_BOUNDS]


# -- asynchronous copies

COPY = """
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %rd0, %r0, 16;
  add.s64 %rd1, %a, %rd0;
  add.s64 %rd2, %b, %rd0;
  mov.u32 %r1, tile;
  mad.lo.u32 %r2, %r0, 16, %r1;
"""
OUT = "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r2]; st.global.v4.u32 [%rd2], {%r4, %r5, %r6, %r7};"
ASYNC = [
    ("commit_group; cp.async.wait_group 0;", []),
    ("wait_all;", []),
    ("commit_group; cp.async.commit_group; cp.async.wait_group 1;", []),
    ("commit_group; cp.async.wait_group 1;", [report.RACE]),
    ("wait_group 0;", [report.RACE]),
    ("commit_group;", [report.RACE]),
]


@pytest.mark.parametrize(("wait", "expected"), ASYNC)
@pytest.mark.parametrize("schedule", ["lockstep", 0, 1, 2])
def test_copies(wait, expected, schedule):
    a, b = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    body = f"{COPY} cp.async.ca.shared.global [%r2], [%rd1], 16; cp.async.{wait} {OUT} ret;"
    found = run(body, a=a, b=b, declarations=TILE, schedule=schedule)
    assert sorted({f.kind for f in found.findings} - {report.UNINITIALISED}) == expected
    if not expected:
        assert not found.findings
        np.testing.assert_array_equal(a, b)
    assert found.bytes_read == {"a": 512}


def test_a_copy_is_visible_to_other_threads_only_after_a_barrier():
    neighbour = "xor.b32 %r2, %r2, 16;"
    for sync, expected in (("", [report.RACE]), ("bar.warp.sync -1;", [])):
        body = f"{COPY} cp.async.ca.shared.global [%r2], [%rd1], 16; cp.async.wait_all; {sync}"
        a, b = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
        found = run(f"{body} {neighbour} {OUT} ret;", a=a, b=b, declarations=TILE)
        assert kinds(found) == expected


def test_a_copy_of_a_part_fills_with_zeros():
    """Lane i copies i % 17 bytes; what is not read is no request."""
    body = f"""{COPY}
      rem.u32 %r3, %r0, 17;
      cp.async.cg.shared.global.L2::128B [%r2], [%rd1], 16, %r3;
      cp.async.wait_all; {OUT} ret;"""
    a, b = np.full(512, 7, np.uint8), np.ones(512, np.uint8)
    found = run(body, a=a, b=b, declarations=TILE)
    assert not found.findings
    expected = [[7] * (i % 17) + [0] * (16 - i % 17) for i in range(32)]
    np.testing.assert_array_equal(b.reshape(32, 16), expected)
    assert found.bytes_read == {"a": sum(i % 17 for i in range(32))}


def test_a_copy_of_nothing_may_point_anywhere():
    body = f"""{COPY}
      mov.u64 %rd1, 0;
      cp.async.cg.shared.global [%r2], [%rd1], 16, 0;
      cp.async.wait_all; {OUT} ret;"""
    b = np.ones(128, np.uint32)
    assert not run(body, a=np.zeros(1), b=b, declarations=TILE).findings
    assert not b.any()


def test_a_copy_that_is_ignored():
    body = f"""{COPY}
      setp.lt.u32 %p1, %r0, 16;
      cp.async.ca.shared.global [%r2], [%rd1], 16, %p1;
      cp.async.wait_all; {OUT} ret;"""
    a, b = np.arange(128, dtype=np.uint32), np.ones(128, np.uint32)
    assert run(body, a=a, b=b, declarations=TILE).bytes_read == {"a": 256}
    np.testing.assert_array_equal(b, np.where(np.arange(128) < 64, 0, a))


@pytest.mark.parametrize("size", [4, 8])
def test_small_copies(size):
    body = f"""
      mov.u32 %r0, %tid.x;
      mul.wide.u32 %rd0, %r0, {size};
      add.s64 %rd1, %a, %rd0;
      add.s64 %rd2, %b, %rd0;
      mov.u32 %r1, tile;
      mad.lo.u32 %r2, %r0, {size}, %r1;
      cp.async.ca.shared.global [%r2], [%rd1], {size};
      cp.async.wait_all;
      ld.shared.b{8 * size} %{"r3" if size == 4 else "rd3"}, [%r2];
      st.global.b{8 * size} [%rd2], %{"r3" if size == 4 else "rd3"};
      ret;"""
    a, b = np.arange(32 * size, dtype=np.uint8), np.zeros(32 * size, np.uint8)
    assert not run(body, a=a, b=b, declarations=TILE).findings
    np.testing.assert_array_equal(a, b)


def test_a_buffer_that_is_copied_to_while_it_is_read():
    body = f"""{COPY}
      cp.async.ca.shared.global [%r2], [%rd1], 16;
      cp.async.wait_all;
      bar.sync 0;
      xor.b32 %r3, %r2, 512;
      ld.shared.u32 %r4, [%r3];
      SYNC
      cp.async.ca.shared.global [%r2], [%rd1], 16;
      cp.async.wait_all;
      ret;"""
    a = np.arange(256, dtype=np.uint32)
    for sync, expected in (("", [report.RACE]), ("bar.sync 0;", [])):
        text = body.replace("SYNC", sync)
        found = run(text, threads=64, a=a, b=a.copy(), declarations=TILE)
        assert kinds(found) == expected


# -- atomics

ATOMICS = [
    ("add.u32", "1", 10, 42), ("add.s32", "-1", 10, 2**32 - 22), ("min.u32", "%r0", 10, 0),
    ("max.u32", "%r0", 10, 31), ("exch.b32", "%r0", 10, 31), ("or.b32", "%r0", 32, 63),
    ("and.b32", "%r0", 255, 0), ("xor.b32", "%r0", 5, 5), ("inc.u32", "9", 0, 2),
    ("cas.b32", "%r0, 77", 3, 77), ("dec.u32", "9", 0, 8),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operand", "start", "end"), ATOMICS)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics(op, operand, start, end, space):
    where = "[%a]" if space == "global" else "[%r1]"
    body = f"""
      mov.u32 %r0, %tid.x;
      mov.u32 %r1, tile;
      ld.global.u32 %r2, [%a];
      setp.eq.u32 %p1, %r0, 0;
      @%p1 st.shared.u32 [%r1], %r2;
      bar.sync 0;
      atom.{space}.{op} %r3, {where}, {operand};
      bar.sync 0;
      ld.shared.u32 %r4, [%r1];
      {"@%p1 st.global.u32 [%a], %r4;" if space == "shared" else ""}
      ret;"""
    a = np.array([start], np.uint32)
    found = run(body, a=a, declarations=TILE)
    assert a[0] == end
    assert not found.findings, [str(f) for f in found.findings]


def test_atomics_return_what_was_there():
    body = """
      mov.u32 %r0, %tid.x;
      mov.f32 %f0, 0f3F800000;
      atom.global.gpu.relaxed.add.f32 %f1, [%a], %f0;
      mul.wide.u32 %rd0, %r0, 4;
      add.s64 %rd1, %b, %rd0;
      st.global.f32 [%rd1], %f1;
      ret;"""
    a, b = np.zeros(1, np.float32), np.zeros(64, np.float32)
    run(body, threads=64, a=a, b=b)
    assert a[0] == 64 and sorted(b.tolist()) == list(range(64))


# -- undefined registers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add.u32 %r1, %r2, 1;", 32),
        ("setp.lt.u32 %p1, %r0, 8; @%p1 mov.u32 %r2, 1; add.u32 %r1, %r2, 1;", 24),
        ("setp.lt.u32 %p1, %r0, 8; @%p1 mov.u32 %r2, 1; @%p1 add.u32 %r1, %r2, 1;", 0),
        ("@%p1 mov.u32 %r2, 1;", 32),
        ("@%p1 bra L; mov.u32 %r1, 1; L:", 32),
        ("st.global.u32 [%a], %r5;", 32),
        ("ld.global.u32 %r1, [%rd5];", 32),
        ("setp.lt.u32 %p1, %r0, 8; @%p1 bra L; mov.u32 %r2, 1; L: add.u32 %r1, %r2, 1;", 8),
        ("mov.b64 {%r1, %r2}, %a; add.u32 %r1, %r2, 1;", 0),
    ],
)
def test_undefined_registers(text, expected):
    found = run(f"mov.u32 %r0, %tid.x; {text} ret;", a=np.zeros(4))
    undefined = [f for f in found.undefined if f.kind == report.UNDEFINED]
    assert sum(f.count for f in undefined) == expected


def test_a_lane_that_does_not_take_part_has_no_value():
    text = """
      mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, 16;
      @%p1 shfl.sync.down.b32 %r1, %r0, 8, 31, 65535; ret;"""
    found = run(text, a=np.zeros(1))
    assert kinds(found) == [report.UNDEFINED] and found.findings[0].count == 8


def test_members_of_a_shuffle_that_do_not_come():
    text = """
      mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, 16;
      @%p1 shfl.sync.bfly.b32 %r1, %r0, 8, 31, -1; ret;"""
    assert report.DIVERGENT in kinds(run(text, a=np.zeros(1)))


def test_a_trap_is_a_finding():
    assert kinds(run("trap;", a=np.zeros(1))) == [report.TRAP]


def test_findings_tell_where():
    text = kernel("mov.u32 %r0, %tid.x;\nadd.u32 %r1, %r2, 1;\nret;", "a")
    found = emulator.run(text, None, [np.zeros(1)], 1, 32)
    (f,) = found.findings
    assert text.split("\n")[f.line - 1] == f.text == "add.u32 %r1, %r2, 1;"
    assert str(f) == (
        "undefined register: CTA (0, 0, 0) warp 0 lane 0 reads %r2, which it has not assigned"
        f" [32 times]\n    PTX line {f.line}: add.u32 %r1, %r2, 1;"
    )
    assert f.as_dict()["count"] == 32
    assert HEADER in text

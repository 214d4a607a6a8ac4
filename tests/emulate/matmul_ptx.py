"""A matrix product in PTX as one would write it for sm_80 by hand: C = A B, A (M x K), B (K x 64).

Tiles of 64 x 64 halves go through two buffers by cp.async, rows past M filled with zeros; 16-byte
chunks are swizzled by their row so that neither the copies nor ldmatrix have bank conflicts. Four
warps own 16 rows each. The result is staged through shared memory, each warp its own part.
"""

from __future__ import annotations

THREADS = 128
SHARED = 2 * 2 * 8192
_BUFFER = 16384  # A's tile, then B's

_SETUP = """
  ld.param.u64 %A, [A]; ld.param.u64 %B, [B]; ld.param.u64 %C, [C];
  ld.param.u32 %M, [M]; ld.param.u32 %K, [K];
  mov.u32 %tid, %tid.x;
  and.b32 %lane, %tid, 31;
  shr.u32 %warp, %tid, 5;
  mov.u32 %cta, %ctaid.x;
  shl.b32 %row0, %cta, 6;
  mov.u32 %smem, pool;
  // what a thread copies: chunk tid % 8 of rows tid / 8 + 16 i
  shr.u32 %cr, %tid, 3;
  and.b32 %cc, %tid, 7;
  and.b32 %x, %cr, 7;
  xor.b32 %y, %cc, %x; // swizzle of copies
  shl.b32 %y, %y, 4;
  mad.lo.u32 %to, %cr, 128, %y;
  add.u32 %to, %to, %smem;
  // what a lane gives ldmatrix: row lane % 16, chunk lane / 16
  and.b32 %lr, %lane, 15;
  shr.u32 %lc, %lane, 4;
  and.b32 %lx, %lr, 7;
  mov.u32 %kt, 0;
  shr.u32 %ktiles, %K, 6;
"""


def _copies(buffer: str, tile: str) -> str:
    """cp.async of A's and B's tile number `tile` into a buffer (registers)."""
    text = f"mad.lo.u32 %dst, {buffer}, {_BUFFER}, %to;\n"
    for i in range(4):
        text += f"""
          add.u32 %r, %cr, {16 * i};
          add.u32 %grow, %row0, %r;
          setp.lt.u32 %in, %grow, %M;
          selp.u32 %bytes, 16, 0, %in;
          selp.u32 %grow, %grow, 0, %in;
          mul.wide.u32 %ga, %grow, %K;
          mad.lo.u32 %col, {tile}, 64, 0;
          mad.lo.u32 %col, %cc, 8, %col;
          cvt.u64.u32 %gc, %col;
          add.s64 %ga, %ga, %gc;
          shl.b64 %ga, %ga, 1;
          add.s64 %ga, %ga, %A;
          cp.async.cg.shared.global [%dst+{2048 * i}], [%ga], 16, %bytes;
          mad.lo.u32 %r, {tile}, 64, %r;
          mul.wide.u32 %gb, %r, 128;
          mul.wide.u32 %gc, %cc, 16;
          add.s64 %gb, %gb, %gc;
          add.s64 %gb, %gb, %B;
          cp.async.cg.shared.global [%dst+{8192 + 2048 * i}], [%gb], 16;
"""
    return text


def _products() -> str:
    text = """
      and.b32 %r, %kt, 1;
      mad.lo.u32 %base, %r, 16384, %smem;
      shl.b32 %r, %warp, 4;
      add.u32 %r, %r, %lr;
      mad.lo.u32 %arow, %r, 128, %base;
      mad.lo.u32 %brow, %lr, 128, %base;
"""
    for k in range(4):
        text += f"""
          add.u32 %ch, %lc, {2 * k};
          xor.b32 %ch, %ch, %lx; // swizzle of A
          shl.b32 %ch, %ch, 4;
          add.u32 %at, %arow, %ch;
          ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%a0, %a1, %a2, %a3}}, [%at];
"""
        for n in range(4):
            first, second = _accumulators(2 * n), _accumulators(2 * n + 1)
            quad = "{%b0, %b1, %b2, %b3}"
            mma = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
            text += f"""
              add.u32 %ch, %lc, {2 * n};
              xor.b32 %ch, %ch, %lx; // swizzle of B
              shl.b32 %ch, %ch, 4;
              add.u32 %at, %brow, %ch;
              ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {quad}, [%at+{8192 + 2048 * k}];
              {mma} {first}, {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {first};
              {mma} {second}, {{%a0, %a1, %a2, %a3}}, {{%b2, %b3}}, {second};
"""
    return text


def _accumulators(n: int) -> str:
    return "{" + ", ".join(f"%c{4 * n + i}" for i in range(4)) + "}"


def _epilogue() -> str:
    text = """
      bar.sync 0; // before the buffers are used for the result
      shl.b32 %r, %warp, 12;
      add.u32 %stage, %smem, %r;
      shr.u32 %g, %lane, 2;
      and.b32 %t, %lane, 3;
      and.b32 %x, %g, 3;
      shl.b32 %x, %x, 1;
      shr.u32 %th, %t, 1;
      and.b32 %tl, %t, 1;
"""
    for n in range(8):
        text += f"""
          add.u32 %ch, %th, {2 * n};
          xor.b32 %ch, %ch, %x; // swizzle of the result
          shl.b32 %ch, %ch, 4;
          mad.lo.u32 %at, %tl, 8, %ch;
          mad.lo.u32 %at, %g, 256, %at;
          add.u32 %at, %at, %stage;
          st.shared.v2.f32 [%at], {{%c{4 * n}, %c{4 * n + 1}}};
          st.shared.v2.f32 [%at+2048], {{%c{4 * n + 2}, %c{4 * n + 3}}};
"""
    text += "bar.warp.sync -1; // before other lanes' results are read\n"
    for i in range(8):
        text += f"""
          shr.u32 %g, %lane, 4;
          add.u32 %g, %g, {2 * i};
          and.b32 %ch, %lane, 15;
          and.b32 %x, %g, 3;
          shl.b32 %x, %x, 1;
          xor.b32 %y, %ch, %x;
          shl.b32 %y, %y, 4;
          mad.lo.u32 %at, %g, 256, %y;
          add.u32 %at, %at, %stage;
          ld.shared.v4.f32 {{%o0, %o1, %o2, %o3}}, [%at];
          shl.b32 %r, %warp, 4;
          add.u32 %grow, %row0, %r;
          add.u32 %grow, %grow, %g;
          setp.lt.u32 %in, %grow, %M; // rows of the result
          mul.wide.u32 %ga, %grow, 256;
          mul.wide.u32 %gc, %ch, 16;
          add.s64 %ga, %ga, %gc;
          add.s64 %ga, %ga, %C;
          @%in st.global.v4.f32 [%ga], {{%o0, %o1, %o2, %o3}};
"""
    return text


def module() -> str:
    """The PTX text. Parameters A, B, C, M, K; K a multiple of 64; grid ceil(M / 64)."""
    registers = "tid lane warp cta row0 smem M K cr cc x y to lr lc lx kt ktiles r grow bytes col"
    registers += " dst base arow brow ch at a0 a1 a2 a3 b0 b1 b2 b3 stage g t th tl next"
    declared = "".join(f".reg .b32 %{r};\n" for r in registers.split())
    declared += "".join(f".reg .b64 %{r};\n" for r in ("A", "B", "C", "ga", "gb", "gc"))
    zeros = "".join(f"mov.f32 %c{i}, 0f00000000;\n" for i in range(32))
    return f"""
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 128 .b8 pool[];
.visible .entry matmul(.param .u64 A, .param .u64 B, .param .u64 C, .param .u32 M, .param .u32 K)
{{
  .reg .pred %in; .reg .pred %more; .reg .pred %last;
  .reg .f32 %c<32>; .reg .f32 %o<4>;
{declared}
{_SETUP}
{zeros}
{_copies("0", "0")}
  cp.async.commit_group; // first
LOOP:
  add.u32 %next, %kt, 1;
  setp.ge.u32 %last, %next, %ktiles;
  @%last bra LOADED;
  and.b32 %y, %next, 1; // which buffer
{_copies("%y", "%next")}
LOADED:
  cp.async.commit_group; // each
  cp.async.wait_group 1;
  bar.sync 0; // after the wait
{_products()}
  bar.sync 0; // before the next copy
  add.u32 %kt, %kt, 1;
  setp.lt.u32 %more, %kt, %ktiles; // loop
  @%more bra LOOP;
{_epilogue()}
  ret;
}}
"""

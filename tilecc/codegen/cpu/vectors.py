"""Operations between the lanes of explicit vectors, as functions of LLVM that are always inlined.

TVM has no expression for them, and its treatment of bf16 rewrites the types of a direct call of an
intrinsic. A vector here is an expression such as a load with `Ramp(i, 1, 16)`; these calls do not
stand in a vectorised loop, which would take them apart. The code that uses them is built inside

    with imported(isa):
        ...
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu import turn
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.cpu.layout import LINE
from tilecc.codegen.cpu.registers import i64

PrimExpr = Any

SUM_COUNTS = (1, 2, 4, 8, 16)
"""How many vectors `horizontal_sums` takes; no more than a vector has lanes."""

# Empty assembly: LLVM moves no access to memory across the first, and does not know the second's
# result. Left alone, it unrolls a loop and gathers all requests of the loop at its beginning.
_PREFETCH = """
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @tilecc.prefetch(ptr %p, i64 %bytes) alwaysinline nounwind willreturn {
  %a = getelementptr i8, ptr %p, i64 %bytes
  call void @llvm.prefetch.p0(ptr %a, i32 0, i32 3, i32 1)
  ret void
}
define void @tilecc.fence() alwaysinline nounwind willreturn {
  call void asm sideeffect "", "~{memory}"()
  ret void
}
define i32 @tilecc.opaque(i32 %x) alwaysinline nounwind willreturn {
  %r = call i32 asm sideeffect "", "=r,0"(i32 %x)
  ret i32 %r
}
"""

_LINES = (16, 8, 4, 2, 1)
"""How many lines one call asks for."""

_ATTRIBUTES = "alwaysinline nounwind willreturn memory(none)"

# Pairs of bf16 are i32 lanes: the even element of the pair in the low half.
_BF16 = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
declare <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(<16 x float>, <16 x float>)
define <16 x float> @tilecc.dot2.v16(<16 x float> %acc, <16 x i32> %a, <16 x i32> %b)
    {attributes} {{
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
    <16 x float> %acc, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}}
define <16 x i32> @tilecc.pack2.v16(<16 x float> %even, <16 x float> %odd) {attributes} {{
  %c = call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512(
    <16 x float> %odd, <16 x float> %even)
  %i = shufflevector <32 x bfloat> %c, <32 x bfloat> poison, <32 x i32> <{interleaved}>
  %r = bitcast <32 x bfloat> %i to <16 x i32>
  ret <16 x i32> %r
}}
define <16 x i32> @tilecc.zip2.v16(<16 x i16> %even, <16 x i16> %odd) {attributes} {{
  %i = shufflevector <16 x i16> %even, <16 x i16> %odd, <32 x i32> <{interleaved}>
  %r = bitcast <32 x i16> %i to <16 x i32>
  ret <16 x i32> %r
}}
"""


def imported(isa: Isa) -> AbstractContextManager[Any]:
    """Code built inside may call the functions of this module."""
    frame: AbstractContextManager[Any] = T.attr(
        tirx.const(0, "int32"), "pragma_import_llvm", StringImm(_library(isa))
    )
    return frame


def dot2(acc: PrimExpr, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """acc + a.even * b.even + a.odd * b.odd, lane by lane: 16 f32, and 16 pairs of bf16 as i32.

    Needs `isa.has_bf16_dot`. Denormals count as zero (as the instruction has it).
    """
    return tirx.call_pure_extern("float32x16", "tilecc.dot2.v16", acc, a, b)


def pack2(even: PrimExpr, odd: PrimExpr) -> PrimExpr:
    """16 pairs of bf16, as i32, from two vectors of 16 f32, rounded to nearest even.

    Needs `isa.has_bf16_dot`.
    """
    return tirx.call_pure_extern("int32x16", "tilecc.pack2.v16", even, odd)


def zip2(even: PrimExpr, odd: PrimExpr) -> PrimExpr:
    """16 pairs, as i32, from two vectors of 16 elements of 16 bits (as int16 or uint16).

    Needs `isa.has_bf16_dot`.
    """
    return tirx.call_pure_extern("int32x16", "tilecc.zip2.v16", even, odd)


def prefetch(address: PrimExpr, offset: PrimExpr) -> None:
    """Emit a request for the line that is `offset` bytes (i64) from an address; it may be invalid.

    The line goes to the first cache.
    """
    T.evaluate(tirx.call_extern("void", "tilecc.prefetch", address, offset))


def prefetch_row(address: PrimExpr, size: int) -> None:
    """Emit requests for the lines of the `size` bytes from an address; they may be invalid.

    The lines go to the second cache. A call is for many of them, since with one for each the
    computation of addresses would be most of what there is to compile in a kernel.
    """
    done, lines = 0, -(-size // LINE)
    while done < lines:
        n = next(n for n in _LINES if n <= lines - done)
        function = f"tilecc.prefetch{n}"
        T.evaluate(tirx.call_extern("void", function, address, i64(done * LINE)))
        done += n


def fence() -> None:
    """Emit a place across which LLVM moves no access to memory; costs no instruction."""
    T.evaluate(tirx.call_extern("void", "tilecc.fence"))


def opaque(x: int) -> PrimExpr:
    """An i32 of which LLVM does not know that it is `x`: a loop of so many steps stays a loop."""
    return tirx.call_extern("int32", "tilecc.opaque", tirx.const(x, "int32"))


def horizontal_sums(vectors: list[PrimExpr], isa: Isa) -> PrimExpr:
    """The sum of each f32 vector's lanes: a vector of as many elements, or a scalar for one.

    n vectors of L lanes cost about n + log2(L / n) additions and twice as many shuffles.
    """
    n, lanes = len(vectors), isa.lanes32
    if n not in SUM_COUNTS or n > lanes:
        raise ValueError(f"cannot sum {n} vectors of {lanes} lanes at once")
    result = "float32" if n == 1 else f"float32x{n}"
    return tirx.call_pure_extern(result, f"tilecc.sum{n}.v{lanes}", *vectors)


@functools.cache
def _library(isa: Isa) -> str:
    """All functions for an instruction set, as LLVM IR."""
    parts = [_PREFETCH, *map(_prefetches, _LINES)]
    parts += [_sums(n, isa.lanes32) for n in SUM_COUNTS if n <= isa.lanes32]
    if isa.has_bf16_dot:
        order = [k for j in range(16) for k in (j, j + 16)]
        parts.append(_BF16.format(attributes=_ATTRIBUTES, interleaved=_indices(order)))
    parts.append(turn.library(isa))
    return "\n".join(parts)


def _prefetches(n: int) -> str:
    """prefetch{n}: ask for the n lines at an offset from an address."""
    head = f"define void @tilecc.prefetch{n}(ptr %p, i64 %bytes)"
    lines = [
        f"{head} alwaysinline nounwind willreturn {{",
        "  %a0 = getelementptr i8, ptr %p, i64 %bytes",
    ]
    for k in range(n):
        if k:
            lines.append(f"  %a{k} = getelementptr i8, ptr %a0, i64 {k * LINE}")
        lines.append(f"  call void @llvm.prefetch.p0(ptr %a{k}, i32 0, i32 2, i32 1)")
    return "\n".join([*lines, "  ret void", "}"])


def _indices(order: list[int]) -> str:
    return ", ".join(f"i32 {k}" for k in order)


def _sums(n: int, lanes: int) -> str:
    """sum{n}: add even and odd lanes of pairs of vectors until one is left, then of that one."""
    vectors = [f"%x{k}" for k in range(n)]
    lines = []
    count = 0

    def add_neighbours(a: str, b: str, size: int, out: int) -> str:
        nonlocal count
        count += 1
        t = f"<{size} x float>"
        for name, first in (("e", 0), ("o", 1)):
            order = _indices([first + 2 * k for k in range(out)])
            mask = f"<{out} x i32> <{order}>"
            lines.append(f"  %{name}{count} = shufflevector {t} {a}, {t} {b}, {mask}")
        lines.append(f"  %s{count} = fadd <{out} x float> %e{count}, %o{count}")
        return f"%s{count}"

    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [add_neighbours(a, b, lanes, lanes) for a, b in pairs]
    last, size = vectors[0], lanes
    while size > n:
        last, size = add_neighbours(last, "poison", size, size // 2), size // 2
    result = f"<{n} x float>"
    if n == 1:
        lines.append(f"  %r = extractelement <1 x float> {last}, i32 0")
        last, result = "%r", "float"
    arguments = ", ".join(f"<{lanes} x float> %x{k}" for k in range(n))
    head = f"define {result} @tilecc.sum{n}.v{lanes}({arguments}) {_ATTRIBUTES} {{"
    return "\n".join([head, *lines, f"  ret {result} {last}", "}"])

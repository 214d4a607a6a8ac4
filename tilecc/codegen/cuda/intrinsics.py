"""Device functions that generated code calls: one row each, PTX where CUDA C++ has no name for it.

All are self-contained: no header of CUDA is needed. 16-bit floats are carried as `unsigned short`,
pairs of them as `unsigned int`, the lower one first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.backend.cuda.op import cuda_func_call


@dataclass(frozen=True)
class Intrinsic:
    """A device function: what it returns (TVM's name), its C++ parameters and body."""

    returns: str
    parameters: str
    body: str
    least: int = 0
    """The first architecture that has its instructions."""


_C = {
    "void": "void",
    "float32": "float",
    "float64": "double",
    "uint32": "unsigned int",
    "uint16": "unsigned short",
    "int32": "int",
    "int64": "long long",
}


def _mma(t: str, k: int) -> Intrinsic:
    return Intrinsic(
        "void",
        "float* d, unsigned int a0, unsigned int a1, unsigned int a2, unsigned int a3, "
        "unsigned int b0, unsigned int b1",
        f'asm("mma.sync.aligned.m16n8k{k}.row.col.f32.{t}.{t}.f32 {{%0, %1, %2, %3}}, '
        '{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), '
        '"+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));',
        80,
    )


def _ldmatrix(n: int, trans: str) -> Intrinsic:
    outs = ", ".join(f"%{k}" for k in range(n))
    binds = ", ".join(f'"=r"(d[{k}])' for k in range(n))
    return Intrinsic(
        "void",
        "unsigned int* d, unsigned int address",
        f'asm volatile("ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {{{outs}}}, [%{n}];" '
        f': {binds} : "r"(address) : "memory");',
        75,
    )


def _cp_async(n: int, partial: bool = False, guarded: bool = False) -> Intrinsic:
    """A copy of n bytes; `partial`: zeros beyond the first `bytes`; `guarded`: if `there_is`."""
    cache = "cg" if n == 16 else "ca"
    parameters = "unsigned int to, long long from" + ", int bytes" * partial
    copy = f"cp.async.{cache}.shared.global [%0], [%1], {n}" + ", %2" * partial + ";"
    binds = '"r"(to), "l"(from)' + ', "r"(bytes)' * partial
    if guarded:
        parameters += ", bool there_is"
        test = f"setp.ne.b32 p, %{2 + partial}, 0;"
        copy = f"{{.reg .pred p; {test} @p {copy}}}"
        binds += ', "r"((int)there_is)'
    return Intrinsic("void", parameters, f'asm volatile("{copy}" :: {binds} : "memory");', 80)


def _asm(returns: str, takes: str, instruction: str, least: int = 0) -> Intrinsic:
    """An instruction on registers: as many operands as there are types in `takes`."""
    names = [f"x{n}" for n in range(len(takes.split()))]
    types = {"f": "float", "h": "unsigned short", "r": "unsigned int"}
    parameters = ", ".join(f"{types[t]} {x}" for t, x in zip(takes.split(), names, strict=True))
    operands = ", ".join(f"%{n + 1}" for n in range(len(names)))
    binds = ", ".join(f'"{t}"({x})' for t, x in zip(takes.split(), names, strict=True))
    out = {"float32": "f", "uint16": "h", "uint32": "r"}[returns]
    body = (
        f'{_C[returns]} y; asm("{instruction} %0, {operands};" : "={out}"(y) : {binds}); return y;'
    )
    return Intrinsic(returns, parameters, body, least)


_BF16 = (
    "unsigned int i = __float_as_uint(x); if (x != x) return (unsigned short)((i >> 16) | 64); "
    "return (unsigned short)((i + 0x7fff + ((i >> 16) & 1)) >> 16);"
)
_SHUFFLE = "return __shfl_xor_sync(0xffffffffu, x, mask);"

# By name; where there are several, the last that an architecture has.
INTRINSICS: dict[str, list[Intrinsic]] = {
    "mma_f16": [_mma("f16", 16)],
    "mma_bf16": [_mma("bf16", 16)],
    "mma_tf32": [_mma("tf32", 8)],
    "tf32": [_asm("uint32", "f", "cvt.rna.tf32.f32", 80)],
    "ldmatrix_x2": [_ldmatrix(2, "")],
    "ldmatrix_x4": [_ldmatrix(4, "")],
    "ldmatrix_x2_trans": [_ldmatrix(2, ".trans")],
    "ldmatrix_x4_trans": [_ldmatrix(4, ".trans")],
    **{f"cp_async_{n}": [_cp_async(n, partial=True)] for n in (4, 8, 16)},
    **{f"cp_async_all_{n}": [_cp_async(n)] for n in (4, 8, 16)},
    **{f"cp_async_if_{n}": [_cp_async(n, True, guarded=True)] for n in (4, 8, 16)},
    **{f"cp_async_all_if_{n}": [_cp_async(n, guarded=True)] for n in (4, 8, 16)},
    "cp_async_wait": [
        Intrinsic("void", "", 'asm volatile("cp.async.wait_all;" ::: "memory");', 80)
    ],
    "shared_address": [
        Intrinsic("uint32", "const void* p", "return (unsigned int)__cvta_generic_to_shared(p);")
    ],
    # What the compiler would compute again in each iteration to save a register.
    "keep": [
        Intrinsic(
            "uint32",
            "unsigned int x",
            'unsigned int y; asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x)); return y;',
        )
    ],
    "keep_64": [
        Intrinsic(
            "int64",
            "long long x",
            'long long y; asm("mov.b64 %0, %1;" : "=l"(y) : "l"(x)); return y;',
        )
    ],
    "address": [Intrinsic("int64", "const void* p", "return (long long)p;")],
    "exp2": [_asm("float32", "f", "ex2.approx.ftz.f32")],
    "max_nan": [
        Intrinsic("float32", "float x, float y", "return x != x || y != y ? x + y : fmaxf(x, y);"),
        _asm("float32", "f f", "max.NaN.f32", 80),
    ],
    "min_nan": [
        Intrinsic("float32", "float x, float y", "return x != x || y != y ? x + y : fminf(x, y);"),
        _asm("float32", "f f", "min.NaN.f32", 80),
    ],
    "f16_from_f32": [_asm("uint16", "f", "cvt.rn.f16.f32")],
    "f32_from_f16": [_asm("float32", "h", "cvt.f32.f16")],
    "bf16_from_f32": [
        Intrinsic("uint16", "float x", _BF16),
        _asm("uint16", "f", "cvt.rn.bf16.f32", 80),
    ],
    "f32_from_bf16": [
        Intrinsic("float32", "unsigned short x", "return __uint_as_float((unsigned int)x << 16);")
    ],
    # The instruction takes the upper one first.
    "pack_f16": [
        Intrinsic(
            "uint32",
            "float x, float y",
            'unsigned short a, b; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(a) : "f"(x)); '
            'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(y)); '
            "return (unsigned int)a | ((unsigned int)b << 16);",
        ),
        Intrinsic(
            "uint32",
            "float x, float y",
            'unsigned int z; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x)); '
            "return z;",
            80,
        ),
    ],
    "pack_bf16": [
        Intrinsic(
            "uint32",
            "float x, float y",
            'unsigned int z; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x)); '
            "return z;",
            80,
        ),
    ],
    "half_of": [
        Intrinsic("uint16", "unsigned int x, int k", "return (unsigned short)(k ? x >> 16 : x);")
    ],
    "shuffle_f32": [Intrinsic("float32", "float x, int mask", _SHUFFLE)],
    "shuffle_f64": [Intrinsic("float64", "double x, int mask", _SHUFFLE)],
    "shuffle_i32": [Intrinsic("int32", "int x, int mask", _SHUFFLE)],
    "shuffle_i64": [Intrinsic("int64", "long long x, int mask", _SHUFFLE)],
    "store_pair": [
        Intrinsic(
            "void",
            "float* p, float x, float y",
            "*(float2*)p = make_float2(x, y);",
        )
    ],
}
for _n, _type in ((4, "uint1"), (8, "uint2"), (16, "uint4")):
    _parts = "xyzw"[: _n // 4]
    _read = " ".join(f"d[{k}] = v.{part};" for k, part in enumerate(_parts))
    _words = ", ".join(f"d[{k}]" for k in range(len(_parts)))
    INTRINSICS[f"load_{_n}"] = [
        Intrinsic(
            "void", "unsigned int* d, const void* p", f"{_type} v = *(const {_type}*)p; {_read}"
        )
    ]
    INTRINSICS[f"store_{_n}"] = [
        Intrinsic(
            "void", "long long p, const unsigned int* d", f"*({_type}*)p = make_{_type}({_words});"
        )
    ]


def number(arch: str) -> int:
    """The number of an architecture: 80 for sm_80, 90 for sm_90a."""
    return int("".join(c for c in arch if c.isdigit()))


@dataclass(frozen=True)
class Intrinsics:
    """The device functions of one architecture."""

    arch: int

    def __call__(self, name: str, *args: Any) -> Any:
        """A call of the function called `name`."""
        found = [x for x in INTRINSICS[name] if x.least <= self.arch]
        assert found, f"sm_{self.arch} has no {name}"
        x = found[-1]
        head = f"__device__ __forceinline__ {_C[x.returns]} tc_{name}({x.parameters})"
        source = f"{head} {{\n  {x.body}\n}}\n"
        return cuda_func_call(f"tc_{name}", *args, source_code=source, return_type=x.returns)

    def has(self, name: str) -> bool:
        """Whether the architecture has what the function needs."""
        return any(x.least <= self.arch for x in INTRINSICS[name])

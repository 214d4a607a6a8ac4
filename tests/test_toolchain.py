"""NVRTC, ptxas's report, the disassembler and loops in machine code; no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilecc.errors import CompileError
from tilecc.target import resolve
from tilecc.toolchain import Binary, compile_cuda, disassemble, listing, packages, resources
from tilecc.toolchain.loops import counts, kind, loops, main_loop, tensor_multiply_adds
from tilecc.toolchain.nvrtc import FLAGS
from tilecc.toolchain.occupancy import occupancy
from tilecc.toolchain.ptxas import notes, usage
from tilecc.toolchain.sass import Instruction

A100 = resolve("sm_80")

# Line 4 adds; static shared memory of 512 bytes; the loop makes one fused multiply-add a turn.
SOURCE = """extern "C" __global__ void __launch_bounds__(128) scale(float* x, float a, int n) {
  __shared__ float t[128];
  for (int i = 0; i < n; ++i) {
    t[threadIdx.x] += x[i * 128 + threadIdx.x] * a;
    __syncthreads();
  }
  x[threadIdx.x] = t[threadIdx.x ^ 1];
}
"""
# 1,024 threads leave 64 registers each, and 96 values live through the loop.
SPILLS = """extern "C" __global__ void __launch_bounds__(1024) many(float* x, int n) {
  float a[96];
#pragma unroll
  for (int j = 0; j < 96; ++j) a[j] = x[j * 1024 + threadIdx.x];
#pragma unroll 1
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int j = 0; j < 96; ++j) a[j] = a[j] * a[(j + 7) % 96] + a[(j + 13) % 96];
#pragma unroll
  for (int j = 0; j < 96; ++j) x[j * 1024 + threadIdx.x] = a[j];
}
"""
MMA = """extern "C" __global__ void mma(float* o, const unsigned* a, int n) {
  float c[4] = {0, 0, 0, 0};
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    const unsigned* p = a + i * 192 + threadIdx.x;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(p[0]), "r"(p[32]), "r"(p[64]), "r"(p[96]), "r"(p[128]), "r"(p[160]));
  }
  for (int j = 0; j < 4; ++j) o[j * 32 + threadIdx.x] = c[j];
}
"""


def report(source: str, name: str, threads: int, dynamic: int = 0):
    return resources(compile_cuda(source, "sm_80", name), A100, name, threads, dynamic)


def test_one_run_gives_ptx_cubin_and_the_report():
    binary = compile_cuda(SOURCE, "sm_80", "scale")
    assert isinstance(binary, Binary) and binary.cubin.startswith(b"\x7fELF")
    assert ".target sm_80" in binary.ptx and ".entry scale(" in binary.ptx
    found = report(SOURCE, "scale", 128, 1000)
    assert (found.shared, found.usage.static_shared, found.spills) == (1512, 512, 0)
    assert 0 < found.registers <= 40 and found.usage.stack == 0
    data = found.to_json()
    assert {"registers", "spills", "shared", "occupancy", "instructions"} <= set(data)


def test_ptx_and_sass_name_lines_of_the_source_and_no_folder_of_this_machine():
    binary = compile_cuda(SOURCE, "sm_80", "scale")
    assert "\t.loc\t1 4 " in binary.ptx
    assert '"/tilecc/scale.cu"' in binary.ptx
    text = listing(binary.cubin)
    assert '"/tilecc/scale.cu", line 4' in text and "EXIT" in text


def test_spills_are_those_of_ptxas():
    found = report(SPILLS, "many", 1024)
    assert found.registers == 64 and found.spills > 0
    code = disassemble(compile_cuda(SPILLS, "sm_80", "many").cubin)["many"]
    width = {"64": 8, "128": 16}
    stored = [width.get(i.opcode.rpartition(".")[2], 4) for i in code if i.base == "STL"]
    assert sum(stored) == found.spills
    assert found.occupancy.blocks == 1 and found.occupancy.share == 0.5


def test_main_loop_of_matrix_instructions():
    found = report(MMA, "mma", 32)
    assert found.instructions["mma"] >= 1
    assert found.multiply_adds == found.instructions["mma"] * 16 * 8 * 16
    assert found.instructions["total"] == sum(found.instructions.values()) / 2


def test_arithmetic_keeps_ieee_rules():
    source = """extern "C" __global__ void f(float* x) {
  int i = threadIdx.x; x[i] = x[i] / x[i + 32] + sqrtf(x[i + 64]);
}"""
    ptx = compile_cuda(source, "sm_80", "f").ptx
    assert "div.rn.f32" in ptx and "sqrt.rn.f32" in ptx and ".ftz" not in ptx


def test_the_table_of_flags_in_the_documentation():
    page = Path(__file__).resolve().parent.parent / "docs" / "shipping.md"
    table = page.read_text().partition("<!-- flags -->\n")[2].partition("\n\n")[0].splitlines()
    assert table[2:] == [f"| `{flag}` | {why} |" for flag, why in FLAGS]


def test_newer_architectures_have_their_own_instructions():
    assert ".target sm_90a" in compile_cuda(SOURCE, "sm_90a", "scale").ptx


@pytest.mark.parametrize(
    ("source", "arch", "message"),
    [
        (SOURCE, "sm_70", r"NVRTC 13\.0 does not compile for sm_70; it knows sm_75, .*sm_90a"),
        (
            "int f( {",
            "sm_80",
            r"NVRTC refuses the source of k for sm_80:\n(.|\n)*k\.cu\(1\): error",
        ),
    ],
)
def test_what_nvrtc_does_not_compile(source, arch, message):
    with pytest.raises(CompileError, match=message):
        compile_cuda(source, arch, "k")


def test_missing_packages_say_what_to_install(monkeypatch):
    packages.find.cache_clear()
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    try:
        with pytest.raises(CompileError, match=r"NVRTC is not installed .*\n.*pip install 'tilecc"):
            packages.find("NVRTC")
    finally:
        packages.find.cache_clear()


def test_a_cubin_that_is_none():
    with pytest.raises(CompileError, match="nvdisasm cannot read the cubin"):
        disassemble(b"no cubin")


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_80'
ptxas info    : Function properties for a
ptxas         .     16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 384 bytes smem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Compiling entry function 'b' for 'sm_80'
ptxas info    : Function properties for b
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for helper
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 372 bytes cmem[0]
"""


def test_reports_of_several_kernels():
    found = usage(LOG)
    a, b = found["a"], found["b"]
    assert (a.registers, a.stack, a.spill_stores, a.spill_loads, a.static_shared) == (
        255, 16, 12, 20, 384,
    )  # fmt: skip
    assert (b.registers, b.spill_stores, b.static_shared) == (32, 4, 0)
    assert len(notes(LOG)) == 1 and "C7510" in notes(LOG)[0]


def code(*lines: str) -> list[Instruction]:
    """Instructions from "OPCODE OPERANDS" or "@P OPCODE OPERANDS"; @n is the address of line n."""
    found = []
    for k, line in enumerate(lines):
        first, _, rest = line.partition(" ")
        predicate = ""
        if first.startswith("@"):
            predicate, (first, _, rest) = first, rest.partition(" ")
        if rest.startswith("->"):
            rest = hex(int(rest[2:]) * 16)
        found.append(Instruction(k * 16, predicate, first, rest))
    return found


NESTED = code(
    "MOV R1,RZ",  # 0
    "FADD R2,R2,R3",  # 1: outer loop
    "FFMA R2,R2,R3,R4",  # 2: inner loop
    "@P0 BRA ->2",  # 3
    "SYNCS R1",  # 4: waits
    "@P2 BRA ->4",  # 5
    "@P1 BRA ->1",  # 6
    "EXIT ",  # 7
    "BRA ->8",  # 8: padding behind the end
)


def test_natural_loops():
    assert sorted(sorted(x) for x in loops(NESTED)) == [[1, 2, 3, 4, 5, 6], [2, 3], [4, 5], [8]]
    assert [i.opcode for i in main_loop(NESTED)] == ["FFMA", "BRA"]


def test_a_loop_that_waits_inside_is_not_the_main_one_and_not_counted():
    mma = "HMMA.16816.F32 R0,R4,R8,R0"
    body = code("MOV R1,RZ", mma, "SYNCS R1", "@P0 BRA ->2", mma, "@P1 BRA ->1", "EXIT ")
    assert [i.base for i in main_loop(body)] == ["HMMA", "HMMA", "BRA"]


def test_of_masked_and_unmasked_tiles_the_unmasked_loop_counts():
    mma = "HMMA.16816.F32 R0,R4,R8,R0"
    both = code(
        mma, "FSEL R0,R0,R1,P0", "FSEL R0,R0,R1,P0", "@P0 BRA ->0", mma, "@P1 BRA ->4", "EXIT "
    )
    assert [i.address // 16 for i in main_loop(both)] == [4, 5]
    assert main_loop(code("FADD R0,R0,R1", "EXIT ")) == []


def test_kinds_of_instructions():
    lines = {
        "HMMA.16816.F32 R0,R4,R8,R0": "mma",
        "HGMMA.64x128x16.F32 R24,gdesc[UR4],R24": "mma",
        "MUFU.EX2 R0,R1": "ex2",
        "MUFU.RCP R0,R1": "mufu",
        "IMAD.MOV.U32 R0,RZ,RZ,R1": "mov",
        "IMAD.WIDE R2,R3,0x4,R4": "int",
        "STL.64 [R1],R2": "spill",
        "LDSM.16.MT88.4 R4,[R2]": "shared",
        "UIADD3 UR4,UR4,0x1,URZ": "uniform",
        "FMNMX R0,R1,R2,!PT": "fmnmx",
    }
    body = code(*lines)
    assert [kind(i) for i in body] == list(lines.values())
    assert tensor_multiply_adds(body[0]) == 16 * 8 * 16
    assert tensor_multiply_adds(body[1]) == 64 * 128 * 16 // 4
    assert counts(body)["total"] == len(body) and counts(body)["mma"] == 2


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limit"),
    [
        # CUDA's occupancy calculator for compute capability 8.0.
        (128, 255, 48 * 1024, 2, "registers"),
        (128, 128, 48 * 1024, 3, "shared memory"),
        (128, 255, 82 * 1024, 1, "shared memory"),  # with the 1 KiB reserved, two do not fit 164
        (128, 255, 81 * 1024, 2, "registers"),
        (1024, 64, 0, 1, "registers"),
        (256, 32, 0, 8, "warps"),
        (32, 16, 0, 32, "blocks"),
        (128, 32, 164 * 1024, 0, "shared memory"),
    ],
)
def test_occupancy(threads, registers, shared, blocks, limit):
    found = occupancy(A100, threads, registers, shared)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.share == blocks * threads / 2048

"""The structure of generated CUDA C++: signature, launch, instructions, barriers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tilecc as tc
from tilecc.codegen.cuda.ledger import rooms
from tilecc.codegen.cuda.plan import Plan
from tilecc.codegen.program import DeviceKernel, DeviceProgram
from tilecc.compiler import Compiler
from tilecc.errors import CompileError
from tilecc.given import load
from tilecc.target import resolve
from tilecc.toolchain.occupancy import occupancy

EXAMPLES = Path(__file__).parents[2] / "examples"


def device(spec, dtype="float16", tile=None, **static: int) -> DeviceProgram:
    compiler = Compiler(load(spec, dtype)[0], resolve("sm_80"), tile)
    program = compiler.lower(compiler.passes(static))
    assert isinstance(program, DeviceProgram)
    return program


def attention(dtype="float16", tile=None, d: int = 64) -> DeviceKernel:
    (kernel,) = device(EXAMPLES / "attention.py", dtype, tile, D=d).kernels
    return kernel


def body(kernel: DeviceKernel) -> str:
    """The text of the kernel, without the device functions before it."""
    return kernel.source.split(f"{kernel.name}(")[-1]


def test_the_signature_is_the_parameters():
    kernel = attention()
    found = re.findall(rf"__global__ .*?{kernel.name}\((.*?)\)", kernel.source)[-1]
    names = [re.split(r"[ *]+", p.strip())[-1] for p in found.split(",")]
    assert names == [p.name for p in kernel.params]
    kinds = {p.kind for p in kernel.params}
    assert kinds == {"tensor", "stride", "extent"}
    strides = [p for p in kernel.params if p.kind == "stride"]
    assert all(p.axis is not None and p.value.type.axes[p.axis].name != "d" for p in strides)
    assert [p.extent for p in kernel.params if p.kind == "extent"] == ["B", "H", "N"]


def test_attention_runs_on_tensor_cores_from_swizzled_tiles():
    text = body(attention())
    assert "tc_mma_f16" in text and "tc_ldmatrix_x4(" in text
    assert "tc_ldmatrix_x4_trans(" in text  # V, summed over its rows
    assert "tc_cp_async_16(" in text and "tc_exp2(" in text
    assert "tc_mma_bf16" in body(attention("bfloat16"))
    assert "tc_mma" not in body(attention("float32"))


def test_probabilities_stay_in_registers():
    """No 16-bit value is written to shared memory by a thread: P is the next product's operand."""
    text = body(attention(tile={"i": 64, "j": 64}))
    loop = text.split("for (int64_t")[1].split("\n  }\n")[0]
    parts = re.findall(r"// (%\w+) = contract (.*?)(?=\n *//|$)", loop, re.S)
    assert {name for name, text in parts if "tc_mma_f16" in text} == {"%s", "%o_1"}
    assert not re.search(r"\(\(u(int|short)\*\)_ptr\)\[.*\] = ", loop)


@pytest.mark.parametrize("d", [16, 64, 72, 80, 96, 128, 160, 192, 256])
def test_head_dimensions(d):
    kernel = attention(tile={"i": 64, "j": 32}, d=d)
    assert "tc_mma_f16" in body(kernel)
    columns = -(-d // 16) * 16  # products take 16 at a time
    # Rows that are a multiple of all banks have 16 bytes between them.
    q, v = (n + 8 * (n % 64 == 0) for n in (columns, d))
    assert kernel.shared == 2 * (64 * q + 32 * q + 32 * v)


def test_two_barriers_in_the_loop_and_each_waits_for_a_copy():
    """K(i + 1) is issued after QK and V(i) before it, each when nobody reads its buffer."""
    text = body(attention(tile={"i": 64, "j": 64}))
    loop = text.split("for (int64_t")[1].split("\n  }\n")[0]
    marks = re.findall(r"cta_sync|cp_async_wait|cp_async_all_\w*16|tc_mma", loop)
    steps = [m for n, m in enumerate(marks) if m != marks[n - 1]]
    sync, start, product = ["cp_async_wait", "cta_sync"], "cp_async_all_16", "tc_mma"
    first = [product, start] * 4  # V's copies are started between the instructions of QK
    assert steps == [*sync, *first, *sync, "cp_async_all_if_16", product]


def test_an_unaligned_tensor_has_a_kernel_too():
    kernel = attention()
    assert dict(kernel.alignment) == {"t0_q": 16, "t1_k": 16, "t2_v": 16, "t3_o": 16}
    assert kernel.relaxed is not None and not kernel.relaxed.alignment
    assert kernel.relaxed.params == kernel.params
    assert "tc_cp_async" not in body(kernel.relaxed)


def test_too_much_shared_memory_is_refused_with_the_numbers():
    with pytest.raises(CompileError, match=r"needs \d+ of 166912 bytes \(shared memory\)"):
        attention(tile={"i": 256, "j": 256}, d=256)


def test_a_graph_that_is_not_attention():
    (kernel,) = device(EXAMPLES / "normalised_linear.py").kernels
    assert "tc_mma_f16" in body(kernel) and "rsqrtf" in body(kernel)


def test_rows_of_several_heads_are_one_product():
    """Grouped heads with few rows each: h and i lie along the rows of one product."""

    @tc.spec
    def grouped(q: tc.Tensor["h i:16 d:64"], k: tc.Tensor["j:N d:64"]):
        return tc.max(tc.dot(q, k, over="d"), over="j")

    (kernel,) = device(grouped, tile={"h": 4, "i": 16, "j": 64}).kernels
    assert "tc_mma_f16" in body(kernel)


@pytest.mark.parametrize("d", [96, 128])
def test_tiles_that_are_chosen_fit_with_the_factors_that_are_copied(d):
    """In f32 a product's computed factor goes through shared memory, beside what is loaded."""
    kernel = tc.compile("examples/causal.py", target="sm_80", static={"D": d})
    assert "__global__" in kernel.ir("cuda")  # else: needs 212992 of 166912 bytes


def test_a_steady_loop_moves_its_addresses_on():
    """Strides are added, and multiplied by no coordinate; the loop that ends the rows computes."""
    loops = body(attention(tile={"i": 64, "j": 64})).split("for (int64_t")[1:3]
    steady, last = (text.split("\n  }\n")[0] for text in loops)
    assert steady.count("tc_keep_64(") == 5  # one for K's unrolled copies, four between products
    assert not re.search("t[12]_[kv]_s[01]", steady) and re.search("t[12]_[kv]_s[01]", last)


@pytest.mark.parametrize(("d", "j", "stays"), [(64, 96, True), (64, 128, False), (128, 64, False)])
def test_the_first_factor_stays_in_registers_where_there_is_room(d, j, stays):
    compiler = Compiler(
        load(EXAMPLES / "attention.py", "float16")[0], resolve("sm_80"), {"i": 128, "j": j}
    )
    run = compiler.passes({"D": d}).run
    (kernel,) = (op for op in run.func.body.ops if op.name == "kernel")
    plan = Plan(kernel, resolve("sm_80"))
    assert len(plan.matrices) == 4 and len(plan.resident) == 2 * stays


@pytest.mark.parametrize("d", [64, 96, 128])
def test_chosen_tiles_leave_no_part_of_an_sm_without_a_warp(d):
    target = resolve("sm_80")
    compiler = Compiler(load(EXAMPLES / "causal.py", "float32")[0], target, None)
    (room,) = rooms(compiler.passes({"D": d}).run.func, target)
    held = occupancy(target, room.threads, min(255, room.registers + 18), room.shared)
    assert held.warps >= 4

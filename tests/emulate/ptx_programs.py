"""Small PTX programs for the tests: one instruction on many lanes, or a kernel's body."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tilecc import emulator

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"
_REGISTERS = """
  .reg .pred %p<16>;
  .reg .b16 %h<16>;
  .reg .b32 %r<64>;
  .reg .f32 %f<64>;
  .reg .f64 %fd<16>;
  .reg .b64 %rd<64>;
"""
_REGISTER = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}


def kernel(body: str, params: str = "a", declarations: str = "", registers: str = "") -> str:
    """A module with a kernel of pointers named `params` (space separated) and this body."""
    listed = ",\n".join(f"  .param .u64 {p}" for p in params.split())
    pointers = "".join(f"  ld.param.u64 %{p}, [{p}];\n" for p in params.split())
    declared = "".join(f"  .reg .b64 %{p};\n" for p in params.split())
    return (
        f"{HEADER}{declarations}\n.visible .entry k(\n{listed}\n)\n"
        f"{{\n{_REGISTERS}{declared}{registers}{pointers}{body}\n}}\n"
    )


def run(body: str, threads: int = 32, grid: int = 1, shared: int = 0, **arrays: np.ndarray):
    """Run a body on arrays; `%name` holds the address of each."""
    schedule = arrays.pop("schedule", "lockstep")
    declarations = arrays.pop("declarations", "")
    text = kernel(body, " ".join(arrays), declarations)
    given = list(arrays.values())
    return emulator.run(text, "k", given, grid, threads, shared, schedule=schedule, names=[*arrays])


def register_type(dtype) -> str:
    dtype = np.dtype(dtype)
    if dtype in (np.float32, np.float64):
        return f"f{8 * dtype.itemsize}"
    return _REGISTER[dtype.itemsize]


def lanes(text: str, inputs: list[np.ndarray], *outputs) -> list[np.ndarray]:
    """Run instructions on every lane: inputs in %a0, %a1, ..., results in %d0, %d1, ...

    A lane's registers have the types of the arrays (f32 and f64 as such, all others as bits).
    """
    n = max(len(x) for x in inputs) if inputs else 32
    threads = -(-n // 32) * 32
    padded = [np.resize(x, threads) for x in inputs]
    results = [np.zeros(threads, t) for t in outputs]
    registers, before, after = "", "mov.u32 %r60, %tid.x;\n", ""
    for group, letter, arrays in (("in", "a", padded), ("out", "d", results)):
        for i, x in enumerate(arrays):
            t, size = register_type(x.dtype), x.dtype.itemsize
            memory = f"b{8 * size}" if t[0] == "b" else t
            registers += f"  .reg .{t} %{letter}{i};\n"
            address = f"mul.wide.u32 %rd60, %r60, {size};\nadd.s64 %rd61, %{group}{i}, %rd60;\n"
            if group == "in":
                before += f"{address}ld.global.{memory} %a{i}, [%rd61];\n"
            else:
                after += f"{address}st.global.{memory} [%rd61], %d{i};\n"
    names = [f"in{i}" for i in range(len(padded))] + [f"out{i}" for i in range(len(results))]
    module = kernel(f"{before}{text}\n{after}ret;", " ".join(names), registers=registers)
    found = emulator.run(module, "k", [*padded, *results], 1, threads)
    assert not found.findings, [str(f) for f in found.findings]
    return [x[:n] for x in results]


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def u32(*values: int) -> np.ndarray:
    return np.array([v % 2**32 for v in values], np.uint32)


def s32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def u64(*values: int) -> np.ndarray:
    return np.array([v % 2**64 for v in values], np.uint64)


def f16x2(*pairs: tuple[float, float]) -> np.ndarray:
    """Low half first."""
    return np.array(pairs, np.float16).reshape(-1, 2).view(np.uint32)[:, 0]


def bf16x2(*pairs: tuple[float, float]) -> np.ndarray:
    return np.array(pairs, np.float32).astype(ml_dtypes.bfloat16).view(np.uint32)[:, 0]

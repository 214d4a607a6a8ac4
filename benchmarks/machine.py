"""This machine: what it is, and its limits as functions that run like every other contestant.

A limit is a small kernel that does nothing but use one resource: fused multiply-adds, bf16 dot
products, or reading memory. Each is built by TVM for the same LLVM target as tilecc's kernels, and
runs on the same thread pool: TVM's own pool keeps its workers spinning, which takes the cores away
from whatever is measured next.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu import vectors
from tilecc.codegen.cpu.isa import Isa, isa_for
from tilecc.host import host
from tilecc.ir.dtypes import dtype
from tilecc.runtime.build import llvm_target
from tilecc.runtime.dlpack import numpy_tensor
from tilecc.runtime.pool import POOL

_STEPS = 8192
_BLOCK = 1 << 16  # 32-bit words that a reading task sums
_STREAMS = 8  # vectors that a step of reading loads, each with an accumulator


@dataclass(frozen=True)
class Limit:
    """One resource used to the full: `run()` does `amount` operations or reads `amount` bytes."""

    name: str
    unit: str
    amount: float
    run: Callable[[], object]


def fma_limit(threads: int, seconds: float = 0.05) -> Limit:
    """fp32 fused multiply-adds, two operations each, in registers."""
    isa = isa_for(host())
    return _arithmetic(
        "fp32 FMA", isa, 2, lambda acc, x, y: acc * x + y, "float32", threads, seconds
    )


def dot_limit(threads: int, seconds: float = 0.05) -> Limit | None:
    """bf16 dot products of pairs, four operations a lane; None where there is no instruction."""
    isa = isa_for(host())
    if not isa.has_bf16_dot:
        return None
    return _arithmetic("bf16 dot", isa, 4, vectors.dot2, "int32", threads, seconds)


def read_limit(arrays: list[np.ndarray[Any, Any]], threads: int) -> Limit:
    """Reading `arrays`, one after another, each word once."""
    isa = isa_for(host())
    lanes = isa.lanes32
    function = _build(_reader, lanes)
    work = []
    for a in arrays:
        words = a.reshape(-1).view(np.int32)
        blocks = len(words) // _BLOCK
        if blocks * _BLOCK != len(words):
            raise ValueError(f"{a.nbytes} bytes are not whole blocks of {4 * _BLOCK}")
        sums = np.zeros((blocks, lanes), np.int32)
        i32 = dtype("int32")
        work.append(
            (numpy_tensor(words.reshape(blocks, _BLOCK), i32), numpy_tensor(sums, i32), blocks)
        )

    def run() -> None:
        for words, sums, blocks in work:
            POOL.run(lambda b, e, w=words, s=sums: function(w, s, b, e), blocks, threads)

    return Limit("reading", "GB/s", sum(a.nbytes for a in arrays), run)


def _arithmetic(
    name: str,
    isa: Isa,
    operations: int,
    step: Callable[[Any, Any, Any], Any],
    operand: str,
    threads: int,
    seconds: float,
) -> Limit:
    """Independent chains acc = step(acc, x, y): more than latency x units, fewer than registers."""
    chains = 16 if isa.registers >= 32 else 12
    lanes = isa.lanes32
    function = _build(_chains, isa, chains, step, operand)
    numbers = np.ones((2, lanes), operand)
    if operand == "float32":
        numbers[1] = 0  # acc * 1 + 0: nothing grows, nothing gets subnormal
    else:
        numbers[:] = 0
    operands = numpy_tensor(numbers, dtype(operand))
    each = operations * lanes * chains * _STEPS
    # About `seconds` long, at some 50 G operations a second and thread at the least.
    tasks = max(8 * threads, int(seconds * 100e9 * threads / each))
    results = np.zeros((tasks, chains, lanes), np.float32)
    out = numpy_tensor(results, dtype("float32"))

    def run() -> None:
        POOL.run(lambda begin, end: function(operands, out, begin, end), tasks, threads)

    return Limit(name, "GFLOP/s", each * tasks, run)


def _build(body: Callable[..., None], *args: Any) -> Any:
    """`body` as a compiled function (a, b, begin, end) that runs without the GIL."""
    with IRBuilder() as ib, T.prim_func(s_tir=True):
        T.func_name("limit")
        T.func_attr({"tirx.noalias": True, "global_symbol": "limit"})
        a, b = T.arg("a", T.handle()), T.arg("b", T.handle())
        begin, end = T.arg("begin", T.int64()), T.arg("end", T.int64())
        body(a, b, begin, end, *args)
    target = tvm.target.Target(llvm_target(host()))
    function = tirx.build(tvm.IRModule({"limit": ib.get()}), target=target)["limit"]
    function.release_gil = True
    return function


def _chains(
    a: Any, b: Any, begin: Any, end: Any, isa: Isa, chains: int, step: Any, operand: str
) -> None:
    lanes = isa.lanes32
    operands = T.match_buffer(a, (2, lanes), operand, align=4)
    out = T.match_buffer(b, (tirx.Var("tasks", "int64"), chains, lanes), "float32", align=4)
    ramp = tirx.Ramp(0, 1, lanes)
    with vectors.imported(isa), T.serial(0, end - begin) as t:
        acc = T.alloc_buffer((chains * lanes,), "float32", scope="local")
        x, y = (T.bind(tirx.BufferLoad(operands, [k, ramp])) for k in range(2))
        places = [tirx.Ramp(c * lanes, 1, lanes) for c in range(chains)]
        for c, place in enumerate(places):
            T.buffer_store(acc, tirx.BufferLoad(out, [begin + t, c, ramp]), [place])
        with T.serial(0, _STEPS):
            for place in places:
                T.buffer_store(acc, step(tirx.BufferLoad(acc, [place]), x, y), [place])
        for c, place in enumerate(places):
            T.buffer_store(out, tirx.BufferLoad(acc, [place]), [begin + t, c, ramp])


def _reader(a: Any, b: Any, begin: Any, end: Any, lanes: int) -> None:
    blocks = tirx.Var("blocks", "int64")
    words = T.match_buffer(a, (blocks, _BLOCK), "int32", align=4)
    sums = T.match_buffer(b, (blocks, lanes), "int32", align=4)
    ramp = tirx.Ramp(0, 1, lanes)
    with T.serial(0, end - begin) as t:
        acc = T.alloc_buffer((_STREAMS * lanes,), "int32", scope="local")
        places = [tirx.Ramp(c * lanes, 1, lanes) for c in range(_STREAMS)]
        for place in places:
            T.buffer_store(acc, tirx.Broadcast(tirx.const(0, "int32"), lanes), [place])
        with T.serial(0, _BLOCK // (_STREAMS * lanes)) as s:
            for c, place in enumerate(places):
                at = tirx.Ramp((s * _STREAMS + c) * lanes, 1, lanes)
                loaded = tirx.BufferLoad(words, [begin + t, at])
                T.buffer_store(acc, tirx.BufferLoad(acc, [place]) + loaded, [place])
        total = tirx.BufferLoad(acc, [places[0]])
        for place in places[1:]:
            total = total + tirx.BufferLoad(acc, [place])
        T.buffer_store(sums, total, [begin + t, ramp])


def description() -> dict[str, str]:
    """The machine and the versions, for the head of a table of results."""
    target = host()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    caches = {m.name: m.size for m in target.memories if m.name in ("L1", "L2", "L3")}
    sizes = ", ".join(f"{n} {int(b) >> 10} KiB" for n, b in caches.items() if b)
    return {
        "CPU": f"{target.model} (LLVM {target.arch}, instruction set {isa_for(target).name})",
        "cores": f"{cores}",
        "caches": sizes,
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{n} {v}" for n in _PACKAGES if (v := _version(n))),
        "virtual": "yes" if "hypervisor" in _flags() else "no",
    }


_PACKAGES = ("tilecc", "apache-tvm", "torch", "onnxruntime", "numpy", "sympy")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        if package == "tilecc":
            import tilecc

            return tilecc.__version__
        return None


def _flags() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""

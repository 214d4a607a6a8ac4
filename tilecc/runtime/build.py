"""TIR functions to machine code: one TVM module for a program."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilecc.codegen.program import Program
from tilecc.errors import CompileError
from tilecc.target import Target

# How LLVM is to work. Loops are as the code generator means them: what -O3 adds is a copy of each
# for every condition that does not change in it (seconds for kernels of many heads), and the search
# for fewer induction variables takes as long as choosing instructions. Neither made a kernel of
# examples/ faster. Short loops that -O3 writes out, and -O2 (150) does not, do: a sum over heads
# runs at half the speed as a loop. 220 takes those, and less of what is long anyway than 300 would.
LEVEL = 2
OPTIONS = ("-disable-lsr:bool=1", "-unroll-threshold-default:uint=220")


@dataclass(frozen=True)
class Library:
    """A program's compiled functions by name, and the TVM module that holds them.

    There are none for a machine whose instructions this one lacks.
    """

    module: Any
    functions: Mapping[str, Any]
    seconds: float
    platform: str = ""
    """Architecture and operating system, as the object file's format goes: "x86_64-linux"."""

    def text(self, kind: str) -> str:
        """The module as "llvm" (LLVM IR after optimisation) or "asm" (assembly)."""
        return str(self.module.inspect_source({"llvm": "ll", "asm": "s"}[kind]))

    def object(self) -> bytes:
        """The functions as an object file."""
        with tempfile.TemporaryDirectory(prefix="tilecc-") as folder:
            path = Path(folder, "kernel.o")
            self.module.write_to_file(str(path), "o")
            return path.read_bytes()


def build(program: Program, target: Target) -> Library:
    """Compile all functions of `program` with LLVM, for exactly the CPU of `target`.

    Raises:
        CompileError: the target is no CPU.
    """
    if target.kind != "cpu":
        raise CompileError(f"target {target.name} is not a CPU: kernels for it stop at TIR")
    start = time.perf_counter()
    built = build_tir({k.name: k.prim_func for k in program.kernels}, target)
    # Taking a function out of a module readies it for this process, which refuses foreign code.
    functions = {k.name: built[k.name] for k in program.kernels} if runs_here(target) else {}
    for f in functions.values():
        f.release_gil = True
    return Library(built, functions, time.perf_counter() - start, platform_of(target))


def build_tir(functions: Mapping[str, Any], target: Target) -> Any:
    """Functions of TIR by name as one TVM module of machine code.

    The passes are those that the TIR of CPU kernels has something for. TVM's own pipeline for it
    serves schedules and GPUs besides: on kernels it spends as long as LLVM does and changes
    nothing. Nor do the functions check their arguments: the runtime has done so when it calls them,
    and the checks of some twenty tensors are more code than a kernel.
    """
    import tvm
    from tvm import s_tir, tirx

    llvm = tvm.target.Target(llvm_target(target))
    module = tirx.transform.BindTarget(llvm.with_host(llvm))(tvm.IRModule(dict(functions)))
    passes = [
        s_tir.transform.LowerOpaqueBlock(),  # takes away loops of one: no vector has one lane
        tirx.transform.FlattenBuffer(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        tirx.transform.StmtSimplify(),  # or an index of lanes is no ramp, and its load a gather
        s_tir.transform.RewriteUnsafeSelect(),
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
        tirx.transform.SkipAssert(),
        tirx.transform.LowerTVMBuiltin(),
        tirx.transform.LowerIntrin(),
    ]
    lowered = tvm.transform.Sequential(passes)(module)
    return tvm.get_global_func("target.build.llvm")(lowered, llvm.with_host(llvm))


def llvm_target(target: Target) -> dict[str, Any]:
    """TVM's description of a CPU. The CPU is always named: -mcpu=native gives generic code.

    So are its features: a hypervisor may show a CPU of no known name that has more than its level
    of the instruction set, and LLVM aborts on an instruction that it was not told of.
    """
    made: dict[str, Any] = {"kind": "llvm", "mcpu": target.arch}
    made |= {"opt-level": LEVEL, "cl-opt": list(OPTIONS)}
    if target.features:
        made["mattr"] = [f"+{name}" for name in sorted(target.features)]
    if target.triple:
        made["mtriple"] = target.triple
    return made


# Features of instructions that LLVM picks by itself, by the beginnings of their names. The rest are
# for system code or are used through intrinsics, and hypervisors hide many of them.
_PICKED = (
    *("sse", "ssse", "avx", "fma", "f16c", "bmi", "lzcnt", "popcnt", "movbe", "gfni"),
    *("xop", "tbm", "neon", "sve", "sme", "fullfp16", "dotprod", "bf16", "i8mm"),
)


def code_features(target: Target) -> frozenset[str]:
    """What a CPU must have to run code for `target`: what LLVM takes its name and features for."""
    import tvm

    made = tvm.target.Target(llvm_target(target))
    names = {*map(str, tvm.target.codegen.llvm_get_cpu_features(made)), *target.features}
    return frozenset(n for n in names if n.startswith(_PICKED))


def platform_of(target: Target) -> str:
    """The kind of object file that code for `target` is in: "x86_64-linux"."""
    from tilecc.host import architecture

    if target.triple:
        machine, _, rest = target.triple.partition("-")
        return f"{machine}-{'darwin' if 'darwin' in rest or 'macos' in rest else 'linux'}"
    return f"{architecture()}-{sys.platform}"


def runs_here(target: Target) -> bool:
    """Whether this machine has the instructions that code for `target` may contain."""
    if target.kind != "cpu":
        return False
    from tilecc.host import architecture, host

    here = host()
    if target.name == here.name:
        return True
    same = not target.triple or target.triple.split("-")[0] == architecture()
    return same and target.features <= here.features

"""TIR functions to machine code: one TVM module for a program."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilecc.codegen.program import Program
from tilecc.errors import CompileError
from tilecc.target import Target


@dataclass(frozen=True)
class Library:
    """A program's compiled functions by name, and the TVM module that holds them.

    There are none for a machine whose instructions this one lacks.
    """

    module: Any
    functions: Mapping[str, Any]
    seconds: float

    def text(self, kind: str) -> str:
        """The module as "llvm" (LLVM IR after optimisation) or "asm" (assembly)."""
        return str(self.module.inspect_source({"llvm": "ll", "asm": "s"}[kind]))


def build(program: Program, target: Target) -> Library:
    """Compile all functions of `program` with LLVM, for exactly the CPU of `target`.

    Raises:
        CompileError: the target is no CPU.
    """
    import tvm
    from tvm import tirx

    if target.kind != "cpu":
        raise CompileError(f"target {target.name} is not a CPU: kernels for it stop at TIR")
    start = time.perf_counter()
    module = tvm.IRModule({k.name: k.prim_func for k in program.kernels})
    # TVM's elimination of common subexpressions can use a variable before it defines it; LLVM has
    # its own.
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        built = tirx.build(module, target=tvm.target.Target(llvm_target(target)))
    # Taking a function out of a module readies it for this process, which refuses foreign code.
    functions = {k.name: built[k.name] for k in program.kernels} if runs_here(target) else {}
    for f in functions.values():
        f.release_gil = True
    return Library(built, functions, time.perf_counter() - start)


def llvm_target(target: Target) -> dict[str, Any]:
    """TVM's description of a CPU. The CPU is always named: -mcpu=native gives generic code.

    So are its features: a hypervisor may show a CPU of no known name that has more than its level
    of the instruction set, and LLVM aborts on an instruction that it was not told of.
    """
    made: dict[str, Any] = {"kind": "llvm", "mcpu": target.arch}
    if target.features:
        made["mattr"] = [f"+{name}" for name in sorted(target.features)]
    if target.triple:
        made["mtriple"] = target.triple
    return made


def runs_here(target: Target) -> bool:
    """Whether this machine has the instructions that code for `target` may contain."""
    if target.kind != "cpu":
        return False
    from tilecc.host import host

    here = host()
    if target.name == here.name:
        return True
    same = not target.triple or target.triple.split("-")[0] == here_architecture()
    return same and target.features <= here.features


def here_architecture() -> str:
    """The architecture of this process, as LLVM's triples spell it."""
    import platform

    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)

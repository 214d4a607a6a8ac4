"""Code generation: tile IR to TIR through TVM's builder, one module a family of targets."""

from __future__ import annotations

from tilecc.codegen.program import (
    DeviceKernel,
    DeviceProgram,
    KernelEntry,
    Parameter,
    Program,
    ScratchBuffer,
)
from tilecc.ir.core import Func
from tilecc.target import Target

__all__ = [
    "DeviceKernel",
    "DeviceProgram",
    "KernelEntry",
    "Parameter",
    "Program",
    "ScratchBuffer",
    "lower",
]


def lower(func: Func, target: Target) -> Program:
    """The TIR of a tile-level function for `target`.

    Raises:
        CompileError: the target's family has no code generator, or cannot express `func`.
    """
    from tilecc.codegen.cpu.lower import lower as lower_cpu

    return lower_cpu(func, target)

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
from tilecc.codegen.space import Options
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


def lower(func: Func, target: Target, options: Options | None = None) -> Program | DeviceProgram:
    """The TIR of a tile-level function for `target`: a `DeviceProgram` for a GPU.

    `options` are those of the family's space.

    Raises:
        CompileError: the target's family has no code generator, or cannot express `func`.
    """
    if target.kind == "cuda":
        from tilecc.codegen.cuda.lower import lower as lower_cuda

        return lower_cuda(func, target)
    from tilecc.codegen.cpu.lower import lower as lower_cpu

    return lower_cpu(func, target, options or {})

"""An interpreter of PTX for sm_80 that checks and counts while it runs (docs/emulator.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilecc.emulator.ptx import Module, parse
from tilecc.emulator.report import Finding, GlobalAccess, Result, SharedAccess, Traffic
from tilecc.emulator.types import EmulatorError

__all__ = [
    "EmulatorError",
    "Finding",
    "GlobalAccess",
    "Module",
    "Result",
    "SharedAccess",
    "Traffic",
    "parse",
    "run",
]


def run(
    ptx: Module | str,
    kernel: str | None,
    args: Sequence[Any],
    grid: int | Sequence[int],
    block: int | Sequence[int],
    shared: int = 0,
    *,
    ctas: Iterable[int] | None = None,
    schedule: str | int = "lockstep",
    names: Sequence[str] | None = None,
    most_blocks: int = 5_000_000,
) -> Result:
    """Run a kernel of a PTX module on numpy arrays.

    Args:
        ptx: a module, or its text.
        kernel: the kernel's name; None if there is only one.
        args: in the order of .param: arrays (tensors in global memory, of any dtype and strides,
            read and written in place), numbers, or the bytes of a structure.
        grid: CTAs along x, y, z.
        block: threads along x, y, z.
        shared: bytes of dynamic shared memory.
        ctas: linear numbers of the CTAs to run (x fastest); None for all.
        schedule: "lockstep" (all warps together, copies land when waited for), or a seed: warp by
            warp in random order between synchronisation points, copies land early or late.
        names: of the arguments, for the report.
        most_blocks: basic blocks that may run before a kernel is taken to be in an endless loop.

    Returns:
        Findings and counts. Outputs are in the arrays.

    Raises:
        EmulatorError: text that does not parse, an instruction that is not known (its line is in
            the message), or arguments that do not fit.
    """
    import numpy as np

    from tilecc.emulator.launch import Launch, dims

    module = parse(ptx) if isinstance(ptx, str) else ptx
    function = module.kernel(kernel)
    g, b = dims(grid, "grid"), dims(block, "block")
    with np.errstate(all="ignore"):
        launch = Launch(module, function, args, g, b, shared, names, most_blocks)
        chosen = range(g[0] * g[1] * g[2]) if ctas is None else ctas
        return launch.result(launch.run(chosen, schedule))

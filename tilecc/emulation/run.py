"""`tilecc.emulate`: a kernel's PTX on arrays of the CPU, checked, counted and compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tilecc import emulator
from tilecc.codegen.program import MARKED, DeviceKernel, DeviceProgram
from tilecc.cost.whole import Names
from tilecc.emulation import computed
from tilecc.emulation.arrays import arguments, arrays, fitting, unwritten, was_written
from tilecc.emulation.report import Emulation, Launched, Moved
from tilecc.emulator.ptx import SourceLine
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Func, Value
from tilecc.ir.expr import Env, evaluate
from tilecc.saved.cost import SavedCost
from tilecc.saved.load import LoadedKernel

if TYPE_CHECKING:
    from tilecc.kernel import Kernel

Ctas = Iterable[int] | int | None
_OLDEST = 75
"""The first architecture that NVRTC of CUDA 13 compiles for; PTX of older ones is no other."""


def emulate(
    kernel: Kernel | LoadedKernel,
    *args: Any,
    ctas: Ctas = None,
    seed: int | None = None,
    ptx: str | Mapping[str, str] | None = None,
    check: bool = True,
    **kwargs: Any,
) -> Emulation:
    """Run a kernel that is compiled for an NVIDIA GPU on this machine's CPU, from its PTX.

    Args:
        kernel: what `tilecc.compile` gives for a target such as "sm_80", or `tilecc.load`.
        args: the program's arguments in order: arrays of the CPU, and numbers.
        ctas: which CTAs of each kernel's grid to run, or how many (spread evenly); None for all.
        seed: None for all warps in lockstep, else a random order of warps and landings of copies.
        ptx: PTX to run in place of the compiler's: a text, or a text for each kernel's name.
        check: compare with the program in float64.
        kwargs: arguments by name; one that is called as one of the above is given in order.

    Returns:
        Outputs, findings and counts; see `Emulation`.

    Raises:
        ArgumentError: wrong arguments.
        CompileError: a kernel for a CPU, or one that cannot be compiled.
        EmulatorError: an instruction that the emulator does not know.
    """
    if kernel.target.kind != "cuda":
        hint = 'compile for a GPU, such as target="sm_80"'
        message = f"{kernel.target.name} is no GPU, and has no PTX to emulate"
        raise CompileError(Diagnostic(message, None, hint))
    bound = kernel.bind(args, kwargs)
    func, program, stored = _code(kernel, bound.extents)
    given = arrays(bound, func.params)
    values = dict(given)
    for op in func.body.ops:
        if op.name == "alloc":
            values[op.result] = unwritten(op.result, bound.extents)
    launcher = _Launcher(func, bound.extents, values, seed, _Texts(program.arch, ptx or stored))
    launched = tuple(launcher.launch(k, ctas) for k in program.kernels)
    outputs = tuple(values[v] for v in func.returns)
    decide = () if isinstance(kernel, LoadedKernel) else kernel.deciding
    known = {p.name: x for p, x in given.items() if not p.type.axes or p.name in decide}
    predicted = _predicted(kernel, func, {**bound.extents, **known})
    found = Emulation(outputs, launched, predicted, None)
    if check:
        names = [p.name for p in func.params]
        inputs = dict(zip(names, (given[p] for p in func.params), strict=True))
        found.check = _compare(kernel, bound.extents, inputs, found)
    return found


def _code(
    kernel: Kernel | LoadedKernel, extents: Mapping[str, int]
) -> tuple[Func, DeviceProgram, Mapping[str, str]]:
    """The tiled program, its kernels, and the PTX of those that come with it."""
    if isinstance(kernel, LoadedKernel):
        return kernel.device_code(extents)
    compiled = kernel.compiled_for(extents)
    program = kernel.program(compiled)
    assert isinstance(program, DeviceProgram)
    return compiled.run.func, program, {}


class _Launcher:
    """Launches the kernels of a program one after another on the same tensors."""

    def __init__(
        self,
        func: Func,
        extents: Mapping[str, int],
        values: Mapping[Value, Any],
        seed: int | None,
        texts: _Texts,
    ) -> None:
        self.extents, self.values, self.texts = extents, values, texts
        self.schedule = "lockstep" if seed is None else seed
        self.names = Names(func)
        for op in func.body.ops:
            if op.name == "alloc":
                self.names.name(op.result)

    def launch(self, kernel: DeviceKernel, ctas: Ctas) -> Launched:
        """Run one kernel."""
        reads = tuple(self.values[v] for v in kernel.grid_reads)
        env = Env(arg=reads.__getitem__, extent=self.extents.__getitem__)
        grid = math.prod(max(0, int(evaluate(e, env))) for e in kernel.grid)
        kernel = fitting(kernel, self.values)
        names = [
            self.names.name(p.value) if p.kind == "tensor" and p.value is not None else p.name
            for p in kernel.params
        ]
        result = emulator.run(
            self.texts.of(kernel),
            kernel.name,
            arguments(kernel, self.values),
            grid,
            kernel.threads,
            kernel.shared,
            ctas=_chosen(ctas, grid),
            schedule=self.schedule,
            names=names,
        )
        lines = kernel.source.split("\n")
        for f in result.findings:
            f.origin = _origin(lines, f.loc)
        for a in result.shared_accesses:
            a.origin = _origin(lines, a.loc)
        return Launched(kernel.name, grid, result)


def _origin(lines: list[str], loc: SourceLine | None) -> str:
    """The tile operation that a line of generated source is of, and its line in the program."""
    for line in reversed(lines[: loc.line] if loc is not None else []):
        text = line.strip()
        if text.startswith(MARKED):
            return text.removeprefix(MARKED)
        if "__global__" in text:
            break
    return ""


class _Texts:
    """The PTX of kernels: as given, or as NVRTC makes it."""

    def __init__(self, arch: str, given: str | Mapping[str, str] | None) -> None:
        self.arch, self.given = arch, given

    def of(self, kernel: DeviceKernel) -> str:
        """One kernel's."""
        if isinstance(self.given, str):
            return self.given
        if self.given is not None and kernel.name in self.given:
            return self.given[kernel.name]
        from tilecc.toolchain import compile_cuda

        older = int("".join(filter(str.isdigit, self.arch))) < _OLDEST
        return compile_cuda(kernel.source, f"sm_{_OLDEST}" if older else self.arch, kernel.name).ptx


def _chosen(ctas: Ctas, grid: int) -> Iterable[int] | None:
    if ctas is None:
        return None
    if isinstance(ctas, int):
        n = min(ctas, grid)
        return [i * (grid - 1) // max(1, n - 1) for i in range(n)]
    return [c for c in ctas if 0 <= c < grid]


def _predicted(kernel: Kernel | LoadedKernel, func: Func, sizes: Mapping[str, Any]) -> Moved | None:
    """The cost model's traffic for the tiled program `func`; None where data decides it."""
    try:
        cost = kernel.cost(**sizes)
    except CompileError:
        return None
    io = cost.fused
    reads = {n: part.bytes for n, part in io.reads.items()}
    writes = {n: part.bytes for n, part in io.writes.items()}
    if any(b is None for b in (*reads.values(), *writes.values())):
        return None
    return Moved(
        {n: b for n, b in reads.items() if b is not None},
        {n: b for n, b in writes.items() if b is not None},
        dict.fromkeys(computed.tensors(func))
        if isinstance(cost, SavedCost)
        else computed.asked(cost),
    )


def _compare(
    kernel: Kernel | LoadedKernel,
    extents: Mapping[str, int],
    inputs: Mapping[str, Any],
    found: Emulation,
) -> Any:
    """Outputs against float64; of some CTAs, what they wrote.

    None where there is nothing to compare: no CTA wrote an output, or some CTAs of one kernel read
    what others of another kernel, which did not run, should have written.
    """
    from tilecc.check import reference

    func = kernel.func
    if found.complete:
        return reference(func, extents, inputs).check(found.outputs)
    written = tuple(was_written(x) for x in found.outputs)
    if len(found.kernels) > 1 or not any(w.any() for w in written):
        return None
    return reference(func, extents, inputs, written).check(found.outputs, written)

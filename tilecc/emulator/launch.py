"""A kernel launch: arguments to memory and parameters, instructions to steps, CTAs to batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilecc.emulator import (  # noqa: F401  (the families register their decoders)
    arithmetic,
    atomics,
    convert,
    copies,
    dots,
    matrix,
    memory,
    products,
    warp,
)
from tilecc.emulator.decoded import give_back, take
from tilecc.emulator.machine import Batch, Budget
from tilecc.emulator.ptx import Function, Instruction, Module, Variable
from tilecc.emulator.report import Findings, Result
from tilecc.emulator.spaces import LOCAL_BASE, SHARED_BASE, GlobalMemory, lay_out
from tilecc.emulator.types import Array, EmulatorError

_BATCH_THREADS = 2048
"""Threads that run together: enough to hide what a numpy call costs."""
Dims = tuple[int, int, int]


class Launch:
    """Everything that all CTAs share."""

    def __init__(
        self,
        module: Module,
        kernel: Function,
        args: Sequence[Any],
        grid: Dims,
        block: Dims,
        shared: int,
        names: Sequence[str] | None,
        most_blocks: int,
    ) -> None:
        self.module, self.kernel = module, kernel
        self.grid, self.block = grid, block
        self.threads = block[0] * block[1] * block[2]
        if not 0 < self.threads <= 1024:
            raise EmulatorError(f"a block has 1 to 1024 threads, not {self.threads}")
        self.findings = Findings()
        self.memory = GlobalMemory()
        self.params = self._parameters(args, names)
        self.symbols = self._symbols(shared)
        self.granule_shift = 0 if _uses_bytes(kernel) else 1
        self._budget = Budget(most_blocks)
        self.decoded = take(kernel, self.symbols, len(self.params))

    def count_block(self) -> None:
        """One more block runs."""
        self._budget.spend()

    def _parameters(self, args: Sequence[Any], names: Sequence[str] | None) -> bytes:
        params = self.kernel.params
        if len(args) != len(params):
            raise EmulatorError(
                f"{self.kernel.name} takes {len(params)} arguments, {len(args)} are given"
            )
        if names is not None and len(names) != len(args):
            raise EmulatorError(f"{len(names)} names for {len(args)} arguments")
        self.param_at, end = lay_out([(p.name, p.size or 0, p.align) for p in params], 0)
        content = bytearray(end)
        for i, (p, arg) in enumerate(zip(params, args, strict=True)):
            bits = self._argument(p, arg, names[i] if names else p.name)
            content[self.param_at[p.name] : self.param_at[p.name] + len(bits)] = bits
        return bytes(content)

    def _argument(self, p: Variable, arg: Any, name: str) -> bytes:
        if isinstance(arg, np.ndarray):
            if p.size != 8:
                raise EmulatorError(f"{name} is an array, but parameter {p.name} is no pointer")
            return self.memory.add_array(name, arg).to_bytes(8, "little")
        if isinstance(arg, bytes):
            bits = arg
        elif p.type.kind == "f" or isinstance(arg, float | np.floating):
            bits = np.dtype(f"float{8 * (p.size or 0)}").type(arg).tobytes()
        else:
            bits = (int(arg) % (1 << (8 * (p.size or 0)))).to_bytes(p.size or 0, "little")
        if len(bits) != p.size:
            raise EmulatorError(f"{name} has {len(bits)} bytes, but parameter {p.name} {p.size}")
        return bits

    def _symbols(self, dynamic: int) -> dict[str, int]:
        variables = [*self.module.variables, *self.kernel.variables]
        fixed = [v for v in variables if v.space == "shared" and v.size is not None]
        used = _names(self.kernel)
        static, end = lay_out(
            [(v.name, v.size or 0, v.align) for v in fixed if v.name in used], SHARED_BASE
        )
        local, local_end = lay_out(
            [(v.name, v.size or 0, v.align) for v in variables if v.space == "local"], LOCAL_BASE
        )
        self.local_size = local_end - LOCAL_BASE
        unsized = [v for v in variables if v.space == "shared" and v.size is None]
        start = end
        for v in unsized:
            start = max(start, -(-end // max(v.align, 16)) * max(v.align, 16))
        self.shared_sizes = (start - SHARED_BASE + dynamic, dynamic)
        found = {**self.param_at, **static, **local, **{v.name: start for v in unsized}}
        for v in variables:
            if v.space in ("global", "const"):
                content = v.initial.ljust(v.size or 0, b"\0")
                found[v.name] = self.memory.add_variable(v.name, content, v.space == "global")
        return found

    def run(self, ctas: Iterable[int], schedule: str | int) -> int:
        """Run CTAs by linear number; how many there were."""
        total = self.grid[0] * self.grid[1] * self.grid[2]
        linear = np.fromiter(ctas, np.int64)
        if linear.size and (linear.min() < 0 or linear.max() >= total):
            raise EmulatorError(f"the grid has CTAs 0 to {total - 1}")
        if len(np.unique(linear)) != len(linear):
            raise EmulatorError("a CTA is named twice")
        rng = None if schedule == "lockstep" else np.random.default_rng(int(schedule))
        size = max(1, _BATCH_THREADS // (-(-self.threads // 32) * 32))
        for i in range(0, len(linear), size):
            Batch(self, linear[i : i + size], rng).run()
        return len(linear)

    def result(self, ctas: int) -> Result:
        """What was found and counted; the launch is over."""
        code = self.decoded
        give_back(self.kernel, self.symbols, code)
        return Result(
            self.findings.all(),
            [s.globals for s in code.sites if s.globals.tensors],
            [s.shared for s in code.sites if s.shared.requests],
            code.instructions(),
            ctas,
        )


def _names(f: Function) -> set[str]:
    """Names that a function's instructions mention."""
    from tilecc.emulator.operands import Address, Symbol

    found = set()
    for ins in f.body:
        for o in ins.operands:
            base = o.base if isinstance(o, Address) else o
            if isinstance(base, Symbol):
                found.add(base.name)
    return found


def _uses_bytes(f: Function) -> bool:
    """Whether memory is accessed byte by byte, so that races must be judged byte by byte."""

    def narrow(ins: Instruction) -> bool:
        return ins.opcode in ("ld", "st", "atom", "red") and ins.modifiers[-1][1:] == "8"

    return any(narrow(ins) for ins in f.body)


def dims(given: int | Sequence[int], what: str) -> Dims:
    """Three extents of a grid or a block."""
    sizes = (given,) if isinstance(given, int | np.integer) else tuple(given)
    if not 1 <= len(sizes) <= 3 or any(int(n) < 0 for n in sizes):
        raise EmulatorError(f"{what} {given} is not one to three sizes")
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


Argument = Array | int | float | bytes

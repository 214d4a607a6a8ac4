"""What a kernel takes of an SM, from ptxas and the disassembler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilecc.target import Target
from tilecc.toolchain.loops import counts, main_loop, tensor_multiply_adds
from tilecc.toolchain.nvrtc import Binary
from tilecc.toolchain.occupancy import Occupancy, occupancy
from tilecc.toolchain.ptxas import Usage, notes, usage
from tilecc.toolchain.sass import disassemble


@dataclass(frozen=True)
class Resources:
    """One kernel's. `shared` and `spills` are bytes: of a block, and stored by a thread's code."""

    name: str
    arch: str
    threads: int
    usage: Usage
    dynamic_shared: int
    occupancy: Occupancy
    instructions: dict[str, int]
    """Those of a warp in one turn of the main loop, by kind; see `toolchain.loops`."""
    multiply_adds: int
    """Of the matrix instructions among them."""
    notes: tuple[str, ...] = ()

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self.usage.registers

    @property
    def spills(self) -> int:
        """Bytes that ptxas stores to local memory for want of registers."""
        return self.usage.spill_stores

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block, static and dynamic."""
        return self.usage.static_shared + self.dynamic_shared

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        o = self.occupancy
        return {
            "name": self.name,
            "arch": self.arch,
            "threads": self.threads,
            "registers": self.registers,
            "spills": self.spills,
            "spill_loads": self.usage.spill_loads,
            "stack": self.usage.stack,
            "shared": self.shared,
            "static_shared": self.usage.static_shared,
            "dynamic_shared": self.dynamic_shared,
            "occupancy": o.share,
            "blocks_per_sm": o.blocks,
            "limited_by": o.limit,
            "instructions": self.instructions,
            "multiply_adds": self.multiply_adds,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        u, o = self.usage, self.occupancy
        body = ", ".join(f"{n} {k}" for k, n in self.instructions.items() if k != "total")
        lines = [
            f"{self.name} for {self.arch}, {self.threads} threads",
            f"  registers     {u.registers}",
            f"  spills        {u.spill_stores} bytes stored, {u.spill_loads} loaded",
            f"  shared        {self.shared} bytes "
            f"({u.static_shared} static, {self.dynamic_shared} dynamic)",
            f"  occupancy     {o.share:.0%}: {o.blocks} blocks an SM, limited by {o.limit}",
            f"  main loop     {self.instructions.get('total', 0)} instructions: {body or 'none'}",
        ]
        return "\n".join([*lines, *(f"  note          {n}" for n in self.notes)])


def resources(
    binary: Binary, target: Target, name: str, threads: int, dynamic_shared: int
) -> Resources:
    """The report on kernel `name` of a compiled source.

    Args:
        binary: the source, compiled for `target.arch`.
        target: the machine whose SM limits count.
        name: of the kernel in the source.
        threads: of a block.
        dynamic_shared: bytes that are asked for at launch.

    Raises:
        CompileError: nvdisasm is not installed.
        KeyError: there is no such kernel.
    """
    used = usage(binary.log)[name]
    body = main_loop(disassemble(binary.cubin)[name])
    return Resources(
        name,
        binary.arch,
        threads,
        used,
        dynamic_shared,
        occupancy(target, threads, used.registers, used.static_shared + dynamic_shared),
        counts(body),
        sum(map(tensor_multiply_adds, body)),
        notes(binary.log),
    )

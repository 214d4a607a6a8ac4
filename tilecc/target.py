"""Machines: what each has, in numbers, and where each number comes from.

Sizes are bytes (numbers, on the teaching machine `canvas`), bandwidths bytes per second, peaks
floating point operations per second, a multiply-add counting as two. The table of machines is in
machines.py; host.py reads the machine that this process runs on.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .errors import TileccError
from .ir.dtypes import dtype

Space = Literal["hbm", "cache", "sram", "reg"]


class TargetError(TileccError, ValueError):
    """No machine of the name that was asked for."""


# Warps of a CUDA thread block, by the least number of rows of its tiles. 32 rows a warp halve what
# it reads from shared memory for each product.
BLOCK_WARPS = ((256, 8), (64, 4), (32, 2), (0, 1))


def warps_for(rows: int) -> int:
    """Warps of the thread block that computes tiles with so many rows."""
    return next(warps for least, warps in BLOCK_WARPS if rows >= least)


@dataclass(frozen=True)
class Memory:
    """One level of the memory hierarchy.

    `space` is the IR's name for it: hbm (DRAM of any kind), cache (managed by the hardware), sram
    (what the tiles of one work item must fit in) or reg. On a CPU, sram is the core's L2.

    `size` is what one `per` has (None: as much as wanted); `pool` is what the `per`s that live on
    one core share, where that is another number (an SM's shared memory, of which a block may take
    less). `bandwidth` is that of the whole machine.
    """

    name: str
    space: Space
    size: int | None
    per: Literal["device", "core", "block"]
    source: str
    bandwidth: float | None = None
    pool: int | None = None
    estimate: bool = False


@dataclass(frozen=True)
class Peak:
    """The most operations per second on operands of one dtype, dense, accumulating in f32 (f64)."""

    dtype: str
    flops: float
    unit: Literal["vector", "tensor"]
    source: str
    estimate: bool = False


@dataclass(frozen=True)
class Fact:
    """A number and where it comes from."""

    value: float
    source: str
    estimate: bool = False


@dataclass(frozen=True)
class Target:
    """A machine to compile for.

    `name` is what the command line calls it, `arch` what TVM does (an -mcpu, an sm_ number),
    `model` what people do. `cores` are SMs on a GPU. `features` are spelled as LLVM spells them on
    a CPU; on a GPU they name instruction families (cp.async, wgmma, ...). `tiles` are the extents
    that the tile pass tries.
    """

    name: str
    kind: Literal["cpu", "cuda", "abstract"]
    arch: str
    model: str
    cores: Fact
    memories: tuple[Memory, ...]
    peaks: tuple[Peak, ...] = ()
    clock: Fact | None = None
    features: frozenset[str] = frozenset()
    vector_bits: int = 0
    """Width of a SIMD register, on a CPU."""
    registers: int = 0
    """Vector registers of a thread on a CPU; 32-bit registers of an SM on a GPU."""
    thread_registers: int = 0
    """The most 32-bit registers that one GPU thread can have."""
    warps: int = 0
    """The most warps, and `blocks` the most thread blocks, resident on one SM."""
    blocks: int = 0
    triple: str = ""
    """LLVM's target triple, on a CPU; empty for this process's own."""
    tiles: tuple[int, ...] = (16, 32, 64, 128, 256)
    unit: Literal["byte", "number"] = "byte"
    """What memory sizes count."""

    def __str__(self) -> str:
        return self.name

    def memory(self, space: Space) -> Memory:
        """The first memory of that space, from the far side in.

        Raises:
            KeyError: the machine has none.
        """
        for memory in self.memories:
            if memory.space == space:
                return memory
        raise KeyError(f"{self.name} has no memory of space {space!r}")

    @property
    def sram(self) -> Memory:
        """The memory that the tiles of one work item must fit in."""
        return self.memory("sram")

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second between the machine and its main memory."""
        return self.memory("hbm").bandwidth

    def peak(self, name: str, unit: Literal["vector", "tensor"] | None = None) -> Peak | None:
        """The highest peak for operands of a dtype, on one kind of unit or on any; None: unknown.

        "tf32" is what tensor cores round f32 to; where its peak is not known, that of f32 is less.
        Storage types without arithmetic of their own compute in f32, so its peak stands for theirs.
        """
        if name == "tf32":
            found = [p for p in self.peaks if p.dtype == name and unit in (None, p.unit)]
            return found[0] if found else self.peak("f32", unit)
        wanted = dtype(name)
        names = (
            [wanted.name, "f32"] if wanted.kind == "float" and wanted.bits < 32 else [wanted.name]
        )
        for candidate in names:
            found = [p for p in self.peaks if p.dtype == candidate and unit in (None, p.unit)]
            if found:
                return max(found, key=lambda p: p.flops)
        return None

    def lanes(self, name: str) -> int:
        """Elements of a dtype in a SIMD register of a CPU."""
        return max(1, self.vector_bits // dtype(name).bits)

    @property
    def register_tile(self) -> tuple[int, int]:
        """Rows and vectors of the sums that a CPU keeps in registers.

        As many as leave room for the vectors of a row and one number in all lanes, and at least the
        8 to 10 that two units need at work on each other's latency; nearly square, for fewer loads.
        """
        if self.registers >= 32:
            return 4, 4
        return (6, 2) if "fma" in self.features else (4, 2)

    def has(self, feature: str) -> bool:
        """Whether the machine has an instruction family: ask before emitting one."""
        return feature in self.features

    def measured(
        self,
        flops: Mapping[str, float] | None = None,
        bandwidth: float | None = None,
        source: str = "measured here",
    ) -> Target:
        """This machine with measured peaks (by dtype) and main memory bandwidth put in."""
        peaks = {(p.dtype, p.unit): p for p in self.peaks}
        for name, value in (flops or {}).items():
            short, old = dtype(name).name, self.peak(name)
            unit = old.unit if old is not None else "vector"
            peaks[short, unit] = Peak(short, value, unit, source)
        memories = self.memories
        if bandwidth is not None:
            new = replace(self.memory("hbm"), bandwidth=bandwidth, source=source, estimate=False)
            memories = tuple(new if m.space == "hbm" else m for m in memories)
        return replace(self, peaks=tuple(peaks.values()), memories=memories)


def available() -> tuple[Target, ...]:
    """All machines that can be named: this one first, then the table's."""
    from .host import host
    from .machines import MACHINES

    return (host(), *MACHINES)


def resolve(name: str | Target) -> Target:
    """The machine called `name`: `cpu` (this one), a machine (`canvas`, `h100`, `RTX 4090`) or an
    architecture (`sm_80`, `x86-64-v3`), which stands for its first machine in the table.

    Raises:
        TargetError: there is none; the message lists near matches and all names.
    """
    if isinstance(name, Target):
        return name
    if not isinstance(name, str):
        raise TargetError(f'target={name!r} is no machine\'s name\n    the default is "cpu"')
    from .machines import ARCH_ALIASES, MACHINES

    if _key(name) == "cpu":
        from .host import host

        return host()
    names: dict[str, Target] = {}
    for machine in MACHINES:
        names.setdefault(machine.name, machine)
        if machine.kind == "cuda":
            names.setdefault(machine.arch, machine)
    for alias, arch in ARCH_ALIASES.items():
        names[alias] = names[arch]
    by_key = {_key(known): machine for known, machine in names.items()}
    if _key(name) in by_key:
        return by_key[_key(name)]
    known = ["cpu", *names]
    keys = {_key(k): k for k in known}
    near = [keys[k] for k in difflib.get_close_matches(_key(name), keys, n=3)]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise TargetError(f"unknown target {name!r}{hint}\n    targets are {', '.join(known)}")


def _key(name: str) -> str:
    """A name without what people write in different ways: case, spaces, dashes, underscores."""
    return "".join(c for c in name.lower() if c.isalnum()).removeprefix("nvidia")

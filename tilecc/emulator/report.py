"""What a run found and counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tilecc.emulator.ptx import Instruction, SourceLine

RACE = "race"
UNDEFINED = "undefined register"
UNINITIALISED = "uninitialised memory"
OUT_OF_BOUNDS = "out of bounds"
MISALIGNED = "misaligned"
DIVERGENT = "divergent"
DEADLOCK = "deadlock"
TRAP = "trap"
READ_ONLY = "read-only memory written"


@dataclass
class Finding:
    """Something wrong at an instruction. `message` tells the first of `count` occurrences."""

    kind: str
    line: int
    text: str
    message: str
    loc: SourceLine | None = None
    count: int = 1
    origin: str = ""
    """What the source line is of, if whoever ran the PTX knows it."""

    def __str__(self) -> str:
        times = f" [{self.count} times]" if self.count > 1 else ""
        return f"{self.kind}: {self.message}{times}\n{place(self)}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        loc = str(self.loc) if self.loc else None
        return {
            "kind": self.kind,
            "line": self.line,
            "text": self.text,
            "message": self.message,
            "source": loc,
            "origin": self.origin,
            "count": self.count,
        }


def place(of: Finding | SharedAccess) -> str:
    """The instruction, where it comes from, and what that is, on lines of their own."""
    where = f" ({of.loc})" if of.loc else ""
    origin = f"\n    {of.origin}" if of.origin else ""
    return f"    PTX line {of.line}{where}: {of.text}{origin}"


class Findings:
    """Findings by kind and instruction."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Finding] = {}

    def add(self, kind: str, ins: Instruction, message: str, count: int = 1) -> None:
        """Note that something happened `count` times at an instruction."""
        known = self._found.get((kind, ins.line))
        if known is not None:
            known.count += count
            return
        found = Finding(kind, ins.line, ins.text, message, ins.loc, count)
        self._found[kind, ins.line] = found

    def all(self) -> list[Finding]:
        """In order of occurrence."""
        return list(self._found.values())


@dataclass
class Traffic:
    """What one instruction asks of one tensor. A request is a warp's execution of it."""

    requests: int = 0
    bytes: int = 0
    """Bytes that the lanes of a request name, each once."""
    asked: int = 0
    """Bytes that they name, each lane for itself."""
    sectors: int = 0
    """32-byte sectors that requests touch."""
    ideal_sectors: int = 0
    """The fewest sectors that hold the bytes."""

    def add(self, other: Traffic) -> None:
        """Sum up."""
        self.requests += other.requests
        self.bytes += other.bytes
        self.asked += other.asked
        self.sectors += other.sectors
        self.ideal_sectors += other.ideal_sectors


@dataclass
class GlobalAccess:
    """An instruction that reads or writes global memory, with its traffic by tensor."""

    line: int
    text: str
    loc: SourceLine | None
    direction: str
    """read or write."""
    tensors: dict[str, Traffic] = field(default_factory=dict)


@dataclass
class SharedAccess:
    """An instruction that reads or writes shared memory."""

    line: int
    text: str
    loc: SourceLine | None
    direction: str
    requests: int = 0
    wavefronts: int = 0
    """Steps that the banks need: 32 banks of 4 bytes, each one word a step."""
    ideal: int = 0
    """Steps without any conflict."""
    origin: str = ""
    """As a finding's."""

    @property
    def conflicts(self) -> int:
        """Steps beyond the ideal."""
        return self.wavefronts - self.ideal


@dataclass
class Result:
    """The outcome of a run."""

    findings: list[Finding]
    global_accesses: list[GlobalAccess]
    shared_accesses: list[SharedAccess]
    instructions: Counter[str]
    """Executions by warps, by opcode with modifiers."""
    ctas: int
    """How many CTAs ran."""

    def _kind(self, *kinds: str) -> list[Finding]:
        return [f for f in self.findings if f.kind in kinds]

    @property
    def races(self) -> list[Finding]:
        """Accesses that no synchronisation orders."""
        return self._kind(RACE)

    @property
    def undefined(self) -> list[Finding]:
        """Registers and memory read before they were written."""
        return self._kind(UNDEFINED, UNINITIALISED)

    @property
    def out_of_bounds(self) -> list[Finding]:
        """Accesses outside of every tensor, or of shared or local memory."""
        return self._kind(OUT_OF_BOUNDS)

    @property
    def bank_conflicts(self) -> list[SharedAccess]:
        """Shared accesses that need more steps than the ideal."""
        return [a for a in self.shared_accesses if a.conflicts > 0]

    def traffic(self, direction: str) -> dict[str, Traffic]:
        """By tensor, of all instructions that read (or write)."""
        total: dict[str, Traffic] = {}
        for access in self.global_accesses:
            if access.direction == direction:
                for name, t in access.tensors.items():
                    total.setdefault(name, Traffic()).add(t)
        return total

    @property
    def bytes_read(self) -> dict[str, int]:
        """Bytes requested from global memory, by tensor."""
        return {n: t.bytes for n, t in self.traffic("read").items()}

    @property
    def bytes_written(self) -> dict[str, int]:
        """Bytes written to global memory, by tensor."""
        return {n: t.bytes for n, t in self.traffic("write").items()}

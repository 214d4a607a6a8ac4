"""Whether tiles fit the memories of a machine, and by how much they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilecc.cost.footprint import Footprint
from tilecc.errors import CompileError
from tilecc.ir.core import Func
from tilecc.target import Target

# Of a core's L2, what tiles may take: the rest is for what streams through, and for scratch.
CACHE_SHARE = 2
# What every CPU has of cache for a core, where the table of machines does not know.
LEAST_CACHE = 2**20
# Registers of a GPU's thread that hold no elements of tiles: addresses, counters, operands of the
# instructions under way. With so many, what fits does not spill (beyond some bytes outside the
# loops), and what does not fit does: read from ptxas for tiles around the limit.
OTHER_REGISTERS = 18


@dataclass(frozen=True)
class Need:
    """What tiles need of one memory."""

    memory: str
    needs: int
    limit: int | None
    unit: str

    @property
    def fits(self) -> bool:
        """Whether there is room."""
        return self.limit is None or self.needs <= self.limit

    def to_json(self) -> dict[str, Any]:
        """All fields, and whether there is room."""
        return {**vars(self), "fits": self.fits}

    def __str__(self) -> str:
        where = "" if self.memory == "" else f" ({self.memory})"
        limit = "any number of" if self.limit is None else self.limit
        return f"needs {self.needs} of {limit} {self.unit}s{where}"


def needs(
    footprints: Sequence[Footprint],
    target: Target,
    sizes: Mapping[str, int] | None = None,
    tiled: Func | None = None,
) -> tuple[Need, ...]:
    """What the kernels need of each memory that tiles are put in, the narrowest memory first.

    On `canvas` all tiles are in SRAM, and numbers are counted. On a CPU all should stay in L2. On a
    GPU the plan of the code generator says what is in shared memory, and what in registers.

    Args:
        footprints: of each kernel.
        target: the machine.
        sizes: of tiles, if not those that the footprints are of.
        tiled: the program with tiles of these sizes, which a GPU's memories are counted in.
    """
    sram = target.sram
    if target.unit == "number":
        most = max((f.numbers(sizes) for f in footprints), default=0)
        return (Need("", most, sram.size, "number"),)
    if target.kind == "cuda":
        shared, held = _planned(tiled, target) if tiled is not None else (None, 0)
        if shared is None:
            shared = max((f.bytes(sizes, True) for f in footprints), default=0)
        found = (
            Need(sram.name, shared, sram.size, "byte"),
            Need("a thread's", held + OTHER_REGISTERS, target.thread_registers, "register"),
        )
        return tuple(sorted(found, key=lambda n: -n.needs / (n.limit or 1)))
    most = max((f.bytes(sizes) for f in footprints), default=0)
    half = sram.size // CACHE_SHARE if sram.size is not None else None
    return (Need(f"half of {sram.name}", most, half, "byte"),)


def hard_limits(footprints: Sequence[Footprint], target: Target, tiled: Func) -> tuple[Need, ...]:
    """What kernels cannot do without: more of it does not exist, or only where it is too slow.

    A GPU's block has no more shared memory than that (registers spill); a CPU's tiles may overflow
    L2, but not all caches. `canvas` has its SRAM and nothing else.
    """
    if target.kind == "cpu" and target.unit == "byte":
        caches = [m for m in target.memories if m.space in ("cache", "sram") and m.size]
        largest = max(caches, key=lambda m: m.size or 0)
        most = max((f.bytes() for f in footprints), default=0)
        return (Need(largest.name, most, max(LEAST_CACHE, largest.size or 0), "byte"),)
    found = needs(footprints, target, tiled=tiled)
    return tuple(n for n in found if is_hard(n, target))


def is_hard(need: Need, target: Target) -> bool:
    """Whether nothing runs that needs more, by one of `needs`: a machine's SRAM; not registers,
    which spill, and not the share of a CPU's cache that tiles are to keep to."""
    return need.memory in ("", target.sram.name)


def _planned(tiled: Func, target: Target) -> tuple[int | None, int]:
    """A GPU's shared memory of a block, in bytes, and registers of a thread with elements of tiles.

    Each for the kernel that needs most of it; (None, 0) if there is no code for the program.
    """
    from tilecc.codegen.cuda.ledger import rooms
    from tilecc.passes.base import Remarks
    from tilecc.passes.pipeline import Pipeline

    try:
        found = rooms(Pipeline().apply(tiled, Remarks()), target)
    except CompileError:
        return None, 0
    shared = max((r.shared for r in found), default=0)
    return shared, max((r.registers for r in found), default=0)

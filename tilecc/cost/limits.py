"""Whether tiles fit the memories of a machine, and by how much they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilecc.cost.footprint import Footprint
from tilecc.target import Target

# Of a core's L2, what tiles may take: the rest is for what streams through, and for scratch.
CACHE_SHARE = 2
# Threads of a block that its accumulators may be spread over.
BLOCK_THREADS = 256


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

    def __str__(self) -> str:
        where = "" if self.memory == "" else f" ({self.memory})"
        limit = "any number of" if self.limit is None else self.limit
        return f"needs {self.needs} of {limit} {self.unit}s{where}"


def needs(
    footprints: Sequence[Footprint], target: Target, sizes: Mapping[str, int] | None = None
) -> tuple[Need, ...]:
    """What the kernels need of each memory that tiles are put in, the narrowest memory first.

    On `canvas` all tiles are in SRAM, and numbers are counted. On a CPU all should stay in L2. On a
    GPU loaded tiles are in shared memory, the others in registers.
    """
    sram = target.sram
    if target.unit == "number":
        most = max((f.numbers(sizes) for f in footprints), default=0)
        return (Need("", most, sram.size, "number"),)
    if target.kind == "cuda":
        loaded = max((f.bytes(sizes, True) for f in footprints), default=0)
        held = max((f.bytes(sizes, False) for f in footprints), default=0)
        room = 4 * target.thread_registers * BLOCK_THREADS
        found = (
            Need(sram.name, loaded, sram.size, "byte"),
            Need("registers", held, room, "byte"),
        )
        return tuple(sorted(found, key=lambda n: -n.needs / (n.limit or 1)))
    most = max((f.bytes(sizes) for f in footprints), default=0)
    half = sram.size // CACHE_SHARE if sram.size is not None else None
    return (Need(f"half of {sram.name}", most, half, "byte"),)

"""Whether tiles fit the memories of a machine, and by how much they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilecc.cost.footprint import Buffer, Footprint
from tilecc.target import Target, warps_for

# Of a core's L2, what tiles may take: the rest is for what streams through, and for scratch.
CACHE_SHARE = 2
# Registers of a GPU's thread that are not elements of tiles: addresses, counters, operands of the
# instructions under way. With so many, what fits does not spill (beyond some bytes outside the
# loops), and what does not fit does: read from ptxas for tiles around the limit.
OTHER_REGISTERS = 28


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
    GPU loaded tiles are in shared memory, and so are computed factors of products that are not for
    matrix instructions; the others are in registers.
    """
    sram = target.sram
    if target.unit == "number":
        most = max((f.numbers(sizes) for f in footprints), default=0)
        return (Need("", most, sram.size, "number"),)
    if target.kind == "cuda":
        loaded = max((f.bytes(sizes, True) for f in footprints), default=0)
        placed = max(
            (f.bytes(sizes, True) + _copied(f, sizes or {}) for f in footprints), default=0
        )
        if sram.size is not None and placed > sram.size:  # what fits is told apart by its loads
            loaded = placed
        held = max((thread_registers(f, sizes or {}) for f in footprints), default=0)
        found = (
            Need(sram.name, loaded, sram.size, "byte"),
            Need("a thread's", held, target.thread_registers, "register"),
        )
        return tuple(sorted(found, key=lambda n: -n.needs / (n.limit or 1)))
    most = max((f.bytes(sizes) for f in footprints), default=0)
    half = sram.size // CACHE_SHARE if sram.size is not None else None
    return (Need(f"half of {sram.name}", most, half, "byte"),)


def _copied(f: Footprint, sizes: Mapping[str, int]) -> int:
    """Bytes of tiles that are computed and then copied to shared memory, to be read by all threads.

    Factors of products, unless matrix instructions (of operands of 16 bits) take them as fragments.
    """
    held = f.largest()
    if all(b.bytes_each <= 2 for b in held if b.loaded and len(b.axes) > 1):
        return 0
    return sum(b.numbers(sizes) * b.bytes_each for b in held if _is_chunk(b, sizes))


def _is_chunk(b: Buffer, sizes: Mapping[str, int]) -> bool:
    """Whether it is computed for each tile of rows and of what is streamed, as scores are."""
    return not b.loaded and len(b.axes) > 1 and all(a in sizes for a, _ in b.axes)


def thread_registers(f: Footprint, sizes: Mapping[str, int]) -> int:
    """32-bit registers that a GPU's thread needs for what is not loaded.

    Tiles are spread over the threads of the block. Where what is loaded has 16 bits, a tile that is
    a factor of the next product is held rounded, two to a register, beside what it is rounded from.
    """
    held = [b for b in f.largest() if not b.loaded and len(b.axes) > 0]
    if not held:
        return OTHER_REGISTERS
    common = set.intersection(*({a for a, _ in b.axes} for b in held))
    rows = prod(sizes.get(a, n) for a, n in held[0].axes if a in common)
    threads = 32 * warps_for(rows)
    loaded = [b.bytes_each for b in f.largest() if b.loaded]
    each = 4 * threads
    total = 0
    for b in held:
        numbers = b.numbers(sizes)
        total += -(-numbers * max(4, b.bytes_each) // each)
        if _is_chunk(b, sizes) and loaded and max(loaded) <= 2:
            total += -(-numbers * 2 // each)
    return total + OTHER_REGISTERS

"""How many thread blocks an SM holds, worked out from what a kernel takes."""

from __future__ import annotations

from dataclasses import dataclass

from tilecc.target import Target

# How an SM gives out registers and shared memory: cuda_occupancy.h, compute capability 8.0 and up.
WARP = 32
SUB_PARTITIONS = 4
REGISTER_UNIT = 256  # registers, to a warp
SHARED_UNIT = 128  # bytes, to a block
SHARED_RESERVED = 1024  # bytes that the system takes of each block's


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps on an SM, the share of its warps, and which resource ends it."""

    blocks: int
    warps: int
    share: float
    limit: str


def occupancy(target: Target, threads: int, registers: int, shared: int) -> Occupancy:
    """What an SM of `target` holds of blocks of `threads` threads.

    `registers` are a thread's, `shared` the bytes of a block, static and dynamic together.
    """
    warps = -(-threads // WARP)
    unit = _up(max(registers, 1) * WARP, REGISTER_UNIT)
    by_registers = target.registers // SUB_PARTITIONS // unit * SUB_PARTITIONS // warps
    pool = target.sram.pool or target.sram.size or 0
    limits = {
        "blocks": target.blocks,
        "warps": target.warps // warps,
        "registers": by_registers,
        "shared memory": pool // _up(shared + SHARED_RESERVED, SHARED_UNIT),
    }
    if shared > (target.sram.size or 0):
        limits["shared memory"] = 0
    limit = min(limits, key=lambda k: limits[k])
    blocks = limits[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps / target.warps, limit)


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit

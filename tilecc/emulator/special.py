"""Special registers (PTX manual 10)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilecc.emulator.types import Array

Dims = tuple[int, int, int]


def _axes(name: str, dims: Callable[[int], Array]) -> dict[str, Array]:
    return {f"%{name}.{axis}": dims(i) for i, axis in enumerate("xyz")}


def coordinates(linear: Array, dims: Dims) -> list[Array]:
    """x, y, z of linear numbers, x fastest."""
    x, y, _ = dims
    return [linear % x, linear // x % y, linear // (x * y)]


def special_registers(
    cta: Array, thread: Array, grid: Dims, block: Dims, shared: tuple[int, int]
) -> dict[str, Array]:
    """Values for threads of shape (warps, 32).

    Args:
        cta: linear number of each thread's CTA.
        thread: linear number of each thread in its CTA.
        shared: bytes of shared memory, all and those asked for at launch.
    """
    lane = thread % 32
    one = np.uint32(1)
    bit = one << lane.astype(np.uint32)
    threads = block[0] * block[1] * block[2]
    values: dict[str, Array | int] = {
        **_axes("tid", lambda i: coordinates(thread, block)[i]),
        **_axes("ctaid", lambda i: coordinates(cta, grid)[i]),
        **_axes("ntid", lambda i: np.array(block[i])),
        **_axes("nctaid", lambda i: np.array(grid[i])),
        "%laneid": lane,
        "%warpid": thread // 32,
        "%nwarpid": -(-threads // 32),
        "%lanemask_eq": bit,
        "%lanemask_lt": bit - one,
        "%lanemask_le": bit - one | bit,
        "%lanemask_gt": ~(bit - one | bit),
        "%lanemask_ge": ~(bit - one),
        "%total_smem_size": shared[0],
        "%dynamic_smem_size": shared[1],
    }
    return {
        name: np.ascontiguousarray(np.broadcast_to(np.asarray(v).astype(np.uint32), cta.shape))
        for name, v in values.items()
    }


SPECIAL = frozenset(
    special_registers(np.zeros((1, 1), int), np.zeros((1, 1), int), (1, 1, 1), (1, 1, 1), (0, 0))
)

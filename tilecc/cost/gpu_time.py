"""What takes time on a GPU: contractions, or the memory that their operands come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilecc.cost.counted import Counted, lane_rows, loaded_bytes, steps_ratio, streams
from tilecc.cost.limits import Need
from tilecc.ir.core import Op
from tilecc.target import Target, warps_for

# What starting a tile of a streamed axis costs, as a number of its elements, and how much faster
# than DRAM an L2 is whose bandwidth nobody publishes (an A100's is 3.5 times).
TILE_OVERHEAD = 16
L2_TO_DRAM = 3
# How much of the time that operands take from shared memory does not overlap with products.
EXPOSED = 0.5
# Of a machine whose peak and clock are unknown.
OPERATIONS_A_CLOCK, CLOCK = 4.0, 3e9


def gpu_terms(
    c: Counted, tile: Mapping[str, int], moved: int, target: Target, factors: str
) -> dict[str, float]:
    """Seconds of contractions, with what each tile of a streamed axis costs to start; or of L2.

    `factors`: what is multiplied, as `Target.peak` knows it.
    """
    streamed = min((tile.get(a, n) for a, n in streams(c)), default=TILE_OVERHEAD)
    peak = target.peak(factors)
    clock = (target.clock.value if target.clock else CLOCK) * target.cores.value
    flops = peak.flops if peak else OPERATIONS_A_CLOCK * target.lanes("f32") * clock
    work = c.work.flops / flops
    if target.sram.bandwidth:
        # Each warp reads all that is new from shared memory, and its own rows again.
        read = warps_for(lane_rows(c, tile)) * loaded_bytes(c, tile, new=True)
        read += loaded_bytes(c, tile, new=False)
        work += EXPOSED * c.steps * steps_ratio(c, tile) * read / target.sram.bandwidth
    busy = work * (1 + TILE_OVERHEAD / streamed)
    dram = target.bandwidth
    l2 = next((m.bandwidth for m in target.memories if m.space == "cache"), None)
    l2 = l2 or (dram * L2_TO_DRAM if dram else None)
    return {"busy": max(busy, moved / l2) if l2 else busy}


def idle_parts(kernels: Sequence[Op], needs: Sequence[Need], target: Target) -> float:
    """How many times as long it takes because an SM holds too few warps for its four parts.

    Each part issues instructions of its own warps; blocks of one warp that fill shared memory leave
    three of the four without work.
    """
    from tilecc.codegen.cuda.roles import Roles
    from tilecc.toolchain.occupancy import SUB_PARTITIONS, WARP, occupancy

    amount = {n.unit: min(n.needs, n.limit or n.needs) for n in needs}
    threads = min((Roles(k).threads for k in kernels), default=SUB_PARTITIONS * WARP)
    held = occupancy(target, threads, amount.get("register", 0), amount.get("byte", 0)).warps
    return max(1.0, SUB_PARTITIONS / max(1, held))

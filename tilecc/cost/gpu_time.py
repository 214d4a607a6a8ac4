"""What takes time on a GPU: contractions, or the memory that their operands come from."""

from __future__ import annotations

from collections.abc import Mapping

from tilecc.cost.counted import Counted, steps_ratio, streamed_bytes, streams
from tilecc.ir.dtypes import DType
from tilecc.target import Target

# What starting a tile of a streamed axis costs, as a number of its elements, and how much faster
# than DRAM an L2 is whose bandwidth nobody publishes (an A100's is 3.5 times).
TILE_OVERHEAD = 8
L2_TO_DRAM = 3
# Of a machine whose peak and clock are unknown.
OPERATIONS_A_CLOCK, CLOCK = 4.0, 3e9


def gpu_terms(
    c: Counted, tile: Mapping[str, int], moved: int, target: Target, dtype: DType
) -> dict[str, float]:
    """Seconds of contractions, with what each tile of a streamed axis costs to start; or of L2."""
    streamed = min((tile.get(a, n) for a, n in streams(c)), default=TILE_OVERHEAD)
    peak = target.peak(dtype.name)
    clock = (target.clock.value if target.clock else CLOCK) * target.cores.value
    flops = peak.flops if peak else OPERATIONS_A_CLOCK * target.lanes("f32") * clock
    busy = c.work.flops / flops * (1 + TILE_OVERHEAD / streamed)
    dram, shared = target.bandwidth, target.sram.bandwidth
    l2 = next((m.bandwidth for m in target.memories if m.space == "cache"), None)
    l2 = l2 or (dram * L2_TO_DRAM if dram else None)
    if l2:
        busy = max(busy, moved / l2)
    if shared:
        busy = max(busy, c.steps * steps_ratio(c, tile) * streamed_bytes(c, tile) / shared)
    return {"busy": busy}

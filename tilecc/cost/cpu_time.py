"""What takes time on a CPU core: contractions, rescaling, elementary functions, refills of L1."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilecc.cost.counted import (
    Counted,
    carried_numbers,
    lane_rows,
    loaded_bytes,
    narrow_numbers,
    padding,
    steps_ratio,
    streamed_bytes,
    streams,
)
from tilecc.cost.cpu_blocks import slowdown
from tilecc.cost.footprint import Footprint
from tilecc.ir.dtypes import DType
from tilecc.target import Target

# Operations on each carried number for each tile of a streamed axis (load, rescale, store, fill the
# pipeline again), bytes a clock that come from L2, operations to convert or pack a number of fewer
# than 32 bits, and the clock of a machine whose is unknown.
REGISTERS = 16
CARRY_OPERATIONS = 8
L2_BYTES_A_CLOCK = 32
# Of what streams from beyond L2 the most part comes while others are at work. Measured on Zen 3:
# tiles of 16 rows of 64 numbers take 7 % longer than tiles of 32.
L3_BYTES_A_CLOCK = 48
CONVERT_OPERATIONS = 6
# Measured for 4 rows of 128 numbers: tiles of 64 keys take 12 % longer than tiles of 256.
RESTART_SECONDS = 0.25e-6
CLOCK = 3e9


class CpuTime:
    """The speeds of one CPU for one element type."""

    def __init__(self, target: Target, dtype: DType) -> None:
        self.target = target
        peak = target.peak(dtype.name)
        clock = target.clock.value if target.clock else CLOCK
        self.clock_rate = clock * target.cores.value
        self.lanes = max(1, target.lanes("f32"))
        # What narrow types gain is the dot instruction's.
        wide = target.peak("float32")
        self.dot = 2 if peak and wide and peak.dtype == "bf16" and dtype.bits == 16 else 1
        self.peak = peak.flops if peak else 4.0 * target.lanes("f32") * self.clock_rate

    def terms(
        self,
        c: Counted,
        f: Footprint,
        tile: Mapping[str, int],
        block: tuple[int, int] | None = None,
        last_axis: bool = False,
    ) -> dict[str, float]:
        """Seconds by name, all cores at work.

        `block`: rows and vectors of the register tile, if not the machine's usual. `last_axis`:
        lanes lie along each value's last axis even where rows would fill them.
        """
        block = block or self.target.register_tile
        lanes = self.lanes
        rows = lane_rows(c, tile)
        few = last_axis or rows < lanes  # then lanes run along an inner axis
        slower = slowdown(
            c, tile, lanes, self.target.registers or REGISTERS, block, self.dot, last_axis=last_axis
        )
        contractions = c.work.flops / self.peak * slower * padding(c, tile)
        steps = c.steps * steps_ratio(c, tile)
        state = carried_numbers(c, tile)
        held, streamed = f.bytes(tile), streamed_bytes(c, tile)
        # With few rows nothing is used again, and what streams past comes from DRAM at best.
        over = max(0.0, 1 - _l1(self.target) / held) if held and not few else 0.0
        # With few rows what streams past is all there is: between tiles nothing is read ahead.
        restarts = steps * RESTART_SECONDS / self.target.cores.value if few else 0.0
        far = 0.0 if few else self._from_beyond(c, tile) / L3_BYTES_A_CLOCK
        return {
            "contractions": contractions,
            "rescaling": steps * state * CARRY_OPERATIONS / (self.peak / 2),
            "elementary": (10 * c.work.exps + c.work.elementwise) / (self.peak / 2),
            "refills": steps * (2 * over * streamed / L2_BYTES_A_CLOCK + far) / self.clock_rate,
            "converting": steps * narrow_numbers(c, tile) * CONVERT_OPERATIONS / (self.peak / 2),
            "restarts": restarts,
        }

    def _from_beyond(self, c: Counted, tile: Mapping[str, int]) -> float:
        """Bytes that each step loads anew from beyond L2: none where L2 holds all that streams."""
        new = loaded_bytes(c, tile, new=True)
        steps = math.prod(-(-max(1, c.lengths[a]) // tile.get(a, n)) for a, n in streams(c))
        size = self.target.sram.size
        return new if size is not None and new * steps > size else 0.0


def _l1(target: Target) -> int:
    """Bytes of a core's first-level cache."""
    for m in reversed(target.memories):
        if m.space == "cache" and m.per == "core" and m.size:
            return m.size
    return 32 * 1024

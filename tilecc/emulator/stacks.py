"""Registers of several instructions as one array, for those that are executed together.

What an instruction gives is kept as it was computed: the next that takes the same registers takes
the whole array, if none of them has been replaced since.
"""

from __future__ import annotations

from operator import is_, itemgetter
from typing import TYPE_CHECKING

import numpy as np

from tilecc.emulator.types import Array

if TYPE_CHECKING:
    from tilecc.emulator.context import Mask
    from tilecc.emulator.machine import Strand


class Registers:
    """Two or more registers, by their positions."""

    def __init__(self, at: tuple[int, ...]) -> None:
        self.at = at
        self.pick = itemgetter(*at)

    def gather(self, s: Strand) -> Array:
        """(registers, warps, 32); the same array for as long as they are the same."""
        parts = self.pick(s.R)
        known = s.stacked.get(self.at)
        if known is not None and all(map(is_, parts, known[0])):
            return known[1]
        whole = np.concatenate(parts).reshape(len(parts), *s.shape)
        s.stacked[self.at] = parts, whole
        return whole

    def put(self, s: Strand, out: Array, m: Mask) -> None:
        """Set them, for some threads, as `Strand.write`. `out` fits (registers, warps, 32)."""
        shape = (len(self.at), *s.shape)
        if m is not None and not (m is s.mask and s.unneeded.covers(self.at)):
            out = np.where(m, out, self.gather(s))
        elif out.shape != shape:
            out = np.ascontiguousarray(np.broadcast_to(out, shape))
        parts = tuple(out)
        R = s.R
        for i, x in zip(self.at, parts, strict=True):
            R[i] = x
        s.stacked[self.at] = parts, out

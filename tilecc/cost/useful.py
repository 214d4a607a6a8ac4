"""What a program must compute, whatever its tiles."""

from __future__ import annotations

from collections.abc import Mapping

from tilecc.cost.report import report
from tilecc.ir.core import Func
from tilecc.passes.base import Remarks
from tilecc.passes.tile import Tile
from tilecc.target import Target


def useful_flops(
    loop: Func, target: Target, sizes: Mapping[str, int], scalars: Mapping[str, float]
) -> int:
    """Operations in contractions of a loop-level program that no mask voids: of the finest tiles.

    Coarser tiles that a mask crosses compute more, which is no merit of theirs.
    """
    finest = Tile(default=1).apply(loop, Remarks())
    work = report(None, None, finest, target, sizes, scalars).arithmetic
    assert work is not None, "all sizes are known"
    return work.flops

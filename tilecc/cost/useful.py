"""What a program must compute, whatever its tiles."""

from __future__ import annotations

from collections.abc import Mapping

from tilecc.cost.arithmetic import Arithmetic, arithmetic
from tilecc.cost.count import Counter
from tilecc.cost.data import nominal
from tilecc.cost.nest import kernels
from tilecc.cost.report import report
from tilecc.ir.core import Func
from tilecc.passes.base import Remarks
from tilecc.passes.tile import Tile
from tilecc.target import Target


def useful_flops(
    loop: Func, target: Target, sizes: Mapping[str, int], scalars: Mapping[str, float]
) -> int:
    """Operations in contractions of a loop-level program that no mask voids: of the finest tiles.

    Coarser tiles that a mask crosses compute more, which is no merit of theirs. Where data decides,
    all count.
    """
    finest = Tile(default=1).apply(loop, Remarks())
    work = report(None, None, finest, target, sizes, scalars).arithmetic
    if work is None:
        counter = Counter(sizes, scalars)
        parts = (arithmetic(nominal(k), counter) for k in kernels(finest))
        work = sum(parts, Arithmetic())
    return work.flops

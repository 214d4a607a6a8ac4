"""How long a kernel would take with other tile sizes, from one tiling of it.

Everything that a kernel does is counted once, exactly, at reference sizes. With other sizes, what
is loaded once for each tile of another axis is loaded more or less often in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilecc.cost.arithmetic import factors
from tilecc.cost.counted import Counted, count_kernel, idle_factor, load_ratio, unique_bytes
from tilecc.cost.cpu_time import CpuTime
from tilecc.cost.footprint import Footprint
from tilecc.cost.gpu_time import gpu_terms
from tilecc.cost.nest import kernels
from tilecc.ir.core import Func
from tilecc.ir.dtypes import F32, DType
from tilecc.target import Target


@dataclass(frozen=True)
class Prediction:
    """Bytes moved to and from main memory, and seconds (None: the machine has no speeds)."""

    bytes: int
    seconds: float | None
    terms: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each thing that takes time, by name; of those that overlap the longest counts."""


class Predictor:
    """Predicts for one tiled program."""

    def __init__(
        self, tiled: Func, target: Target, extents: Mapping[str, int], dtype: DType | None
    ) -> None:
        self.target = target
        floats = [
            p.type.dtype for p in tiled.params if p.type.axes and p.type.dtype.kind == "float"
        ]
        self.dtype = dtype or next(iter(floats), F32)
        self.factors = factors(tiled.body.walk(), self.dtype)
        self.counted = [count_kernel(k, extents) for k in kernels(tiled)]
        self.timed = target.kind != "abstract"
        self.cpu = CpuTime(target, self.dtype) if target.kind == "cpu" else None

    def predict(
        self,
        tile: Mapping[str, int],
        held: Sequence[Footprint],
        block: tuple[int, int] | None = None,
        last_axis: bool = False,
    ) -> Prediction:
        """What to expect with these tile sizes; `held` is the footprint of each kernel.

        `block`: rows and vectors of a CPU's register tile, if not its usual one; `last_axis`: its
        lanes lie along the last axis of each value in any case.
        """
        moved, seconds = 0, 0.0
        terms: dict[str, float] = {}
        for c, f in zip(self.counted, held, strict=True):
            here = sum(
                int(n * load_ratio(a, c, tile)) * a.tensor.type.dtype.bytes
                for a, n in zip(c.kernel.accesses, c.elements, strict=True)
            )
            moved += here
            if self.timed:
                own = self._terms(c, f, tile, here, block, last_axis)
                seconds += combined(own)
                for name, value in own.items():
                    terms[name] = terms.get(name, 0.0) + value
        return Prediction(moved, seconds if self.timed else None, terms)

    def _terms(
        self,
        c: Counted,
        f: Footprint,
        tile: Mapping[str, int],
        moved: int,
        block: tuple[int, int] | None,
        last_axis: bool,
    ) -> dict[str, float]:
        if self.cpu is not None:
            terms = self.cpu.terms(c, f, tile, block, last_axis)
        else:
            terms = gpu_terms(c, tile, moved, self.target, self.factors)
        bandwidth = self.target.bandwidth
        # What is read again is read by other cores at the same time: seldom from DRAM.
        unique = min(moved, unique_bytes(c))
        terms["idle"] = idle_factor(c, tile, int(self.target.cores.value))
        terms["memory"] = unique / bandwidth if bandwidth else 0.0
        return terms


def combined(terms: Mapping[str, float]) -> float:
    """The seconds of one kernel: work, stretched by idle cores, or the memory if that is longer."""
    apart = ("idle", "memory", "restarts")
    busy = sum(v for n, v in terms.items() if n not in apart) * terms["idle"]
    return max(busy, terms["memory"]) + terms.get("restarts", 0.0)

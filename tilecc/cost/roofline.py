"""The shortest time that a machine allows: for its traffic, or for its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilecc.cost.arithmetic import Arithmetic
from tilecc.target import Target


@dataclass(frozen=True)
class Roofline:
    """Seconds for main memory and for contractions; None where the machine's figure is unknown.

    `cached` takes a last-level cache of the machine into account: what is read again comes from
    there, if all inputs and outputs fit in it together. It is None without such a cache, or if they
    do not fit.
    """

    memory: float | None
    compute: float | None
    cached: float | None = None

    @property
    def seconds(self) -> float | None:
        """The longer of the two, with no cache: main memory serves every read."""
        return _longest(self.memory, self.compute)

    @property
    def seconds_cached(self) -> float | None:
        """The same with the cache."""
        return _longest(self.cached, self.compute) if self.cached is not None else None

    @property
    def bound(self) -> str:
        """What takes longer, "memory" or "compute"; empty if unknown."""
        if self.memory is None or self.compute is None:
            return ""
        return "memory" if self.memory > self.compute else "compute"

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            "memory": self.memory,
            "compute": self.compute,
            "bound": self.bound,
            "seconds_with_cache": self.seconds_cached,
        }


def roofline(
    target: Target, work: Arithmetic, moved: int, unique: int | None, factors: str
) -> Roofline:
    """Times for `moved` bytes of traffic; `unique` if none were moved twice; `factors`: what
    contractions multiply, as `Target.peak` knows it.
    """
    peak, bandwidth = target.peak(factors), target.bandwidth
    memory = moved / bandwidth if bandwidth else None
    compute = work.flops / peak.flops if peak is not None else None
    cached = None
    for m in target.memories:
        shared = m.space == "cache" and m.per == "device" and m.size is not None
        if shared and m.bandwidth and bandwidth and unique is not None and unique <= (m.size or 0):
            cached = max(unique / bandwidth, moved / m.bandwidth)
    return Roofline(memory, compute, cached)


def _longest(*times: float | None) -> float | None:
    known = [t for t in times if t is not None]
    return max(known) if known else None

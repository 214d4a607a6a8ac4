"""What a session tells while it goes on, and what it found: plain data, for people and for logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilecc.tuning.config import Config


@dataclass(frozen=True)
class Measurement:
    """One configuration: seconds a call, or why there are none."""

    config: Config
    predicted: float
    seconds: float | None = None
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    earlier: bool = False
    """It comes from the database."""


@dataclass(frozen=True)
class Finalist:
    """A configuration that was measured again, interleaved with others, on all threads."""

    config: Config
    seconds: float
    spread: float
    """Half the distance between quartiles, as a fraction of the median."""
    predicted: float


@dataclass(frozen=True)
class ShapeResult:
    """What was found for one shape."""

    sizes: Mapping[str, int]
    flops: float
    finalists: tuple[Finalist, ...]
    measurements: tuple[Measurement, ...]
    refused: tuple[tuple[Config, str], ...]
    first: Config | None
    """The model's choice before anything was measured."""
    ended: str
    seconds: float
    """How long it took."""

    @property
    def best(self) -> Finalist | None:
        """The fastest."""
        return self.finalists[0] if self.finalists else None

    @property
    def failed(self) -> tuple[Measurement, ...]:
        """The configurations that gave nothing, with reasons."""
        return tuple(m for m in self.measurements if m.seconds is None)

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of predicted and measured; None for fewer than three."""
        pairs = [(m.predicted, m.seconds) for m in self.measurements if m.seconds is not None]
        return spearman([p for p, _ in pairs], [s for _, s in pairs]) if len(pairs) > 2 else None


@dataclass(frozen=True)
class Progress:
    """How far a session is: `measurement` has just come in."""

    sizes: Mapping[str, int]
    measurement: Measurement
    done: int
    trials: int
    best: Measurement | None
    flops: float
    elapsed: float
    remaining: float | None
    """Seconds that are likely left for this shape."""


def spearman(a: list[float], b: list[float]) -> float | None:
    """Rank correlation, equal values sharing their ranks; None where all of one are equal."""
    import numpy as np

    ra, rb = np.array(_ranks(a)), np.array(_ranks(b))
    if ra.std() == 0 or rb.std() == 0:
        return None
    return float(np.corrcoef(ra, rb)[0, 1])


def _ranks(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for n in order[at : end + 1]:
            ranks[n] = (at + end) / 2
        at = end + 1
    return ranks

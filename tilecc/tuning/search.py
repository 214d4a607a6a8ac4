"""Which configurations are measured, in which order, and when it is enough.

Proposals depend on the points, the seed and the measurements that are known when they are made, and
on nothing else: the same measurements give the same search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilecc.tuning.config import Config
from tilecc.tuning.learned import Learned, available
from tilecc.tuning.points import Point

# Measured before anything is learned: the best by prediction, then some from all over the space.
_FIRST, _SPREAD = 6, 4
# How often in a row the expected gain must be too small.
_PATIENCE = 2


@dataclass(frozen=True)
class Limits:
    """When a search ends: trials, seconds (None: no limit), a gain not worth another trial."""

    trials: int = 64
    seconds: float | None = None
    gain: float = 0.005


@dataclass
class Search:
    """The search for one shape. `points` are those that are not refused, best prediction first."""

    points: Sequence[Point]
    limits: Limits
    seed: int = 0
    measured: dict[Config, float] = field(default_factory=dict)
    failed: dict[Config, str] = field(default_factory=dict)
    ended: str = ""
    """Why there are no more proposals; empty while there may be some."""

    def __post_init__(self) -> None:
        self.proposed: set[Config] = set()
        self.learned = Learned(self.points, self.seed) if available() else None
        self._dull = 0
        self.trials = 0

    def result(self, config: Config, seconds: float | None, reason: str = "") -> None:
        """What a configuration took; None: it failed."""
        if seconds is None:
            self.failed[config] = reason
        else:
            self.measured[config] = seconds

    def known(self, config: Config, seconds: float | None, reason: str = "") -> None:
        """The same for what was measured in an earlier session: it is not proposed again."""
        if any(p.config == config for p in self.points):
            self.proposed.add(config)
            self.result(config, seconds, reason)

    def propose(self, count: int) -> list[Config]:
        """Up to `count` configurations to measure; none when the search is at its end."""
        count = min(count, self.limits.trials - self.trials)
        left = [p for p in self.points if p.config not in self.proposed]
        if not left:
            self.ended = self.ended or "all of the space is measured"
        elif count <= 0:
            self.ended = self.ended or f"{self.limits.trials} trials"
        if self.ended:
            return []
        found = self._first(left, count) or self._best(left, count)
        self.proposed |= set(found)
        self.trials += len(found)
        return found

    def _first(self, left: Sequence[Point], count: int) -> list[Config]:
        """The start: the best by prediction, then a stride through the order of predictions."""
        missing = _FIRST + _SPREAD - len(self.proposed)
        if missing <= 0:
            return []
        first = max(0, _FIRST - len(self.proposed))
        chosen = list(left[:first])
        rest = left[first:]
        step = max(1, len(rest) // (_SPREAD + 1))
        chosen += rest[step - 1 + self.seed % step :: step][: missing - len(chosen)]
        return [p.config for p in chosen[:count]]

    def _best(self, left: Sequence[Point], count: int) -> list[Config]:
        """Those of which most is expected."""
        if self.learned is None or not self.measured:
            return [p.config for p in left[:count]]
        taken = dict(self.measured)
        # Those in flight or failed are out of the running: at what was predicted, or the worst.
        worst = max(taken.values())
        pending = self.proposed - set(taken)
        expected = self.learned.expected(self.measured) if pending else {}
        for config in sorted(pending):
            taken[config] = (
                worst
                if config in self.failed
                else max(expected.get(config, worst), min(self.measured.values()))
            )
        gains = self.learned.gains(taken, count)
        if gains and gains[0][1] < self.limits.gain:
            self._dull += 1
            if self._dull >= _PATIENCE:
                self.ended = f"expected gain below {self.limits.gain:.1%}"
                return []
        else:
            self._dull = 0
        return [c for c, _ in gains]

    def ranking(self) -> list[tuple[Config, float]]:
        """What was measured, the fastest first."""
        return sorted(self.measured.items(), key=lambda m: (m[1], m[0]))

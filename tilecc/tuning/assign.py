"""Which configuration each shape gets, so that there are few distinct ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from tilecc.tuning.config import Config

_EXACT = 16  # configurations up to which all combinations are looked at


def assign(times: Sequence[Mapping[Config, float]], tolerance: float) -> list[Config | None]:
    """A configuration for each shape, from the fewest that are fast enough everywhere.

    Fast enough is within `tolerance` of the shape's best. Of sets of the same size the one with the
    least total slow-down is taken. A shape without times gets None.

    Args:
        times: for each shape the seconds of configurations.
        tolerance: a fraction.
    """
    shapes = [t for t in times if t]
    if not shapes:
        return [None] * len(times)
    good = [_good(t, tolerance) for t in shapes]
    chosen = _cover(good)
    return [
        min(((r[c], c) for c in chosen if c in r), default=(0.0, None))[1]
        for r in map(_slow, times)
    ]


def _slow(t: Mapping[Config, float]) -> dict[Config, float]:
    """Time over the best time."""
    best = min(t.values(), default=1.0)
    return {c: s / best for c, s in t.items()}


def _good(t: Mapping[Config, float], tolerance: float) -> dict[Config, float]:
    return {c: r for c, r in _slow(t).items() if r <= 1 + tolerance}


def _cover(good: Sequence[Mapping[Config, float]]) -> tuple[Config, ...]:
    """The fewest configurations of which each shape has one."""
    everything = sorted({c for g in good for c in g})
    if len(everything) <= _EXACT:
        for size in range(1, len(everything) + 1):
            found = [s for s in combinations(everything, size) if _covers(s, good)]
            if found:
                return min(found, key=lambda s: (_total(s, good), s))
    chosen: list[Config] = []
    left = list(good)
    while left:
        # The one that serves most shapes, and those the best.
        best = max(
            everything,
            key=lambda c: (sum(c in g for g in left), -sum(g.get(c, 0.0) for g in left)),
        )
        chosen.append(best)
        left = [g for g in left if best not in g]
    return tuple(chosen)


def _covers(configs: Sequence[Config], good: Sequence[Mapping[Config, float]]) -> bool:
    return all(any(c in g for c in configs) for g in good)


def _total(configs: Sequence[Config], good: Sequence[Mapping[Config, float]]) -> float:
    return sum(min(g[c] for c in configs if c in g) for g in good)

"""Shape buckets: which calls an answer holds for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Of the extents that are no lengths (batch, heads), only how many programs they make counts.
_COUNT = "*"
_MOST_COUNT = 8  # beyond 2**8 programs, more of them change nothing


@dataclass(frozen=True, order=True)
class Bucket:
    """For each length, and for the product of the other extents, the nearest power of two."""

    classes: tuple[tuple[str, int], ...]

    @staticmethod
    def of(sizes: Mapping[str, int], lengths: Iterable[str]) -> Bucket:
        """The bucket of a call with extents `sizes`, of which `lengths` are walked in tiles."""
        named = set(lengths)
        found = {n: _class(v) for n, v in sizes.items() if n in named}
        count = math.prod(v for n, v in sizes.items() if n not in named)
        found[_COUNT] = min(_class(count), _MOST_COUNT)
        return Bucket(tuple(sorted(found.items())))

    @staticmethod
    def from_text(text: str) -> Bucket:
        """What `str` wrote.

        Raises:
            ValueError: it did not write that.
        """
        found = json.loads(text)
        if not isinstance(found, dict) or not all(type(v) is int for v in found.values()):
            raise ValueError(f"{text!r} is no bucket")
        return Bucket(tuple(sorted(found.items())))

    def __str__(self) -> str:
        return json.dumps(dict(self.classes), sort_keys=True)

    @property
    def lengths(self) -> tuple[tuple[str, int], ...]:
        """The classes of the lengths alone."""
        return tuple((n, c) for n, c in self.classes if n != _COUNT)

    @property
    def count(self) -> int:
        """The class of the number of programs beside the lengths."""
        return dict(self.classes).get(_COUNT, 0)

    def described(self, names: Mapping[str, str]) -> str:
        """For people: the range of each length, under the names that `names` gives."""
        parts = [f"{names.get(n, n)} {low(c)}..{high(c)}" for n, c in self.lengths]
        return ", ".join(parts) or "all sizes"


def nearest(buckets: Sequence[Bucket], sizes: Mapping[str, int]) -> int | None:
    """Which of `buckets` a call with extents `sizes` belongs to; None: to none of them.

    Its lengths must be of the bucket's classes; of several, the nearest number of programs counts.
    """
    lengths = {n for b in buckets for n, _ in b.lengths}
    if not lengths <= sizes.keys():
        return None
    wanted = Bucket.of(sizes, lengths)
    near = [n for n, b in enumerate(buckets) if b.lengths == wanted.lengths]
    if not near:
        return None
    return min(near, key=lambda n: (abs(buckets[n].count - wanted.count), -buckets[n].count))


def _class(n: int) -> int:
    """The power of two nearest to n, by ratio: 725 to 1448 are of class 10; 0 and 1 are of 0."""
    return round(math.log2(n)) if n > 1 else 0


def low(c: int) -> int:
    """The least length of a class."""
    return math.ceil(2 ** (c - 0.5)) if c > 0 else 0


def high(c: int) -> int:
    """The greatest length of a class."""
    return math.floor(2 ** (c + 0.5))

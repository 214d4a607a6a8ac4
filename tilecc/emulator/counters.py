"""Counting what memory instructions ask for; patterns of addresses that recur are counted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tilecc.emulator.report import Traffic
from tilecc.emulator.types import Array

SECTOR = 32
_BANKS = 32
_WORD = 4
BANKS_BYTES = _BANKS * _WORD
T = TypeVar("T")
_MEMO = 512
"""Patterns remembered for an instruction."""


def distinct(values: Array) -> Array:
    """Per row, a sorted row's first occurrences; negative values are no values."""
    ordered = np.sort(values, axis=1)
    new = ordered >= 0
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return new


def traffic(offsets: Array, size: int, shift: int) -> Traffic:
    """Of requests (one a row, -1 for lanes that take no part) for `size` bytes at each offset.

    Args:
        offsets: bytes from some address.
        shift: that address modulo 32.
    """
    each = distinct(offsets).sum(axis=1) * size
    first, last = (offsets + shift) // SECTOR, (offsets + shift + size - 1) // SECTOR
    touched = np.concatenate([first, last], axis=1)
    part = np.concatenate([offsets, offsets], axis=1) >= 0
    sectors = distinct(np.where(part, touched, -1))
    return Traffic(
        requests=int((each > 0).sum()),
        bytes=int(each.sum()),
        asked=int(np.count_nonzero(offsets >= 0)) * size,
        sectors=int(sectors.sum()),
        ideal_sectors=int((-(-each // SECTOR)).sum()),
    )


def wavefronts(offsets: Array, size: int) -> tuple[int, int, int]:
    """Steps of requests for `size` bytes at shared offsets (-1: no part), the ideal, requests.

    The lanes of a request are served in groups that could take all banks: all 32 for up to 4
    bytes a lane, 16 for 8, 8 for 16. A group takes as many steps as the busiest bank has words;
    lanes that ask for the same word share it.
    """
    unit = max(size, _WORD)
    groups = BANKS_BYTES // unit
    words = np.where(offsets < 0, -1, offsets // unit).reshape(-1, groups)
    new = distinct(words)
    ordered = np.sort(words, axis=1)
    phase = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    at = (phase * groups + ordered % groups)[new]
    load = np.bincount(at, minlength=len(words) * groups).reshape(-1, groups).max(axis=1)
    return int(load.sum()), int((load > 0).sum()), int((offsets >= 0).any(axis=1).sum())


class Memo:
    """Results by the bytes of the arrays that they come from."""

    def __init__(self) -> None:
        self._known: dict[object, Any] = {}

    def __call__(self, key: object, compute: Callable[[], T]) -> T:
        """What was computed for the key before, or now. All is forgotten when it gets too much."""
        if key not in self._known:
            if len(self._known) >= _MEMO:
                self._known.clear()
            self._known[key] = compute()
        found: T = self._known[key]
        return found

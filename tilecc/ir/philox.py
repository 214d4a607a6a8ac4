"""Philox4x32-10, the counter-based generator of random numbers, in numpy.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC11, section 3.3; constants of Random123's philox.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF


def philox4x32(counter: tuple[Any, ...], key: tuple[Any, Any]) -> tuple[NDArray[np.uint64], ...]:
    """The four words for four words of counter and two of key, each of them below 2**32."""
    mask, shift = np.uint64(WORD), np.uint64(32)
    c0, c1, c2, c3 = (np.asarray(c).astype(np.uint64) for c in counter)
    k0, k1 = (np.asarray(k).astype(np.uint64) for k in key)
    m0, m1 = map(np.uint64, MULTIPLIERS)
    w0, w1 = map(np.uint64, WEYL)
    for _ in range(ROUNDS):
        p0, p1 = c0 * m0, c2 * m1  # of words: no overflow
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ k0, p1 & mask, (p0 >> shift) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    return c0, c1, c2, c3


def philox(seed: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> NDArray[np.int64]:
    """The first word for a seed of 64 bits and counters that count modulo 2**32, as int64."""
    mask = np.int64(WORD)

    def word(x: Any) -> NDArray[np.int64]:
        words: NDArray[np.int64] = np.asarray(x).astype(np.int64) & mask
        return words

    s = np.asarray(seed).astype(np.int64)
    key = (s & mask, (s >> np.int64(32)) & mask)
    return philox4x32((word(c0), word(c1), word(c2), word(c3)), key)[0].astype(np.int64)

"""Tiles in shared memory: each element has a place of its own, and rows lie in different banks."""

from __future__ import annotations

import itertools

import pytest

from tilecc.codegen.cuda.shared import Life, SharedTile, allocate, overlap
from tilecc.ir.dtypes import DTYPES

WIDTHS = [16, 24, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256]


def tile(rows: int, columns: int, dtype: str = "f16") -> SharedTile:
    return SharedTile("x", (("j", rows), ("d", columns)), DTYPES[dtype])


@pytest.mark.parametrize("dtype", ["f16", "f32", "i8", "f64"])
@pytest.mark.parametrize("columns", [1, 5, *WIDTHS])
def test_elements_have_places_of_their_own(columns, dtype):
    t = tile(24, columns, dtype)
    found = {t.index({"j": j, "d": d}) for j, d in itertools.product(range(24), range(columns))}
    assert len(found) == 24 * columns
    assert max(found) < t.bytes // t.dtype.bytes and min(found) >= 0


@pytest.mark.parametrize("columns", WIDTHS)
def test_eight_rows_of_a_chunk_are_in_different_banks(columns):
    """What one phase of ldmatrix reads: 16 bytes of each of 8 rows, from 32 banks of 4 bytes."""
    t = tile(64, columns)
    for first, chunk in itertools.product(range(0, 64, 8), range(columns // 8)):
        starts = [t.index({"j": first + r, "d": chunk * 8}) * 2 for r in range(8)]
        assert all(s % 16 == 0 for s in starts)
        assert len({s // 16 % 8 for s in starts}) == 8


@pytest.mark.parametrize("columns", WIDTHS)
def test_eight_neighbouring_chunks_are_in_different_banks(columns):
    """What a quarter of a warp writes in one cp.async: neighbouring chunks, row after row."""
    t = tile(64, columns)
    chunks = [(j, c) for j in range(64) for c in range(t.chunks)]
    for n in range(0, len(chunks) - 7, 8):
        starts = [t.index({"j": j, "d": c * 8}) * 2 for j, c in chunks[n : n + 8]]
        assert len({s // 16 % 8 for s in starts}) == 8


def test_padding_has_room():
    t = tile(20, 72)
    t.require("d", 80)
    t.require("j", 32)
    assert (t.rows, t.columns, t.bytes, t.zero) == (32, 80, 32 * 80 * 2, True)


def test_tiles_in_use_together_do_not_overlap():
    sizes = [(64, 64, 0, 9), (128, 64, 1, 3), (128, 64, 4, 6), (16, 8, 2, 8), (128, 128, 7, 9)]
    lives = [Life(tile(r, c), a, b) for r, c, a, b in sizes]
    top = allocate(lives)
    for x, y in itertools.combinations(lives, 2):
        if x.first <= y.last and y.first <= x.last:
            assert not overlap(x.tile, y.tile)
    assert top == max(x.tile.offset + x.tile.bytes for x in lives)
    assert top < sum(x.tile.bytes for x in lives)  # those that follow each other share
    assert all(x.tile.offset % 128 == 0 for x in lives)

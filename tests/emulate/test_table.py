"""The page of the sweep: which runs it asks for, and what it says of them."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "zoo"))

from sweep import LENGTHS, SEEDS, Length
from table import length, page, runs


def row(at: Length, seed: int | None, faults: tuple[str, ...] = ()) -> dict[str, object]:
    run = ["causal", "float16", at.rows, at.columns, seed]
    return {"run": run, "date": "2026-01-01", "commit": "c", "error": 1e-4, "faults": list(faults)}


def test_orders_are_run_at_the_lengths_that_are_asked_for():
    asked = [(at, seed) for _, _, at, seed in runs("causal", "float16", [length("130x71")])]
    assert asked[: len(LENGTHS)] == [(at, None) for at in LENGTHS]
    assert asked[len(LENGTHS) :] == [(Length(130, 71), seed) for seed in SEEDS]
    with pytest.raises(ArgumentTypeError, match="5x5 is not one of 64x64, "):
        length("5x5")


def test_a_page_counts_what_was_run_and_says_what_is_wrong():
    rows = [row(LENGTHS[0], None), row(LENGTHS[-1], 0), row(LENGTHS[-1], 1, ("a race",))]
    text = page(rows, Path("page.md"))
    assert "3 runs, " in text
    assert "random orders of warps and copies: 2 at 296 x 296. " in text
    assert "| causal | 1 of 1 | 1 of 2 | 1.0e-04 | 0 of 0 | 0 of 0 | not run |  |" in text
    assert "- causal, 1 kinds, such as: `a race`" in text
    assert "copies: none. " in page(rows[:1], Path("page.md"))

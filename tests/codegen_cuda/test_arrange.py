"""Arrangements of tiles in shared memory: no two lanes' words in one bank, by what uses a tile."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilecc as tc
from tilecc.cli.program import load_program
from tilecc.codegen.cuda import arrange, banks
from tilecc.codegen.cuda.shared import Arrangement, SharedTile
from tilecc.emulator.counters import wavefronts
from tilecc.inputs import random_inputs
from tilecc.ir.dtypes import DTYPES

EXAMPLES = Path(__file__).parents[2] / "examples"
HELD = re.compile(r"ldmatrix|cp\.async|st\.shared")


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_conflicts_are_those_that_the_emulator_counts(size):
    rng = np.random.default_rng(size)
    offsets = rng.integers(0, 512 // size, (50, 32)) * size
    offsets[rng.random(offsets.shape) < 0.2] = -1
    steps, ideal, _ = wavefronts(offsets, size)
    assert banks.conflicts(offsets, size) == steps - ideal > 0


def test_turned_chunks_have_places_of_their_own():
    """4 rows of 32 bytes and 8 rows of 16 lie in different banks, for all widths of 4 chunks on."""
    for columns in (16, 32, 64, 96):
        t = SharedTile("x", (("i", 16), ("d", columns)), DTYPES["f32"])
        t.chosen = Arrangement(0, t.most_bits, turned=True)
        at = [(i, d) for i in range(16) for d in range(columns)]
        assert len({t.index({"i": i, "d": d}) for i, d in at}) == len(at)
        chunks = [t.index({"i": i, "d": 0}) * 4 // 16 % 8 for i in range(8)]
        assert len(set(chunks)) == 8
        pairs = [t.index({"i": i, "d": 4 * k}) * 4 // 16 % 8 for i in range(4) for k in (0, 1)]
        assert len(set(pairs)) == 8


def conflicts() -> list[str]:
    """What must have no bank conflicts in attention in f32 and has some: P in shared memory."""
    program = load_program(str(EXAMPLES / "attention.py"), "sm_80", "float32", {"D": 32}, 16)
    inputs = random_inputs(program.func, {"B": 1, "H": 1, "N": 20, "D": 32}, {}, 0)
    ordered = [inputs[p.name] for p in program.func.params]
    found = tc.emulate(program.kernel(build=False), *ordered, check=False)
    return [a.text for a in found.bank_conflicts if HELD.search(a.text)]


def test_stores_have_no_conflicts():
    assert conflicts() == []


def test_the_usual_arrangement_would_have_some(monkeypatch):
    monkeypatch.setattr(arrange, "_choose", lambda tile, uses: None)
    assert any("st.shared" in text for text in conflicts())

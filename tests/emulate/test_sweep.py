"""Every spec on sm_80, emulated: values, races, bounds, bytes, bank conflicts, sectors.

All of it is slow. In parallel: `python -m pytest -m slow tests/emulate/test_sweep.py -n auto`. One
spec: `-k zoo/paged`.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "zoo"))

from sweep import LENGTHS, SEEDS, SPECS, TOLERANCE, Length, faults, program_of, run, sample

DTYPES = tuple(TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECS)
def test_every_spec(name, dtype):
    """In lockstep at all lengths, at the longest in all orders, with one kernel."""
    found = [(at, None, run(name, dtype, at, None)) for at in LENGTHS]
    found += [(LENGTHS[-1], seed, run(name, dtype, LENGTHS[-1], seed)) for seed in SEEDS]
    _, kernel = program_of(name, dtype)
    assert [row for row in found if row[2]] == []
    assert kernel.compilations == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [16, 48, 72, 80, 96, 128, 160, 192, 256])
def test_head_dimensions(d, dtype):
    """With the tile that is offered for each; values have fewer dimensions in every other one."""
    name = "zoo/differential" if d % 32 else "causal"
    static = {"D": d, "E": 24 if d % 32 else d}
    for at in (Length(100, 100), Length(296, 296)):
        assert run(name, dtype, at, None, tile=None, static=static) == []
        assert run(name, dtype, at, 0, tile=None, static=static) == []


@pytest.mark.parametrize(
    ("name", "dtype", "seed"), [("zoo/paged", "float16", 1), ("padding_mask", "bfloat16", None)]
)
def test_a_sample(name, dtype, seed):
    assert run(name, dtype, Length(33, 45), seed, tile=32) == []


def test_a_fault_of_each_kind_is_one():
    """What is wrong with a run is said: the sweep can fail."""
    found, want = sample("causal", "float16", Length(32, 32), None, tile=32)
    assert list(faults(found, want, "float16", even=True)) == []
    (wrong,) = faults(found, (want[0] + 0.1,), "float16", even=True)
    assert "is off by" in wrong
    model = dataclasses.replace(found.predicted, bytes_read={**found.bytes_read, "k": 1})
    found.predicted = model
    (wrong,) = faults(found, want, "float16", even=True)
    assert "the cost model predicts 1" in wrong
    found.predicted = None
    assert list(faults(found, want, "float16", even=True)) == ["no bytes are predicted"]
    found.outputs = (np.full_like(found.outputs[0], np.nan),)
    assert any("is off by inf" in f for f in faults(found, want, "float16", even=True))

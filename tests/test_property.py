"""Random programs, extents and element types: every level of the IR, and the kernel, against numpy.

A thousand cases at the levels of the IR and 150 kernels, the same ones in each run. On demand:

    TILECC_CASES=10000 pytest tests/test_property.py            that many of both
    TILECC_SEED=7 pytest tests/test_property.py                 other ones
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from grammar import Case, cases
from grammar_attention import EXPONENTIAL
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from levels import compare, expected, lower, spec_of

import tilecc as tc
from tilecc.errors import CompileError
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir

CASES = int(os.environ.get("TILECC_CASES", "0"))
SEED = int(os.environ.get("TILECC_SEED", "0"))
SHARDS, KERNEL_SHARDS = 4, 3
INTERP_CASES = (CASES or 1000) // SHARDS
KERNEL_CASES = (CASES or 150) // KERNEL_SHARDS
# The default element type decides little where interp computes in float64.
INTERP_DTYPES = ("float32", "float32", "float64", "float16", "bfloat16")
KERNEL_DTYPES = ("float32", "float32", "float16", "bfloat16", "float64")

# How often each thing occurs, at least, in percent of the cases.
SHARES = {
    "different programs": 80,
    "mask": 30,
    "affine mask": 20,
    "data mask": 12,
    "empty rows": 5,
    "several outputs": 18,
    "attention": 60,
    "softmax": 6,
    "other normalisers": 20,
    "not attention": 18,
    "several passes over an axis": 8,
    "no elements": 7,
    "NaN expected": 1,
    "large scores": 20,
}
KERNEL_SHARES = {k: v / 2 for k, v in SHARES.items() if k != "several passes over an axis"}


@dataclass
class Statistics:
    """What the cases had in them."""

    cases: int = 0
    of: Counter[str] = field(default_factory=Counter)
    programs: set[str] = field(default_factory=set)
    failed: bool = False

    def note(self, case: Case) -> None:
        self.cases += 1
        self.programs.add(case.program.source)
        tags, trial = set(case.program.tags), case.trials[-1]
        if "attention" not in tags:
            tags.add("not attention")
        elif not tags & EXPONENTIAL and "reduced" not in tags:
            tags.add("other normalisers")
        if 0 in trial.extents.values():
            tags.add("no elements")
        if trial.scale >= 30:
            tags.add("large scores")
        self.of.update([*tags, trial.dtype])

    def check(self, shares: dict[str, float]) -> None:
        self.of["different programs"] = len(self.programs)
        percent = {name: 100 * self.of[name] / self.cases for name in shares}
        # Shares were measured on many cases; in few, chance alone may leave less.
        chance = {n: 300 * (s / 100 * (1 - s / 100) / self.cases) ** 0.5 for n, s in shares.items()}
        few = {n: f"{p:.1f} %" for n, p in percent.items() if p < shares[n] - chance[n]}
        assert not few, f"too few of these in {self.cases} cases: {few}"


# After ten examples hypothesis mostly repeats parts of earlier ones, so that few programs would be
# new: the cases come in blocks, each with a seed of its own.
BLOCK = 10


def run_cases(
    count: int,
    start: int,
    strategy: st.SearchStrategy[Case],
    check: Callable[[Case, Statistics], None],
) -> Statistics:
    """`count` different cases, the same in each run; a failure is shrunk and printed."""
    stats = Statistics()
    passed: set[str] = set()

    @settings(
        max_examples=BLOCK,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=[Phase.generate, *([Phase.shrink] if CASES else [])],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def block(case):
        text = repr(case)
        if text in passed or (stats.cases >= count and not stats.failed):
            return
        try:
            check(case, stats)
        except Exception:
            stats.failed = True  # from here on the cases are hypothesis's attempts to shrink it
            raise
        passed.add(text)
        stats.note(case)

    number = 100_000 * start
    while stats.cases < count:
        seed(number)(block)()
        number += 1
    return stats


def check_levels(case: Case, stats: Statistics) -> None:
    """Outputs at each level are the evaluator's, and each level's text is read back."""
    program, (trial,) = case.program, case.trials
    func = spec_of(program.source).trace(trial.dtype)
    arrays = trial.arrays(program)
    want = expected(program.source, trial.dtype, arrays, exact=True)
    levels = lower(func, trial.extents, trial.tiles)
    for name, level in levels.stages.items():
        got = interpret(level, arrays, chunk=trial.chunk, exact=True)
        skipped = compare(got, want, [v.type.names for v in level.returns], name)
        text = print_ir(level)
        assert print_ir(parse_ir(text)) == text, f"{name}: the text is not read back"
    rounded = expected(program.source, trial.dtype, arrays, exact=False)
    last, level = list(levels.stages.items())[-1]
    got = interpret(level, arrays, chunk=trial.chunk)
    compare(got, rounded, [v.type.names for v in level.returns], f"{last}, rounded")
    stats.of["refused"] += levels.refused is not None
    stats.of["empty rows"] += want.empty_rows
    stats.of["NaN expected"] += want.has_nan
    stats.of["several passes over an axis"] += levels.passes_over_an_axis > 1
    stats.of["not all comparable"] += skipped > 0


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_level(shard):
    start = 100 * SEED + shard
    stats = run_cases(INTERP_CASES, start, cases(INTERP_DTYPES), check_levels)
    stats.check(SHARES)
    assert stats.of["refused"] <= 0.02 * stats.cases
    assert stats.of["not all comparable"] <= 0.02 * stats.cases


def check_kernel(case: Case, stats: Statistics) -> None:
    """One kernel gives the evaluator's outputs for several sets of extents and inputs."""
    program, dtype = case.program, case.trials[0].dtype
    spec = spec_of(program.source)
    names = [v.type.names for v in spec.trace(dtype).returns]
    found = Counter[str]()
    try:
        kernel = tc.compile(spec, dtype=dtype, tile=case.tile)
        for trial in case.trials:
            arrays = trial.arrays(program)
            before = {n: np.copy(x) for n, x in arrays.items()}
            got = kernel(**arrays, threads=1)
            want = expected(program.source, dtype, arrays, exact=False)
            skipped = compare(got if isinstance(got, tuple) else (got,), want, names, "kernel")
            for n, x in arrays.items():
                np.testing.assert_array_equal(x, before[n])
            found["empty rows"] |= want.empty_rows
            found["NaN expected"] |= want.has_nan
            found["not all comparable"] |= skipped > 0
    except CompileError:
        found["refused"] = 1
    stats.of.update(found)


@pytest.mark.parametrize("shard", range(KERNEL_SHARDS))
def test_kernel(shard):
    start = 100 * SEED + 50 + shard
    stats = run_cases(KERNEL_CASES, start, cases(KERNEL_DTYPES, 3), check_kernel)
    stats.check(KERNEL_SHARES)
    assert stats.of["refused"] <= 0.03 * stats.cases
    assert stats.of["not all comparable"] <= 0.2 * stats.cases

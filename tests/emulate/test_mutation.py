"""A right kernel is reported by nothing, and each way to break it by something.

Reported means: a finding, a result that is wrong, bank conflicts, or more bytes than the model's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
from matmul_ptx import SHARED, THREADS, module

from tilecc import emulator

M, K, N = 100, 192, 64
SCHEDULES = ["lockstep", 0, 1, 2]


@dataclass
class Outcome:
    """What was reported of a run, in one word each."""

    reports: set[str]
    result: emulator.Result


def outcome(text: str, schedule: str | int) -> Outcome:
    rng = np.random.default_rng(7)
    a = rng.standard_normal((M, K)).astype(np.float16)
    b = rng.standard_normal((K, N)).astype(np.float16)
    c = np.full((M, N), np.nan, np.float32)
    grid = -(-M // 64)
    found = emulator.run(
        text, "matmul", [a, b, c, M, K], grid, THREADS, SHARED, schedule=schedule, names="ABCMK"
    )
    reports = {f.kind for f in found.findings}
    expected = a.astype(np.float64) @ b.astype(np.float64)
    if not np.abs(c - expected).max() < 1e-3 * np.abs(expected).max():
        reports.add("wrong")
    if found.bank_conflicts:
        reports.add("conflicts")
    model = {"A": a.nbytes, "B": grid * b.nbytes}
    if found.bytes_read != model or found.bytes_written != {"C": c.nbytes}:
        reports.add("bytes")
    return Outcome(reports, found)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_clean_kernel_is_clean(schedule):
    found = outcome(module(), schedule)
    assert found.reports == set(), [str(f) for f in found.result.findings]
    for direction, name in (("read", "A"), ("read", "B"), ("write", "C")):
        traffic = found.result.traffic(direction)[name]
        assert traffic.sectors == traffic.ideal_sectors


def drop(pattern: str):
    return lambda text: re.sub(pattern + r"[^\n]*\n", "\n", text)


def change(pattern: str, into: str):
    return lambda text: re.sub(pattern, into, text)


COPY_B = r"(cp\.async\.cg\.shared\.global \[%dst\+8192\], \[%gb\], 16;)"
MUTANTS = {
    "no barrier after the wait": (drop(r"bar\.sync 0; // after the wait"), {"race"}),
    "no barrier before the next copy": (drop(r"bar\.sync 0; // before the next copy"), {"race"}),
    "no barrier before the buffers are reused": (
        lambda t: drop(r"bar\.sync 0; // before the buffers")(
            drop(r"bar\.sync 0; // before the next copy")(t)
        ),
        {"race"},
    ),
    "a weaker wait": (change("wait_group 1", "wait_group 2"), {"race"}),
    "no wait": (drop(r"cp\.async\.wait_group 1"), {"race"}),
    "no commit in the loop": (drop(r"cp\.async\.commit_group; // each"), {"race"}),
    "no first commit": (drop(r"cp\.async\.commit_group; // first"), {"race"}),
    "always the same buffer": (change(r"and\.b32 %y, %next, 1;", "mov.u32 %y, 0;"), {"race"}),
    "no bar.warp.sync": (drop(r"bar\.warp\.sync"), {"race"}),
    "lanes of ldmatrix swapped": (
        change(r"and\.b32 %lr, %lane, 15;\s*shr\.u32 %lc, %lane, 4;",
               "shr.u32 %lr, %lane, 1;\n and.b32 %lc, %lane, 1;"),
        {"wrong"},
    ),
    "registers of A swapped": (
        change(r"\{%a0, %a1, %a2, %a3\}, \{%b0", "{%a0, %a2, %a1, %a3}, {%b0"), {"wrong"},
    ),
    "no .trans": (change(r"\.x4\.trans", ".x4"), {"wrong"}),
    "no swizzle": (
        change(r"xor\.b32 %(y|ch), %(cc|ch), %(x|lx); // swizzle of (copies|A|B)",
               r"mov.u32 %\1, %\2; //"),
        {"conflicts"},
    ),
    "no swizzle of the result": (
        change(r"shl\.b32 %x, %x, 1;", "mov.u32 %x, 0;"), {"conflicts"},
    ),
    "a swizzle that is not undone": (
        change(r"xor\.b32 %ch, %ch, %lx; // swizzle of B", "//"), {"wrong", "conflicts"},
    ),
    "one row too many is read": (
        change(r"setp\.lt\.u32 %in, %grow, %M;\s*selp", "setp.le.u32 %in, %grow, %M;\n selp"),
        {"out of bounds"},
    ),
    "one row too many is written": (
        change(r"setp\.lt\.u32 %in, %grow, %M; // rows", "setp.le.u32 %in, %grow, %M; // rows"),
        {"out of bounds"},
    ),
    "one row too few": (
        change(r"setp\.lt\.u32 %in, %grow, %M; // rows",
               "add.u32 %r, %grow, 1; setp.lt.u32 %in, %r, %M; // rows"),
        {"wrong", "bytes"},
    ),
    "one tile too few": (
        change(r"setp\.lt\.u32 %more, %kt, %ktiles;",
               "add.u32 %r, %kt, 1; setp.lt.u32 %more, %r, %ktiles;"),
        {"wrong"},
    ),
    "one tile too many": (
        change(r"setp\.(ge|lt)\.u32 %(last|more), %(next|kt), %ktiles", r"setp.\1.u32 %\2, %\3, 4"),
        {"bytes", "out of bounds"},
    ),
    "an accumulator that is not set": (drop(r"mov\.f32 %c5, 0f00000000"), {"undefined register"}),
    "a row that is never copied": (
        drop(r"cp\.async\.cg\.shared\.global \[%dst\+14336\]"), {"uninitialised memory"},
    ),
    "a load twice": (change(COPY_B, r"\1 \1"), {"bytes", "race"}),
    "a tensor at an odd place": (
        change(r"ld\.param\.u64 %A, \[A\];", "ld.param.u64 %A, [A]; add.s64 %A, %A, 8;"),
        {"misaligned"},
    ),
    "a shared address that is off by one tile": (
        change(r"mad\.lo\.u32 %base, %r, 16384, %smem;",
               "add.u32 %r, %r, 1; mad.lo.u32 %base, %r, 16384, %smem;"),
        {"out of bounds"},
    ),
    "all CTAs do the same rows": (
        change(r"shl\.b32 %row0, %cta, 6;", "mov.u32 %row0, 0;"), {"race"},
    ),
    "a divergent mma": (
        change(r"(mma\.sync\.aligned[^\n]*%c28, %c29, %c30, %c31\}[^\n]*;)",
               r"setp.lt.u32 %in, %lane, 31; @%in \1"),
        {"divergent"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.parametrize("schedule", SCHEDULES[:2])
def test_mutants_are_reported(name, schedule):
    mutate, expected = MUTANTS[name]
    text = mutate(module())
    assert text != module(), "the mutation changes nothing"
    found = outcome(text, schedule).reports
    assert found & expected == expected, found

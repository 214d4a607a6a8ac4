"""Tuning for a GPU that is not here: the space, what fits, and jobs for elsewhere."""

import json
from pathlib import Path

import pytest

import tilecc as tc
from tilecc.cli import main
from tilecc.compiler import Compiler
from tilecc.given import load
from tilecc.target import resolve
from tilecc.tuning.points import points
from tilecc.tuning.subject import subject

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZES = {"B": 1, "H": 8, "N": 4096}


def offered(spec, dtype, d):
    func, _ = load(str(EXAMPLES / f"{spec}.py"), dtype)
    what = subject(Compiler(func, resolve("sm_80"), None), {"D": d})
    return points(what.loop, what.target, {**SIZES, "D": d}, {"w": 256, "cap": 20.0})


def test_the_space_is_built_pruned_and_ranked():
    found = offered("causal", "float16", 64)
    good = [p for p in found if not p.refused]
    assert len(good) > 10 and len(found) > len(good)
    assert any("registers (a thread's)" in p.refused for p in found)
    assert all(0 < p.seconds < 1 for p in good)
    assert good[0].seconds <= good[-1].seconds


CASES = [
    (s, t, d)
    for s in ("attention", "causal", "softcap")
    for t in ("float16", "bfloat16")
    for d in (64, 128)
]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "dtype", "d"), CASES)
def test_what_is_offered_neither_spills_nor_overflows(spec, dtype, d):
    pytest.importorskip("cuda.bindings")
    good = [p for p in offered(spec, dtype, d) if not p.refused]
    assert good
    limit = resolve("sm_80").sram.size
    for p in good[:8]:
        kernel = tc.compile(
            str(EXAMPLES / f"{spec}.py"), "sm_80", dtype, {"D": d}, tile=dict(p.config.tile)
        )
        for r in kernel.resources():
            assert r.usage.spill_stores == r.usage.spill_loads == 0, p.config
            assert r.usage.static_shared + r.dynamic_shared <= limit, p.config


@pytest.mark.slow
def test_jobs_are_exported_and_there_is_no_device(tmp_path, capsys):
    pytest.importorskip("cuda.bindings")
    jobs = tmp_path / "jobs.tcj"
    args = ["--target", "sm_80", "--dtype", "float16", "--shape", "N=128,D=64"]
    spec = str(EXAMPLES / "causal.py")
    assert main(["tune", spec, *args, "--trials", "2", "--export", str(jobs)]) == 0
    assert main(["measure", str(jobs), "--workers", "1", "--json"]) == 1
    said = capsys.readouterr().out
    records = json.loads(said[said.index("[\n") :].rpartition("]")[0] + "]")
    assert len(records) == 2 and all("no device" in r["reason"] for r in records)

"""Tuning for real, but little of it; jobs for another machine; the command line."""

import json
from typing import ClassVar

import numpy as np
import pytest
from test_answers import attention, expected, inputs

import tilecc as tc
from tilecc.cli import main
from tilecc.tuning.config import Config
from tilecc.tuning.database import Database
from tilecc.tuning.pool import Outcome
from tilecc.tuning.timing import Wrong

SPEC = """
import tilecc as tc
@tc.spec
def rows(q: tc.Tensor["h i:N d"], k: tc.Tensor["h j:N d"]):
    return tc.max(tc.dot(q, k, over="d"), over="j")
"""


@pytest.fixture
def db(tmp_path, monkeypatch):
    path = tmp_path / "tuned.db"
    monkeypatch.setenv("TILECC_DB", str(path))
    return path


class FakePool:
    """A pool on a made-up machine; `faults` are reasons by tile of i."""

    faults: ClassVar[dict] = {}
    interrupt_after = 10**9

    def __init__(self, runner, payload, count):
        self.count, self.jobs, self.done = count, [], 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @staticmethod
    def seconds(config):
        i, j = dict(config.tile)["i"], dict(config.tile)["j"]
        return 1e-3 * (1 + abs(i - 48) / 100 + abs(j - 128) / 500 + 0.01 * len(config.options))

    def submit(self, job):
        if len(self.jobs) == self.count:
            return False
        self.jobs.append(job)
        return True

    def collect(self):
        # The last one first: the search must not depend on who is quicker.
        self.done += 1
        if self.done > self.interrupt_after:
            raise KeyboardInterrupt
        return [self.call(self.jobs.pop())]

    def call(self, job):
        config = job.args[0]
        reason = self.faults.get(dict(config.tile)["i"], "")
        if reason:
            return Outcome(job, None, reason)
        s = self.seconds(config)
        return Outcome(job, {"measure": {"seconds": s}, "sample": (s, 2 * s)}.get(job.method))


SHAPE = {"B": 1, "H": 2, "N": 256, "D": 32}


def test_a_session_on_a_made_up_machine(db):
    seen = []
    found = tc.tune(attention, SHAPE, trials=24, threads=2, watch=seen.append, pool=FakePool)
    (shape,) = found.shapes
    assert len(seen) == len(shape.measurements) <= 24
    assert shape.best.seconds < 1.3 * FakePool.seconds(Config.of({"i": 48, "j": 128}))
    assert found.chosen == (shape.best.config,)
    assert dict(found.kernel.tile) == dict(shape.best.config.tile)
    assert seen[-1].best.seconds == min(m.seconds for m in shape.measurements)
    assert shape.refused and all(reason for _, reason in shape.refused)
    # Again: what is known is not measured again, and the same is chosen.
    again = tc.tune(attention, SHAPE, trials=0, threads=2, pool=FakePool)
    assert again.chosen == found.chosen
    assert all(m.earlier for m in again.shapes[0].measurements)


def test_the_number_of_workers_that_are_quicker_changes_nothing(tmp_path):
    orders = []
    for n in range(2):
        seen = []
        tc.tune(
            attention,
            SHAPE,
            trials=16,
            seed=5,
            workers=2,
            watch=seen.append,
            pool=FakePool,
            db=tmp_path / f"{n}.db",
        )
        orders.append([p.measurement.config for p in seen])
    assert orders[0] == orders[1]


def test_failures_are_recorded_and_do_not_stop_it(db, monkeypatch):
    monkeypatch.setattr(FakePool, "faults", {64: "segmentation fault (SIGSEGV)", 32: "no answer"})
    found = tc.tune(attention, SHAPE, trials=30, gain=0, pool=FakePool)
    reasons = {m.reason for m in found.shapes[0].failed}
    assert reasons and reasons <= {"segmentation fault (SIGSEGV)", "no answer"}
    assert dict(found.chosen[0].tile)["i"] not in (32, 64)
    with Database(db) as data:
        assert {t.reason for t in data.trials(found.subject.key) if t.status == "failed"} == reasons


def test_an_interruption_keeps_what_was_measured(db, monkeypatch):
    monkeypatch.setattr(FakePool, "interrupt_after", 7)
    found = tc.tune(attention, SHAPE, trials=30, workers=1, pool=FakePool)
    assert found.interrupted and len(found.shapes[0].measurements) == 7
    assert found.chosen[0] is not None
    with Database(db) as data:
        assert len(data.trials(found.subject.key)) == 7
        assert len(data.choices(found.subject.key)) == 1
    monkeypatch.setattr(FakePool, "interrupt_after", 10**9)
    assert not tc.tune(attention, SHAPE, trials=1, pool=FakePool).interrupted


def test_several_shapes_share_kernels(db):
    shapes = [{**SHAPE, "N": n} for n in (128, 256, 512)]
    found = tc.tune(attention, shapes, trials=8, pool=FakePool)
    assert len(found.shapes) == 3 and len(found.configs) == 1
    np.testing.assert_allclose(found.kernel(*inputs(200)), expected(*inputs(200)), atol=1e-5)
    assert found.kernel.compilations == 1


def test_what_cannot_be_tuned_is_refused(db):
    with pytest.raises(tc.CompileError, match="shape 0 has no B"):
        tc.tune(attention, {"N": 4, "H": 1, "D": 8}, pool=FakePool)
    two = [{**SHAPE, "D": d} for d in (32, 64)]
    with pytest.raises(tc.CompileError, match="D is 32 and 64"):
        tc.tune(attention, two, pool=FakePool)
    with pytest.raises(tc.CompileError, match="no shape"):
        tc.tune(attention, [], pool=FakePool)


def test_for_real(db):
    found = tc.tune(attention, {**SHAPE, "N": 100}, trials=2, workers=1)
    (shape,) = found.shapes
    assert [m.reason for m in shape.measurements] == ["", ""]
    assert all(m.details["error"] < 1e-5 for m in shape.measurements)
    assert shape.best.seconds > 0
    assert str(tc.compile(attention, static={"D": 32}).tile) == str(found.kernel.tile)


class WrongRunner:
    """The real one, whose kernels' outputs are then changed."""

    def __new__(cls, task):
        from tilecc.tuning.candidates import Runner

        runner = Runner(task)
        build = runner._build

        def changed(config):
            ready = build(config)
            call = ready.call
            ready.call = lambda inputs, threads: call(inputs, threads) * 1.01
            return ready

        runner._build = changed
        return runner


def test_wrong_results_do_not_count(monkeypatch, db, request):
    monkeypatch.syspath_prepend(str(request.path.parent))
    monkeypatch.setattr("tilecc.tuning.api.RUNNER", "test_session:WrongRunner")
    found = tc.tune(attention, {**SHAPE, "N": 50}, trials=1, workers=1)
    (m,) = found.shapes[0].measurements
    assert m.reason.startswith(f"{Wrong.__name__}: differs by") and found.kernel is None


def test_jobs_go_elsewhere_and_come_back(db, tmp_path, capsys):
    spec, jobs = tmp_path / "rows.py", tmp_path / "jobs.tcj"
    spec.write_text(SPEC)
    shape = ["--shape", "H=2,N=70,D=16"]
    assert main(["tune", str(spec), *shape, "--trials", "2", "--export", str(jobs)]) == 0
    assert not db.exists()
    assert main(["measure", str(jobs), "--workers", "1", "--json"]) == 0
    said = capsys.readouterr().out
    records = json.loads(said[said.index("[") :])
    assert len(records) == 2 and all(r["final"] > 0 and r["error"] < 1e-5 for r in records)
    back = ["--trials", "0", "--workers", "1", "--import", f"{jobs}.results", "--json"]
    assert main(["tune", str(spec), *shape, *back]) == 0
    (found,) = json.loads(capsys.readouterr().out)["shapes"]
    assert all(m["earlier"] for m in found["measurements"]) and len(found["measurements"]) == 2
    assert main(["db", "show"]) == 0 and "rows" in capsys.readouterr().out
    assert main(["measure", str(spec)]) == 1
    assert main(["tune", str(spec), *shape, "--import", str(jobs)]) == 1
    err = capsys.readouterr().err
    assert "is no kernel that tilecc saved" in err and "holds no results" in err


def test_measuring_needs_no_tvm():
    import subprocess
    import sys

    code = (
        "import sys; sys.modules.update(dict.fromkeys(['tvm', 'sympy', 'networkx', 'sklearn']));"
        "import tilecc.tuning.jobs, tilecc.cli.measure"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

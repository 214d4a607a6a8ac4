"""The database: shared, killed at any moment, damaged, merged."""

import os
import random
import signal
import subprocess
import sys
import time
import warnings

import pytest

from tilecc.tuning.database import Chosen, Database, Known, Trial

KNOWN = Known("k", "name", "text", "{}", "tilecc 0, tvm 0", {"a0": "i"})


def trial(n: int, status: str = "ok", key: str = "k") -> Trial:
    seconds = float(n) if status == "ok" else None
    return Trial(key, "{}", f"c{n}", status, seconds, 1.0, "" if status == "ok" else "why", when=0)


def test_records_come_back(tmp_path):
    chosen = Chosen("k", "{}", "c1", 1.0, 2, {"N": 4}, when=0)
    with Database(tmp_path / "a.db") as db:
        db.save(KNOWN, trial(1), trial(2, "failed"), chosen)
    with Database(tmp_path / "a.db") as db:
        assert db.trials("k") == [trial(1), trial(2, "failed")]
        assert db.choices("k") == [chosen] and db.programs() == [KNOWN]
        assert db.trials("other") == [] and db.trials("k", "elsewhere") == []


def test_a_failure_does_not_replace_a_measurement(tmp_path):
    with Database(tmp_path / "a.db") as db:
        db.save(trial(1), trial(2, "failed"))
        db.save(trial(1, "failed"), trial(2))
        assert sorted(t.config for t in db.trials("k") if t.status == "ok") == ["c1", "c2"]


def test_reading_makes_no_file(tmp_path):
    with Database(tmp_path / "a.db") as db:
        assert db.trials("k") == [] and db.choices("k") == [] and db.delete(["k"]) == 0
    assert not list(tmp_path.iterdir())


def test_export_merge_and_delete(tmp_path):
    slow, fast = (Chosen("k", "{}", f"c{s}", s, 2, when=0) for s in (2.0, 1.0))
    with Database(tmp_path / "a.db") as a, Database(tmp_path / "b.db") as b:
        a.save(KNOWN, trial(1), slow)
        b.save(trial(2), fast)
        assert a.export(tmp_path / "a.jsonl") == 3
        assert b.merge(tmp_path / "a.jsonl") == 2  # the slower choice stays behind
        assert b.choices("k") == [fast] and len(b.trials("k")) == 2
        b.close()
        assert a.merge(tmp_path / "b.db") > 0
        assert a.choices("k") == [fast] and len(a.trials("k")) == 2
        assert a.delete(["k"]) == 4 and list(a.everything()) == []
        (tmp_path / "no.txt").write_text('{"kind": "Nothing"}\n')
        with pytest.raises(ValueError, match=r"no.txt:1: not a record"):
            a.merge(tmp_path / "no.txt")


@pytest.mark.parametrize("how", ["head", "truncated", "noise"])
def test_a_damaged_file_is_set_aside(tmp_path, how):
    path = tmp_path / "a.db"
    with Database(path) as db:
        db.save(*(trial(n) for n in range(200)))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    data = bytearray(path.read_bytes())
    if how == "head":
        data[:64] = b"x" * 64
    elif how == "truncated":
        del data[len(data) // 2 :]
    else:
        rng = random.Random(0)
        for at in range(4096, len(data)):
            data[at] = rng.randrange(256)
    path.write_bytes(data)
    with Database(path) as db, pytest.warns(UserWarning, match="is damaged .* is kept as"):
        found = db.trials("k")
        db.save(trial(7))
    assert found == []
    assert (tmp_path / "a.db.damaged-1").read_bytes() == data
    with Database(path) as db:
        assert db.trials("k") == [trial(7)]


def test_a_record_that_was_changed_is_passed_over(tmp_path):
    path = tmp_path / "a.db"
    with Database(path) as db:
        db.save(trial(1), trial(2))
        db._open().execute("UPDATE trials SET body = replace(body, '1.0', '0.5')")
        db._open().commit()
        assert all(t.seconds != 0.5 for t in db.trials("k"))


WRITER = """
import sys
from tilecc.tuning.database import Database, Trial
with Database(sys.argv[1]) as db:
    for n in range(int(sys.argv[3])):
        db.save(Trial("k", "{}", f"{sys.argv[2]}-{n}", "ok", 1.0))
        print(n, flush=True)
"""


def writer(path, name, count=10**9):
    args = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(args, stdout=subprocess.PIPE, text=True)


def test_two_processes_lose_nothing(tmp_path):
    path = tmp_path / "a.db"
    both = [writer(path, name, 60) for name in "ab"]
    for p in both:
        p.communicate(timeout=120)
        assert p.returncode == 0
    with Database(path) as db:
        assert len(db.trials("k")) == 120


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(50, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_kill_at_any_moment(tmp_path, rounds):
    """What was reported as saved is there, and the file is whole."""
    path, rng = tmp_path / "a.db", random.Random(1)
    for n in range(rounds):
        p = writer(path, str(n))
        assert p.stdout.readline()
        time.sleep(rng.random() * 0.05)
        os.kill(p.pid, signal.SIGKILL)
        said = p.communicate()[0].splitlines()
        reported = int(said[-1]) if said and said[-1] else 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Database(path) as db:
                assert db._open().execute("PRAGMA integrity_check").fetchone() == ("ok",)
                saved = {t.config for t in db.trials("k")}
        assert {f"{n}-{k}" for k in range(reported + 1)} <= saved

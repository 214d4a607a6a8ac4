"""Workers that crash, hang or use up memory: a reason each, and the session goes on."""

import pytest

from tilecc.tuning.pool import Job, Pool

REASONS = {
    "segfault": "segmentation fault (SIGSEGV)",
    "abort": "aborted (SIGABRT): LLVM ERROR: Do not know how to split",
    "endless": "no answer in 1.5 s",
    "memory": "out of memory",
    "leave": "the process ended itself with 3",
    "wrong": "ValueError: differs by 1.00e+00, and 1.00e-05 is allowed",
}


@pytest.fixture(autouse=True)
def on_path(monkeypatch, request):
    monkeypatch.syspath_prepend(str(request.path.parent))


def test_what_goes_wrong_is_told_and_the_rest_is_done():
    wanted = ["fine", *REASONS, "fine"]
    left = [
        Job(n, "measure", (what,), 1.5 if what == "endless" else 60)
        for n, what in enumerate(wanted)
    ]
    came = {}
    with Pool("faulty:Faulty", "payload", 2, memory=1 << 29) as pool:
        while len(came) < len(wanted):
            while left and pool.submit(left[0]):
                left.pop(0)
            came |= {o.job.tag: o for o in pool.collect()}
        assert pool.replaced == 4  # a wrong answer and MemoryError leave the worker standing
    for n, what in enumerate(wanted):
        if what == "fine":
            assert came[n].value["payload"] == "payload" and not came[n].reason
        else:
            assert came[n].value is None and came[n].reason == REASONS[what]


def test_a_worker_stays_up_between_jobs_and_after_a_refusal():
    with Pool("faulty:Faulty", None, 1) as pool:
        first = pool.call(Job(0, "measure", ("fine",), 60)).value["pid"]
        assert "ValueError" in pool.call(Job(1, "measure", ("wrong",), 60)).reason
        assert pool.call(Job(2, "measure", ("fine",), 60)).value["pid"] == first
        assert "SIGSEGV" in pool.call(Job(3, "measure", ("segfault",), 60)).reason
        assert pool.call(Job(4, "measure", ("fine",), 60)).value["pid"] != first


def test_workers_that_cannot_start_are_an_error():
    with (
        pytest.raises(RuntimeError, match="no such machine"),
        Pool("faulty:bad_start", None, 1) as pool,
    ):
        pool.call(Job(0, "measure", ("fine",), 60))

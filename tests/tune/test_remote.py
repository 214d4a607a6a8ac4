"""Boards behind a tracker on loopback; one of them is killed while it is in use."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from test_answers import attention

import tilecc as tc
from tilecc.tuning.remote import Tracker

pytest.importorskip("tornado")
SHAPE = {"B": 1, "H": 2, "N": 100, "D": 32}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(module: str, port: int, *args: str) -> subprocess.Popen:
    command = [sys.executable, "-m", f"tvm.exec.{module}", "--host", "127.0.0.1"]
    return subprocess.Popen(
        [*command, "--port", str(port), "--port-end", str(port + 1), *args],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(p: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(p.pid, signal.SIGKILL)
    p.wait()


def wait_for(tracker: Tracker, count: int) -> None:
    """Until the tracker listens and has `count` boards."""
    from tvm import rpc

    stop = time.monotonic() + 300
    while True:
        with contextlib.suppress(Exception):
            with socket.create_connection((tracker.host, tracker.port), 5):
                pass
            if count == 0:
                return
            found = rpc.connect_tracker(tracker.host, tracker.port).summary()
            if found["queue_info"].get(tracker.key, {}).get("free", 0) >= count:
                return
        assert time.monotonic() < stop, "the servers do not come up"
        time.sleep(0.3)


@pytest.fixture
def boards():
    port = free_port()
    processes = [start("rpc_tracker", port)]
    tracker = Tracker("127.0.0.1", port, "board")
    where = ["--tracker", f"127.0.0.1:{port}", "--key", "board"]
    try:
        wait_for(tracker, 0)
        processes += [start("rpc_server", free_port(), *where) for _ in range(2)]
        wait_for(tracker, 2)
        yield tracker, processes
    finally:
        for p in processes:
            end(p)


@pytest.mark.slow
def test_a_board_is_lost_in_mid_run(boards, tmp_path):
    tracker, processes = boards

    def watch(progress):
        if progress.done == 1:
            end(processes[1])

    found = tc.tune(
        attention,
        SHAPE,
        trials=6,
        gain=0,
        workers=2,
        db=tmp_path / "a.db",
        pool=tracker.pool,
        watch=watch,
    )
    measured = found.shapes[0].measurements
    assert len(measured) == 6
    good = [m for m in measured if m.seconds is not None]
    assert len(good) >= 4 and all(m.details["error"] < 1e-5 for m in good)
    assert not [m.reason for m in measured if m.seconds is None and "board" not in m.reason]
    assert found.chosen[0] is not None


def test_no_tracker(tmp_path):
    nowhere = Tracker("127.0.0.1", free_port(), "board")
    found = tc.tune(attention, SHAPE, trials=1, workers=1, db=tmp_path / "a.db", pool=nowhere.pool)
    (m,) = found.shapes[0].measurements
    assert m.reason.startswith("Gone: no board board at 127.0.0.1:") and found.kernel is None


def test_addresses():
    assert Tracker.at("host:9190", "k") == Tracker("host", 9190, "k")
    with pytest.raises(tc.CompileError, match="is not HOST:PORT"):
        Tracker.at("host", "k")

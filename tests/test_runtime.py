"""Calling kernels: arguments of all kinds with no copy, threads, outputs, scratch memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import types

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from handmade import handmade

from tilecc.errors import ArgumentError
from tilecc.ir.dtypes import BF16
from tilecc.runtime import pool as pools
from tilecc.runtime.dlpack import numpy_tensor
from tilecc.runtime.peak import fma_peak
from tilecc.runtime.pool import POOL, ThreadPool


@pytest.fixture(scope="module")
def kernel():
    return handmade()


def arrays(n=5, d=3, dtype="f4", seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((n, d)).astype(dtype) for _ in range(2))


def check(kernel, x, z, a=2.0, tol=1e-6, **kw):
    y, r = kernel(x, a, z, 7, **kw)
    expected = np.asarray(x, "f8") * a + np.asarray(z, "f8")
    np.testing.assert_allclose(np.asarray(y, "f8"), expected, rtol=tol, atol=tol)
    np.testing.assert_array_equal(r, np.arange(len(x)))
    return y


def layouts():
    big = np.arange(200, dtype="f4").reshape(10, 20)
    raw = np.zeros(4 * 40 + 4, np.uint8)[4:].view("f4")[:40].reshape(8, 5)
    readonly = np.ones((4, 6), "f4")
    readonly.flags.writeable = False
    return {
        "contiguous": big,
        "rows of a larger array": big[2:7, 3:9],
        "every other row": big[::2],
        "rows backwards": big[::-1],
        "read-only and backwards": np.broadcast_to(big[::-1], (10, 20)),
        "one row repeated": np.broadcast_to(np.arange(6, dtype="f4"), (4, 6)),
        "read-only": readonly,
        "aligned to 4 bytes only": raw,
        "one column": big[:, 3:4],
        "one column of a transposed array": big.T[:, 3:4],
        "one element": big[1:2, 1:2],
        "no rows": big[:0],
        "no columns": big[:, :0],
        "no columns, strided": big.T[:, ::2][:, :0],
    }


@pytest.mark.parametrize("name", layouts())
def test_layouts_are_taken_without_a_copy(kernel, name):
    x = layouts()[name]
    z = np.zeros(x.shape, "f4")
    check(kernel, x, z)
    check(kernel, z, x)


@pytest.mark.parametrize(
    ("t", "dtype", "tol"),
    [("f64", "f8", 1e-6), ("f16", "f2", 1e-3), ("bf16", ml_dtypes.bfloat16, 1e-2)],
)
def test_element_types(t, dtype, tol):
    k = handmade(t)
    x, z = arrays(dtype=dtype)
    y = check(k, x, z, tol=tol)
    assert y.dtype == np.dtype(dtype)
    check(k, x[::-1], z, tol=tol)
    check(k, x[:0], z[:0], tol=tol)
    x.flags.writeable = False
    check(k, x, z, tol=tol)


def test_outputs_are_new_arrays(kernel):
    x, z = arrays()
    first, second = check(kernel, x, z), check(kernel, x, z, a=3.0)
    assert not np.shares_memory(first, second)
    assert first.flags.c_contiguous and first.flags.writeable


def test_arguments_by_name(kernel):
    x, z = arrays()
    y, _ = kernel(x, n=7, z=z, a=np.float32(0.5))
    np.testing.assert_allclose(y, x * 0.5 + z, rtol=1e-6)


@pytest.mark.parametrize("a", [2, 2.0, np.float32(2), np.float64(2), np.array(2.0), np.array(2)])
def test_numbers(kernel, a):
    x, z = arrays()
    np.testing.assert_allclose(kernel(x, a, z, np.int64(7))[0], x * 2 + z, rtol=1e-6)


def test_out(kernel):
    x, z = arrays()
    big = np.full((5, 8), -1, "f4")
    y, r = big[:, 2:5], np.zeros(5, "i8")
    result = kernel(x, 2.0, z, 7, out=(y, r))
    assert result[0] is y and result[1] is r
    np.testing.assert_allclose(y, x * 2 + z, rtol=1e-6)
    assert (big[:, :2] == -1).all() and (big[:, 5:] == -1).all()


def test_out_may_be_interleaved_with_an_argument(kernel):
    both = np.ones((5, 6), "f4")
    x, y, r = both[:, :3], both[:, 3:], np.zeros(5, "i8")
    kernel(x, 2.0, np.zeros((5, 3), "f4"), 7, out=(y, r))
    assert (both[:, :3] == 1).all() and (both[:, 3:] == 2).all()


class Foreign:
    """An array of another library: no numpy array, but it speaks DLPack."""

    namespace = types.SimpleNamespace()

    def __init__(self, data, device=(1, 0)):
        self.data, self.device = data, device

    @property
    def shape(self):
        return self.data.shape

    def __dlpack__(self, **_):
        return self.data.__dlpack__()

    def __dlpack_device__(self):
        return self.device

    def __array_namespace__(self):
        return self.namespace


Foreign.namespace.from_dlpack = lambda t: Foreign(np.from_dlpack(t))


def test_dlpack_in_and_out(kernel):
    x, z = arrays()
    y, r = kernel(Foreign(x), 2.0, Foreign(z[::-1]), 7)
    assert isinstance(y, Foreign) and isinstance(r, Foreign)
    np.testing.assert_allclose(y.data, x * 2 + z[::-1], rtol=1e-6)
    np.testing.assert_array_equal(r.data, np.arange(5))


def test_dlpack_out_is_written_in_place(kernel):
    x, z = arrays()
    y, r = np.zeros_like(x), np.zeros(5, "i8")
    kernel(x, 2.0, z, 7, out=(Foreign(y), Foreign(r)))
    np.testing.assert_allclose(y, x * 2 + z, rtol=1e-6)


def test_dlpack_without_elements(kernel):
    x = np.zeros((0, 3), "f4")
    y, _ = kernel(Foreign(x), 2.0, Foreign(x), 7)
    assert y.shape == (0, 3)


def test_dlpack_bf16_comes_back_as_bf16():
    class Framework(Foreign):  # one that has the type, of which numpy's DLPack knows nothing
        namespace = types.SimpleNamespace(from_dlpack=tvm_ffi.from_dlpack)

        def __dlpack__(self, **_):
            return numpy_tensor(self.data, BF16).__dlpack__()

    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    y, _ = handmade("bf16")(Framework(x), 2.0, Framework(x), 7)
    assert str(y.dtype) == "bfloat16"
    bits = np.from_dlpack(y._create_view((2, 3), "uint16"))
    np.testing.assert_array_equal(bits.view(ml_dtypes.bfloat16), x * 3)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
def test_threads_do_all_tasks_once(kernel, threads, rows):
    x, z = arrays(rows)
    check(kernel, x, z, threads=threads)


def test_many_python_threads_call_at_once(kernel):
    failures = []

    def caller(seed):
        try:
            for n in range(1, 60):
                x, z = arrays(n, seed=seed)
                check(kernel, x, z, a=float(seed), threads=2)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=caller, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_pool_does_each_task_once_and_balances():
    lock, done, workers = threading.Lock(), [], set()

    def work(begin, end):
        with lock:
            done.extend(range(begin, end))
            workers.add(threading.current_thread().name)
        time.sleep(0.002)

    POOL.run(work, 100, 3)
    assert sorted(done) == list(range(100))
    assert len(workers) == 3


def test_pool_starts_with_large_chunks_and_ends_with_single_tasks():
    chunks = []
    ThreadPool().run(lambda begin, end: chunks.append(end - begin), 1000, 1)
    assert chunks == sorted(chunks, reverse=True) and chunks[-1] == 1 and sum(chunks) == 1000


def test_pool_raises_what_a_helper_raises():
    def work(begin, end):
        if threading.current_thread() is not threading.main_thread():
            raise KeyError("helper")
        time.sleep(0.01)

    with pytest.raises(KeyError, match="helper"):
        POOL.run(work, 100, 2)
    POOL.run(lambda b, e: None, 100, 2)  # and goes on


def test_concurrent_calls_share_the_helpers():
    lock, now, most = threading.Lock(), [0], [0]
    pool = ThreadPool()

    def work(begin, end):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.003)
        with lock:
            now[0] -= 1

    callers = [threading.Thread(target=pool.run, args=(work, 60, 3)) for _ in range(3)]
    for c in callers:
        c.start()
        time.sleep(0.02)  # the first has its helpers before the next one comes
    for c in callers:
        c.join()
    # Three callers alone would be three; a helper in the middle of a chunk may overlap each.
    assert most[0] <= 5
    assert pool._helpers == 2


def test_small_calls_do_not_wait_for_sleeping_helpers():
    pool = ThreadPool()
    pool._helpers = 1  # one that never comes
    pool.run(lambda b, e: None, 10, 2)  # would never return if it waited


def test_calls_release_the_gil(kernel):
    x, z = arrays(200_000, 64)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    t = threading.Thread(target=tick)
    t.start()
    begin = time.perf_counter()
    for _ in range(5):
        kernel(x, 2.0, z, 7, threads=1)
    end = time.perf_counter()
    stop.set()
    t.join()
    inside = [s for s in ticks if begin < s < end]
    # Were the lock held, the longest gap would be a whole call.
    gaps = np.diff(inside)
    assert len(inside) > 10 and np.median(gaps) < (end - begin) / 5 / 4


def test_threads_from_the_environment(monkeypatch):
    monkeypatch.setenv(pools.VARIABLE, "3")
    assert pools.available_threads() == 3
    monkeypatch.delenv(pools.VARIABLE)
    assert 1 <= pools.available_threads() <= (os.cpu_count() or 1)


def test_scratch_is_per_thread_and_can_be_released(kernel):
    from tilecc.runtime import scratch

    x, z = arrays(50)
    check(kernel, x, z)
    before = scratch._arena.memory
    assert before.ctypes.data % 64 == 0 and before.nbytes >= 4000
    check(kernel, x, z, threads=1)
    assert scratch._arena.memory is before
    scratch.release_scratch()
    check(kernel, x, z, threads=1)
    assert scratch._arena.memory is not before


def test_fork_in_a_process_with_helpers():
    code = (
        "import os, time\n"
        "from tilecc.runtime.pool import POOL\n"
        "POOL.run(lambda b, e: time.sleep(0.001), 20, 3)\n"
        "pid = os.fork()\n"
        "POOL.run(lambda b, e: time.sleep(0.001), 20, 3)\n"
        "os._exit(0) if pid == 0 else None\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_extents_are_kept_for_a_bounded_number_of_shapes(kernel):
    from tilecc.runtime import arguments

    for n in range(arguments._REMEMBERED + 10):
        check(kernel, *arrays(n, 1))
    assert len(kernel._call_binder._extents) <= arguments._REMEMBERED


def test_a_target_that_is_not_here():
    k = handmade(target="canvas")
    with pytest.raises(Exception, match="canvas does not run on this machine"):
        k(arrays()[0], 1.0, arrays()[1], 2)


def test_argument_errors_are_value_errors(kernel):
    with pytest.raises(ValueError):
        kernel(1, 2, 3, 4)
    assert issubclass(ArgumentError, ValueError)


def test_the_peak_does_not_fall_when_other_programs_take_the_cores(monkeypatch):
    alone = fma_peak(1)
    run = POOL.run

    def delayed(work, tasks, threads):
        run(work, tasks, threads)
        time.sleep(0.02)  # as the clock sees it: several times as long as the work

    monkeypatch.setattr(POOL, "run", delayed)
    assert fma_peak(1) > 0.6 * alone

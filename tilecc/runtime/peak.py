"""The most floating point operations per second that this machine does, measured.

The kernel is independent chains of fused multiply-adds in vector registers, compiled and run as
every other kernel is: the same LLVM target, the same threads. That makes it the number to compare
with; the table of machines holds what a data sheet says.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import numpy as np

from tilecc.ir.dtypes import F32, DType
from tilecc.runtime.dlpack import numpy_tensor
from tilecc.runtime.pool import POOL, usable_cores

# Enough chains to hide the latency of an FMA (4 or 5 cycles on up to 2 units), in 16 registers.
CHAINS = 12
_STEPS = 4096
_TASKS_PER_THREAD = 256
_SECONDS = 0.25  # of samples


def fma_peak(threads: int, dtype: DType = F32) -> float:
    """Measured FLOP/s of fused multiply-adds on `threads` threads, as if nothing else ran.

    Kernels are timed by the clock or, where other programs run, by the cores' time that they took.
    So the peak is the better of the best sample by the clock and the median by cores' time: else a
    kernel could be faster than it. A median, since a core whose neighbour rests may be faster than
    all of them are together.
    """
    function, lanes = _kernel(dtype)
    tasks = _TASKS_PER_THREAD * threads
    data = np.zeros((tasks, 2 + CHAINS, lanes), dtype.numpy)
    data[:, 0] = 1  # x and y of a = a * x + y: nothing grows, nothing gets subnormal
    tensor = numpy_tensor(data, dtype)
    operations = 2 * CHAINS * lanes * _STEPS * tasks
    by_clock, by_core = [], [0.0]
    stop = time.perf_counter() + _SECONDS
    while (start := time.perf_counter()) < stop:
        begun = time.process_time()
        POOL.run(lambda begin, end: function(tensor, begin, end), tasks, threads)
        taken = time.process_time() - begun
        by_clock.append(operations / (time.perf_counter() - start))
        if taken > 0:
            by_core.append(operations / taken)
    cores = min(threads, usable_cores())
    return max(*by_clock, cores * statistics.median(by_core))


@functools.cache
def _kernel(dtype: DType) -> tuple[Any, int]:
    """The compiled function (data, begin, end), and how many lanes its vectors have."""
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.tirx.script.builder import ir as T

    from tilecc.host import host
    from tilecc.runtime.build import build_tir

    target = host()
    lanes = target.lanes(dtype.name)
    name = dtype.numpy.name
    with IRBuilder() as ib, T.prim_func(s_tir=True):
        T.func_name("peak")
        T.func_attr({"tirx.noalias": True, "global_symbol": "peak"})
        handle = T.arg("data", T.handle())
        begin, end = T.arg("begin", T.int64()), T.arg("end", T.int64())
        shape = (tirx.Var("tasks", "int64"), 2 + CHAINS, lanes)
        data = T.match_buffer(handle, shape, name, align=dtype.bytes)
        with T.serial(0, end - begin) as t:
            task = begin + t
            acc = T.alloc_buffer((CHAINS * lanes,), name, scope="local")

            def vector(row: int, task: Any = task) -> Any:
                return tirx.BufferLoad(data, [task, row, tirx.Ramp(0, 1, lanes)])

            x, y = T.bind(vector(0)), T.bind(vector(1))
            places = [tirx.Ramp(c * lanes, 1, lanes) for c in range(CHAINS)]
            for c, place in enumerate(places):
                T.buffer_store(acc, vector(2 + c), [place])
            with T.serial(0, _STEPS):
                for place in places:
                    T.buffer_store(acc, tirx.BufferLoad(acc, [place]) * x + y, [place])
            for c, place in enumerate(places):
                value = tirx.BufferLoad(acc, [place])
                T.buffer_store(data, value, [task, 2 + c, tirx.Ramp(0, 1, lanes)])
    return build_tir({"peak": ib.get()}, target)["peak"], lanes

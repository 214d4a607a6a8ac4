"""Calling CUDA kernels: what the driver is told, and what is refused before it is told anything."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tvm_ffi
from gpus import SPACE, FakeDriver, GpuArray

import tilecc as tc
from tilecc.compiler import Compiler
from tilecc.kernel import Kernel
from tilecc.runtime.cuda import arrays
from tilecc.runtime.cuda import driver as driver_module
from tilecc.runtime.cuda.driver import CudaDriver
from tilecc.runtime.cuda.images import Image, choose
from tilecc.runtime.dlpack import numpy_tensor
from tilecc.saved.load import LoadedKernel
from tilecc.target import resolve


@tc.spec
def softmax_of(
    q: tc.Tensor["h i:N d"], k: tc.Tensor["h j:M d"], w: tc.Scalar("int64"), a: tc.Scalar("float32")
):
    s = tc.where(tc.index("i") - tc.index("j") < w, tc.dot(q, k, over="d") * a, -tc.inf)
    return tc.sum(tc.softmax(s, over="j"), over="j"), q


COMPILER = Compiler(softmax_of.trace("float16"), resolve("sm_80"), {"i": 64, "j": 64})
STATIC = {"D": 32}


def kernel(driver, **static) -> Kernel:
    return Kernel(COMPILER, STATIC | static, None, softmax_of, driver=driver)


@pytest.fixture(scope="module")
def compiled():
    """One kernel, whose driver each test replaces by its own through `on`."""
    return kernel(None)


def on(compiled: Kernel, driver: FakeDriver) -> Kernel:
    compiled._given_driver, compiled._call_binder = driver, None
    compiled._variants.executables.clear()
    return compiled


def inputs(n: int = 70, m: int = 100, h: int = 3, index: int = 0) -> list:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((h, n, 32)), rng.standard_normal((h, m, 32))
    return [GpuArray(x.astype(np.float16), index) for x in (q, k)] + [5, 0.5]


def signature(compiled: Kernel, which: int = 0):
    program = compiled._compiler.lower(compiled._variants.latest)
    return program.kernels[which]


def by_name(compiled: Kernel, launch) -> dict:
    k = signature(compiled)
    return {
        (p.kind, p.value.name if p.value else "", p.axis): a
        for p, a in zip(k.params, launch.args, strict=True)
    }


def test_a_launch_is_given_the_arrays_as_they_are(compiled):
    gpu = FakeDriver()
    q, k, w, a = inputs(index=1)
    SPACE.made.clear()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 1), 4711):
        o, copy = on(compiled, gpu)(q, k, w, a)
    assert [o, copy] == SPACE.made and (o.shape, copy.shape) == ((3, 70), (3, 70, 32))
    assert (o.index, o.array.dtype) == (1, np.dtype(np.float16))
    assert q.streams == [-1], "DLPack was asked to wait"
    (launch,) = gpu.launched
    k0 = signature(compiled)
    assert (launch.device, launch.stream, launch.kernel) == (1, 4711, k0.name)
    assert (launch.grid, launch.threads, launch.shared) == (3 * 2, k0.threads, k0.shared)
    given = by_name(compiled, launch)
    assert given["tensor", "q", None] == q.array.ctypes.data
    assert given["tensor", "k", None] == k.array.ctypes.data
    addresses = {v for (kind, _, _), v in given.items() if kind == "tensor"}
    assert addresses == {x.array.ctypes.data for x in (q, k, o, copy)}
    assert [x for (kind, name, axis), x in given.items() if (kind, name) == ("stride", "q")] == [
        70 * 32,
        32,
    ]
    assert {x for (kind, _, _), x in given.items() if kind == "extent"} == {3, 70, 100}
    assert [x for (kind, name, _), x in given.items() if kind == "scalar"] == [5, 0.5]
    assert gpu.loaded[0].image.startswith(b"\x7fELF") and gpu.loaded[0].shared == k0.shared


def test_kernels_are_loaded_once_for_each_gpu(compiled):
    gpu = FakeDriver()
    found = on(compiled, gpu)
    for index in (0, 1, 0):
        found(*inputs(index=index))
    assert [x.device for x in gpu.loaded] == [0, 1]
    assert [x.device for x in gpu.launched] == [0, 1, 0]


def test_arrays_of_any_strides_and_addresses_get_a_kernel_that_takes_them(compiled):
    gpu = FakeDriver()
    _, k, w, a = inputs()
    wide = np.zeros((3, 70, 37), np.float16)
    odd = GpuArray(wide[:, :, 1:33])
    on(compiled, gpu)(odd, k, w, a)
    (launch,) = gpu.launched
    assert launch.kernel == signature(compiled).relaxed.name != signature(compiled).name
    given = dict(
        zip([p.name for p in signature(compiled).relaxed.params], launch.args, strict=True)
    )
    assert wide.ctypes.data + 2 in given.values() and 37 in given.values()
    once = GpuArray(np.zeros((1, 70, 37), np.float16)[:, :64:2, :32])  # strides 2 x 37 elements
    on(compiled, gpu)(once, GpuArray(k.array[:1]), w, a)
    assert gpu.launched[-1].kernel == signature(compiled).relaxed.name


def test_no_blocks_no_launch(compiled):
    gpu = FakeDriver()
    o, _ = on(compiled, gpu)(*inputs(n=0))
    assert gpu.launched == [] and o.shape == (3, 0)


def test_a_tensor_of_no_elements_has_memory_behind_it(compiled):
    gpu = FakeDriver()
    q, k, w, a = inputs(m=0)
    SPACE.made.clear()
    on(compiled, gpu)(q, k, w, a)
    lent = next(x for x in SPACE.made if x.array.ndim == 1)
    given = by_name(compiled, gpu.launched[0])
    start = lent.array.ctypes.data
    assert start < given["tensor", "k", None] < start + lent.array.nbytes
    assert [x for (kind, name, _), x in given.items() if (kind, name) == ("stride", "k")] == [0, 0]


def test_outputs_that_are_given(compiled):
    gpu = FakeDriver()
    q, k, w, a = inputs()
    out = GpuArray(np.empty((3, 70), np.float16))
    copy = GpuArray(np.empty((3, 70, 32), np.float16))
    assert on(compiled, gpu)(q, k, w, a, out=(out, copy)) == (out, copy)
    given = {x for x in gpu.launched[0].args if isinstance(x, int)}
    assert {out.array.ctypes.data, copy.array.ctypes.data} <= given
    for bad, message in (
        ((out.array, copy), r"out\[0\] is on the CPU"),
        ((out, q), r"out\[1\] overlaps argument q in memory"),
        ((out, GpuArray(copy.array[:2])), r"out\[1\] has 2 along axis h, where the output has 3"),
        ((out,), "out= holds 1 arrays, and there are 2 outputs"),
    ):
        with pytest.raises(tc.ArgumentError, match=message):
            on(compiled, gpu)(q, k, w, a, out=bad)
    assert len(gpu.launched) == 1


REFUSED = {
    "numpy": (
        lambda q, k: (q.array, k),
        r"argument q is on the CPU, and this kernel runs on a GPU\n.*tc\.emulate",
    ),
    "a CPU tensor": (
        lambda q, k: (q, GpuArray(k.array, kind=1)),
        r"argument k is on the CPU, and this kernel runs on a GPU",
    ),
    "another device": (
        lambda q, k: (q, GpuArray(k.array, kind=8)),
        r"argument k is on a device of DLPack type 8, and this kernel runs on an NVIDIA GPU",
    ),
    "two GPUs": (
        lambda q, k: (q, GpuArray(k.array, 1)),
        "argument k is on GPU 1, and q on GPU 0",
    ),
    "another dtype": (
        lambda q, k: (GpuArray(q.array.astype(np.float32)), k),
        "argument q has dtype float32, where the kernel takes float16",
    ),
    "stride of the last axis": (
        lambda q, k: (GpuArray(np.zeros((3, 70, 64), np.float16)[..., ::2]), k),
        "argument q has stride 2 along axis d, its last, which must be 1",
    ),
    "extents": (
        lambda q, k: (q, GpuArray(k.array[:2])),
        "argument k has 2 along axis h, where argument q has 3",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_that_are_refused(compiled, case):
    gpu = FakeDriver()
    change, message = REFUSED[case]
    q, k, w, a = inputs()
    with pytest.raises(tc.ArgumentError, match=message):
        on(compiled, gpu)(*change(q, k), w, a)
    assert gpu.launched == [] and gpu.loaded == []


MACHINES = {
    "too little shared memory": (
        FakeDriver(shared=1000),
        r"kernel softmax_of_0 needs \d+ bytes of shared memory, and Test GPU has 1000",
    ),
    "too few threads": (
        FakeDriver(threads=64),
        "needs 128 threads in a block, and Test GPU has 64",
    ),
    "older": (
        FakeDriver(arch=(7, 5)),
        r"kernel softmax_of_0 is compiled for sm_80, and Test GPU \(device 0, sm_75\) does not run",
    ),
    "an old driver": (
        FakeDriver(cuda=(12, 4)),
        r"kernel softmax_of_0 needs a driver for CUDA 13\.0 or later, and this one is for 12\.4\n"
        r".*upgrade the driver",
    ),
}


@pytest.mark.parametrize("case", MACHINES)
def test_machines_that_cannot_run_it(compiled, case):
    gpu, message = MACHINES[case]
    with pytest.raises(tc.CompileError, match=message):
        on(compiled, gpu)(*inputs())
    assert gpu.launched == [] and gpu.loaded == []


def test_too_many_blocks(compiled):
    gpu = FakeDriver(grid=5)
    with pytest.raises(tc.ArgumentError, match="takes 6 blocks, and a grid has 5 at most"):
        on(compiled, gpu)(*inputs())
    assert gpu.launched == []


def images(*names: str) -> list[Image]:
    kinds = [(n.split()[0], n.split()[1]) for n in names]
    return [Image(arch, kind, (13, 0), f"{arch} {kind}".encode()) for arch, kind in kinds]


@pytest.mark.parametrize(
    ("there", "arch", "chosen"),
    [
        (("sm_80 cubin", "sm_80 ptx"), (8, 0), "sm_80 cubin"),
        (("sm_80 cubin", "sm_80 ptx"), (8, 9), "sm_80 cubin"),
        (("sm_80 cubin", "sm_80 ptx"), (9, 0), "sm_80 ptx"),
        (("sm_80 cubin", "sm_90 cubin", "sm_80 ptx"), (9, 0), "sm_90 cubin"),
        (("sm_80 cubin", "sm_86 cubin", "sm_89 cubin"), (8, 6), "sm_86 cubin"),
        (("sm_80 ptx", "sm_90 ptx"), (10, 0), "sm_90 ptx"),
        (("sm_90a cubin", "sm_90a ptx", "sm_80 ptx"), (10, 0), "sm_80 ptx"),
        (("sm_90a cubin", "sm_90 cubin"), (9, 0), "sm_90a cubin"),
        (("sm_90a cubin", "sm_90a ptx"), (10, 0), None),
        (("sm_80 cubin",), (9, 0), None),
        (("sm_90 cubin", "sm_90 ptx"), (8, 9), None),
    ],
)
def test_the_binary_for_a_gpu(there, arch, chosen):
    if chosen is None:
        with pytest.raises(tc.CompileError, match="is compiled for sm_"):
            choose(images(*there), "k", 0, FakeDriver(arch))
    else:
        assert choose(images(*there), "k", 0, FakeDriver(arch)).data.decode() == chosen


def test_ptx_needs_a_driver_of_its_version_and_machine_code_one_of_its_major_version():
    newer = [Image("sm_80", "cubin", (13, 1), b"cubin"), Image("sm_80", "ptx", (13, 1), b"ptx")]
    assert choose(newer, "k", 0, FakeDriver(cuda=(13, 0))).kind == "cubin"
    with pytest.raises(tc.CompileError, match=r"needs a driver for CUDA 13\.1 or later"):
        choose(newer, "k", 0, FakeDriver((9, 0), cuda=(13, 0)))


def test_streams_of_libraries(monkeypatch):
    class Tensor:
        __module__ = "torch"

    seen = []
    current = lambda device: seen.append(device) or SimpleNamespace(cuda_stream=99)  # noqa: E731
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=current), from_dlpack=None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert arrays.current_stream(Tensor(), 3) == 99 and seen == [3]

    @arrays.CURRENT_WORK_STREAM
    def stream(kind, device, out):
        out[0] = 1000 * kind + device
        return 0

    table = arrays.ExchangeApi(1, 3, None, None, None, None, None, stream)
    Tensor.__dlpack_c_exchange_api__ = ctypes.addressof(table)
    assert arrays.current_stream(Tensor(), 3) == 2003
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    Tensor.__dlpack_c_exchange_api__ = new(ctypes.addressof(table), b"dlpack_exchange_api", None)
    assert arrays.current_stream(Tensor(), 4) == 2004


def test_outputs_of_libraries(monkeypatch):
    from tilecc.ir.dtypes import BF16, F32

    class Array:
        __module__ = "cupy"
        device = None

    entered = []

    class Device:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            entered.append(self.index)

        def __exit__(self, *_):
            entered.append("out")

    make = lambda shape, dtype: (shape, dtype, list(entered))  # noqa: E731
    cupy = SimpleNamespace(
        from_dlpack=None, cuda=SimpleNamespace(Device=Device), empty=make, float32="f4"
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert arrays.allocate(Array(), (2, 3), F32, 1) == ((2, 3), "f4", [1])
    assert entered == [1, "out"]
    with pytest.raises(arrays.Refused, match=r"of type bfloat16 cannot be made by .* cupy"):
        arrays.allocate(Array(), (2, 3), BF16, 1)
    with pytest.raises(arrays.Refused, match=r"cannot be made by the library of tvm.*\.Tensor"):
        arrays.allocate(numpy_tensor(np.zeros(3, np.float32), F32), (2,), F32, 0)


@pytest.fixture
def no_driver(monkeypatch):
    driver_module.driver.cache_clear()
    monkeypatch.setattr(driver_module, "LIBRARY", "libtilecc-has-no-such.so.1")
    yield
    driver_module.driver.cache_clear()


def test_without_a_driver_the_emulator_is_offered(compiled, no_driver):
    q, k, w, a = inputs()
    for args in ((q, k, w, a), (q.array, k.array, w, a)):
        with pytest.raises(
            tc.CompileError, match=r"has no NVIDIA driver .*\n.*tc\.emulate\(kernel"
        ):
            on(compiled, None)(*args)


def test_a_saved_kernel_is_loaded_and_refused_for_want_of_a_device(compiled, no_driver, tmp_path):
    path = tmp_path / "k.tcc"
    compiled.save(path, archs=["sm_90", "l4"])
    loaded = tc.load(path)
    assert "__global__" in loaded.ir("cuda") and ".target sm_80" in loaded.ir("ptx")
    assert loaded.ir("cuda") == compiled.ir("cuda") and loaded.ir("ptx") == compiled.ir("ptx")
    assert loaded.resources() == [r.to_json() for r in compiled.resources()]
    with pytest.raises(tc.CompileError, match=r"has no NVIDIA driver"):
        loaded(*inputs())
    q, k, w, a = inputs()
    for arch, start in (((8, 0), b"\x7fELF"), ((8, 9), b"\x7fELF"), ((9, 0), b"\x7fELF")):
        gpu = FakeDriver(arch)
        o, copy = LoadedKernel(str(path), driver=gpu)(q, k, w, a)
        live = FakeDriver()
        on(compiled, live)(q, k, w, a)
        mine, its = gpu.launched[0], live.launched[0]
        assert (mine.grid, mine.threads, mine.shared) == (its.grid, its.threads, its.shared)
        assert len(mine.args) == len(its.args) and (o.shape, copy.shape) == ((3, 70), (3, 70, 32))
        assert sum(x != y for x, y in zip(mine.args, its.args, strict=True)) == 2, "but the outputs"
        assert gpu.loaded[0].image.startswith(start)
    newest = FakeDriver((12, 0))
    LoadedKernel(str(path), driver=newest)(q, k, w, a)
    assert b".target sm_90" in newest.loaded[0].image
    with pytest.raises(tc.CompileError, match="compiled for GPUs, and x86-64-v3 is none"):
        compiled.save(path, archs=["x86-64-v3"])


def test_a_saved_kernel_is_emulated_from_its_ptx(compiled, tmp_path, monkeypatch):
    path = tmp_path / "k.tcc"
    compiled.save(path)
    rng = np.random.default_rng(1)
    q, k = (rng.standard_normal((2, n, 32)).astype(np.float16) for n in (33, 70))
    monkeypatch.setattr("tilecc.toolchain.compile_cuda", None)  # the file has what it takes
    found = tc.emulate(tc.load(path), q, k, 5, 0.5)
    assert found.check.ok and found.check.compared == 2 * 33 + q.size
    assert found.bytes_read["k"] == found.predicted.bytes_read["k"] > 0
    with pytest.raises(tc.ArgumentError, match="argument k has 3 along axis h"):
        tc.emulate(tc.load(path), q, np.zeros((3, 70, 32), np.float16), 5, 0.5)


class Library:
    """libcuda as a table of functions that take what ctypes gives them."""

    def __init__(self, **functions):
        self.calls = []
        for name, f in functions.items():
            setattr(self, name, _Function(name, f, self.calls))

    def __getattr__(self, name):
        found = _Function(name, lambda *a: 0, self.calls)
        setattr(self, name, found)
        return found


class _Function:
    def __init__(self, name, f, calls):
        self.name, self.f, self.calls = name, f, calls

    def __call__(self, *args):
        self.calls.append(self.name)
        return self.f(*args) or 0


def put(value):
    def f(where, *_):
        where._obj.value = value

    return f


def error_name(code, where):
    where._obj.value = b"CUDA_ERROR_TEST"


def test_the_driver_is_called_as_its_header_says():
    launched, retained = [], []

    def retain(where, device):
        where._obj.value = 0xC0
        retained.append(device)

    lib = Library(
        cuDriverGetVersion=put(13010),
        cuDeviceGetCount=put(2),
        cuDeviceGet=lambda where, device: setattr(where._obj, "value", 100 + device),
        cuDevicePrimaryCtxRetain=retain,
        cuCtxGetCurrent=put(None),
        cuModuleLoadData=put(0xD0),
        cuModuleGetFunction=put(0xF0),
        cuDeviceGetAttribute=lambda where, a, d: setattr(where._obj, "value", a),
        cuLaunchKernel=lambda *a: launched.append(a),
    )
    gpu = CudaDriver(lib)
    assert (gpu.version(), gpu.devices()) == ((13, 1), 2)
    assert gpu.capability(0) == (75, 76) and gpu.limits(0) == (97, 1, 5)
    function = gpu.load(1, b"image", "k", 50000)
    assert function == 0xF0 and retained == [101]
    del lib.calls[:]
    args = [ctypes.c_void_p(16), ctypes.c_int64(-3), ctypes.c_float(0.5)]
    gpu.launch(1, function, 7, 128, 50000, 4711, args)
    assert lib.calls == [
        "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuLaunchKernel", "cuCtxPopCurrent_v2",
    ]  # fmt: skip
    (call,) = launched
    assert call[:9] == (0xF0, 7, 1, 1, 128, 1, 1, 50000, 4711) and call[10] is None
    second = ctypes.cast(call[9][1], ctypes.POINTER(ctypes.c_int64))
    assert second[0] == -3
    lib.cuCtxGetCurrent = _Function("cuCtxGetCurrent", put(0xC0), lib.calls)
    del lib.calls[:]
    gpu.launch(1, function, 7, 128, 0, 0, args)
    assert lib.calls == ["cuCtxGetCurrent", "cuLaunchKernel"], "the context is current already"


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            {"cuInit": lambda n: 100},
            r"the NVIDIA driver cannot start: CUDA_ERROR_TEST \(100\)\n.*tc\.emulate",
        ),
        ({"cuDeviceGetCount": put(0)}, r"has a driver and no GPU\n.*tc\.emulate"),
    ],
)
def test_a_driver_that_does_not_start(monkeypatch, functions, message):
    lib = Library(cuGetErrorName=error_name, **functions)
    driver_module.driver.cache_clear()
    monkeypatch.setattr(driver_module.ctypes, "CDLL", lambda name: lib)
    with pytest.raises(tc.CompileError, match=message):
        driver_module.driver()
    driver_module.driver.cache_clear()


def test_what_the_driver_refuses():
    lib = Library(cuGetErrorName=error_name, cuModuleLoadData=lambda *a: 218)
    with pytest.raises(tc.CompileError, match=r"cannot load k: CUDA_ERROR_TEST \(218\)"):
        CudaDriver(lib).load(0, b"", "k", 0)


def test_a_cpu_kernel_has_no_report_on_a_gpu():
    found = Kernel(Compiler(softmax_of.trace("float32"), resolve("canvas"), 1), STATIC, build=False)
    with pytest.raises(
        tc.CompileError, match=r"canvas is not a GPU: there is no report .*\n.*sm_80"
    ):
        found.resources()
    with pytest.raises(tc.CompileError, match="a kernel for canvas does not run on this machine"):
        found(*inputs())

"""NVIDIA's driver through its C interface (libcuda.so.1): no CUDA toolkit, no bindings."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Protocol

from tilecc.errors import CompileError, Diagnostic

LIBRARY = "libcuda.so.1"
EMULATE = "tc.emulate(kernel, ...) runs it without a GPU"

# CUdevice_attribute and CUfunction_attribute (cuda.h).
_THREADS_PER_BLOCK, _GRID_X, _MAJOR, _MINOR, _SHARED_OPTIN = 1, 5, 75, 76, 97
_DYNAMIC_SHARED = 8

# Arguments of functions that get addresses as Python numbers.
_ARGUMENTS: dict[str, list[Any]] = {
    "cuCtxPushCurrent_v2": [ctypes.c_void_p],
    "cuLaunchKernel": [
        ctypes.c_void_p,
        *[ctypes.c_uint] * 7,
        *[ctypes.c_void_p] * 3,
    ],
}

Handle = int


class Driver(Protocol):
    """What running needs of a driver. Devices are numbers; sizes are bytes."""

    def version(self) -> tuple[int, int]:
        """The newest CUDA version that the driver supports."""

    def devices(self) -> int:
        """How many GPUs there are."""

    def name(self, device: int) -> str:
        """What a GPU is called."""

    def capability(self, device: int) -> tuple[int, int]:
        """Its compute capability."""

    def limits(self, device: int) -> tuple[int, int, int]:
        """Shared memory and threads that a block may have, and blocks that a grid may."""

    def load(self, device: int, image: bytes, name: str, shared: int) -> Handle:
        """A kernel of a cubin or PTX, allowed `shared` bytes of dynamic shared memory."""

    def launch(
        self,
        device: int,
        function: Handle,
        grid: int,
        threads: int,
        shared: int,
        stream: int,
        args: Sequence[Any],
    ) -> None:
        """Start a kernel on a stream, with arguments as ctypes values, and do not wait for it."""


class CudaDriver:
    """The machine's own."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        for name, types in _ARGUMENTS.items():
            getattr(lib, name).argtypes = types
        self._contexts: dict[int, int] = {}
        self._check(lib.cuInit(0), "start")

    def version(self) -> tuple[int, int]:
        """The newest CUDA version that the driver supports."""
        n = ctypes.c_int()
        self._check(self.lib.cuDriverGetVersion(ctypes.byref(n)), "tell its version")
        return n.value // 1000, n.value % 1000 // 10

    def devices(self) -> int:
        """How many GPUs there are."""
        n = ctypes.c_int()
        self._check(self.lib.cuDeviceGetCount(ctypes.byref(n)), "count the devices")
        return n.value

    def name(self, device: int) -> str:
        """What a GPU is called."""
        text = ctypes.create_string_buffer(256)
        self._check(self.lib.cuDeviceGetName(text, 256, self._handle(device)), "name a device")
        return text.value.decode(errors="replace")

    def capability(self, device: int) -> tuple[int, int]:
        """Its compute capability."""
        return self._attribute(_MAJOR, device), self._attribute(_MINOR, device)

    def limits(self, device: int) -> tuple[int, int, int]:
        """Shared memory and threads that a block may have, and blocks that a grid may."""
        wanted = (_SHARED_OPTIN, _THREADS_PER_BLOCK, _GRID_X)
        shared, threads, grid = (self._attribute(a, device) for a in wanted)
        return shared, threads, grid

    def load(self, device: int, image: bytes, name: str, shared: int) -> Handle:
        """A kernel of a cubin or PTX, allowed `shared` bytes of dynamic shared memory."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        data = ctypes.create_string_buffer(image)  # PTX ends in a zero
        with self._current(device):
            self._check(self.lib.cuModuleLoadData(ctypes.byref(module), data), f"load {name}")
            found = self.lib.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
            self._check(found, f"find {name}")
            done = self.lib.cuFuncSetAttribute(function, _DYNAMIC_SHARED, shared)
            self._check(done, f"give {name} {shared} bytes of shared memory")
        return function.value or 0

    def launch(
        self,
        device: int,
        function: Handle,
        grid: int,
        threads: int,
        shared: int,
        stream: int,
        args: Sequence[Any],
    ) -> None:
        """Start a kernel on a stream, with arguments as ctypes values, and do not wait for it."""
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(a) for a in args))
        with self._current(device):
            code = self.lib.cuLaunchKernel(
                function, grid, 1, 1, threads, 1, 1, shared, stream, pointers, None
            )
        self._check(code, "launch a kernel")

    def _current(self, device: int) -> _Context:
        if device not in self._contexts:
            context = ctypes.c_void_p()
            done = self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._handle(device))
            self._check(done, f"open device {device}")
            self._contexts[device] = context.value or 0
        return _Context(self, self._contexts[device])

    def _handle(self, device: int) -> int:
        """The driver's CUdevice for a device's number."""
        n = ctypes.c_int()
        self._check(self.lib.cuDeviceGet(ctypes.byref(n), device), f"find device {device}")
        return n.value

    def _attribute(self, attribute: int, device: int) -> int:
        n = ctypes.c_int()
        done = self.lib.cuDeviceGetAttribute(ctypes.byref(n), attribute, self._handle(device))
        self._check(done, f"describe device {device}")
        return n.value

    def _check(self, code: int, what: str) -> None:
        if code:
            name = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(name))
            known = (name.value or b"an unknown error").decode()
            raise CompileError(f"the NVIDIA driver cannot {what}: {known} ({code})")


class _Context:
    """A device's primary context, made current for a while if it is not."""

    def __init__(self, driver: CudaDriver, context: int) -> None:
        self.driver, self.context, self.pushed = driver, context, False

    def __enter__(self) -> None:
        lib, current = self.driver.lib, ctypes.c_void_p()
        self.driver._check(lib.cuCtxGetCurrent(ctypes.byref(current)), "tell its context")
        if current.value != self.context:
            self.driver._check(lib.cuCtxPushCurrent_v2(self.context), "change its context")
            self.pushed = True

    def __exit__(self, *_: object) -> None:
        if self.pushed:
            self.driver.lib.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@functools.cache
def driver() -> Driver:
    """This machine's driver.

    Raises:
        CompileError: there is none, or no GPU.
    """
    try:
        lib = ctypes.CDLL(LIBRARY)
    except OSError as e:
        message = (
            f"this machine has no NVIDIA driver ({LIBRARY}), which running a CUDA kernel needs"
        )
        raise CompileError(Diagnostic(message, None, EMULATE)) from e
    try:
        found = CudaDriver(lib)
        count = found.devices()
    except CompileError as e:
        raise CompileError(Diagnostic(str(e), None, EMULATE)) from e
    if count == 0:
        raise CompileError(Diagnostic("this machine has a driver and no GPU", None, EMULATE))
    return found

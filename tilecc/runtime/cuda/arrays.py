"""Arrays on a GPU: read without a copy or a wait, made by the library that the inputs come from."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm_ffi

from tilecc.ir.dtypes import DType
from tilecc.runtime.arguments import Held, Refused, array_namespace, foreign, last_stride, long_name

CUDA = 2  # kDLCUDA
_NO_SYNC = -1  # __dlpack__(stream=-1): the consumer sees to the order of work itself


CURRENT_WORK_STREAM: Any = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class ExchangeApi(ctypes.Structure):
    """DLPackExchangeAPI (dlpack.h, 1.3): what a library's array type offers to C."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("view_of_object", ctypes.c_void_p),
        (
            "current_work_stream",
            CURRENT_WORK_STREAM,
        ),
    )


def device_tensor(x: Any, t: DType, names: Sequence[str], *, writable: bool = False) -> Held:
    """An array on a GPU as a tensor of dtype `t`, without a copy or a wait.

    Raises:
        Refused: it is on the CPU, or of another dtype or layout.
    """
    if isinstance(x, np.ndarray):
        raise _on_host()
    h = foreign(x, t, CUDA, _read, _elsewhere)
    if h.shape and len(h.shape) == len(names) and 0 not in h.shape:
        last_stride(h, names)
    return h


def _elsewhere(x: Any, kind: int) -> Refused:
    if kind == 1:
        return _on_host()
    return Refused(f"is on a device of DLPack type {kind}, and this kernel runs on an NVIDIA GPU")


def _on_host() -> Refused:
    hint = "move it to the GPU, as x.cuda() does; tc.emulate(kernel, ...) takes arrays of the CPU"
    return Refused("is on the CPU, and this kernel runs on a GPU", hint)


def _read(x: Any) -> Any:
    if hasattr(x, "__dlpack_c_exchange_api__"):
        return tvm_ffi.from_dlpack(x)
    try:
        capsule = x.__dlpack__(stream=_NO_SYNC)
    except TypeError:  # it knows no streams
        capsule = x.__dlpack__()
    return tvm_ffi.from_dlpack(capsule)


def device_of(h: Held) -> int:
    """The number of the GPU that an argument is on."""
    return int(h.tensor.device.index)


def current_stream(x: Any, device: int) -> int:
    """The stream that the library of `x` puts its work on, as a CUstream; 0 is the default one."""
    api = getattr(type(x), "__dlpack_c_exchange_api__", None)
    if api is not None:
        found = _stream_of_api(api, device)
        if found is not None:
            return found
    library = type(x).__module__.partition(".")[0]
    if library in _STREAMS:
        return int(_STREAMS[library](array_namespace(x), device))
    return int(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", device)))


def _stream_of_api(api: Any, device: int) -> int | None:
    if not isinstance(api, int):
        api = _capsule_pointer(api, b"dlpack_exchange_api")
    table = ExchangeApi.from_address(api)
    if not table.current_work_stream:
        return None
    stream = ctypes.c_void_p()
    if table.current_work_stream(CUDA, device, ctypes.byref(stream)):
        return None
    return stream.value or 0


_capsule_pointer: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

# Libraries whose arrays may lack the C interface.
_STREAMS: dict[str, Callable[[Any, int], int]] = {
    "torch": lambda torch, device: torch.cuda.current_stream(device).cuda_stream,
    "cupy": lambda cupy, device: cupy.cuda.get_current_stream(device).ptr,
}


def allocate(
    like: Any, shape: tuple[int, ...], t: DType, device: int, *, zero: bool = False
) -> Any:
    """A new array of the library of `like`, on the device.

    Raises:
        Refused: the library makes none of this dtype, or is not known to make any.
    """
    space = array_namespace(like)
    name = long_name(t)
    dtype = getattr(space, name, None)
    make = getattr(space, "zeros" if zero else "empty", None)
    if make is None or dtype is None:
        kind = f"{type(like).__module__}.{type(like).__qualname__}"
        raise Refused(f"of type {name} cannot be made by the library of {kind}", "pass out=")
    if hasattr(space, "cuda") and hasattr(space.cuda, "Device") and not hasattr(like, "is_cuda"):
        with space.cuda.Device(device):  # cupy: the current device, and no device=
            return make(shape, dtype=dtype)
    return make(shape, dtype=dtype, device=like.device)

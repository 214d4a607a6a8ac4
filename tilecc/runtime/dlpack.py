"""Arrays as the tensors that compiled functions take, with no copy.

numpy exports most arrays through DLPack. The rest (read-only arrays, bf16 and f8, arrays of no
elements) is exported as a near relative whose header is then corrected: a tvm_ffi tensor holds a
DLTensor of its own, and that is ours to change.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import tvm_ffi

from tilecc.ir.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]

CPU = 1  # kDLCPU
# DLDataTypeCode of the element types that numpy cannot export, and what they are exported as.
_CODES = {"bf16": 4, "f8e4m3": 10, "f8e5m2": 12}
_STAND_IN: dict[int, Any] = {8: np.uint8, 16: np.uint16}
# sizeof(TVMFFIObject): the header before the DLTensor in a tensor object (tvm/ffi/c_api.h).
_OBJECT_HEADER = 24


class _DLTensor(ctypes.Structure):
    """dlpack.h"""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Writable:
    """The memory of a read-only array, which a kernel reads and numpy would not export."""

    def __init__(self, x: Array) -> None:
        self.keep = x
        interface = dict(x.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def dlpack_tensor(x: Any) -> Any:
    """Any object with `__dlpack__` as a tvm_ffi tensor."""
    return tvm_ffi.from_dlpack(x, require_alignment=0, require_contiguous=False)


def numpy_tensor(x: Array, t: DType) -> Any:
    """A numpy array with elements of type `t` as a tvm_ffi tensor, which keeps the array alive."""
    code = _CODES.get(t.name)
    if code is not None:
        x = x.view(_STAND_IN[t.bits])
    if not x.flags.writeable:
        x = np.asarray(_Writable(x))
    tensor = dlpack_tensor(x)
    if code is not None:
        _header(tensor).code = code
    return tensor


def unit_stride(tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> object:
    """Give the innermost axis stride 1, where it has one element.

    Compiled functions check that stride. Returns what must live as long as the tensor.
    """
    new = (ctypes.c_int64 * len(shape))(*strides[:-1], 1)
    _header(tensor).strides = ctypes.cast(new, ctypes.POINTER(ctypes.c_int64))
    return new


def lend_zeros(tensor: Any, shape: tuple[int, ...], bytes: int) -> object:
    """Put memory behind a tensor of no elements, whose `bytes` are those of one.

    A kernel may read there through a table, though no result depends on it. Every row is the same
    one, with some room at both ends. Returns what must live as long as the tensor.
    """
    room = 128
    zeros = np.zeros(max(shape[-1], 1) * bytes + 3 * room, np.uint8)
    strides = (ctypes.c_int64 * len(shape))(*[0] * (len(shape) - 1), 1)
    header = _header(tensor)
    header.data = zeros.ctypes.data + room + -zeros.ctypes.data % 64
    header.byte_offset = 0
    header.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    return zeros, strides


def _header(tensor: Any) -> _DLTensor:
    header = _DLTensor.from_address(tensor.__chandle__() + _OBJECT_HEADER)
    assert header.data in (tensor.data_ptr(), None), "tvm_ffi's tensor object has another layout"
    return header

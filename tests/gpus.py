"""A GPU that is none: arrays that say they are on one, and a driver that notes what it is told.

The arrays' memory is numpy's, so a test can read what a kernel would be given.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from tilecc.ir.dtypes import dtype
from tilecc.runtime.dlpack import _header, numpy_tensor


class GpuArray:
    """A numpy array that DLPack takes for one on a GPU."""

    def __init__(self, array: np.ndarray, index: int = 0, kind: int = 2) -> None:
        self.array, self.index, self.kind = array, index, kind
        self.device = f"gpu:{index}"
        self.streams: list = []

    @property
    def shape(self):
        return self.array.shape

    def __array_namespace__(self):
        return SPACE

    def __dlpack_device__(self):
        return self.kind, self.index

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        tensor = numpy_tensor(self.array, dtype(self.array.dtype))
        header = _header(tensor)
        header.device_type, header.device_id = self.kind, self.index
        return tensor.__dlpack__()


def _make(make, shape, dtype, device):
    made = GpuArray(make(shape, dtype), int(device.partition(":")[2]))
    SPACE.made.append(made)
    return made


SPACE = SimpleNamespace(
    from_dlpack=None,
    empty=lambda shape, *, dtype, device: _make(np.empty, shape, dtype, device),
    zeros=lambda shape, *, dtype, device: _make(np.zeros, shape, dtype, device),
    float32=np.float32,
    float16=np.float16,
    made=[],
)


@dataclass
class FakeDriver:
    """A machine with GPUs of one kind."""

    arch: tuple[int, int] = (8, 0)
    cuda: tuple[int, int] = (13, 0)
    shared: int = 163 * 1024
    threads: int = 1024
    grid: int = 2**31 - 1
    loaded: list = field(default_factory=list)
    launched: list = field(default_factory=list)

    def version(self):
        return self.cuda

    def devices(self):
        return 2

    def name(self, device):
        return "Test GPU"

    def capability(self, device):
        return self.arch

    def limits(self, device):
        return self.shared, self.threads, self.grid

    def load(self, device, image, name, shared):
        self.loaded.append(SimpleNamespace(device=device, image=image, name=name, shared=shared))
        return len(self.loaded)

    def launch(self, device, function, grid, threads, shared, stream, args):
        assert all(isinstance(a, ctypes._SimpleCData) for a in args)
        found = SimpleNamespace(
            device=device,
            kernel=self.loaded[function - 1].name,
            grid=grid,
            threads=threads,
            shared=shared,
            stream=stream,
            args=[a.value or 0 for a in args],
        )
        self.launched.append(found)

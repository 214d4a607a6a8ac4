"""Scratch memory: an arena for each thread, grown to the largest kernel that the thread has run."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from tilecc.codegen.program import KernelEntry, ScratchBuffer
from tilecc.ir.dtypes import DTYPES
from tilecc.runtime.dlpack import Array, numpy_tensor

ALIGNMENT = 64


def _aligned(size: int) -> Array:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


class _Arena(threading.local):
    """One thread's memory, and the tensors in it by kernel."""

    def __init__(self) -> None:
        self.memory = _aligned(0)
        self.views: weakref.WeakKeyDictionary[Scratch, list[Any]] = weakref.WeakKeyDictionary()
        self.generation = 0


_arena = _Arena()
_generation = 0


def release_scratch() -> None:
    """Let every thread drop its scratch memory before its next kernel."""
    global _generation
    _generation += 1


class Scratch:
    """The scratch buffers of one kernel, laid out one behind another."""

    def __init__(self, entry: KernelEntry) -> None:
        self.buffers = entry.scratch
        self.offsets = []
        self.bytes = 0
        for b in self.buffers:
            self.offsets.append(self.bytes)
            self.bytes += -(-b.size * b.dtype.bytes // ALIGNMENT) * ALIGNMENT

    def tensors(self) -> list[Any]:
        """The buffers in the calling thread's arena, valid while that thread runs the kernel."""
        arena = _arena
        if arena.generation != _generation or self.bytes > arena.memory.nbytes:
            arena.memory = _aligned(self.bytes)
            arena.views.clear()
            arena.generation = _generation
        found = arena.views.get(self)
        if found is None:
            places = zip(self.buffers, self.offsets, strict=True)
            found = [self._view(arena.memory, b, offset) for b, offset in places]
            arena.views[self] = found
        return found

    def _view(self, memory: Array, buffer: ScratchBuffer, offset: int) -> Any:
        dtype = DTYPES[buffer.dtype.name]
        part = memory[offset : offset + buffer.size * dtype.bytes]
        return numpy_tensor(part.view(dtype.numpy), dtype)

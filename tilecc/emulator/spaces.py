"""State spaces: where addresses lead.

Tensors lie far apart, each in a slot of its own, so that an address outside of a tensor is in no
other one, and is known to be wrong. Generic addresses of shared and local memory are in windows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilecc.emulator.types import Array, EmulatorError

WINDOWS = {"global": 0, "const": 0, "shared": 1 << 40, "local": 1 << 41}
_WINDOW_BITS = 40
_SLOT_BITS = 37
_FIRST_SLOT = 0x7000_0000_0000 >> _SLOT_BITS
_GUARD = 1 << (_SLOT_BITS - 1)
_ALIGNMENT = 256
"""Of allocations on a device."""
SHARED_BASE = 1024
LOCAL_BASE = 256


def space_of(addresses: Array) -> Array:
    """Names of the state spaces that generic addresses lie in."""
    window = addresses >> np.uint64(_WINDOW_BITS)
    return np.where(window == 1, "shared", np.where(window == 2, "local", "global"))


def alignment_offset(array: Array) -> int:
    """Where an array's first element lies within 256 bytes on a device.

    Allocations start at multiples of that; a view lies as far from the start as it does here.
    """
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    start = np.lib.array_utils.byte_bounds(owner)[0]
    return int(array.ctypes.data - start) % _ALIGNMENT


@dataclass
class Region:
    """A tensor's memory at an address of the emulated device."""

    name: str
    base: int
    memory: Array
    """All its bytes."""
    tensor: bool = True
    """False for variables of the module, whose traffic is not a tensor's."""
    writable: bool = True
    reads: Array | None = None
    writes: Array | None = None
    _views: dict[tuple[int, int], Array] = field(default_factory=dict)

    def rows(self, width: int, count: int) -> Array:
        """Memory as rows of `count` words of `width` bytes, without what is left at the end."""
        found = self._views.get((width, count))
        if found is None:
            whole = len(self.memory) // (width * count) * (width * count)
            found = self.memory[:whole].view(f"u{width}").reshape(-1, count)
            self._views[width, count] = found
        return found


class GlobalMemory:
    """All regions. Every one starts as aligned as it would be on a device."""

    def __init__(self) -> None:
        self.regions: list[Region] = []

    def add_array(self, name: str, array: Array) -> int:
        """Map an array's own memory; the address of its first element."""
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
        shift = 0
        if array.size:
            shift = (alignment_offset(array) - (array.ctypes.data - low)) % _ALIGNMENT
            memory = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
        else:
            memory = np.zeros(0, np.uint8)
        base = self._place(name, memory, shift, writable=array.flags.writeable)
        return base + (array.ctypes.data - low if array.size else 0)

    def add_variable(self, name: str, content: bytes, writable: bool) -> int:
        """A module's variable; its address."""
        memory = np.frombuffer(bytearray(content), np.uint8)
        return self._place(name, memory, 0, tensor=False, writable=writable)

    def _place(self, name: str, memory: Array, shift: int, **facts: Any) -> int:
        if len(memory) >= _GUARD // 2:
            raise EmulatorError(f"{name} is too large: {len(memory)} bytes")
        base = ((_FIRST_SLOT + len(self.regions)) << _SLOT_BITS) + _GUARD + shift
        self.regions.append(Region(name, base, memory, **facts))
        return base

    def slots(self, addresses: Array) -> Array:
        """Index of the region in whose slot each address lies; it may be outside of the region."""
        slot = (addresses >> np.uint64(_SLOT_BITS)).astype(np.int64) - _FIRST_SLOT
        return np.where((slot >= 0) & (slot < len(self.regions)), slot, -1)

    def name_address(self, address: int) -> str:
        """An address in words."""
        slot = int(self.slots(np.array([address], np.uint64))[0])
        if slot < 0:
            return f"address {address:#x}, which is in no tensor"
        region = self.regions[slot]
        offset = address - region.base
        return f"byte {offset} of {region.name}, which has {len(region.memory)}"


class Flat:
    """Shared memory of a batch of CTAs, or local memory of a strand's threads: equal parts."""

    def __init__(self, parts: int, size: int, base: int) -> None:
        self.size = size
        self.base = base
        self.stride = -(-size // 16) * 16 + 16
        self.memory = np.zeros(parts * self.stride, np.uint8)
        self._views: dict[tuple[int, int], Array] = {}

    def rows(self, width: int, count: int) -> Array:
        """Memory as rows of `count` words of `width` bytes."""
        found = self._views.get((width, count))
        if found is None:
            found = self.memory.view(f"u{width}").reshape(-1, count)
            self._views[width, count] = found
        return found


def lay_out(sizes: Sequence[tuple[str, int, int]], base: int) -> tuple[dict[str, int], int]:
    """Addresses of variables (name, size, alignment) one after another; where they end."""
    at, found = base, {}
    for name, size, align in sizes:
        at = -(-at // align) * align
        found[name] = at
        at += size
    return found, at

"""A loaded kernel on the GPU, compared with float64 and with the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import tilecc as tc
from tilecc.check import reference
from tilecc.inputs import random_inputs

DEVICE = "cuda"


@dataclass(frozen=True)
class Comparison:
    """The largest errors of one kernel at one size; `emulated` is None without the emulator."""

    name: str
    dtype: str
    sizes: dict[str, int]
    error: float
    tolerance: float
    emulated: float | None
    """The largest difference between the device's outputs and the emulator's."""
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether device and emulator are within the tolerance."""
        return self.error <= self.tolerance and (self.emulated or 0.0) <= 2 * self.tolerance

    def __str__(self) -> str:
        size = ",".join(f"{n}={v}" for n, v in self.sizes.items())
        emulated = self.note if self.emulated is None else f"emulator {self.emulated:.1e}"
        verdict = "ok   " if self.ok else "WRONG"
        return (
            f"{verdict} {self.name:24} {self.dtype:9} {size:32} float64 {self.error:.1e} "
            f"of {self.tolerance:.1e}, {emulated}"
        )


def to_device(x: Any) -> Any:
    """A numpy array on the GPU; numbers as they are."""
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(DEVICE)
    return torch.from_numpy(x).to(DEVICE)


def to_host(x: Any) -> Any:
    """A tensor in float32 (or its integers), as numpy has it."""
    return (x.float() if x.is_floating_point() else x).cpu().numpy()


def compare(
    kernel: Any, dtype: str, sizes: Mapping[str, int], scalars: Mapping[str, Any]
) -> Comparison:
    """Run a kernel on random inputs of these sizes."""
    kinds = {p.name: scalars[p.type.dtype.kind] for p in kernel.func.params if not p.type.axes}
    inputs = random_inputs(kernel.func, sizes, kinds)
    outputs = kernel(**{n: to_device(x) for n, x in inputs.items()})
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = tuple(to_host(o) for o in outputs)
    check = reference(kernel.func, sizes, inputs).check(found)
    emulated, note = _emulated(kernel, inputs, found)
    return Comparison(kernel.name, dtype, dict(sizes), check.error, check.tolerance, emulated, note)


def _emulated(kernel: Any, inputs: Mapping[str, Any], found: tuple[Any, ...]) -> Any:
    try:
        made = tc.emulate(kernel, **inputs, check=False).outputs
    except ImportError as e:  # the emulator needs networkx
        return None, f"no emulator: {e}"
    pairs = zip(made, found, strict=True)
    return max((_largest(np.asarray(a, np.float64), b) for a, b in pairs), default=0.0), ""


def _largest(a: Any, b: Any) -> float:
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.max(np.where(same, 0.0, np.abs(a - b)), initial=0.0))

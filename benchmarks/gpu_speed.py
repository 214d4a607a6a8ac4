"""A kernel beside torch's backends, Triton and flex_attention: one process, round after round."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from gpu_peers import PEERS, Unavailable

HEADS, BATCH = 16, 1
_SAMPLE_MS = 5.0  # a sample repeats its call for about so long
_WARM = 3


@dataclass
class Timed:
    """One contestant's samples in milliseconds a call, or why it was not measured."""

    name: str
    run: Callable[[], Any] | None
    note: str = ""
    repeats: int = 1
    samples: list[float] = field(default_factory=list)


@dataclass
class Speed:
    """One kernel's line: all contestants on the same tensors."""

    name: str
    dtype: str
    d: int
    n: int
    causal: bool
    contestants: list[Timed]

    @property
    def flops(self) -> float:
        """Of the two products; half of them for causal masks."""
        return 4.0 * BATCH * HEADS * self.n * self.n * self.d / (2 if self.causal else 1)

    def tflops(self, t: Timed) -> float:
        """TFLOP/s at the median."""
        return self.flops / statistics.median(t.samples) / 1e9

    def to_json(self) -> dict[str, Any]:
        """Everything, with every sample."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "d": self.d,
            "n": self.n,
            "device": torch.cuda.get_device_name(),
            "contestants": {
                t.name: {"ms": t.samples, "tflops": self.tflops(t)} if t.samples else t.note
                for t in self.contestants
            },
        }

    def __str__(self) -> str:
        head = f"{self.name} {self.dtype} d={self.d} N={self.n}"
        lines = [f"{head}, {HEADS} heads, {torch.cuda.get_device_name()}"]
        for t in self.contestants:
            if t.samples:
                ms = statistics.median(t.samples)
                spread = f"{min(t.samples):.3f} to {max(t.samples):.3f}"
                lines.append(
                    f"  {t.name:24} {ms:8.3f} ms ({spread})  {self.tflops(t):6.1f} TFLOP/s"
                )
            else:
                lines.append(f"  {t.name:24} not measured: {t.note}")
        return "\n".join(lines)


def speed(kernel: Any, dtype: str, causal: bool, n: int, rounds: int) -> Speed:
    """Time a kernel and its peers on standard normal q, k, v, each against float64 first."""
    d = next(v for part in kernel.statics for k, v in part.items() if k == "D")
    generator = torch.Generator("cuda").manual_seed(0)
    shape, kind = (BATCH, HEADS, n, d), getattr(torch, dtype)
    q, k, v = (torch.randn(shape, device="cuda", generator=generator).to(kind) for _ in range(3))
    found = [Timed("tilecc", lambda: kernel(q, k, v))]
    for name, make in PEERS.items():
        try:
            found.append(Timed(name, make(q, k, v, causal)))
        except Unavailable as e:
            found.append(Timed(name, None, str(e)))
    rows = torch.linspace(0, n - 1, 32, device="cuda").long()
    want = _float64(q, k, v, rows, causal)
    for t in found:
        if t.run is not None:
            _check(t, rows, want)
    interleave([t for t in found if t.run is not None], rounds)
    return Speed(kernel.name, dtype, d, n, causal, found)


def _float64(q: Any, k: Any, v: Any, rows: Any, causal: bool) -> Any:
    """The attention of some query rows."""
    s = q[:, :, rows].double() @ k.double().transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        keys = torch.arange(k.shape[2], device=q.device)
        s = s.masked_fill(keys[None, :] > rows[:, None], float("-inf"))
    return torch.softmax(s, -1) @ v.double()


def _check(t: Timed, rows: Any, want: Any) -> None:
    """Leave out a contestant that fails or is wrong, and say so."""
    assert t.run is not None
    try:
        error = (t.run()[:, :, rows].double() - want).abs().max().item()
    except Exception as e:
        # What a peer raises is its own affair; here it means that there is nothing to time.
        t.run, t.note = None, f"{type(e).__name__}: {e}".splitlines()[0]
        return
    if not error <= 0.02:
        t.run, t.note = None, f"wrong by {error:.2g}"


def interleave(found: list[Timed], rounds: int) -> None:
    """A B C A B C ...: a sample of each in every round, in milliseconds by CUDA events."""
    for t in found:
        for _ in range(_WARM):
            once = _milliseconds(t, 1)
        t.repeats = max(1, round(_SAMPLE_MS / max(once, 1e-3)))
    for _ in range(rounds):
        for t in found:
            t.samples.append(_milliseconds(t, t.repeats))


def _milliseconds(t: Timed, repeats: int) -> float:
    assert t.run is not None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        t.run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / repeats

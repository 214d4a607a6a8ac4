"""What is measured: specs, sizes, and what each costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tilecc as tc
from tilecc.dsl.load import load_spec

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
Array = np.ndarray[Any, np.dtype[Any]]
NUMPY = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@tc.spec
def decode(q: tc.Tensor["b g r d"], k: tc.Tensor["b g j:N d"], v: tc.Tensor["b g j:N e:D"]):
    """One new token's attention: the query heads that share a head of keys are rows r."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@dataclass(frozen=True)
class Case:
    """One line of the benchmark; `rows` query rows (of `heads` each) on `n` keys."""

    name: str
    spec: str  # an example, or a spec of this module
    dtype: str
    d: int
    n: int = 4096
    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    causal: bool = False
    cap: float | None = None
    window: int | None = None
    decode: bool = False

    def load(self) -> Any:
        """The spec, traced afresh."""
        if self.decode:
            return decode
        return load_spec(str(EXAMPLES / f"{self.spec}.py"))

    @property
    def rows(self) -> int:
        """Query rows of a head."""
        return 1 if self.decode else self.n

    @property
    def static(self) -> dict[str, int]:
        """What the kernel is compiled for; everything else is dynamic."""
        return {"D": self.d, "R": self.heads // self.kv_heads} if self.decode else {"D": self.d}

    @property
    def pairs(self) -> float:
        """Pairs of a query and a key that count: half of all if causal, those in a window."""
        if self.window is not None:
            w = min(self.window, self.n)
            return w * (w + 1) / 2 + (self.n - w) * w
        return self.rows * self.n / (2 if self.causal else 1)

    @property
    def flops(self) -> float:
        """Of the two products; maps and reductions are not counted."""
        return 4.0 * self.batch * self.heads * self.pairs * self.d

    @property
    def limit(self) -> str:
        """The resource that bounds it."""
        if self.decode:
            return "reading"
        return "bf16 dot" if self.dtype == "bfloat16" else "fp32 FMA"

    def inputs(self, seed: int = 0) -> list[Array]:
        """q, k, v, standard normal, heads before rows."""
        rng = np.random.default_rng(seed)
        kv = (self.batch, self.kv_heads, self.n, self.d)
        shapes = [(self.batch, self.heads, self.rows, self.d), kv, kv]
        return [rng.standard_normal(s, np.float32).astype(NUMPY[self.dtype]) for s in shapes]

    def arguments(self, q: Array, k: Array, v: Array) -> list[Any]:
        """What tilecc's kernel takes."""
        if self.decode:
            grouped = (self.batch, self.kv_heads, self.heads // self.kv_heads, self.d)
            return [q.reshape(grouped), k, v]
        return [q, k, v, *(x for x in (self.cap, self.window) if x is not None)]

    def error(self, output: Array, q: Array, k: Array, v: Array, rows: int = 48) -> float:
        """The largest difference from float64, on some query rows of all heads."""
        output = output.reshape(q.shape[:-1] + v.shape[-1:]).astype(np.float64)
        last = self.rows - 1
        chosen = np.unique(np.linspace(0, last, min(rows, self.rows)).astype(int))
        group = self.heads // self.kv_heads
        i, j = chosen[:, None], np.arange(self.n)[None, :]
        seen = np.ones((len(chosen), self.n), bool)
        if self.causal:
            seen &= j <= i
        if self.window is not None:
            seen &= i - j < self.window
        worst = 0.0
        for b in range(self.batch):
            for h in range(self.heads):
                keys, values = (x[b, h // group].astype(np.float64) for x in (k, v))
                s = q[b, h, chosen].astype(np.float64) @ keys.T / np.sqrt(self.d)
                if self.cap is not None:
                    s = self.cap * np.tanh(s / self.cap)
                s = np.where(seen, s, -np.inf)
                p = np.exp(s - s.max(1, keepdims=True))
                want = p / p.sum(1, keepdims=True) @ values
                worst = max(worst, float(np.max(np.abs(output[b, h, chosen] - want))))
        return worst


def cases(n: int = 4096, keys: int = 8192) -> list[Case]:
    """All cases, for sequences of `n` and a cache of `keys`."""
    found = []
    for dtype, short in (("float32", "fp32"), ("bfloat16", "bf16")):
        for d in (64, 128):
            found.append(Case(f"{short} dense d={d}", "attention", dtype, d, n))
            found.append(Case(f"{short} causal d={d}", "causal", dtype, d, n, causal=True))
        found.append(Case(f"{short} softcap", "softcap", dtype, 64, n, causal=True, cap=20.0))
        w = n // 4
        sliding = Case(f"{short} window {w}", "sliding_window", dtype, 64, n, causal=True, window=w)
        found.append(sliding)
        found.append(
            Case(f"{short} decode", "decode", dtype, 128, keys, heads=32, kv_heads=8, decode=True)
        )
        # One head and a long context: all threads can do is share out its keys.
        alone = Case(f"{short} one head", "decode", dtype, 64, 8 * keys, heads=1, kv_heads=1)
        found.append(replace(alone, decode=True))
    return found

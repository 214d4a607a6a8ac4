"""What of the zoo is measured: sizes, what is not random, and each row's mask and scores once more.

A mask and a score function are written once, over numpy or torch (`xp`) and the row's arrays `a`:
they give the float64 reference and are what flex_attention compiles.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from cases import EXAMPLES, Array

from tilecc.dsl.load import load_spec
from tilecc.ir.interp_expr import integer

Mask = Callable[[Any, Any, Any, Any, Any], Any]
"""(xp, arrays, h, i, j): what of the pairs counts."""
Score = Callable[[Any, Any, Any, Any, Any, Any], Any]
"""(xp, arrays, scaled score, h, i, j): the score that softmax takes."""
Make = Callable[[np.random.Generator, Mapping[str, int]], dict[str, Any]]
D = 64


@dataclass(frozen=True)
class ZooCase:
    """A row of the zoo; `layout` says where its tensors have heads, rows and the batch."""

    name: str
    mask: Mask | None = None
    score: Score | None = None
    arrays: Make | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    heads: int = 8
    kv_heads: int = 8
    layout: str = "bhnd"
    scale: float = D**-0.5
    static: tuple[str, ...] = ("D",)

    def extents(self, n: int) -> dict[str, int]:
        """All extents, for sequences of n."""
        found = {"B": 1, "H": self.heads, "G": self.kv_heads, "N": n, "Nq": n, "Nk": n}
        found |= {"D": D, "M": n, "S": 1, "T": n, "Tq": n, "Tk": n}
        return found | {k: -x * n // 4096 if x < 0 else x for k, x in self.sizes.items()}

    def arguments(self, n: int) -> dict[str, Any]:
        """Every argument of the spec, by name."""
        extents, out = self.extents(n), {}
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        made = self.arrays(rng, extents) if self.arrays else {}
        for a in load_spec(str(EXAMPLES / "zoo" / f"{self.name}.py")).signature.arguments:
            shape = tuple(integer(x.extent, extents) for x in a.axes)
            x = made[a.name] if a.name in made else rng.standard_normal(shape, np.float32)
            kind = a.dtype.numpy if a.dtype else np.float32
            out[a.name] = x if a.is_scalar else np.asarray(x, kind).reshape(shape)
        return out

    def seen(self, a: Mapping[str, Any], rows: Array, columns: int, h: int = 0) -> Array:
        """What of the pairs with these rows counts."""
        at = (h, rows[:, None], np.arange(columns)[None])
        if self.mask is None:
            return np.ones((len(rows), columns), bool)
        found = self.mask(np, one_batch(a), *at)
        return np.broadcast_to(found, (len(rows), columns))

    def pairs(self, a: Mapping[str, Any]) -> int:
        """Pairs of a query and a key that count, over all heads."""
        q, k, _ = (self.heads_first(a[x]) for x in "qkv")
        rows, count = q.shape[2], 0
        for start in range(0, rows, 512):
            part = np.arange(start, min(start + 512, rows))
            count += int(self.seen(a, part, k.shape[2]).sum())
        return count * self.heads

    def heads_first(self, x: Any) -> Any:
        """A tensor of the spec as [batch, heads, rows, d], on the same memory."""
        if self.layout == "bhnd":
            return x if x.ndim == 4 else x[:, None]
        x = x if x.ndim == 4 else x[None]
        return x.swapaxes(1, 2)

    def error(self, output: Array, a: Mapping[str, Any], count: int = 24) -> float:
        """The largest difference from float64, on some query rows of all heads."""
        q, k, v = (self.heads_first(a[x]) for x in "qkv")
        rows = np.unique(np.linspace(0, q.shape[2] - 1, count).astype(int))
        got, worst = self.heads_first(output), 0.0
        columns, group = np.arange(k.shape[2])[None], self.heads // k.shape[1]
        with np.errstate(divide="ignore"):
            for h in range(self.heads):
                s = q[0, h, rows].astype("f8") @ k[0, h // group].astype("f8").T * self.scale
                if self.score is not None:
                    s = self.score(np, one_batch(a), s, h, rows[:, None], columns)
                s = np.where(self.seen(a, rows, k.shape[2], h), s, -np.inf)
                most = s.max(1, keepdims=True)
                p = np.exp(s - np.where(np.isfinite(most), most, 0.0))
                total = p.sum(1, keepdims=True)
                want = p / np.where(total == 0.0, 1.0, total) @ v[0, h // group].astype("f8")
                worst = max(worst, float(np.abs(got[0, h, rows] - want).max()))
        return worst


def one_batch(a: Mapping[str, Any], convert: Callable[[Array], Any] = lambda x: x) -> Any:
    """Arguments as a mask or score function takes them: without the axis of a batch of one.

    q, k and v are left out: a function that reads only their shape would still hold the arrays,
    and torch.compile refuses numpy arrays that a mask holds. `derived` has what follows from them.
    """
    given = {k: x for k, x in a.items() if k not in ("q", "k", "v")}
    own = {k: x for k, x in given.items() if isinstance(x, np.ndarray)}
    own = {k: x[0] if x.ndim > 1 and x.shape[0] == 1 else x for k, x in own.items()}
    return SimpleNamespace(**given | {k: convert(np.ascontiguousarray(x)) for k, x in own.items()})


def _causal(xp: Any, a: Any, h: Any, i: Any, j: Any) -> Any:
    return j <= i


def _natten(xp: Any, a: Any, h: Any, i: Any, j: Any) -> Any:
    width, r = a.width, a.r
    top = xp.clip(i // width, r, a.height - 1 - r)
    left = xp.clip(i % width, r, width - 1 - r)
    return (abs(j // width - top) <= r) & (abs(j % width - left) <= r)


def _diffusion(xp: Any, a: Any, h: Any, i: Any, j: Any) -> Any:
    row, col = i % a.half // a.size, j % a.half // a.size
    return ((row == col) & ((i < a.half) == (j < a.half))) | ((j >= a.half) & (col < row))


def _packed(xp: Any, a: Any, h: Any, i: Any, j: Any) -> Any:
    s = a.seq[i]
    return (j >= a.cu_k[s]) & (j - a.cu_k[s + 1] <= i - a.cu_q[s + 1])


def _alibi(xp: Any, a: Any, s: Any, h: Any, i: Any, j: Any) -> Any:
    return s + 2.0 ** (-8.0 * (h + 1) / 8) * (j - i)


def _t5(xp: Any, a: Any, s: Any, h: Any, i: Any, j: Any) -> Any:
    distance = abs(j - i)
    steps = xp.log(xp.clip(distance, 1, None) / 8) / math.log(128 / 8) * 8
    far = xp.clip(8 + (steps.astype(int) if xp is np else steps.int()), None, 15)
    bucket = xp.where(distance < 8, distance, far) + xp.where(j > i, 16, 0)
    return s + a.bias[h, bucket]


def _documents(rng: np.random.Generator, n: Mapping[str, int]) -> dict[str, Any]:
    cuts = np.sort(rng.choice(np.arange(1, n["N"]), 11, replace=False))
    ids = np.searchsorted(cuts, np.arange(n["N"]), side="right")
    return {"doc": ids, "row": ids}


def _sequences(rng: np.random.Generator, n: Mapping[str, int]) -> dict[str, Any]:
    cuts = np.sort(rng.choice(np.arange(1, n["Tq"]), n["S"] - 2, replace=False))
    ends = np.concatenate([[0], cuts, [n["Tq"]]])
    seq = np.searchsorted(ends[1:], np.arange(n["Tq"]), side="right")
    return {"cu_q": ends, "cu_k": ends, "seq": seq}


def _tree(rng: np.random.Generator, n: Mapping[str, int]) -> dict[str, Any]:
    """Each token of a draft with its ancestors, whose parents are one of the four before."""
    anc = np.zeros((1, n["T"], n["T"]), np.int8)
    for t in range(n["T"]):
        if t:
            anc[0, t] = anc[0, rng.integers(max(t - 4, 0), t)]
        anc[0, t, t] = 1
    return {"anc": anc}


def _flags(rng: np.random.Generator, n: Mapping[str, int]) -> dict[str, Any]:
    flags = np.zeros(n["N"], np.int32)
    flags[rng.choice(n["N"], 8, replace=False)] = 1
    return {"w": 256, "row": flags, "col": flags}


def zoo_cases() -> list[ZooCase]:
    """The rows that flex_attention can express. Negative sizes are those for N = 4096."""
    some: Make = lambda rng, n: {}  # noqa: E731
    return [
        ZooCase("cross_attention", arrays=some, sizes={"Nq": -1024}),
        ZooCase("causal", _causal),
        ZooCase("bottom_right", lambda xp, a, h, i, j: j <= i + a.past, sizes={"Nq": -1024}),
        ZooCase("sliding_window", lambda xp, a, h, i, j: (j <= i) & (i - j < a.w),
                arrays=lambda rng, n: {"w": n["N"] // 4}),
        ZooCase("prefix_lm", lambda xp, a, h, i, j: (j < a.p) | (j <= i),
                arrays=lambda rng, n: {"p": n["N"] // 4}),
        ZooCase("dilated", lambda xp, a, h, i, j: (j <= i) & ((i - j) % a.r == 0),
                arrays=lambda rng, n: {"r": 4}),
        ZooCase("global_window", lambda xp, a, h, i, j: (abs(i - j) <= a.w) | (a.row[i] != 0)
                | (a.col[j] != 0), arrays=_flags),
        ZooCase("documents", lambda xp, a, h, i, j: (a.row[i] == a.doc[j]) & (j <= i),
                arrays=_documents),
        ZooCase("natten", _natten, arrays=lambda rng, n: {"width": 64, "r": 6}),
        ZooCase("block_diffusion", _diffusion, arrays=lambda rng, n: {"size": 64}),
        ZooCase("tree", lambda xp, a, h, i, j: (j < a.past)
                | (a.anc[i, xp.clip(j - a.past, 0, None)] != 0),
                arrays=_tree, sizes={"T": -1024}),
        ZooCase("boolean_mask", lambda xp, a, h, i, j: a.mask[i, j],
                arrays=lambda rng, n: {"mask": rng.random((1, n["N"], n["N"])) < 0.5}),
        ZooCase("alibi", _causal, _alibi),
        ZooCase("relative_bias", None, lambda xp, a, s, h, i, j: s + a.bias[
            h, xp.clip(i - j, -127, 127) + 127], sizes={"R": 255}),
        ZooCase("t5_bias", None, _t5, sizes={"R": 32}, scale=1.0),
        ZooCase("softcap", _causal, lambda xp, a, s, h, i, j: a.cap * xp.tanh(s / a.cap),
                arrays=lambda rng, n: {"cap": 20.0}),
        ZooCase("gqa", _causal, kv_heads=2),
        ZooCase("mqa", _causal, kv_heads=1),
        ZooCase("bnhd", _causal, layout="bnhd"),
        ZooCase("packed", _packed, arrays=_sequences, layout="nhd", sizes={"S": 9}),
        ZooCase("evoformer", lambda xp, a, h, i, j: a.mask[j] != 0,
                lambda xp, a, s, h, i, j: s + a.pair[h, i, j],
                arrays=lambda rng, n: {"mask": np.arange(n["N"]) < n["N"] - 100}, heads=2),
    ]  # fmt: skip


def derived(case: ZooCase, a: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers that a row's mask takes beside its arguments."""
    out: dict[str, Any] = {}
    if case.name == "natten":
        out["height"] = a["q"].shape[2] // a["width"]
    elif case.name == "block_diffusion":
        out["half"] = a["q"].shape[2] // 2
    elif case.name in ("bottom_right", "tree"):
        out["past"] = a["k"].shape[2] - a["q"].shape[2]
    return out

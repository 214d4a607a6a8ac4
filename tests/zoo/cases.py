"""Arguments for the specs in examples/zoo: sizes that no tile divides, and what is not random."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilecc.dsl.load import load_spec
from tilecc.dsl.specification import Spec
from tilecc.ir import dtypes
from tilecc.ir.interp_expr import integer

ZOO = Path(__file__).parents[2] / "examples" / "zoo"
NAMES = sorted(p.stem for p in ZOO.glob("*.py"))
Sizes = Mapping[str, int]
Array = np.ndarray[Any, np.dtype[Any]]

STATIC = {"D": 8, "E": 12, "C": 16, "R": 4, "G": 2, "H": 4, "S": 2}
# Lengths of queries and of keys. A spec with one extent for both takes the first.
LENGTHS = ((1, 1), (37, 61), (71, 130), (200, 333))


@cache
def spec_of(name: str) -> Spec:
    return load_spec(str(ZOO / f"{name}.py"))


def static_of(name: str) -> dict[str, int]:
    """The extents that a kernel is compiled for: head dimensions, and heads that are mixed."""
    known = {"talking_heads": ("D", "G", "H"), "mla": ("C", "R"), "differential": ("D", "E")}
    return {n: STATIC[n] for n in known.get(name, ("D",))}


def sizes(name: str, rows: int, columns: int) -> dict[str, int]:
    """All extents of a spec for these lengths."""
    out = {**STATIC, "B": 2, "H": 4, "G": 2, "N": rows, "Nq": rows, "Nk": columns}
    out |= {
        "M": columns,
        "Tq": rows,
        "Tk": columns,
        "T": min(rows, columns),
        "Np": max(columns - 9, 1),
    }
    if name == "natten":
        out["N"] = max(rows // NATTEN_WIDTH, 2 * NATTEN_R + 1) * NATTEN_WIDTH
    elif name == "block_diffusion":
        out["N"] = 2 * rows
    elif name == "paged":  # pages of 5 slots, of which the last may be partly used
        out |= {"S": 5, "N": -(-columns // 5), "P": 2 * -(-columns // 5) + 3}
    elif name == "relative_bias":
        out["R"] = 31
    elif name == "t5_bias":
        out["R"] = 32
    elif name == "triangle":
        out["N"] = min(rows, 71)
    elif name == "packed":
        out["S"] = 6 if rows > 1 else 2
    return out


NATTEN_WIDTH, NATTEN_R = 9, 2


def offsets(total: int, parts: int, rng: np.random.Generator) -> Array:
    """0, then the ends of `parts` pieces of `total`; some may be empty."""
    ends = np.sort(rng.integers(0, total + 1, parts - 1))
    return np.concatenate([[0], ends, [total]]).astype(np.int32)


def ids(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return np.sort(rng.integers(0, 4, shape), -1).astype(np.int32)


Maker = Callable[[np.random.Generator, tuple[int, ...], Sizes], Any]
# Arguments with an element type of their own, by name or by (spec, name).
SPECIAL: dict[Any, Maker] = {
    "w": lambda rng, shape, n: 9,
    "p": lambda rng, shape, n: 21,
    "r": lambda rng, shape, n: 3,
    ("natten", "r"): lambda rng, shape, n: NATTEN_R,
    "width": lambda rng, shape, n: NATTEN_WIDTH,
    "size": lambda rng, shape, n: 8,
    "cap": lambda rng, shape, n: 4.0,
    ("sigmoid", "bias"): lambda rng, shape, n: -1.5,
    "seed": lambda rng, shape, n: 2**40 + 7,
    "scale": lambda rng, shape, n: 0.2,
    "bias": lambda rng, shape, n: rng.standard_normal(shape),
    "logit": lambda rng, shape, n: rng.standard_normal(shape),
    "lam": lambda rng, shape, n: rng.random(shape),
    "tau": lambda rng, shape, n: 3 + rng.random(shape),
    "gamma": lambda rng, shape, n: 0.1 + 0.1 * rng.random(shape),
    "doc": lambda rng, shape, n: ids(shape, rng),
    "row": lambda rng, shape, n: (rng.random(shape) < 0.05).astype(np.int32),
    "col": lambda rng, shape, n: (rng.random(shape) < 0.05).astype(np.int32),
    "mask": lambda rng, shape, n: rng.random(shape) < 0.6,
    "anc": lambda rng, shape, n: ancestors(rng, shape),
    "length": lambda rng, shape, n: lengths(rng, shape, n),
    "cu_q": lambda rng, shape, n: offsets(n["Tq"], shape[0] - 1, rng),
    "cu_k": lambda rng, shape, n: offsets(n["Tk"], shape[0] - 1, rng),
    "table": lambda rng, shape, n: rng.permutation(n["P"])[: shape[0] * shape[1]].reshape(shape),
    ("kv_int8", "k"): lambda rng, shape, n: rng.integers(-128, 128, shape),
    ("kv_int8", "v"): lambda rng, shape, n: rng.integers(-128, 128, shape),
    ("kv_fp8", "k"): lambda rng, shape, n: rng.standard_normal(shape) * 20,
    ("kv_fp8", "v"): lambda rng, shape, n: rng.standard_normal(shape) * 20,
    "k_scale": lambda rng, shape, n: (0.5 + rng.random(shape)) / 64,
    "v_scale": lambda rng, shape, n: (0.5 + rng.random(shape)) / 64,
}


def ancestors(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Each token of a draft with its ancestors: a random tree whose parents come first."""
    out = np.zeros(shape, np.int8)
    for b, t in np.ndindex(shape[:2]):
        if t:
            out[b, t] = out[b, rng.integers(max(t - 4, 0), t)]
        out[b, t, t] = 1
    return out


def lengths(rng: np.random.Generator, shape: tuple[int, ...], n: Sizes) -> Array:
    """How much of each sequence's cache is filled."""
    most = n["N"] * n["S"] if "P" in n else n["Nk"]
    return rng.integers(1, most + 1, shape).astype(np.int32)


def arguments(name: str, n: Sizes, dtype: str = "float32", large: float = 1.0) -> dict[str, Any]:
    """Every argument of a spec, with queries and keys scaled by `large`."""
    out: dict[str, Any] = {}
    for a in spec_of(name).signature.arguments:
        rng = np.random.default_rng(zlib.crc32(f"{name} {a.name}".encode()))
        shape = tuple(integer(x.extent, n) for x in a.axes)
        maker = SPECIAL.get((name, a.name)) or (SPECIAL.get(a.name) if a.dtype else None)
        if maker is None:
            x = rng.standard_normal(shape) * (large if a.name[0] in "qk" else 1.0)
        else:
            x = maker(rng, shape, n)
        kind = a.dtype or dtypes.dtype(dtype)
        out[a.name] = x if a.is_scalar else np.asarray(x).astype(kind.numpy)
    if name == "documents":
        out["row"] = out["doc"]
    if name == "packed":
        ends = out["cu_q"][1:]
        out["seq"] = np.searchsorted(ends, np.arange(n["Tq"]), side="right").astype(np.int32)
    return out


def widened(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Floats in float64, integers as they are."""
    floats = ("f", "V")  # V: those that numpy does not have
    return {
        k: x.astype("f8") if isinstance(x, np.ndarray) and x.dtype.kind in floats else x
        for k, x in inputs.items()
    }

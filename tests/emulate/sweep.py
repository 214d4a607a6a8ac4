"""What a kernel must show in the emulator, asked of every spec: the table, and one row of it.

A row is a spec, a type, a length and an order of the warps. What it must show is in `faults`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cases
import numpy as np
from formulas import FORMULAS
from references import REFERENCES

import tilecc as tc
from tilecc.cli.program import Sized, load_program
from tilecc.emulation.report import Emulation
from tilecc.given import extent_names, load
from tilecc.inputs import random_inputs

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem != "minilm")
SPECS += [f"zoo/{name}" for name in cases.NAMES]
TOLERANCE = {"float16": 2e-3, "bfloat16": 5e-3}
"""Of the largest magnitude of the float64 reference."""
SEEDS = (0, 1, 2, 3, 4)
"""Random orders of warps, beside lockstep."""
TILE = 64
TILES = {"zoo/talking_heads": 16}
"""Where tiles of 64 have no room: heads are one axis of the tile there."""
HELD = re.compile(r"ldmatrix|cp\.async|st\.shared")
"""What must have no bank conflicts: all stores to shared memory, and what feeds tensor cores."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Length:
    """Queries and keys. `even`: tiles of 64 divide both."""

    rows: int
    columns: int

    @property
    def even(self) -> bool:
        return self.rows % TILE == 0 and self.columns % TILE == 0


LENGTHS = (Length(64, 64), Length(128, 192), Length(37, 61), Length(130, 71), Length(296, 296))
STATIC = {"D": 32, "E": 48, "C": 48, "R": 16}


def sizes(name: str, at: Length) -> dict[str, int]:
    """All extents of a spec."""
    if not name.startswith("zoo/"):
        n = {"B": 1, "H": 2, "G": 1, "N": at.rows, "Nq": at.rows, "Nk": at.columns, "V": at.columns}
        return {**STATIC, **n}
    name = name.removeprefix("zoo/")
    n = {**cases.sizes(name, at.rows, at.columns), "B": 1, "H": 2, "G": 1, "S": 1}
    tables = {"relative_bias": 31, "t5_bias": 32}
    n |= {k: v for k, v in STATIC.items() if k != "R" or name not in tables}
    if name == "talking_heads":
        n["G"] = 2
    elif name == "packed":
        n["S"] = 4
    elif name == "natten":
        n["N"] = max(at.rows // _width(at), 2 * cases.NATTEN_R + 1) * _width(at)
    elif name == "paged":
        n["S"] = 16 if at.even else 5
        n["N"] = -(-at.columns // n["S"])
        n["P"] = n["N"] + 3
    elif name == "triangle":
        n["N"] = TILE if at.even else min(at.rows, 71)
    return n


def _width(at: Length) -> int:
    return 8 if at.even else cases.NATTEN_WIDTH


def arguments(
    program: Sized, name: str, at: Length, dtype: str, static: Mapping[str, int]
) -> dict[str, Any]:
    """Standard normal floats; whatever else a spec takes as its row of the zoo has it."""
    n = {**sizes(name, at), **static}
    if name.startswith("zoo/"):
        short = name.removeprefix("zoo/")
        found = cases.arguments(short, n, dtype)
        return found | ({"width": _width(at)} if short == "natten" else {})
    scalars = program.scalars({"w": 40} if name == "sliding_window" else {})
    return random_inputs(program.func, n, scalars, zlib.crc32(name.encode()))


@cache
def program_of(
    name: str, dtype: str, tile: int | None = TILE, static: tuple[tuple[str, int], ...] = ()
) -> tuple[Sized, Any]:
    """A spec and its kernel, compiled once for all lengths."""
    path = str(EXAMPLES / f"{name}.py")
    names = extent_names(load(path, dtype)[0])
    shape = {k: v for k, v in {**sizes(name, LENGTHS[0]), **dict(static)}.items() if k in names}
    program = load_program(path, "sm_80", dtype, shape, TILES.get(name, tile))
    return program, program.kernel(build=False)


def wanted(name: str, inputs: Mapping[str, Any]) -> tuple[Array, ...]:
    """The outputs by the formula, in float64."""
    table = FORMULAS if name.startswith("zoo/") else REFERENCES
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return table[name.removeprefix("zoo/")](**cases.widened(inputs))


def errors(found: Emulation, want: tuple[Array, ...]) -> Iterator[float]:
    """By output, the largest difference in parts of the largest magnitude; infinite for a NaN."""
    for x, w in zip(found.outputs, want, strict=True):
        x = np.asarray(x).astype("f8")
        scale = np.abs(w[np.isfinite(w)]).max(initial=0.0)
        with np.errstate(invalid="ignore"):
            off = np.where(x == w, 0.0, np.abs(x - w))
        error = np.nan_to_num(off, nan=np.inf).max(initial=0.0)
        yield float(error / scale) if scale else float(error)


def faults(found: Emulation, want: tuple[Array, ...], dtype: str, even: bool) -> Iterator[str]:
    """What a run does not show of what it must."""
    for n, error in enumerate(errors(found, want)):
        if not error <= TOLERANCE[dtype]:
            yield f"output {n} is off by {error:.1e} of the largest magnitude"
    yield from (str(f) for f in found.findings)
    if found.predicted is None:
        yield "no bytes are predicted"
    yield from found.differences
    for a in found.bank_conflicts:
        if HELD.search(a.text):
            yield f"bank conflict: {a.wavefronts} for {a.ideal}: {a.text} ({a.origin})"
    about = found.predicted.asked if found.predicted is not None else {}
    for direction in ("read", "write") if even else ():
        for tensor, t in found.traffic(direction).items():
            if t.sectors != t.ideal_sectors and tensor not in about:
                yield f"{direction}s {t.sectors} sectors of {tensor}, of which {t.ideal_sectors} do"


def sample(
    name: str,
    dtype: str,
    at: Length,
    seed: int | None,
    tile: int | None = TILE,
    static: Mapping[str, int] | None = None,
) -> tuple[Emulation, tuple[Array, ...]]:
    """One row of the sweep: a run, and what it should give."""
    program, kernel = program_of(name, dtype, tile, tuple(sorted((static or {}).items())))
    inputs = arguments(program, name, at, dtype, static or {})
    ordered = [inputs[p.name] for p in program.func.params]
    return tc.emulate(kernel, *ordered, seed=seed, check=False), wanted(name, inputs)


def run(
    name: str,
    dtype: str,
    at: Length,
    seed: int | None,
    tile: int | None = TILE,
    static: Mapping[str, int] | None = None,
) -> list[str]:
    """The faults of one row of the sweep."""
    found, want = sample(name, dtype, at, seed, tile, static)
    return list(faults(found, want, dtype, at.even))

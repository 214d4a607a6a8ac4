"""A program at every level of the IR, and its outputs there, beside the independent ones."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from evaluator import SHORT, UNIT, evaluate

import tilecc as tc
from tilecc.analysis.roles import static_extents
from tilecc.errors import CompileError
from tilecc.ir.core import Func, bind_extents
from tilecc.passes.base import Remark
from tilecc.passes.tiling.plan import plan_tiles
from tilecc.pipeline import PassManager

FRONT = "simplify,fuse"
MIDDLE = "online-softmax,mask-tiles,exponents"
FILENAME = "program.py"


def spec_of(source: str) -> tc.Spec:
    """The spec called `program` in a source text."""
    lines = source.splitlines(keepends=True)
    linecache.cache[FILENAME] = (len(source), None, lines, FILENAME)
    namespace: dict[str, Any] = {"tc": tc, "__name__": "program"}
    exec(compile(source, FILENAME, "exec", dont_inherit=True), namespace)
    found: tc.Spec = namespace["program"]
    return found


@dataclass
class Levels:
    """Stages by name, in order, as far as the passes went, and their remarks."""

    stages: dict[str, Func] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    refused: CompileError | None = None

    def run(self, func: Func, passes: str) -> Func:
        """More passes."""
        run = PassManager(passes).run(func)
        self.stages |= {s.name: s.func for s in run.stages[1:]}
        self.remarks += run.remarks
        return run.func

    @property
    def passes_over_an_axis(self) -> int:
        """The largest number of walks over one streamed axis in one kernel of the last loop IR."""
        most = 0
        for op in self.stages["mask-tiles"].body.ops if "mask-tiles" in self.stages else ():
            if op.name == "kernel":
                axes = [s.attrs["axis"] for s in op.body.walk() if s.name == "stream"]
                most = max([most, *(axes.count(a) for a in axes)])
        return most


def lower(func: Func, sizes: dict[str, int], tiles: tuple[int, ...]) -> Levels:
    """Every level of `func`. `sizes` has the static extents, `tiles` sizes for axes in turn."""
    levels = Levels({"graph": func})
    try:
        loop = levels.run(_front(levels, func, sizes), MIDDLE)
        levels.run(loop, tile_pass(loop, tiles))
    except CompileError as e:
        levels.refused = e
    return levels


def _front(levels: Levels, func: Func, sizes: dict[str, int]) -> Func:
    """The fused program, with the extents bound that have to be."""
    static: dict[str, int] = {}
    while True:
        loop = levels.run(bind_extents(func, static) if static else func, FRONT)
        missing = static_extents(loop)
        if not missing:
            return loop
        static |= {n: sizes[n] for n in missing}
        levels.remarks.clear()


def tile_pass(loop: Func, tiles: tuple[int, ...]) -> str:
    """The pass that gives the axes that are walked these sizes in turn."""
    sizes: dict[str, int] = {}
    for op in loop.body.ops:
        if op.name == "kernel":
            plan = plan_tiles(op, {})
            walked = [a for a in plan if plan[a].role != "inner"]
            sizes |= {a: tiles[n % len(tiles)] for n, a in enumerate(walked)}
    return f"tile{{{','.join(f'{a}={n}' for a, n in sizes.items())}}}"


@dataclass
class Expected:
    """What a program gives: float64 values, and how far each output may be from them."""

    names: list[tuple[str, ...]]
    values: list[np.ndarray]
    tolerances: list[float]
    comparable: list[np.ndarray]  # where rounding does not decide between finite, inf and NaN
    empty_rows: bool

    @property
    def has_nan(self) -> bool:
        return any(bool(np.isnan(x).any()) for x in self.values if x.dtype.kind == "f")


# Three samples of rounding see little of it; a chunk or a tile adds an order of its own.
FACTOR = {"f64": 64, "f32": 64, "f16": 16, "bf16": 16}
WORST = 0.1
# References of exponentials are rounded too: eps times the largest logit, relative.
LOGITS = 4
SHORT_OF_SUMS = {"f64": "f64", "f32": "f32", "f16": "f32", "bf16": "f32"}
SMALLEST = {"f64": 1e-300, "f32": 1e-36, "f16": 1e-6, "bf16": 1e-36}


def expected(source: str, dtype: str, arrays: dict[str, Any], *, exact: bool) -> Expected:
    """The outputs of a program, and what computing them may change.

    `exact`: everything is computed in float64 (as interp does with that option).
    """
    short, only = ("f64", "f64") if exact else (SHORT[dtype], "")
    plain, dsl = evaluate(source, dtype, arrays)
    rounded = [evaluate(source, dtype, arrays, seed, only)[0] for seed in range(3)]
    out = Expected([], [], [], [], dsl.empty_rows)
    for k, x in enumerate(plain):
        others = [r[k].data for r in rounded]
        out.names.append(x.names)
        out.values.append(x.data)
        if x.data.dtype.kind != "f":
            ok = np.logical_and.reduce([o == x.data for o in others])
            out.comparable.append(ok)
            out.tolerances.append(0.0)
            continue
        ok = np.logical_and.reduce([_class(o) == _class(x.data) for o in others])
        finite = ok & np.isfinite(x.data)
        with np.errstate(all="ignore"):
            off = max([np.max(np.abs(o - x.data)[finite], initial=0.0) for o in others])
            least = np.max(np.abs(x.data)[finite], initial=0.0) * UNIT[short]
        bound = LOGITS * min(dsl.largest_logit * UNIT[SHORT_OF_SUMS[short]], WORST)
        size = np.max(np.abs(x.data)[finite], initial=0.0)
        tolerance = FACTOR[short] * max(off, least) + bound * size + SMALLEST[short]
        if off > WORST * least / UNIT[short]:
            ok = np.zeros_like(ok)  # rounding decides on everything
        out.comparable.append(ok)
        out.tolerances.append(tolerance)
    return out


def _class(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), 3, np.where(np.isinf(x), np.sign(x), 0))


def compare(got: Any, want: Expected, names: list[tuple[str, ...]], what: str) -> int:
    """Assert that outputs agree; the number of elements that could not be compared."""
    skipped = 0
    for k, (x, w) in enumerate(zip(got, want.values, strict=True)):
        assert want.names[k] == names[k], f"{what}: output {k} has axes {names[k]}"
        assert x.shape == w.shape, f"{what}: output {k} has shape {x.shape}, wanted {w.shape}"
        ok, tol = want.comparable[k], want.tolerances[k]
        skipped += int(ok.size - ok.sum())
        x = np.asarray(x).astype("f8") if w.dtype.kind == "f" else np.asarray(x)
        with np.errstate(all="ignore"):
            same = (x == w) | (np.abs(x - w) <= tol) if w.dtype.kind != "b" else x == w
        if w.dtype.kind == "f":
            same |= np.isnan(x) & np.isnan(w)
        bad = np.argwhere(~same & ok)
        if len(bad):
            at = tuple(int(n) for n in bad[0])
            raise AssertionError(
                f"{what}: {len(bad)} of {w.size} elements of output {k} differ, first {at}: "
                f"{x[at]!r}, wanted {w[at]!r} +- {tol:.1e}"
            )
    return skipped

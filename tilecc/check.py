"""A comparison of a kernel's outputs with the graph in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.cost.arithmetic import ELEMENTARY
from tilecc.ir.core import Cloner, Func, TensorType, Value
from tilecc.ir.expr import (
    Call,
    walk,
)
from tilecc.ir.interp import interpret
from tilecc.sample import around, cut, restrict, samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The tolerance is c * eps * max(1, largest finite logit or output), eps and c being those
# of the output's type. Types below 32 bits compute in f32: their own rounding is nearly all.
FACTOR, NARROW_FACTOR = 32, 1


@dataclass(frozen=True)
class Check:
    """The largest error found, what is allowed, and how many output elements were compared."""

    error: float
    tolerance: float
    compared: int
    total: int

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance."""
        return bool(self.error <= self.tolerance)


def compare(
    func: Func, sizes: Mapping[str, int], inputs: Mapping[str, Any], outputs: tuple[Any, ...]
) -> Check:
    """Compare `outputs` with the float64 interpretation of `func` (graph IR) on `inputs`."""
    return reference(func, sizes, inputs).check(outputs)


@dataclass(frozen=True)
class _Part:
    """What one output is, in float64, where `ranges` (by axis: first, count) of its axes meet."""

    output: int
    axes: tuple[str, ...]
    ranges: Mapping[str, tuple[int, int]]
    want: NDArray[Any]
    tolerance: float


@dataclass(frozen=True)
class Worst:
    """The element that is farthest off, what all errors are like, and what special rows there were.

    place: the output's number and a coordinate for each axis. zero_rows: rows along the last axis
    that are all 0, as those without a live position.
    """

    error: float = 0.0
    place: str = ""
    got: float = 0.0
    wanted: float = 0.0
    rms: float = 0.0
    zero_rows: int = 0
    minus_infinities: int = 0


@dataclass(frozen=True)
class Reference:
    """What a program gives in float64; many outputs may be checked against it."""

    parts: tuple[_Part, ...]

    def check(
        self, outputs: tuple[Any, ...], written: Sequence[NDArray[Any]] | None = None
    ) -> Check:
        """The largest error of `outputs`, which are in the order of the program's.

        `written`: which elements of each are compared; all, if not given.
        """
        error = tolerance = 0.0
        compared = 0
        for p in self.parts:
            have = cut(np.asarray(outputs[p.output]), p.axes, p.ranges).astype(np.float64)
            want = p.want
            if written is not None:
                chosen = cut(written[p.output], p.axes, p.ranges)
                have, want = have[chosen], np.broadcast_to(want, have.shape)[chosen]
            compared += have.size
            error = max(error, _largest(have, want))
            tolerance = max(tolerance, p.tolerance)
        return Check(error, tolerance, compared, sum(np.asarray(o).size for o in outputs))

    def worst(self, outputs: tuple[Any, ...]) -> Worst:
        """Where `outputs` are farthest off, and by how much they are on the whole."""
        found, squares, count, zeros, infinities = Worst(), 0.0, 0, 0, 0
        for p in self.parts:
            have = cut(np.asarray(outputs[p.output]), p.axes, p.ranges).astype(np.float64)
            want = np.broadcast_to(np.asarray(p.want, np.float64), have.shape)
            off = _differences(have, want)
            infinities += int(np.isneginf(want).sum())
            zeros += int(np.all(want == 0, axis=-1).sum()) if want.ndim > 1 else 0
            squares, count = squares + float(np.sum(off**2)), count + off.size
            if off.size and (off.max() > found.error or not found.place):
                k = np.unravel_index(int(np.argmax(off)), off.shape)
                first = [p.ranges.get(a, (0, 0))[0] for a in p.axes]
                place = ", ".join(
                    f"{a}={int(n) + f}" for a, n, f in zip(p.axes, k, first, strict=True)
                )
                found = Worst(
                    float(off[k]), f"output {p.output} at {place}", float(have[k]), float(want[k])
                )
        rms = float(np.sqrt(squares / count)) if count else 0.0
        return replace(found, rms=rms, zero_rows=zeros, minus_infinities=infinities)


def _differences(have: NDArray[Any], want: NDArray[Any]) -> NDArray[Any]:
    same = (have == want) | (np.isnan(have) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(have - want))
    return np.nan_to_num(difference, nan=np.inf, posinf=np.inf)


def logits_of(func: Func, sizes: Mapping[str, int], inputs: Mapping[str, Any]) -> float:
    """The largest number that is exponentiated, in sampled rows; 0 if there is none."""
    largest = 0.0
    for ranges in samples(func, sizes):
        part = _with_logits(restrict(func, ranges))
        arrays = {
            p.name: cut(inputs[p.name], p.type.names, ranges) if p.type.axes else inputs[p.name]
            for p in func.params
        }
        values = interpret(part, arrays, exact=True, extents=dict(sizes))[len(func.returns) :]
        for x in values:
            largest = max(largest, float(np.abs(x[np.isfinite(x)]).max(initial=0.0)))
    return largest


def reference(
    func: Func,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Any],
    written: Sequence[NDArray[Any]] | None = None,
) -> Reference:
    """The float64 interpretation of `func` (graph IR) on `inputs`.

    Where that would be too large, some rows of the parallel axes stand for all. `written` says
    which elements of each output there are: rows are then taken from among them.
    """
    parts = []
    ranges_of = samples(func, sizes) if written is None else around(func, sizes, written)
    for ranges in ranges_of:
        part = restrict(func, ranges)
        arrays = {
            p.name: cut(inputs[p.name], p.type.names, ranges) if p.type.axes else inputs[p.name]
            for p in func.params
        }
        all_wanted = interpret(_with_logits(part), arrays, exact=True, extents=dict(sizes))
        scale = max(map(_magnitude, all_wanted))
        for n, (v, want) in enumerate(zip(func.returns, all_wanted, strict=False)):
            parts.append(_Part(n, v.type.names, ranges, want, _tolerance(v.type, scale)))
    return Reference(tuple(parts))


def _largest(have: NDArray[Any], want: NDArray[Any]) -> float:
    """The largest difference; infinite where one is NaN or infinite and the other is not so."""
    return float(_differences(have, want).max(initial=0.0))


def _tolerance(t: TensorType, scale: float) -> float:
    from ml_dtypes import finfo

    if t.dtype.kind != "float":
        return 0.0
    eps = float(finfo(t.dtype.numpy).eps)  # type: ignore[no-untyped-call]
    return (FACTOR if t.dtype.bits >= 32 else NARROW_FACTOR) * eps * scale


def _magnitude(x: NDArray[Any]) -> float:
    """The largest finite absolute value, at least 1."""
    if x.dtype.kind != "f":
        return 1.0
    return float(np.abs(x[np.isfinite(x)]).max(initial=1.0))


def _with_logits(func: Func) -> Func:
    """The graph with what it exponentiates as further outputs; other IR as it is.

    The relative error of an exponential is the absolute error of its argument.
    """
    if func.level != "graph":
        return func
    logits: list[Value] = []
    for op in func.body.ops:
        elementary = op.name == "map" and any(
            isinstance(e, Call) and e.fn in ELEMENTARY for e in walk(op.expr)
        )
        if elementary or op.name in ("softmax", "logsumexp"):
            logits += [v for v in op.operands if v.owner is not None and v.owner.name != "at"]
    cloner = Cloner()
    out = cloner.func(func)
    out.body.terminator.operands += [cloner.value(v) for v in dict.fromkeys(logits)]
    return out

"""Seeded random inputs, and a comparison of a kernel's outputs with the graph in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.cost.arithmetic import ELEMENTARY
from tilecc.ir.core import Axis, Cloner, Func, TensorType, Value
from tilecc.ir.expr import (
    Call,
    Const,
    Env,
    Expr,
    Index,
    arg_numbers,
    evaluate,
    indices,
    transform,
    walk,
)
from tilecc.ir.interp import interpret
from tilecc.ir.interp_expr import integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The tolerance is c * eps * max(1, largest finite logit or output), eps and c being those
# of the output's type. Types below 32 bits compute in f32: their own rounding is nearly all.
FACTOR, NARROW_FACTOR = 32, 1
_ORDERS = ("lt", "le", "gt", "ge")
# What the reference may hold at once, in elements of its largest tensor; and a sample's rows.
ELEMENTS = 1 << 22
ROWS = 64


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


def random_inputs(
    func: Func, sizes: Mapping[str, int], scalars: Mapping[str, float], seed: int = 0
) -> dict[str, Any]:
    """An argument for each parameter: normal floats, integers, and the given numbers.

    Integers that are coordinates, such as a page's number, are within the tensor; those that
    coordinates are compared with, such as lengths, within the axis; others 0 and 1.
    """
    rng = np.random.default_rng(seed)
    ends = _bound_ends(func, sizes) | _coordinate_ends(func, sizes)
    found: dict[str, Any] = {}
    for p in func.params:
        t = p.type.dtype
        if not p.type.axes:
            found[p.name] = scalars[p.name]
            continue
        shape = [integer(a.extent, sizes) for a in p.type.axes]
        if t.kind == "float":
            found[p.name] = rng.standard_normal(shape, dtype=np.float32).astype(t.numpy)
        else:
            found[p.name] = rng.integers(0, ends.get(p, 2), shape).astype(t.numpy)
    return found


def _coordinate_ends(func: Func, sizes: Mapping[str, int]) -> dict[Value, int]:
    """For parameters that say where another is read: the first number that is outside of it."""
    ends: dict[Value, int] = {}
    for op in func.walk():
        if op.name != "at":
            continue
        for axis, e in _replaced(op.attrs):
            extent = integer(op.operands[0].type.axis(axis).extent, sizes)
            for p in {p for k in arg_numbers(e) for p in _sources(op.operands[k])}:
                first = _coordinate(e, op.operands, p, 0, sizes)
                end = max(extent - first, 1)
                if _coordinate(e, op.operands, p, end - 1, sizes) == first + end - 1:
                    ends[p] = min(end, ends.get(p, end))
    return ends


def _bound_ends(func: Func, sizes: Mapping[str, int]) -> dict[Value, int]:
    """For parameters that bound coordinates: the first number that is past the longest axis."""
    ends: dict[Value, int] = {}
    for op in func.walk():
        for e in walk(op.expr) if op.name == "map" else ():
            if not isinstance(e, Call) or e.fn not in _ORDERS:
                continue
            axes = [op.result.type.axis(a) for a in indices(e)]
            longest = max((integer(a.extent, sizes) for a in axes), default=0)
            for p in {p for k in arg_numbers(e) for p in _sources(op.operands[k])} if axes else ():
                ends[p] = max(longest + 1, ends.get(p, 2))
    return ends


def _sources(v: Value) -> set[Value]:
    """Integer parameters that an element of `v` is computed from."""
    if v.owner is None:
        return {v} if v.type.dtype.kind == "int" else set()
    if v.owner.name == "at":
        return _sources(v.owner.operands[0])
    if v.owner.name != "map":
        return set()
    return {p for x in v.owner.operands for p in _sources(x)}


def _coordinate(
    e: Expr, operands: Sequence[Value], p: Value, value: int, sizes: Mapping[str, int]
) -> int:
    """A coordinate where parameter `p` has this value, and all else is 0."""

    def number(v: Value) -> int:
        if v.owner is None or v.owner.name not in ("at", "map"):
            return value if v is p else 0
        if v.owner.name == "at":
            return number(v.owner.operands[0])
        return _coordinate(v.owner.expr, v.owner.operands, p, value, sizes)

    env = Env(extent=sizes.__getitem__, index=lambda a: 0, arg=lambda k: number(operands[k]))
    return int(evaluate(e, env))


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
    for ranges in _samples(func, sizes):
        part = _with_logits(_restrict(func, ranges))
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
    ranges_of = _samples(func, sizes) if written is None else _around(func, sizes, written)
    for ranges in ranges_of:
        part = _restrict(func, ranges)
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


def _samples(func: Func, sizes: Mapping[str, int]) -> Iterator[dict[str, tuple[int, int]]]:
    """Ranges (first, count) of parallel axes that together stand for the whole."""
    extents = _extents(func, sizes)
    counts: dict[str, int] = {}
    for axis in sorted(independent_axes(func), key=lambda a: -extents[a]):
        if _most(func, extents | counts) > ELEMENTS:
            counts[axis] = min(1 if counts else ROWS, extents[axis])
    if not counts:
        yield {}
        return
    rng = np.random.default_rng(0)
    last = {a: extents[a] - n for a, n in counts.items()}
    middle = {a: int(rng.integers(0, n + 1)) for a, n in last.items()}
    for start in (dict.fromkeys(counts, 0), middle, last):
        yield {a: (start[a], n) for a, n in counts.items()}


def _around(
    func: Func, sizes: Mapping[str, int], written: Sequence[NDArray[Any]]
) -> Iterator[dict[str, tuple[int, int]]]:
    """Ranges of the parallel axes with the written elements, or three of their places if large."""
    extents = _extents(func, sizes)
    places = {}
    for axis in independent_axes(func):
        found: set[int] = set()
        for v, w in zip(func.returns, written, strict=True):
            others = tuple(k for k, n in enumerate(v.type.names) if n != axis)
            found |= set(np.nonzero(w.any(axis=others))[0].tolist())
        if not found:
            return
        places[axis] = sorted(found)
    ranges = {a: (p[0], p[-1] - p[0] + 1) for a, p in places.items()}
    if _most(func, extents | {a: n for a, (_, n) in ranges.items()}) <= ELEMENTS:
        yield ranges
        return
    first = func.returns[0].type.names
    where = np.argwhere(written[0])
    for place in where[[0, len(where) // 2, -1]]:
        counts: dict[str, int] = {}
        for axis in sorted(places, key=lambda a: -extents[a]):
            left = extents[axis] - int(place[first.index(axis)])
            counts[axis] = min(1 if counts else ROWS, left)
        yield {a: (int(place[first.index(a)]), n) for a, n in counts.items()}


def _extents(func: Func, sizes: Mapping[str, int]) -> dict[str, int]:
    """The size of every axis."""
    return {
        a.name: integer(a.extent, sizes)
        for v in [*func.params, *_values(func)]
        for a in v.type.axes
    }


def _most(func: Func, extents: Mapping[str, int]) -> float:
    """The elements of the largest tensor."""
    sizes = [np.prod([float(extents[n]) for n in v.type.names]) for v in _values(func)]
    return float(max(sizes, default=0))


def _values(func: Func) -> Iterator[Any]:
    for op in func.walk():
        yield from op.results


def independent_axes(func: Func) -> list[str]:
    """Axes along which an output's rows depend on the same rows of inputs alone."""
    outputs = func.returns
    bad = {a for op in func.walk() for a in op.attrs.get("over", ())}
    for op in func.walk():
        if op.name == "at":  # what it replaces is read anywhere
            bad |= set(op.operands[0].type.names) - set(op.result.type.names)
            bad |= {a for a, _ in _replaced(op.attrs)}
    return [
        n for n in outputs[0].type.names if n not in bad and all(v.type.has(n) for v in outputs)
    ]


def _replaced(attrs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The axes that an `at` replaces, with their expressions."""
    found = attrs.get("coords", ())
    return list(found.items()) if isinstance(found, Mapping) else list(found)


def cut(
    x: NDArray[Any], names: Sequence[str], ranges: Mapping[str, tuple[int, int]]
) -> NDArray[Any]:
    """`x`, whose axes have these names, where they are in `ranges` (first, count)."""
    whole = (0, None)
    slices = []
    for n in names:
        start, count = ranges.get(n, whole)
        slices.append(slice(start, None if count is None else start + count))
    return x[tuple(slices)]


class _Restriction(Cloner):
    """Copies a graph with some axes cut to a range; their coordinates stay what they were."""

    def __init__(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        super().__init__()
        self.ranges = ranges

    def type(self, t: TensorType) -> TensorType:
        return replace(t, axes=tuple(self._axis(a) for a in t.axes))

    def _axis(self, a: Axis) -> Axis:
        return Axis(a.name, Const(self.ranges[a.name][1])) if a.name in self.ranges else a

    def attr(self, a: Any) -> Any:
        if isinstance(a, Expr):
            return transform(a, self._shift)
        if isinstance(a, TensorType):
            return self.type(a)
        if isinstance(a, Axis):
            return self._axis(a)
        if isinstance(a, tuple):
            return tuple(self.attr(x) for x in a)
        if isinstance(a, dict):
            return {k: self.attr(x) for k, x in a.items()}
        return a

    def _shift(self, e: Expr) -> Expr | None:
        if isinstance(e, Index) and e.axis in self.ranges:
            start = self.ranges[e.axis][0]
            return Call("add", (e, Const(start))) if start else None
        return None


def _restrict(func: Func, ranges: Mapping[str, tuple[int, int]]) -> Func:
    return _Restriction(ranges).func(func) if ranges else func

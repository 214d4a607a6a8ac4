"""Parts of a program's outputs that stand for the whole, and the graph of one part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.inputs import replaced
from tilecc.ir.core import Axis, Cloner, Func, TensorType
from tilecc.ir.expr import Call, Const, Expr, Index, transform
from tilecc.ir.interp_expr import integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What the reference may hold at once, in elements of its largest tensor; and a sample's rows.
ELEMENTS = 1 << 22
ROWS = 64


def samples(func: Func, sizes: Mapping[str, int]) -> Iterator[dict[str, tuple[int, int]]]:
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


def around(
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
            bad |= {a for a, _ in replaced(op.attrs)}
    return [
        n for n in outputs[0].type.names if n not in bad and all(v.type.has(n) for v in outputs)
    ]


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


def restrict(func: Func, ranges: Mapping[str, tuple[int, int]]) -> Func:
    """The graph for a range of some axes."""
    return _Restriction(ranges).func(func) if ranges else func

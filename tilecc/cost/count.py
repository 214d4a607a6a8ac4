"""How often things happen, as exact numbers, over whole grids at once.

Only counters that a bound or a condition depends on are enumerated, as numpy arrays; a counter that
merely moves a tile along its axis is summed in closed form, since tiles side by side cover a range:

    sum over t in lo .. hi of min(size, N - t * size) = min(hi * size, N) - min(lo * size, N)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tilecc.cost.nest import Access, Guard, Loop, Nest, Read, Span, Work, counters, tile_counter
from tilecc.errors import CompileError, Diagnostic, Loc
from tilecc.ir.core import Value
from tilecc.ir.expr import Env, Expr, Extent, evaluate, walk

POINTS = 1 << 20  # how many loop iterations are held at once
_Points = dict[str, Any]
Array = np.ndarray[Any, Any]


class Counter:
    """Counts, for given extents and run-time scalars, and the tensors that scalars are read from.

    `reads` says where a scalar is read (`Kernel.reads`), `arrays` holds those tensors that are
    known.
    """

    def __init__(
        self,
        extents: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
        reads: Mapping[str, Read] | None = None,
        arrays: Mapping[Value, Array] | None = None,
    ):
        self.values: dict[str, Any] = dict(extents)
        self.values |= {f"%{name}": value for name, value in (scalars or {}).items()}
        arrays = arrays or {}
        self.reads = dict(reads or {})
        self.arrays = {
            name: (r, arrays[r.tensor]) for name, r in self.reads.items() if r.tensor in arrays
        }

    def elements(self, accesses: Sequence[Access]) -> list[int]:
        """Elements inside their tensors that each access touches in total."""
        return [
            self.points(a.nest, list(a.spans), a.op.loc) * int(np.prod([n for _, n in a.whole]))
            for a in accesses
        ]

    def times(self, work: Sequence[Work]) -> list[int]:
        """How often each operation runs."""
        done: dict[Nest, int] = {}
        for w in work:
            if w.nest not in done:
                done[w.nest] = self.points(w.nest, [], w.op.loc)
        return [done[w.nest] for w in work]

    def value(
        self, e: Expr, points: Mapping[str, Any] | None = None, loc: Loc | None = None
    ) -> Any:
        """`e` at the points.

        Raises:
            CompileError: it needs a value that is not given.
        """
        for n in walk(e):
            if isinstance(n, Extent) and n.name not in self.values and n.name not in self.arrays:
                raise _missing(n.name, self.reads.get(n.name), loc)
        at = points or {}

        def extent(name: str) -> Any:
            if name in self.arrays:
                r, array = self.arrays[name]
                places = (self.value(c, points, loc) for c in r.coords)
                # Of a loop that is never run the bounds are not read either.
                inside = tuple(
                    np.clip(x, 0, n - 1) for x, n in zip(places, array.shape, strict=True)
                )
                return array[inside] if array.size else np.int64(0)
            return self.values[name]

        return evaluate(e, Env(index=lambda counter: at[counter], extent=extent))

    def counters(self, e: Expr) -> set[str]:
        """The counters that `e` depends on, through what it reads too."""
        found = counters(e)
        for n in walk(e):
            if isinstance(n, Extent) and n.name in self.arrays:
                found |= {c for x in self.arrays[n.name][0].coords for c in self.counters(x)}
        return found

    def points(self, nest: Nest, spans: list[Span], loc: Loc | None = None) -> int:
        """Elements that the spans make together, summed over a nest of loops."""
        return self._from(
            nest, 0, {}, np.ones(1, np.int64), self._enumerated(nest, spans), spans, loc
        )

    def visits(self, nest: Nest, fixed: Collection[str] = ()) -> dict[str, Array]:
        """The values of the counters each time that what is inside the nest runs.

        Counters in `fixed` are taken to be 0.
        """
        points: _Points = {}
        weight = np.ones(1, np.int64)
        for item in nest:
            if isinstance(item, Guard):
                here = np.broadcast_to(self.value(item.condition, points), weight.shape)
                points, weight = {c: v[here] for c, v in points.items()}, weight[here]
                continue
            if item.counter in fixed:
                points = {**points, item.counter: np.zeros_like(weight)}
                continue
            lo, hi = (
                np.broadcast_to(self.value(e, points), weight.shape) for e in (item.lo, item.hi)
            )
            trips = np.maximum(hi - lo, 0)
            points, which = _expand(item.counter, slice(None), lo, trips, points)
            weight = weight[which]
        return points

    def _from(
        self,
        nest: Nest,
        depth: int,
        points: _Points,
        weight: np.ndarray[Any, np.dtype[np.int64]],
        enumerated: set[str],
        spans: list[Span],
        loc: Loc | None,
    ) -> int:
        """The sum over the points of `weight`, times what happens from `depth` of the nest on."""
        scale = 1
        for k in range(depth, len(nest)):
            item = nest[k]
            if isinstance(item, Guard):
                here = np.broadcast_to(self.value(item.condition, points, loc), weight.shape)
                points, weight = {c: v[here] for c, v in points.items()}, weight[here]
                continue
            lo, hi = (self.value(e, points, loc) for e in (item.lo, item.hi))
            if item.counter not in enumerated:
                span = next((s for s in spans if tile_counter(s) == item.counter), None)
                factor = (
                    self._covered(span, lo, hi, points, loc) if span else np.maximum(hi - lo, 0)
                )
                if np.ndim(factor) == 0:
                    scale *= int(factor)
                else:
                    weight = weight * factor
                spans = [s for s in spans if s is not span]
                continue
            trips = np.maximum(np.broadcast_to(hi - lo, weight.shape), 0)
            total = 0
            for part in _parts(trips):
                inner, repeats = _expand(
                    item.counter, part, np.broadcast_to(lo, trips.shape), trips, points
                )
                total += self._from(
                    nest, k + 1, inner, weight[part][repeats], enumerated, spans, loc
                )
            return scale * total
        for s in spans:
            base, extent = self.value(s.base, points, loc), self.value(s.extent, points, loc)
            weight = weight * np.clip(
                np.minimum(base + s.size, extent) - np.maximum(base, 0), 0, None
            )
        return scale * int(weight.sum())

    def _enumerated(self, nest: Nest, spans: Sequence[Span]) -> set[str]:
        """The counters whose values must be known one by one."""
        found: set[str] = set()
        for item in nest:
            for e in (item.lo, item.hi) if isinstance(item, Loop) else (item.condition,):
                found |= self.counters(e)
        moved: set[str] = set()
        for s in spans:
            counter = tile_counter(s)
            if counter is None or counter in moved:
                found |= self.counters(s.base)
            elif counter:
                moved.add(counter)
        return found

    def _covered(self, s: Span, lo: Any, hi: Any, points: _Points, loc: Loc | None) -> Any:
        end = self.value(s.extent, points, loc)
        first, last = np.clip(lo * s.size, 0, end), np.clip(hi * s.size, 0, end)
        return np.maximum(last - first, 0)


def _parts(trips: np.ndarray[Any, np.dtype[np.int64]]) -> list[slice]:
    """Runs of points that together make at most POINTS iterations (or are one point)."""
    ends = np.cumsum(trips)
    parts, start, done = [], 0, 0
    while start < len(trips):
        stop = max(int(np.searchsorted(ends, done + POINTS, side="right")), start + 1)
        parts.append(slice(start, stop))
        start, done = stop, int(ends[stop - 1])
    return parts


def _expand(counter: str, part: slice, lo: Any, trips: Any, points: _Points) -> tuple[_Points, Any]:
    """The points of a part, once for each iteration of a loop; and which point each comes from."""
    lo, trips = lo[part], trips[part]
    which = np.repeat(np.arange(len(trips)), trips)
    before = np.cumsum(trips) - trips
    inner = {c: v[part][which] for c, v in points.items()}
    inner[counter] = np.arange(len(which)) - before[which] + lo[which]
    return inner, which


def _missing(name: str, read: Read | None, loc: Loc | None) -> CompileError:
    if read is not None:
        tensor = read.tensor.name
        what = f"how much is read depends on what is in %{tensor}"
        return CompileError(Diagnostic(what, loc, f"give {tensor}= as an array"))
    if name.startswith("%"):
        what = f"how much is read depends on {name}, a value known at run time only"
        return CompileError(
            Diagnostic(
                what, loc, f"give {name[1:]}=... (--scalar {name[1:]}=... on the command line)"
            )
        )
    hint = f"give extents={{{name!r}: ...}} (--shape {name}=... on the command line)"
    return CompileError(Diagnostic(f"extent {name} has no value", loc, hint))

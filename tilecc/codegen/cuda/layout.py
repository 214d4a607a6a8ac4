"""Fragment layouts: which thread holds an element of a tile, and in which of its registers.

A coordinate along an axis is a sum of digits. A digit is a part of a *source*: of a thread's
number (`g`: its row of 8 in the warp, `t`: its column of 4, `w`: the warp) or of a register's (`m`,
`r`, `n`, `c`). With rows along an axis i and columns along j the layout is that of mma's m16n8
accumulators, repeated m times along i and n times along j:

    i = w * 16 M + m * 16 + r * 8 + g        j = n * 8 + t * 2 + c

A value without an axis has the digits of the others, and is replicated over what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

THREAD = ("g", "t", "w")
"""Sources that are parts of a thread's number."""
_LANES = {"g": 8, "t": 4}
ATOM_ROWS, ATOM_COLUMNS = 16, 8


@dataclass(frozen=True)
class Digit:
    """`(source // div % extent) * step` of a coordinate."""

    source: str
    div: int
    extent: int
    step: int

    @property
    def in_thread(self) -> bool:
        """Whether different threads have different values of it."""
        return self.source in THREAD


@dataclass(frozen=True)
class Layout:
    """Digits of each axis, and the extents of the register sources, the slowest first."""

    axes: tuple[tuple[str, tuple[Digit, ...]], ...]
    registers: tuple[tuple[str, int], ...]

    def digits(self, axis: str) -> tuple[Digit, ...]:
        """The digits of an axis, lowest first; none for an axis of one element."""
        return dict(self.axes).get(axis, ())

    def covers(self, axis: str) -> int:
        """How many coordinates along an axis there is a place for."""
        return prod(d.extent for d in self.digits(axis))

    @property
    def count(self) -> int:
        """Registers (elements) that each thread has."""
        return prod(n for _, n in self.registers)

    def coordinate(self, axis: str, env: Mapping[str, Any]) -> Any:
        """The coordinate along an axis where the sources have the values in `env`."""
        total: Any = 0
        for d in self.digits(axis):
            total = total + part(env[d.source], d, self._extent(d.source)) * d.step
        return total

    def register(self, env: Mapping[str, Any]) -> Any:
        """The number of the register where the register sources have the values in `env`."""
        index: Any = 0
        for name, n in self.registers:
            index = index * n + env[name]
        return index

    def _extent(self, source: str) -> int | None:
        """How many values a source has, if that is known."""
        if source == "w":
            warps = [d for _, digits in self.axes for d in digits if d.source == "w"]
            return max((d.div * d.extent for d in warps), default=None)
        return {**_LANES, **dict(self.registers)}.get(source)

    def without(self, *axes: str) -> Layout:
        """The layout of a value that lacks some of the axes."""
        kept = tuple((a, d) for a, d in self.axes if a not in axes)
        used = {d.source for _, digits in kept for d in digits}
        # A source that a lost axis shares with one that is kept shrinks to the latter's part.
        if any(d.source in used and not d.in_thread for a in axes for d in self.digits(a)):
            return _renumbered(kept, self.registers)
        return Layout(kept, tuple((s, n) for s, n in self.registers if s in used))

    def free(self, sources: Mapping[str, int]) -> list[tuple[str, int, int]]:
        """(source, div, extent) of the parts of a thread's number that no axis has."""
        found = []
        for source, extent in sources.items():
            used = {
                (d.div, d.extent) for _, digits in self.axes for d in digits if d.source == source
            }
            div = 1
            for at, n in sorted(used):
                if at > div:
                    found.append((source, div, at // div))
                div = at * n
            if div < extent:
                found.append((source, div, extent // div))
        return found


def part(value: Any, d: Digit, extent: int | None) -> Any:
    """`value // div % extent`, without what does nothing."""
    if d.div > 1:
        value = value // d.div
    if extent is not None and d.div * d.extent >= extent:
        return value
    return value % d.extent


def _renumbered(
    axes: Sequence[tuple[str, tuple[Digit, ...]]], registers: Sequence[tuple[str, int]]
) -> Layout:
    """Register digits as sources of their own, in the order of their places."""
    order = {s: n for n, (s, _) in enumerate(registers)}
    inner = [d for _, digits in axes for d in digits if not d.in_thread]
    inner.sort(key=lambda d: (order[d.source], -d.div))
    names = {d: f"{d.source}{d.div}" for d in inner}
    renamed = tuple(
        (a, tuple(d if d.in_thread else Digit(names[d], 1, d.extent, d.step) for d in digits))
        for a, digits in axes
    )
    return Layout(renamed, tuple((names[d], d.extent) for d in inner))


def natural(
    rows: Sequence[tuple[str, int]], columns: Sequence[tuple[str, int]], warps: int
) -> Layout:
    """The layout with `rows` and `columns` (axis, size), the fastest first, over so many warps.

    Sizes of all but the slowest are rounded up to powers of two; it takes what is left. Axes of
    one element have no digits.
    """
    rows, columns = _rounded(rows), _rounded(columns)
    axes: dict[str, tuple[Digit, ...]] = {}
    registers: dict[str, int] = {}
    if rows:
        m = -(-prod(n for _, n in rows) // (ATOM_ROWS * warps))
        m = m if len(rows) == 1 else _power(m)
        axes |= _shared_out(rows, [("g", 8), ("r", 2), ("m", m), ("w", warps)])
        registers["m"] = m
    if columns:
        n = -(-prod(n for _, n in columns) // ATOM_COLUMNS)
        axes |= _shared_out(columns, [("c", 2), ("t", 4), ("n", n)])
        registers["n"] = n
    registers |= {"r": 2} if rows else {}
    registers |= {"c": 2} if columns else {}
    return Layout(tuple(axes.items()), tuple(registers.items()))


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _rounded(axes: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    kept = [(a, n) for a, n in axes if n > 1]
    return [(a, _power(n)) for a, n in kept[:-1]] + kept[-1:]


def _shared_out(
    axes: Sequence[tuple[str, int]], sources: Sequence[tuple[str, int]]
) -> dict[str, tuple[Digit, ...]]:
    """Digits of each axis: sources from the fastest on, split where an axis is full."""
    found: dict[str, list[Digit]] = {a: [] for a, _ in axes}
    left = [(a, n) for a, n in axes]
    step = 1
    for source, extent in sources:
        div = 1
        while extent > 1:
            axis, room = left[0]
            last = len(left) == 1
            take = extent if last else min(extent, room)
            found[axis].append(Digit(source, div, take, step))
            step, div, extent = step * take, div * take, extent // take
            if not last:
                left[0] = axis, room // take
                if left[0][1] == 1:
                    left, step = left[1:], 1
    return {a: tuple(d) for a, d in found.items()}


def conforms(value: Layout, at: Layout) -> bool:
    """Whether a thread that holds an element in `at` holds that of `value` at its coordinates."""
    for axis, digits in value.axes:
        mine = [(d.source, d.div, d.extent, d.step) for d in digits if d.in_thread]
        other = at.digits(axis)
        if mine != [(d.source, d.div, d.extent, d.step) for d in other if d.in_thread]:
            return False
        inner = [(d.extent, d.step) for d in digits if not d.in_thread]
        if inner != [(d.extent, d.step) for d in other if not d.in_thread]:
            return False
    return True


def register_at(value: Layout, at: Layout, env: Mapping[str, Any]) -> Any:
    """The register of a value in layout `value` for the element that `env` is in `at`."""
    sources: dict[str, Any] = {s: 0 for s, _ in value.registers}
    for axis, digits in value.axes:
        inner = [d for d in digits if not d.in_thread]
        others = [d for d in at.digits(axis) if not d.in_thread]
        for mine, other in zip(inner, others, strict=True):
            x = part(env[other.source], other, dict(at.registers).get(other.source))
            sources[mine.source] = sources[mine.source] + x * mine.div
    return value.register(sources)

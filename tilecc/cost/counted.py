"""What a kernel does, counted once at reference sizes; other sizes follow by proportion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilecc.cost.arithmetic import Arithmetic, arithmetic
from tilecc.cost.count import Counter
from tilecc.cost.data import nominal
from tilecc.cost.nest import Access, Guard, Kernel, Loop, tile_counter
from tilecc.ir.core import Axis
from tilecc.ir.dtypes import F32
from tilecc.ir.expr import Expr, Extent, walk

# What extents that are not known are taken to be: lengths that are tiled, and all others.
NOMINAL_LENGTH = 4096
NOMINAL_COUNT = 8


@dataclass
class Counted:
    """A kernel's accesses and arithmetic at the reference sizes."""

    kernel: Kernel
    elements: list[int]
    work: Arithmetic
    lengths: dict[str, int]  # of tiled axes
    programs: int  # of the grid
    steps: int  # tiles of streamed axes, over all programs


def count_kernel(k: Kernel, extents: Mapping[str, int]) -> Counted:
    """Everything of one kernel, for given or nominal extents."""
    k = nominal(k)
    counter = _nominal(k, extents)
    lengths = {
        s.axis: int(counter.value(s.extent))
        for a in k.accesses
        for s in a.spans
        if s.axis in k.tile
    }
    grid = [i for i in _loops(k)[0] if isinstance(i, Loop)]
    nests = {n for n in (w.nest for w in k.work) if len(n) > len(grid)}
    outer = {n for n in nests if not any(m != n and n[: len(m)] == m for m in nests)}
    return Counted(
        k,
        counter.elements(k.accesses),
        arithmetic(k, counter),
        lengths,
        counter.points(tuple(grid), []),
        sum(counter.points(n, []) for n in outer),
    )


def _loops(k: Kernel) -> list[tuple[Loop | Guard, ...]]:
    """The grid, which is around everything."""
    nests = [a.nest for a in k.accesses]
    return [nests[0][: len(k.op.attrs["grid"])]] if nests else [()]


def _nominal(k: Kernel, extents: Mapping[str, int]) -> Counter:
    """A counter that knows every value: given, or nominal."""
    values: dict[str, int] = dict(extents)
    found: list[Expr] = []
    lengths: set[str] = set()
    for a in k.accesses:
        for s in a.spans:
            found += [s.base, s.extent]
            if s.axis in k.tile:
                lengths |= {n.name for n in walk(s.extent) if isinstance(n, Extent)}
    nests = [*(a.nest for a in k.accesses), *(w.nest for w in k.work)]
    for i in {i for nest in nests for i in nest}:
        found += [i.lo, i.hi] if isinstance(i, Loop) else [i.condition]
    for e in found:
        for n in walk(e):
            if isinstance(n, Extent) and n.name not in values:
                long = n.name in lengths or n.name.startswith("%")
                values[n.name] = NOMINAL_LENGTH if long else NOMINAL_COUNT
    counter = Counter(values)
    return counter


def load_ratio(a: Access, c: Counted, tile: Mapping[str, int]) -> float:
    """How often a load is done with these sizes, compared with the reference."""
    own = {tile_counter(s) for s in a.spans}
    ratio = 1.0
    axes = c.kernel.counters()
    for i in a.nest:
        if isinstance(i, Loop) and i.counter not in own and i.counter in axes:
            ratio *= trips(c, axes[i.counter], tile)
    return ratio


def trips(c: Counted, axis: str, tile: Mapping[str, int]) -> float:
    """Tiles of an axis with these sizes, for each that the reference has."""
    length, old = max(1, c.lengths[axis]), c.kernel.tile[axis]
    return -(-length // tile.get(axis, old)) / -(-length // old)


def streams(c: Counted) -> list[tuple[str, int]]:
    """Streamed axes with their reference sizes."""
    n = len(c.kernel.op.attrs["grid"])
    grid = {i.counter for a in c.kernel.accesses for i in a.nest[:n] if isinstance(i, Loop)}
    axes = {a for counter, a in c.kernel.counters().items() if counter not in grid}
    return [(a, c.kernel.tile[a]) for a in axes]


def idle_factor(c: Counted, tile: Mapping[str, int], cores: int) -> float:
    """How much longer the last round of programs makes it, with some cores at rest."""
    programs = max(1, round(c.programs * programs_ratio(c, tile)))
    return -(-programs // cores) * cores / programs


def programs_ratio(c: Counted, tile: Mapping[str, int]) -> float:
    """Programs of the grid with these sizes, for each that the reference has."""
    walked = {a for a, _ in streams(c)}
    ratio = 1.0
    for axis in c.lengths:
        if axis not in walked:
            ratio *= trips(c, axis, tile)
    return ratio


def steps_ratio(c: Counted, tile: Mapping[str, int]) -> float:
    """Tiles of streamed axes with these sizes, for each that the reference has."""
    ratio = 1.0
    for axis in c.lengths:
        ratio *= trips(c, axis, tile)
    return ratio


def lane_rows(c: Counted, tile: Mapping[str, int]) -> int:
    """Rows of a tile: what SIMD lanes or the rows of a matrix instruction run over.

    Rows of different factors (those of a plain product) do not add up: lanes run over one of them.
    """
    walked = {a for a, _ in streams(c)}
    rows = {a: tile.get(a, n) for a, n in c.kernel.tile.items() if a not in walked}
    contractions = [op for op in c.kernel.op.body.walk() if op.name == "contract"]
    if not contractions:
        return math.prod(rows.values())
    factors = [v for op in contractions for v in op.operands[: -1 if op.attrs.get("acc") else None]]
    return max(math.prod(n for a, n in rows.items() if v.type.has(a)) for v in factors)


def padding(c: Counted, tile: Mapping[str, int]) -> float:
    """Rows that tiles have, over rows that there are: those beyond the end are computed too.

    What is summed over ends where its axis does.
    """
    walked = {a for a, _ in streams(c)}
    found = 1.0
    for axis, length in c.lengths.items():
        if axis not in walked and length > 0:
            size = tile.get(axis, c.kernel.tile[axis])
            found *= -(-length // size) * size / length
    return found


def carried_numbers(c: Counted, tile: Mapping[str, int]) -> int:
    """Numbers that are carried from one tile of a streamed axis to the next."""
    for op in c.kernel.op.body.walk():
        if op.name == "for":
            n = int(op.attrs["n_carry"])
            return sum(numbers(v.type.axes, tile) for v in op.operands[:n])
    return 0


def streamed_bytes(c: Counted, tile: Mapping[str, int]) -> int:
    """Bytes of the tiles that are new at each step: those loaded, and those computed from them."""
    walked = {a for a, _ in streams(c)}
    found: dict[tuple[str, ...], int] = {}
    for w in c.kernel.op.body.walk():
        if w.name in ("load", "contract"):
            t = w.result.type
            if walked & set(t.names):
                key = (w.name, w.operands[0].name if w.name == "load" else "", *t.names)
                found[key] = numbers(t.axes, tile) * t.dtype.bytes
    return sum(found.values())


def loaded_bytes(c: Counted, tile: Mapping[str, int], *, new: bool) -> int:
    """Bytes of loaded tiles: those that are new at each step, or those that stay."""
    walked = {a for a, _ in streams(c)}
    found: dict[tuple[str, ...], int] = {}
    for w in c.kernel.op.body.walk():
        if w.name == "load" and bool(walked & set(w.result.type.names)) is new:
            t = w.result.type
            found[(w.operands[0].name, *t.names)] = numbers(t.axes, tile) * t.dtype.bytes
    return sum(found.values())


def narrow_numbers(c: Counted, tile: Mapping[str, int]) -> int:
    """Numbers that each step loads and converts, or packs for a dot instruction."""
    walked = {a for a, _ in streams(c)}
    loads = {
        (w.operands[0], w.result.type.axes): w.result.type
        for w in c.kernel.op.body.walk()
        if w.name == "load" and walked & set(w.result.type.names)
    }
    return sum(numbers(t.axes, tile) for t in loads.values() if t.dtype.bits < F32.bits)


def numbers(axes: Sequence[Axis], tile: Mapping[str, int]) -> int:
    """Elements of a tile."""
    n = 1
    for a in axes:
        n *= tile.get(a.name, a.static or 1)
    return n


def unique_bytes(c: Counted) -> int:
    """Bytes of everything that is touched, counted once."""
    total = 0
    for a, n in zip(c.kernel.accesses, c.elements, strict=True):
        again = 1.0
        axes, own = c.kernel.counters(), {tile_counter(s) for s in a.spans}
        for i in a.nest:
            if isinstance(i, Loop) and i.counter not in own and i.counter in axes:
                axis = axes[i.counter]
                again *= -(-max(1, c.lengths[axis]) // c.kernel.tile[axis])
        total += int(n / again) * a.tensor.type.dtype.bytes
    return total

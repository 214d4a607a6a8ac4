"""How well a CPU's units are used by contractions that are done in blocks of registers.

A step of a block multiplies `rows` broadcast numbers with `vectors` vectors. It takes as long as
the slowest of: the multiply-adds, at two a clock; their latency, since the next step adds to the
same registers; the loads, at two a clock; and what does not fit the registers, stored and loaded
again. These numbers are those of the cores of the last ten years (Agner Fog: Instruction tables;
Intel: Optimization Reference Manual, ports 0, 1, 2, 3 and 5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilecc.cost.counted import Counted, streams
from tilecc.ir.core import Op, Value

UNITS, LATENCY, LOADS = 2, 5, 2
# Clocks to start a block and to leave it: a loop's mispredicted end, and a pipeline to fill; and
# for each register, to clear it, apply what follows, and store it.
START, LEAVE = 20, 1
# Operations to add up the lanes of a sum, shared with those of others in a tree of shuffles.
ADD_LANES = 2.5


@dataclass(frozen=True)
class _Shape:
    """One contraction on tiles: elements of the result's lanes, its rows, all others, and sums."""

    op: Op
    lanes_axis: str | None
    lanes: int
    rows: int
    others: int
    summed: int

    @property
    def products(self) -> int:
        return self.lanes * self.rows * self.others * self.summed


def slowdown(
    c: Counted,
    tile: Mapping[str, int],
    width: int,
    registers: int,
    block: tuple[int, int],
    dot: int,
    *,
    last_axis: bool,
) -> float:
    """Clocks that a kernel's contractions take, over those of their multiply-adds alone.

    Args:
        tile: sizes of tiled axes.
        width: lanes of a vector.
        registers: vector registers.
        block: rows and vectors of the register tile.
        dot: products that one lane adds in an instruction.
        last_axis: lanes lie along each value's last axis, whatever the rows.
    """
    clocks = ideal = 0.0
    axis = None if last_axis else lane_axis(c, tile, width)
    for op in c.kernel.op.body.walk():
        if op.name != "contract":
            continue
        s = _shape(op, axis, tile)
        ideal += s.products / (width * dot * UNITS)
        summed = max(1.0, s.summed / dot)
        if s.lanes_axis is None:
            clocks += _along_sum(s, width * dot)
        else:
            vectors = -(-s.lanes // width)
            high = block[0]
            wide = block[1] if axis is not None else max(1, registers * 3 // 4 // min(high, s.rows))
            clocks += s.others * _blocks(s.rows, vectors, summed, high, wide, registers)
    return max(1.0, clocks / ideal) if ideal else 1.0


def lane_axis(c: Counted, tile: Mapping[str, int], width: int) -> str | None:
    """The axis of rows that lies in vector lanes: one that fills them, in all contractions."""
    walked = {a for a, _ in streams(c)}
    ops = [op for op in c.kernel.op.body.walk() if op.name == "contract"]
    rows = [
        (tile.get(a, n), a)
        for a, n in c.kernel.tile.items()
        if a not in walked and tile.get(a, n) >= width
    ]
    fitting = [
        (n, a)
        for n, a in rows
        if all(
            op.result.type.has(a) and sum(v.type.has(a) for v in _factors(op)) == 1 for op in ops
        )
    ]
    return max(fitting)[1] if fitting else None


def _factors(op: Op) -> list[Value]:
    return op.operands[:-1] if op.attrs.get("acc") else op.operands


def _shape(op: Op, axis: str | None, tile: Mapping[str, int]) -> _Shape:
    names = op.result.type.names

    def size(a: str, v: Value = op.result) -> int:
        return tile.get(a, v.type.axis(a).static or 1)

    x = axis if axis in names else (names[-1] if names else None)
    across = [v for v in _factors(op) if x is not None and v.type.has(x)]
    if axis not in names and not (len(across) == 1 and across[0].type.names[-1] == x):
        x = None  # lanes lie along what is summed
    y = next(
        (a for a in reversed(names) if a != x and not any(v.type.has(a) for v in across)), None
    )
    others = math.prod(size(a) for a in names if a not in (x, y))
    summed = math.prod(size(k, next(v for v in _factors(op) if v.type.has(k))) for k in op.over)
    return _Shape(op, x, size(x) if x else 1, size(y) if y else 1, others, summed)


def _along_sum(s: _Shape, width: int) -> float:
    """Lanes along the summed axis: a multiply-add and its load each, then the lanes are added."""
    steps = -(-s.summed // width)
    return s.rows * s.others * (steps / min(UNITS, LOADS) + ADD_LANES)


def _blocks(rows: int, vectors: int, summed: float, high: int, wide: int, registers: int) -> float:
    """Clocks of all blocks of a result, those at its edges included."""
    return sum(
        nr_count * mr_count * _block(mr, nr, summed, registers)
        for mr, mr_count in _parts(rows, high)
        for nr, nr_count in _parts(vectors, wide)
    )


def _parts(size: int, most: int) -> list[tuple[int, int]]:
    """(length, count) of whole blocks, and of the rest."""
    return [(n, k) for n, k in ((most, size // most), (size % most, 1)) if n and k]


def _block(rows: int, vectors: int, summed: float, registers: int) -> float:
    sums = rows * vectors
    spilled = max(0, sums + vectors + 1 - registers)
    step = max(sums / UNITS + spilled, LATENCY, (rows + vectors) / LOADS)
    return summed * step + sums * LEAVE + START

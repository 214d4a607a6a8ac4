"""How long a kernel would take with other tile sizes, from one tiling of it.

Everything that a kernel does is counted once, exactly, at reference sizes. With other sizes, what
is loaded once for each tile of another axis is loaded more or less often in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilecc.cost.arithmetic import Arithmetic, arithmetic
from tilecc.cost.count import Counter
from tilecc.cost.footprint import Footprint
from tilecc.cost.nest import Access, Guard, Kernel, Loop, kernels, tile_counter
from tilecc.ir.core import Axis, Func
from tilecc.ir.dtypes import F32, DType
from tilecc.ir.expr import Expr, Extent, walk
from tilecc.target import Target

# What extents that are not known are taken to be: lengths that are tiled, and all others.
NOMINAL_LENGTH = 4096
NOMINAL_COUNT = 8

# On a CPU: multiply-adds in flight that keep both units busy (12 to 24 registers of sums measure
# alike), operations on each carried number for each tile of a streamed axis (load, rescale, store,
# fill the pipeline again), bytes a clock that come from L2, operations to convert or pack a number
# of fewer than 32 bits, and the clock of a machine whose is unknown.
SUMS_IN_FLIGHT = 12
CARRY_OPERATIONS = 8
L2_BYTES_A_CLOCK = 32
CONVERT_OPERATIONS = 6
# Measured for 4 rows of 128 numbers: tiles of 64 keys take 12 % longer than tiles of 256.
RESTART_SECONDS = 0.25e-6
CLOCK = 3e9
REGISTER_ROWS, REGISTER_COLUMNS = 4, 4

# On a GPU: what starting a tile of a streamed axis costs, as a number of its elements, and how much
# faster than DRAM an L2 is whose bandwidth nobody publishes (an A100's is 3.5 times).
TILE_OVERHEAD = 8
L2_TO_DRAM = 3


@dataclass(frozen=True)
class Prediction:
    """Bytes moved to and from main memory, and seconds (None: the machine has no speeds)."""

    bytes: int
    seconds: float | None


@dataclass
class _Counted:
    """A kernel's accesses and arithmetic at the reference sizes."""

    kernel: Kernel
    elements: list[int]
    work: Arithmetic
    lengths: dict[str, int]  # of tiled axes
    programs: int  # of the grid
    steps: int  # tiles of streamed axes, over all programs


class Predictor:
    """Predicts for one tiled program."""

    def __init__(
        self, tiled: Func, target: Target, extents: Mapping[str, int], dtype: DType | None
    ) -> None:
        self.target = target
        floats = [
            p.type.dtype for p in tiled.params if p.type.axes and p.type.dtype.kind == "float"
        ]
        self.dtype = dtype or next(iter(floats), F32)
        self.counted = [_count(k, extents) for k in kernels(tiled)]
        peak = target.peak(self.dtype.name)
        clock = target.clock.value if target.clock else CLOCK
        self.clock_rate = clock * target.cores.value
        guess = 4.0 * target.lanes("f32") * self.clock_rate
        self.peak = peak.flops if peak else guess
        self.timed = target.kind != "abstract"

    def predict(self, tile: Mapping[str, int], held: Sequence[Footprint]) -> Prediction:
        """What to expect with these tile sizes; `held` is the footprint of each kernel."""
        moved, seconds = 0, 0.0
        for c, f in zip(self.counted, held, strict=True):
            here = sum(
                int(n * _ratio(a, c, tile)) * a.tensor.type.dtype.bytes
                for a, n in zip(c.kernel.accesses, c.elements, strict=True)
            )
            moved += here
            if self.timed:
                cpu = self.target.kind == "cpu"
                busy = self._cpu(c, f, tile) if cpu else self._gpu(c, tile, here)
                bandwidth = self.target.bandwidth
                # What is read again is read by other cores at the same time: seldom from DRAM.
                unique = min(here, _unique(c))
                seconds += max(busy, unique / bandwidth if bandwidth else 0.0)
                if cpu:
                    seconds += self._restarts(c, tile)
        return Prediction(moved, seconds if self.timed else None)

    def _cpu(self, c: _Counted, f: Footprint, tile: Mapping[str, int]) -> float:
        """Contractions at what the register tile allows, rescaling, and refills of L1 from L2."""
        lanes = max(1, self.target.lanes("f32"))
        rows = _rows(c, tile)
        few = rows < lanes  # then lanes run along an inner axis
        vectors = REGISTER_ROWS if few else -(-rows // lanes)
        sums = min(vectors, REGISTER_ROWS) * REGISTER_COLUMNS
        padded = 1.0 if few else vectors * lanes / rows
        contractions = c.work.flops / self.peak * max(1.0, SUMS_IN_FLIGHT / sums) * padded
        steps = c.steps * _steps_ratio(c, tile)
        state = _carried(c, tile)
        rescaling = steps * state * CARRY_OPERATIONS / (self.peak / 2)
        elementary = (10 * c.work.exps + c.work.elementwise) / (self.peak / 2)
        held, streamed = f.bytes(tile), _streamed(c, tile)
        # With few rows nothing is used again, and what streams past comes from DRAM at best.
        over = max(0.0, 1 - _l1(self.target) / held) if held and not few else 0.0
        refills = steps * 2 * over * streamed / (L2_BYTES_A_CLOCK * self.clock_rate)
        converting = steps * _narrow(c, tile) * CONVERT_OPERATIONS / (self.peak / 2)
        busy = contractions + rescaling + elementary + refills + converting
        return busy * self._idle(c, tile)

    def _restarts(self, c: _Counted, tile: Mapping[str, int]) -> float:
        """With few rows what streams past is all there is: between tiles nothing is read ahead."""
        if _rows(c, tile) >= self.target.lanes("f32"):
            return 0.0
        steps = c.steps * _steps_ratio(c, tile)
        return steps * RESTART_SECONDS / self.target.cores.value

    def _gpu(self, c: _Counted, tile: Mapping[str, int], moved: int) -> float:
        """Contractions, with what each tile of a streamed axis costs to start; or L2."""
        streamed = min((tile.get(a, n) for a, n in _streams(c)), default=TILE_OVERHEAD)
        busy = c.work.flops / self.peak * (1 + TILE_OVERHEAD / streamed)
        dram, shared = self.target.bandwidth, self.target.sram.bandwidth
        l2 = next((m.bandwidth for m in self.target.memories if m.space == "cache"), None)
        l2 = l2 or (dram * L2_TO_DRAM if dram else None)
        if l2:
            busy = max(busy, moved / l2)
        if shared:
            busy = max(busy, c.steps * _steps_ratio(c, tile) * _streamed(c, tile) / shared)
        return busy * self._idle(c, tile)

    def _idle(self, c: _Counted, tile: Mapping[str, int]) -> float:
        """How much longer the last round of programs makes it, with some cores at rest."""
        cores = int(self.target.cores.value)
        programs = max(1, round(c.programs * _programs_ratio(c, tile)))
        return -(-programs // cores) * cores / programs


def _count(k: Kernel, extents: Mapping[str, int]) -> _Counted:
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
    return _Counted(
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
        for i in a.nest:
            found += [i.lo, i.hi] if isinstance(i, Loop) else [i.condition]
    for e in found:
        for n in walk(e):
            if isinstance(n, Extent) and n.name not in values:
                long = n.name in lengths or n.name.startswith("%")
                values[n.name] = NOMINAL_LENGTH if long else NOMINAL_COUNT
    counter = Counter(values)
    return counter


def _ratio(a: Access, c: _Counted, tile: Mapping[str, int]) -> float:
    """How often a load is done with these sizes, compared with the reference."""
    own = {tile_counter(s) for s in a.spans}
    ratio = 1.0
    axes = c.kernel.counters()
    for i in a.nest:
        if isinstance(i, Loop) and i.counter not in own and i.counter in axes:
            ratio *= _trips(c, axes[i.counter], tile)
    return ratio


def _trips(c: _Counted, axis: str, tile: Mapping[str, int]) -> float:
    """Tiles of an axis with these sizes, for each that the reference has."""
    length, old = max(1, c.lengths[axis]), c.kernel.tile[axis]
    return -(-length // tile.get(axis, old)) / -(-length // old)


def _streams(c: _Counted) -> list[tuple[str, int]]:
    """Streamed axes with their reference sizes."""
    n = len(c.kernel.op.attrs["grid"])
    grid = {i.counter for a in c.kernel.accesses for i in a.nest[:n] if isinstance(i, Loop)}
    axes = {a for counter, a in c.kernel.counters().items() if counter not in grid}
    return [(a, c.kernel.tile[a]) for a in axes]


def _programs_ratio(c: _Counted, tile: Mapping[str, int]) -> float:
    streams = {a for a, _ in _streams(c)}
    ratio = 1.0
    for axis in c.lengths:
        if axis not in streams:
            ratio *= _trips(c, axis, tile)
    return ratio


def _steps_ratio(c: _Counted, tile: Mapping[str, int]) -> float:
    ratio = 1.0
    for axis in c.lengths:
        ratio *= _trips(c, axis, tile)
    return ratio


def _rows(c: _Counted, tile: Mapping[str, int]) -> int:
    """Rows of a tile: what SIMD lanes or the rows of a matrix instruction run over.

    Rows of different factors (those of a plain product) do not add up: lanes run over one of them.
    """
    streams = {a for a, _ in _streams(c)}
    rows = {a: tile.get(a, n) for a, n in c.kernel.tile.items() if a not in streams}
    contractions = [op for op in c.kernel.op.body.walk() if op.name == "contract"]
    if not contractions:
        return math.prod(rows.values())
    factors = [v for op in contractions for v in op.operands[: -1 if op.attrs.get("acc") else None]]
    return max(math.prod(n for a, n in rows.items() if v.type.has(a)) for v in factors)


def _carried(c: _Counted, tile: Mapping[str, int]) -> int:
    """Numbers that are carried from one tile of a streamed axis to the next."""
    for op in c.kernel.op.body.walk():
        if op.name == "for":
            n = int(op.attrs["n_carry"])
            return sum(_numbers(v.type.axes, tile) for v in op.operands[:n])
    return 0


def _streamed(c: _Counted, tile: Mapping[str, int]) -> int:
    """Bytes of the tiles that are new at each step: those loaded, and those computed from them."""
    streams = {a for a, _ in _streams(c)}
    found: dict[tuple[str, ...], int] = {}
    for w in c.kernel.op.body.walk():
        if w.name in ("load", "contract"):
            t = w.result.type
            if streams & set(t.names):
                key = (w.name, w.operands[0].name if w.name == "load" else "", *t.names)
                found[key] = _numbers(t.axes, tile) * t.dtype.bytes
    return sum(found.values())


def _narrow(c: _Counted, tile: Mapping[str, int]) -> int:
    """Numbers that each step loads and converts, or packs for a dot instruction."""
    streams = {a for a, _ in _streams(c)}
    loads = {
        (w.operands[0], w.result.type.axes): w.result.type
        for w in c.kernel.op.body.walk()
        if w.name == "load" and streams & set(w.result.type.names)
    }
    return sum(_numbers(t.axes, tile) for t in loads.values() if t.dtype.bits < F32.bits)


def _numbers(axes: Sequence[Axis], tile: Mapping[str, int]) -> int:
    n = 1
    for a in axes:
        n *= tile.get(a.name, a.static or 1)
    return n


def _unique(c: _Counted) -> int:
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


def _l1(target: Target) -> int:
    """Bytes of a core's first-level cache."""
    for m in reversed(target.memories):
        if m.space == "cache" and m.per == "core" and m.size:
            return m.size
    return 32 * 1024

"""Which tiles a kernel visits: empty, partial or full, as its loops and conditions have them.

Nothing here knows of masks. The loops of a tile-level kernel are run for every point of its grid at
once (count.py), and what is visited is written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecc.cost.count import Array, Counter
from tilecc.cost.nest import Guard, Kernel, Nest, kernels
from tilecc.errors import CompileError
from tilecc.ir.core import Block, Builder, Cloner, Func, Op, Value
from tilecc.ir.dtypes import BOOL
from tilecc.ir.expr import Arg, Call, Expr, Extent, Index, extents, walk
from tilecc.passes.tiling.maps import EMPTY, FULL, PARTIAL

_SIGNS = {EMPTY: ".", PARTIAL: "+", FULL: "#"}
_CELLS = 64  # signs in a row of the picture


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles of one stream of a kernel.

    `axes` names the dimensions of `codes`, the streamed axis last; `sizes` are elements in a tile
    (1: a point), `extents` elements of the axes. Codes are 0 (empty, never run), 1 (partial, run
    with the mask) and 2 (full, run without). Axes on which nothing depends are left out.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    extents: tuple[int, ...]
    codes: Array

    @property
    def empty(self) -> int:
        """How many tiles are never run."""
        return int((self.codes == EMPTY).sum())

    @property
    def partial(self) -> int:
        """How many are run with the mask."""
        return int((self.codes == PARTIAL).sum())

    @property
    def full(self) -> int:
        """How many are run without mask code."""
        return int((self.codes == FULL).sum())

    @property
    def live(self) -> int:
        """How many are run."""
        return self.partial + self.full

    def to_json(self) -> dict[str, Any]:
        """Counts, and a string for each row of tiles: `#` full, `+` partial, `.` empty."""
        rows = self.codes.reshape(-1, self.codes.shape[-1])
        return {
            "axes": list(self.axes),
            "tile": list(self.sizes),
            "extents": list(self.extents),
            "full": self.full,
            "partial": self.partial,
            "empty": self.empty,
            "rows": ["".join(_SIGNS[int(c)] for c in row) for row in rows],
        }

    def __str__(self) -> str:
        """A picture; of a large map each sign is a square of tiles, `+` unless all are the same."""
        head = ", ".join(
            f"{a}: {n} in tiles of {s}" if s > 1 else f"{a}: {n}"
            for a, n, s in zip(self.axes, self.extents, self.sizes, strict=True)
        )
        counts = f"{self.full} full (#), {self.partial} partial (+), {self.empty} empty (.)"
        codes = self.codes if self.codes.ndim > 1 else self.codes[None]
        lines = [head, counts]
        step = max(1, -(-max(codes.shape[-2:]) // _CELLS))
        for place in np.ndindex(codes.shape[:-2]):
            if place:
                names = zip(self.axes, place, strict=False)
                lines.append(", ".join(f"{a} = {n}" for a, n in names))
            lines += _picture(codes[place], step)
        return "\n".join(lines)


def _picture(codes: Array, step: int) -> list[str]:
    lines = []
    for i in range(0, codes.shape[0], step):
        cells = (codes[i : i + step, j : j + step] for j in range(0, codes.shape[1], step))
        same = ((c, int(c.flat[0])) for c in cells)
        lines.append("".join(_SIGNS[one if (c == one).all() else PARTIAL] for c, one in same))
    return lines


def visited(
    func: Func,
    extents: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
    arrays: Mapping[Value, Array] | None = None,
    stream: int = 0,
) -> Tiles:
    """The tiles that a stream of a tile-level program visits.

    Args:
        func: the program.
        extents: all that decide it.
        scalars: run-time numbers by name.
        arrays: the tensors that decide it, parameters and what leading kernels compute.
        stream: which one, in the order of the program (an online softmax has one).

    Raises:
        CompileError: there is no such stream, or something that decides it is not given.
    """
    found = kernels(func)
    streams = [(k, group) for k in found if not is_leading(k, found) for group in _streams(k)]
    if not 0 <= stream < len(streams):
        have = f"it has {len(streams)}" if streams else "it walks no axis tile by tile"
        raise CompileError(f"{func.name} has no stream number {stream}: {have}")
    reads = {name: r for k in found for name, r in k.reads.items()}
    kernel, loops = streams[stream]
    return _Walk(kernel, loops, Counter(extents, scalars, reads, arrays)).tiles()


def leading(func: Func) -> Func | None:
    """The kernels that compute what other kernels' loops and conditions read, as a program.

    It has the parameters of `func` and gives what they compute; None where there are none.
    """
    found = kernels(func)
    ops = [k.op for k in found if is_leading(k, found)]
    if not ops:
        return None
    cloner = Cloner()
    params = [cloner.fresh(p) for p in func.params]
    read = {v for op in ops for inner in op.body.walk() for v in inner.operands}
    allocs = [op for op in func.body.ops if op.name == "alloc" and op.result in read]
    body = Block([], [cloner.op(op) for op in func.body.ops if op in allocs or op in ops])
    outputs = [cloner.value(op.result) for op in allocs]
    Builder(body, func.loc).op("return", outputs)
    return Func(f"{func.name}_tiles", params, body, dict(func.attrs), func.loc)


def extents_read(func: Func) -> set[str]:
    """The extents that the size of what a program makes depends on."""
    allocs = (a.extent for op in func.body.ops for v in op.results for a in v.type.axes)
    grids = (e for op in func.body.ops for e in op.attrs.get("grid", ()))
    return {name for e in (*allocs, *grids) for name in extents(e)}


def computed(func: Func) -> list[Value]:
    """What `leading(func)` computes, as values of `func`, in order."""
    found = kernels(func)
    ops = [k.op for k in found if is_leading(k, found)]
    read = {v for op in ops for inner in op.body.walk() for v in inner.operands}
    return [op.result for op in func.body.ops if op.name == "alloc" and op.result in read]


def deciding(func: Func) -> list[Value]:
    """The tensors among the parameters that decide which tiles are visited."""
    found = kernels(func)
    read = {v for k in found for v in _read(k)}
    read |= {a.tensor for k in found if is_leading(k, found) for a in k.accesses if not a.write}
    return [p for p in func.params if p.type.axes and p in read]


def is_leading(kernel: Kernel, others: Sequence[Kernel]) -> bool:
    """Whether a kernel writes numbers that another one's loops and conditions read: perhaps not
    all, such as the least id of a tile where only the greatest decides."""
    read = {v for k in others if k is not kernel for v in _read(k)}
    written = {a.tensor for a in kernel.accesses if a.write}
    return bool(written & read)


def _read(kernel: Kernel) -> set[Value]:
    """The tensors that a kernel's loops and conditions read."""
    steps = {s for nest in kernel.nests.values() for s in nest}
    exprs = [e for s in steps for e in ((s.condition,) if isinstance(s, Guard) else (s.lo, s.hi))]
    found: set[Value] = set()
    while exprs:
        names = {n.name for n in walk(exprs.pop()) if isinstance(n, Extent)} & set(kernel.reads)
        for r in (kernel.reads[name] for name in names):
            found.add(r.tensor)
            exprs += r.coords
    return found


def _streams(kernel: Kernel) -> list[list[Op]]:
    """The loops of each stream: one goes on with what the loop before it gives."""
    groups: list[list[Op]] = []
    for op in kernel.op.body.ops:
        if op.name == "for":
            before = groups[-1][-1].results if groups else []
            if before and set(op.operands[: op.attrs["n_carry"]]) & set(before):
                groups[-1].append(op)
            else:
                groups.append([op])
    return groups


def _computed_axis(loops: Sequence[Op]) -> tuple[str, Expr | None]:
    """The axis that loops walk by coordinates, and the extent that the last tile is masked by.

    Both come from `tile * size + index(j) < N`; ("", None) where there is no such mask.
    """
    for loop in loops:
        for op in loop.body.walk():
            for e in walk(op.expr) if op.name == "map" else ():
                match e:
                    case Call("lt", (Call("add", (Call("mul", (Arg(k), _)), Index(axis))), end)):
                        free = not any(isinstance(n, Arg | Index) for n in walk(end))
                        if free and op.operands[k] is loop.body.args[0]:
                            return axis, end
    return "", None


class _Walk:
    def __init__(self, kernel: Kernel, loops: Sequence[Op], counter: Counter) -> None:
        self.kernel, self.counter = kernel, counter
        self.names = {op: name for name, op in kernel.loops.items()}
        self.leaves = [leaf for op in loops for leaf in _leaves(op.body)]
        self.axis = kernel.counters().get(self.names[loops[0]], "")
        self.length: Expr | None = None  # where no tensor has the axis: all is read elsewhere
        if not self.axis:
            self.axis, self.length = _computed_axis(loops)
        if not self.axis:
            raise CompileError(f"{kernel.op.name}: nothing is read along the axis that it walks")
        self.streams = {self.names[op] for op in loops}

    def tiles(self) -> Tiles:
        grid = self.kernel.grid
        nests = {leaf: self.kernel.nests[leaf] for leaf in self.leaves}
        kept = self._decisive(list(nests.values()))
        dims = [g for g in grid if g.counter in kept]
        shape = [int(self.counter.value(g.hi)) for g in dims]
        length = self._extent(self.axis)
        size = self.kernel.tile.get(self.axis, 1)
        codes = np.zeros((*shape, -(-length // size)), np.int8)
        fixed = {g.counter for g in grid if g.counter not in kept}
        for leaf, nest in nests.items():
            at = self.counter.visits(nest, fixed)
            (j,) = [c for c in at if c in self.streams]
            place = (*(at[g.counter] for g in dims), at[j])
            codes[place] = FULL if self._is_full(leaf) else PARTIAL
        axes = [self.kernel.counters().get(g.counter, g.counter) for g in dims]
        sizes = [self.kernel.tile.get(a, 1) for a in axes]
        pairs = zip(axes, shape, strict=True)
        lengths = [self._extent(a) if a in self.kernel.tile else n for a, n in pairs]
        return Tiles((*axes, self.axis), (*sizes, size), (*lengths, length), codes)

    def _decisive(self, nests: Sequence[Nest]) -> set[str]:
        """Counters of the grid that tell tiles apart: rows, and what conditions depend on."""
        found = {c for c, a in self.kernel.counters().items() if a in self.kernel.tile}
        for nest in nests:
            for s in nest:
                for e in (s.condition,) if isinstance(s, Guard) else (s.lo, s.hi):
                    found |= self.counter.counters(e)
        return found

    def _extent(self, axis: str) -> int:
        if axis == self.axis and self.length is not None:
            return int(self.counter.value(self.length))
        spans = (s for a in self.kernel.accesses for s in a.spans if s.axis == axis)
        return int(self.counter.value(next(spans).extent))

    def _is_full(self, leaf: Block) -> bool:
        """Whether a tile that this code runs on needs no mask.

        Of several ways to run a tile that is the one with the fewest conditions on positions; of
        one alone, it has none.
        """
        conditions = {b: _conditions(b, self.axis) for b in self.leaves}
        least = min(conditions.values())
        if least == max(conditions.values()):
            return least == 0
        return conditions[leaf] == least


def _leaves(block: Block) -> list[Block]:
    """The innermost blocks that do something with a tile."""
    branches = [r for op in block.ops if op.name == "if" for r in op.regions]
    if branches:
        return [leaf for r in branches for leaf in _leaves(r)]
    return [block] if any(op.name != "yield" for op in block.ops) else []


def _conditions(block: Block, axis: str) -> int:
    """How many conditions on a position along the axis there are, ends of the tensor included."""

    def depends(op: Op, e: Expr) -> bool:
        return any(
            n == Index(axis)
            or (
                isinstance(n, Arg)
                and op.operands[n.k].type.has(axis)
                and op.operands[n.k].type.dtype.kind != "float"
            )
            for n in walk(e)
        )

    total = 0
    for op in block.ops:
        total += axis in op.attrs.get("pad", ())
        if op.name == "map":
            for n in walk(op.expr):
                truth = isinstance(n, Arg) and op.operands[n.k].type.dtype is BOOL
                total += (truth or _compares(n)) and depends(op, n)
    return total


def _compares(e: Expr) -> bool:
    return isinstance(e, Call) and e.fn in ("eq", "ne", "lt", "le", "gt", "ge")

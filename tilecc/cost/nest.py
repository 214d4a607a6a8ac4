"""Tile IR as accesses and operations, each under its loops, in terms of loop counters alone.

Everything that counts (numbers, formulas, footprints) starts from this one walk. Scalars that are
computed on the way, such as loop bounds, are written out, so that an expression here reads only

- `Index(counter)`: a grid dimension or a loop's counter, under a name of its own;
- `Extent(name)`: an extent; `Extent("%w")`: a value known at run time only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilecc.ir.core import Block, Func, Op, Range, Value
from tilecc.ir.expr import Arg, Call, Const, Expr, Extent, Index, indices, transform


@dataclass(frozen=True)
class Loop:
    """lo .. hi of one counter."""

    counter: str
    lo: Expr
    hi: Expr


@dataclass(frozen=True)
class Guard:
    """What is inside runs where `condition` holds."""

    condition: Expr


Nest = tuple["Loop | Guard", ...]


@dataclass(frozen=True)
class Span:
    """`size` elements from `base` on of a tensor's axis `of`, which has `extent`.

    `axis` is the tile's.
    """

    axis: str
    of: str
    base: Expr
    size: int
    extent: Expr


@dataclass(frozen=True, eq=False)
class Access:
    """One load or store: `spans` may reach beyond the tensor, `whole` axes (name, size) do not."""

    tensor: Value
    write: bool
    spans: tuple[Span, ...]
    whole: tuple[tuple[str, int], ...]
    nest: Nest
    op: Op


@dataclass(frozen=True, eq=False)
class Work:
    """A contraction, map or reduction on tiles."""

    op: Op
    nest: Nest


@dataclass(frozen=True)
class Read:
    """A scalar that is loaded: an element of a tensor, its coordinates over counters."""

    tensor: Value
    coords: tuple[Expr, ...]


@dataclass
class Kernel:
    """What one kernel does. `reads`: the scalars that it loads, by the name of their `Extent`.

    `counted`: in place of the loops that data decides, nests have symbols (cost/data.py), `counts`.
    """

    op: Op
    accesses: list[Access] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    reads: dict[str, Read] = field(default_factory=dict)
    counted: bool = False
    counts: tuple[str, ...] = ()
    grid: list[Loop] = field(default_factory=list)
    loops: dict[str, Op] = field(default_factory=dict)
    """The loops by their counters."""
    nests: dict[Block, Nest] = field(default_factory=dict)
    """What is around the operations of each block."""

    @property
    def tile(self) -> dict[str, int]:
        """Sizes of the tiled axes."""
        return dict(self.op.attrs.get("tile", ()))

    def counters(self) -> dict[str, str]:
        """For each counter of tiles the axis whose tiles it counts."""
        tile = self.tile
        return {
            counter: s.axis
            for a in self.accesses
            for s in a.spans
            if s.axis in tile and (counter := tile_counter(s)) is not None
        }


def kernels(func: Func) -> list[Kernel]:
    """The kernels of a tile-level program. No two scalars that they load have the same name."""
    names = {f"%{p.name}" for p in func.params}
    return [_Walk(func, op, names).kernel for op in func.body.ops if op.name == "kernel"]


def tile_counter(s: Span) -> str | None:
    """The counter whose values put the span at successive tiles: base is counter * size."""
    match s.base:
        case Index(counter) if s.size == 1:
            return counter
        case Call("mul", (Index(counter), Const(value))) if value == s.size:
            return counter
    return None


class _Walk:
    def __init__(self, func: Func, kernel: Op, names: set[str]) -> None:
        self.kernel, self.names = Kernel(kernel), names
        self.known: dict[Value, Expr] = {}
        self.taken: set[str] = set()
        self.spans: dict[Value, dict[str, Span]] = {}  # of loaded tables
        for p in func.params:
            self.known[p] = Extent(f"%{p.name}")
        loops = [
            Loop(self._counter(v), Const(0), self._closed(e, kernel))
            for v, e in zip(kernel.body.args, kernel.attrs["grid"], strict=True)
        ]
        self.kernel.grid = loops
        self._block(kernel.body, tuple(loops))
        self.kernel.accesses = [self._reaching(a) for a in self.kernel.accesses]

    def _counter(self, v: Value) -> str:
        name, n = v.name or "t", 0
        while name in self.taken:
            n += 1
            name = f"{v.name or 't'}_{n}"
        self.taken.add(name)
        self.known[v] = Index(name)
        return name

    def _closed(self, e: Expr, op: Op) -> Expr:
        """`e` of `op` over counters, extents and run-time values. Positions within a tile stay."""

        def leaf(n: Expr) -> Expr | None:
            if isinstance(n, Index):
                return Index(f"in {n.axis}")
            if isinstance(n, Arg):
                v = op.operands[n.k]
                return self.known.get(v, Extent(f"%{v.name}"))
            return None

        return _fold(transform(e, leaf))

    def _block(self, block: Block, nest: Nest) -> None:
        self.kernel.nests[block] = nest
        for op in block.ops:
            match op.name:
                case "for":
                    lo, hi = (self._closed(op.attrs[k], op) for k in ("lo", "hi"))
                    counter, *carried = op.body.args
                    for v in carried:
                        self.known[v] = Extent(f"%{v.name}")
                    name = self._counter(counter)
                    self.kernel.loops[name] = op
                    self._block(op.body, (*nest, Loop(name, lo, hi)))
                case "if":
                    condition = self._closed(op.attrs["cond"], op)
                    negation = Call("not", (condition,))
                    for region, c in zip(op.regions, (condition, negation), strict=True):
                        self._block(region, (*nest, Guard(c)))
                case "load":
                    self._access(op, op.operands[0], nest, write=False)
                    if not op.result.type.axes:
                        self._scalar(op)
                case "store":
                    self._access(op, op.operands[1], nest, write=True)
                case "map" | "contract" | "reduce":
                    if op.name == "map" and not op.result.type.axes:
                        self.known[op.result] = self._closed(op.expr, op)
                    self.kernel.work.append(Work(op, nest))

    def _scalar(self, op: Op) -> None:
        name, n = f"%{op.result.name}", 0
        while name in self.names:
            n += 1
            name = f"%{op.result.name}_{n}"
        self.names.add(name)
        coords = tuple(self._closed(c, op) for c in op.attrs["coords"])
        self.kernel.reads[name] = Read(op.operands[0], coords)
        self.known[op.result] = Extent(name)

    def _access(self, op: Op, tensor: Value, nest: Nest, *, write: bool) -> None:
        tile = op.operands[0].type if write else op.result.type
        sizes = {a.name: a.static or 0 for a in tile.axes}
        spans: dict[str, Span] = {}
        for c, a in zip(op.attrs["coords"], tensor.type.axes, strict=True):
            if isinstance(c, Range):
                base = self._closed(c.base, op)
                spans[c.axis] = Span(c.axis, a.name, base, sizes[c.axis], a.extent)
        for v in op.operands[1 + write :]:  # a gather reaches as far as its tables do
            for axis, span in self.spans.get(v, {}).items():
                if axis in sizes:
                    spans.setdefault(axis, span)
        if not write:
            self.spans[op.result] = spans
        whole = tuple((a, n) for a, n in sizes.items() if a not in spans)
        self.kernel.accesses.append(Access(tensor, write, tuple(spans.values()), whole, nest, op))

    def _reaching(self, a: Access) -> Access:
        """With computed places along a padded axis: as far as other accesses here show it to go."""
        padded = a.op.attrs.get("clip" if a.write else "pad", ())
        spans = list(a.spans)
        for axis, _ in a.whole:
            if axis in padded:
                shown = (s for b in self.kernel.accesses if b.nest == a.nest for s in b.spans)
                spans += [s for s in shown if s.axis == axis][:1]
        here = {s.axis for s in spans}
        whole = tuple((axis, n) for axis, n in a.whole if axis not in here)
        return replace(a, spans=tuple(spans), whole=whole)


def _fold(e: Expr) -> Expr:
    """`e` without additions of 0 and products with 1, which written-out scalars bring."""

    def f(n: Expr) -> Expr | None:
        match n:
            case Call("add", (a, Const(0))) | Call("add", (Const(0), a)):
                return a
            case Call("mul", (a, Const(1))) | Call("mul", (Const(1), a)):
                return a
        return None

    return transform(e, f)


def counters(e: Expr) -> set[str]:
    """The counters that `e` reads (positions within a tile are not among them)."""
    return {a for a in indices(e) if not a.startswith("in ")}

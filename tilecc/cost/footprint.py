"""What a program of the grid holds at once: buffers, shared by what may overwrite each other.

The rules, of which 4 B D + B^2 + 2 B for attention is what comes out:

- a load, a contraction, a carried value and the source of a store each have a buffer;
- a contraction that adds to `acc` works in it; a carried value, its start, its updates and the
  loop's result are one;
- a map that no contraction or store reads is computed as its readers (reductions) go along;
  another is done in place of an operand with the same axes that is not needed afterwards;
- row temporaries (neither loaded nor carried, and without an axis that is summed or held whole) are
  free, and so are scalars that are computed;
- regions that run one after the other, such as the masked copy of a loop, use the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from tilecc.ir.core import Block, Op, Value, uses


@dataclass(frozen=True, order=True)
class Buffer:
    """Room for a tile over `axes` (name, size). `loaded`: it holds what comes from main memory."""

    axes: tuple[tuple[str, int], ...]
    bytes_each: int
    loaded: bool

    def numbers(self, sizes: Mapping[str, int]) -> int:
        """Elements, with tile sizes replaced by `sizes`."""
        return prod(sizes.get(a, n) for a, n in self.axes)


@dataclass(frozen=True)
class Footprint:
    """Buffers held throughout, and groups of alternatives of which one at a time is held."""

    buffers: tuple[Buffer, ...] = ()
    choices: tuple[tuple[Footprint, ...], ...] = ()

    def numbers(self, sizes: Mapping[str, int] | None = None) -> int:
        """Elements in all buffers."""
        return self._total(sizes or {}, lambda b: 1)

    def bytes(self, sizes: Mapping[str, int] | None = None, loaded: bool | None = None) -> int:
        """Bytes in all buffers, or in those that are loaded (or are not)."""
        return self._total(sizes or {}, lambda b: b.bytes_each if loaded in (None, b.loaded) else 0)

    def _total(self, sizes: Mapping[str, int], each: Callable[[Buffer], int]) -> int:
        here = sum(b.numbers(sizes) * each(b) for b in self.buffers)
        return here + sum(max(f._total(sizes, each) for f in c) for c in self.choices)

    def largest(self) -> tuple[Buffer, ...]:
        """The buffers held at once when the most is held (by elements)."""
        found = list(self.buffers)
        for c in self.choices:
            found += max(c, key=lambda f: f.numbers()).largest()
        return tuple(found)


def footprint(kernel: Op) -> Footprint:
    """What a tile-level kernel holds."""
    return _Buffers(kernel).footprint


@dataclass
class _Set:
    """Values that share a buffer (union-find: `parent` is where it was merged into)."""

    axes: tuple[tuple[str, int], ...]
    bytes_each: int
    region: Block
    loaded: bool = False
    parent: _Set | None = field(default=None, repr=False)


class _Buffers:
    def __init__(self, kernel: Op) -> None:
        tile = dict(kernel.attrs.get("tile", ()))
        ops = list(kernel.body.walk())
        summed = {a for op in ops if op.name in ("contract", "reduce") for a in op.over}
        self.rows = set(tile) - summed
        self.uses = uses(kernel.body)
        self.order = {id(op): n for n, op in enumerate(ops)}
        self.home: dict[Value, Block] = {}  # where each value is defined
        self.around: dict[int, tuple[Block, Op]] = {}  # what is around each block
        self._locate(kernel.body)
        self.sets: dict[Value, _Set] = {}
        self._place(kernel.body)
        self.footprint = self._collect(kernel.body)

    def _locate(self, block: Block) -> None:
        self.home |= dict.fromkeys(block.args, block)
        for op in block.ops:
            self.home |= dict.fromkeys(op.results, block)
            for region in op.regions:
                self.around[id(region)] = block, op
                self._locate(region)

    def _depth(self, block: Block) -> int:
        return 1 + self._depth(self.around[id(block)][0]) if id(block) in self.around else 0

    # Which values have a buffer

    def _place(self, block: Block) -> None:
        for op in block.ops:
            match op.name:
                case "load":
                    self._new(op.result, block).loaded = True
                case "contract":
                    if op.attrs["acc"]:
                        self._share(op.result, op.operands[-1], block)
                    else:
                        self._new(op.result, block)
                case "reduce" if not self._is_row(op.result):
                    self._new(op.result, block)
                case "map" if self._is_kept(op.result):
                    self._map(op, block)
                case "store":
                    self._new(op.operands[0], block)
                case "for":
                    self._for(op, block)
                case "if":
                    for region in op.regions:
                        self._place(region)
                    for n, r in enumerate(op.results):
                        for region in op.regions:
                            self._share(r, region.terminator.operands[n], block)

    def _for(self, op: Op, block: Block) -> None:
        n = int(op.attrs["n_carry"])
        for start, arg, result in zip(op.operands[:n], op.body.args[1:], op.results, strict=True):
            self._share(arg, start, block)
            self._share(result, start, block)
        self._place(op.body)
        ends = op.body.terminator.operands if n else []  # a loop that carries nothing has no yield
        for arg, new in zip(op.body.args[1:], ends, strict=True):
            self._share(new, arg, block)

    def _is_row(self, v: Value) -> bool:
        return all(a in self.rows for a in v.type.names)

    def _is_kept(self, v: Value) -> bool:
        """Whether a map's result must be in memory: a contraction or a store reads it."""
        readers = self.uses.get(v, [])
        return bool(v.type.axes) and any(r.name in ("contract", "store") for r in readers)

    def _map(self, op: Op, block: Block) -> None:
        """In place of an operand, or in a buffer of its own."""
        if op.result in self.sets:
            return
        for source in self._sources(op):
            same = set(source.type.names) == set(op.result.type.names)
            if same and self._dies(source, op, block):
                self._share(op.result, source, block)
                return
        self._new(op.result, block)

    def _sources(self, op: Op) -> Iterable[Value]:
        """The values in buffers that a map reads, through maps that are not kept themselves."""
        for v in op.operands:
            if v in self.sets:
                yield v
            elif v.owner is not None and v.owner.name == "map":
                yield from self._sources(v.owner)

    def _dies(self, source: Value, op: Op, block: Block) -> bool:
        """Whether nothing that needs `source` in memory comes after `op`."""
        while self.home.get(source) is not block:
            block, around = self.around.get(id(block), (block, op))
            if around.name != "if":
                return False  # the next iteration needs it
        after = self.order[id(op)]
        return not any(self.order[id(r)] > after for r in self._needs(source, op))

    def _needs(self, v: Value, but: Op) -> Iterable[Op]:
        """The operations that read `v` from memory, through maps that are not kept."""
        for r in self.uses.get(v, []):
            if r is but or r.name in ("reduce", "yield"):
                continue
            if r.name == "map" and not self._is_kept(r.result):
                yield from self._needs(r.result, but)
            elif not (r.name == "map" and self._is_row(r.result)):
                yield r

    # Sharing

    def _new(self, v: Value, block: Block) -> _Set:
        if v not in self.sets:
            axes = tuple((a.name, a.static or 0) for a in v.type.axes)
            self.sets[v] = _Set(axes, v.type.dtype.bytes, block)
        return self._find(self.sets[v])

    def _find(self, s: _Set) -> _Set:
        while s.parent is not None:
            s = s.parent
        return s

    def _share(self, v: Value, other: Value, block: Block) -> None:
        """Put `v` where `other` is."""
        a, b = self._new(other, block), self._new(v, block)
        if a is b:
            return
        b.parent = a
        a.region = min(a.region, b.region, key=self._depth)
        a.bytes_each = max(a.bytes_each, b.bytes_each)
        a.loaded = a.loaded and b.loaded

    # Sums

    def _collect(self, block: Block) -> Footprint:
        roots = {id(s): s for s in map(self._find, self.sets.values())}
        return self._footprint(block, list(roots.values()))

    def _footprint(self, block: Block, roots: list[_Set]) -> Footprint:
        own = [s for s in roots if s.region is block]
        regions = [r for op in block.ops for r in op.regions]
        inner = [f for f in (self._footprint(r, roots) for r in regions) if f != Footprint()]
        distinct = tuple(dict.fromkeys(inner))
        buffers = tuple(Buffer(s.axes, s.bytes_each, s.loaded) for s in own)
        return Footprint(buffers, (distinct,) if distinct else ())

"""The same counts as formulas, in sympy: extents, tile sizes and run-time values are symbols.

Loops over tiles are summed from the inside out. A counter that only moves a span along its axis
telescopes (see count.py), which joins the masked and unmasked parts of a loop; what depends on a
counter in another way is summed by sympy, or left as a `Sum` that it can evaluate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

import sympy

from tilecc.cost.nest import Access, Guard, Kernel, Loop, Nest, Span, tile_counter
from tilecc.cost.signs import Greatest, Least, decided, plain, resolve
from tilecc.cost.symbols import Formula, can_express, formula, symbol, tile_symbol
from tilecc.ir.expr import Call, Const, Expr, Extent, Index, walk


@dataclass
class Setting:
    """What sizes and extents stand for.

    `names`: extents by axis as the program's text has them, for those that are bound in the kernel.
    `divides`: tiles divide the extents of their axes. `symbolic`: tile sizes are symbols.
    """

    names: Mapping[str, Expr] = field(default_factory=dict)
    divides: bool = True
    symbolic: bool = False


class Sums:
    """Sums accesses of one kernel into formulas."""

    def __init__(self, kernel: Kernel, setting: Setting) -> None:
        self.setting = setting
        self.tile, self.counted = kernel.tile, kernel.counted
        self.axis_of = kernel.counters()
        self.lengths = _lengths(kernel)
        self.period = lcm(*self.tile.values()) if self.tile else 1
        self.counts: dict[Formula, Formula] = {}  # symbol -> multiple of all tile sizes
        self.known: dict[str, Formula] = {}
        if setting.divides and not setting.symbolic:
            for axis in self.tile:
                self._divide(axis)
        self.dense = True
        self.done: dict[Any, Formula] = {}

    def _divide(self, axis: str) -> None:
        length = self.lengths.get(axis)
        if isinstance(length, Extent) and length.name not in self.known:
            n = sympy.Symbol(f"n_{length.name}", integer=True, positive=True)
            self.known[length.name] = self.period * n
            self.counts[n] = symbol(length.name) / self.period

    def total(self, accesses: Sequence[Access]) -> Formula | None:
        """Elements that the accesses touch together; None if there is no such formula."""
        if self.counted and not self.setting.divides:
            return None  # how much of its last tile is there is not known
        if not all(_summable(e) for a in accesses for e in _expressions(a)):
            return None
        self.dense = True
        items = [self._item(a) for a in accesses]
        same = tuple((i.nest, i.key, i.factor) for i in items)
        if same not in self.done:
            found = self._sum(items, 0, {}).get((), sympy.Integer(0))
            self.done[same] = found if self.dense or not self.setting.symbolic else None
        found = self.done[same]
        if found is None:
            return None
        found = plain(found).subs(self.counts)
        return sympy.expand(found) if not found.has(sympy.Sum) else found

    def _item(self, a: Access) -> _Item:
        pending: dict[str, Span] = {}
        factor = sympy.Integer(1)
        for axis, n in a.whole:
            factor *= self._size(axis, n)
        counted = {i.counter for i in a.nest if isinstance(i, Loop)}
        for s in a.spans:
            counter = tile_counter(s)
            if counter is not None and counter in counted and counter not in pending:
                pending[counter] = s
            elif s.base == Const(0) and Const(s.size) == s.extent:
                factor *= self._length(s)
            else:
                factor *= self._inside(s)
        return _Item(a.nest, pending, factor)

    def _formula(self, e: Expr) -> Formula:
        return formula(e, self.known)

    def _size(self, axis: str, n: int) -> Formula:
        if axis in self.tile:
            return tile_symbol(axis) if self.setting.symbolic else sympy.Integer(n)
        named = self.setting.names.get(axis)
        return self._formula(named) if named is not None else sympy.Integer(n)

    def _length(self, s: Span) -> Formula:
        named = self.setting.names.get(s.of)
        bound = named is not None and isinstance(s.extent, Const)
        return self._formula(named if bound and named is not None else s.extent)

    def _inside(self, s: Span) -> Formula:
        base, size, length = self._formula(s.base), self._size(s.axis, s.size), self._length(s)
        self.dense = self.dense and not base.free_symbols
        return Greatest(0, Least(base + size, length) - Greatest(base, 0))

    def _sum(self, items: list[_Item], depth: int, box: dict[Formula, Any]) -> dict[_Key, Formula]:
        """The sums of the items, from `depth` of their nests on; by what outer loops telescope."""
        sums: dict[_Key, Formula] = {}
        groups: dict[Loop | Guard, list[_Item]] = {}
        for item in items:
            if len(item.nest) == depth:
                _add(sums, item.key, item.factor)
            else:
                groups.setdefault(item.nest[depth], []).append(item)
        for step, group in groups.items():
            if isinstance(step, Guard):
                condition = decided(self._formula(step.condition), box)
                if condition == sympy.false:
                    continue
                if condition == sympy.true:
                    for key, e in self._sum(group, depth + 1, box).items():
                        _add(sums, key, e)
                    continue
                self.dense = False
                for key, e in self._sum(group, depth + 1, box).items():
                    _add(sums, key, sympy.Piecewise((e, condition), (0, True)))
                continue
            lo, hi = (resolve(b, box) for b in self._bounds(step))
            counter = formula(Index(step.counter))
            inner = {**box, counter: (lo, hi - 1)}
            for key, e in self._sum(group, depth + 1, inner).items():
                rest = tuple((c, s) for c, s in key if c != step.counter)
                span = dict(key).get(step.counter)
                _add(sums, rest, self._over(step, counter, lo, hi, span, e, box))
        return sums

    def _bounds(self, loop: Loop) -> tuple[Formula, Formula]:
        axis = self.axis_of.get(loop.counter)
        return self._bound(loop.lo, axis), self._bound(loop.hi, axis)

    def _bound(self, e: Expr, axis: str | None) -> Formula:
        """A loop bound; one that is the number of tiles of an axis in terms of its length."""
        if axis is None:
            return self._formula(e)
        size, length = self.tile[axis], self.lengths.get(axis)
        named = self.setting.names.get(axis)
        full = isinstance(e, Call) and e.fn in ("ceildiv", "floordiv") and e.args[1] == Const(size)
        if isinstance(length, Const) and named is not None:
            if e == Const(-(-int(length.value) // size)):
                length, full = named, True
        elif full:
            assert isinstance(e, Call)
            length = e.args[0]
        if full and length is not None and (self.setting.symbolic or isinstance(e, Const)):
            tiles = self._formula(length) / self._size(axis, size)
            return tiles if self.setting.divides else sympy.ceiling(tiles)
        found = self._formula(e)
        if self.setting.symbolic and found not in (0, 1):
            self.dense = False
        return found

    def _over(
        self,
        loop: Loop,
        counter: Formula,
        lo: Formula,
        hi: Formula,
        span: Span | None,
        e: Formula,
        box: dict[Formula, Any],
    ) -> Formula:
        """The sum of `e` over a loop, times what `span` covers."""
        if not e.has(counter):
            if span is None:
                return e * (hi - lo)
            return e * self._reach(span, hi) - e * self._reach(span, lo)
        self.dense = False
        if span is not None:
            base, size = counter * span.size, span.size
            e = e * (Least(base + size, self._length(span)) - base)
        if not self.setting.divides:
            return sympy.Sum(e, (counter, lo, hi - 1))
        return self._closed(loop, counter, lo, hi, e, box)

    def _closed(
        self,
        loop: Loop,
        counter: Formula,
        lo: Formula,
        hi: Formula,
        e: Formula,
        box: dict[Formula, Any],
    ) -> Formula:
        """A sum in closed form, if there is one.

        It is split by the counter's remainder first, so that a quotient by a larger tile of another
        axis is a whole number, or differs from one by a constant. Where that closes nothing, what
        is left is shorter in one piece.
        """
        axis = self.axis_of.get(loop.counter)
        ratio = self.period // self.tile[axis] if axis in self.tile and lo == 0 else 1
        split = _summed(counter, lo, hi, e, box, ratio)
        if ratio == 1 or not split.has(sympy.Sum):
            return split
        return min(split, _summed(counter, lo, hi, e, box, 1), key=sympy.count_ops)

    def _reach(self, span: Span, tiles: Formula) -> Formula:
        """Elements of the axis that the first `tiles` tiles cover."""
        size, length = self._size(span.axis, span.size), self._length(span)
        covered = sympy.expand(tiles * size)
        if covered == length or tiles == sympy.ceiling(length / size):
            return length
        if covered == 0:
            return sympy.Integer(0)
        return Least(covered, length)


def _summed(
    counter: Formula, lo: Formula, hi: Formula, e: Formula, box: dict[Formula, Any], ratio: int
) -> Formula:
    """The sum of `e` over lo .. hi, the counter taken in steps of `ratio`: what sympy can close,
    and a `Sum` of the rest."""
    last = sympy.expand(hi / ratio) - 1
    here = {**box, counter: (lo, last)}
    parts = [
        resolve(e.subs(counter, ratio * counter + s) if ratio > 1 else e, here)
        for s in range(ratio)
    ]
    total = sympy.expand(sum(parts))
    closed = [t for t in sympy.Add.make_args(total) if t.is_polynomial(counter)]
    rest = total - sympy.Add(*closed)
    found = sympy.expand(sympy.summation(sympy.Add(*closed), (counter, lo, last)))
    if rest == 0:
        return found
    outside, inside = sympy.factor_terms(rest).as_independent(counter, as_Add=False)
    return found + outside * sympy.Sum(inside, (counter, lo, last))


_Key = tuple[tuple[str, Span], ...]
# Bounds with more nodes than this (boxes in an image, blocks in two halves) have no sum that anyone
# could read, and sympy looks for one for minutes.
_LONGEST = 100


@dataclass(frozen=True, eq=False)
class _Item:
    nest: Nest
    pending: dict[str, Span]
    factor: Formula

    @property
    def key(self) -> _Key:
        return tuple(sorted(self.pending.items(), key=lambda p: p[0]))


def _add(sums: dict[_Key, Formula], key: _Key, e: Formula) -> None:
    # Expanded, since the parts of a loop over masked and unmasked tiles cancel.
    sums[key] = sympy.expand_mul(sums[key] + e, deep=False) if key in sums else e


def _lengths(kernel: Kernel) -> dict[str, Expr]:
    """The length of each tiled axis, as loads and stores show it."""
    return {s.axis: s.extent for a in kernel.accesses for s in a.spans}


def _summable(e: Expr) -> bool:
    return can_express(e) and sum(1 for _ in walk(e)) <= _LONGEST


def _expressions(a: Access) -> list[Expr]:
    found = [e for s in a.spans for e in (s.base, s.extent)]
    for item in a.nest:
        found += [item.lo, item.hi] if isinstance(item, Loop) else [item.condition]
    return found

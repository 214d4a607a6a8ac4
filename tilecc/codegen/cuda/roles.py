"""Which axes of a kernel's tiles lie along the rows of a fragment, and which along its columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilecc.codegen.cuda.layout import ATOM_ROWS, Layout, natural
from tilecc.ir.core import Op, TensorType, Value
from tilecc.target import warps_for


@dataclass(frozen=True)
class Product:
    """The axes of a contraction of two factors, those of one element left out.

    `m` are in the result and the first factor alone, `n` in the second alone, `batch` in both, `k`
    summed over.
    """

    m: tuple[str, ...]
    n: tuple[str, ...]
    batch: tuple[str, ...]
    k: tuple[str, ...]

    @staticmethod
    def of(op: Op) -> Product:
        """The classes of a contraction's axes."""
        a, b = (set(wide(v.type)) for v in op.operands[:2])
        out = wide(op.result.type)
        sizes = {x.name: x.size for v in op.operands[:2] for x in v.type.axes}
        return Product(
            tuple(x for x in out if x in a and x not in b),
            tuple(x for x in out if x in b and x not in a),
            tuple(x for x in out if x in a and x in b),
            tuple(x for x in op.over if sizes.get(x, 1) > 1),
        )


def wide(t: TensorType) -> list[str]:
    """The axes of a tile that have more than one element."""
    return [a.name for a in t.axes if a.size > 1]


def factors(op: Op) -> list[Value]:
    """What a contraction multiplies."""
    return op.operands[: len(op.operands) - bool(op.attrs["acc"])]


class Roles:
    """Rows and columns of one kernel, and the layout that follows for each type of tile."""

    def __init__(self, kernel: Op) -> None:
        ops = list(kernel.body.walk())
        self.order: dict[str, int] = {}
        for v in _tiles(ops):
            for a in wide(v.type):
                self.order.setdefault(a, len(self.order))
        self.rows: set[str] = set()
        self.columns: list[str] = []
        """Those of products first: they get the columns of atoms."""
        self._products(ops)
        self._reductions(ops)
        for a in self.order:
            if a not in self.rows and a not in self.columns:
                self.columns.append(a) if self.rows else self.rows.add(a)
        self.warps = self._warps(ops)

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps

    @property
    def sources(self) -> dict[str, int]:
        """Extents of the parts of a thread's number."""
        return {"g": 8, "t": 4, "w": self.warps}

    def layout(self, t: TensorType) -> Layout:
        """The layout of a tile of this type."""
        rows, columns = self.split(t)
        return natural(rows, columns, self.warps)

    def split(self, t: TensorType) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """(rows, columns) of a tile, the fastest axis first, with sizes."""
        sizes = {a.name: a.size for a in t.axes if a.size > 1}
        rows = [a for a in sizes if a in self.rows]
        columns = [a for a in sizes if a not in self.rows]
        rows.sort(key=lambda a: -self.order[a])
        columns.sort(key=self.columns.index)
        if not rows and len(columns) > 1:
            slow = min(columns, key=lambda a: self.order[a])
            rows = [slow]
            columns.remove(slow)
        return [(a, sizes[a]) for a in rows], [(a, sizes[a]) for a in columns]

    def _products(self, ops: Iterable[Op]) -> None:
        votes: dict[str, int] = {}
        for op in ops:
            if op.name == "reduce":
                for a in wide(op.result.type):
                    votes[a] = votes.get(a, 0) + 1
                for a in op.over:
                    votes[a] = votes.get(a, 0) - 1
        for op in ops:
            if op.name != "contract" or len(factors(op)) != 2:
                continue
            p = Product.of(op)
            sides = [p.m, p.n]
            if self._score(p.n, votes) > self._score(p.m, votes):
                sides.reverse()
            self.rows |= {a for a in sides[0] if a not in self.columns}
            self.columns += [a for a in sides[1] if a not in self.rows | set(self.columns)]

    def _score(self, axes: tuple[str, ...], votes: dict[str, int]) -> tuple[int, int, int]:
        known = sum(a in self.rows for a in axes) - sum(a in self.columns for a in axes)
        return known, sum(votes.get(a, 0) for a in axes), 0

    def _reductions(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if op.name == "reduce":
                self.rows |= {a for a in wide(op.result.type) if a not in self.columns}
        for op in ops:
            if op.name == "reduce":
                over = [a for a in op.over if a in self.order and a not in self.rows]
                self.columns += [a for a in over if a not in self.columns]

    def _warps(self, ops: Iterable[Op]) -> int:
        most = ATOM_ROWS
        for v in _tiles(ops):
            if v.type.space != "sram":
                n = 1
                for _, size in self.split(v.type)[0]:
                    n *= size
                most = max(most, n)
        return warps_for(most)


def _tiles(ops: Iterable[Op]) -> Iterable[Value]:
    for op in ops:
        for v in op.results:
            if v.type.axes:
                yield v
        for region in op.regions:
            yield from (a for a in region.args if a.type.axes)

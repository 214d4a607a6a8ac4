"""Traffic with main memory: what is read and written, by tensor, as numbers and as formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilecc.ir.dtypes import DType

Formula = Any


@dataclass(frozen=True)
class Part:
    """What one tensor contributes in one direction. `formulas` are by form, made when asked for.

    Forms: `even` (tiles divide extents), `exact` (with ceilings), `tiles` (even, tile sizes as
    symbols). `numbers` is None while extents are unknown.
    """

    tensor: str
    write: bool
    dtype: DType
    numbers: int | None
    formulas: Callable[[str], Formula | None]

    @property
    def bytes(self) -> int | None:
        """Bytes, if extents are known."""
        return None if self.numbers is None else self.numbers * self.dtype.bytes


@dataclass(frozen=True, eq=False)
class Io:
    """Traffic of one way to run a program."""

    parts: tuple[Part, ...]

    @cached_property
    def numbers(self) -> int | None:
        """Elements moved; None while an extent is unknown."""
        return _sum(p.numbers for p in self.parts)

    @cached_property
    def bytes(self) -> int | None:
        """Bytes moved; None while an extent is unknown."""
        return _sum(p.bytes for p in self.parts)

    def expression(self, form: str = "even", *, in_bytes: bool = False) -> Formula | None:
        """Elements (or bytes) moved, as a sympy expression; None if there is none of that form."""
        return _total(self.parts, form, in_bytes)

    @property
    def formula(self) -> str:
        """Elements moved if tiles divide the extents, as text."""
        return text(self.expression())

    @property
    def exact(self) -> str:
        """Elements moved for any extents, as text."""
        return text(self.expression("exact"))

    @property
    def bytes_formula(self) -> str:
        """Bytes moved if tiles divide the extents, as text."""
        return text(self.expression(in_bytes=True))

    @property
    def reads(self) -> dict[str, Io]:
        """What is read, by tensor."""
        return self._by_tensor(write=False)

    @property
    def writes(self) -> dict[str, Io]:
        """What is written, by tensor."""
        return self._by_tensor(write=True)

    def _by_tensor(self, *, write: bool) -> dict[str, Io]:
        found: dict[str, list[Part]] = {}
        for p in self.parts:
            if p.write == write:
                found.setdefault(p.tensor, []).append(p)
        return {name: Io(tuple(parts)) for name, parts in found.items()}

    def to_json(self) -> dict[str, Any]:
        """Totals, and the same by tensor."""
        return {
            "bytes": self.bytes,
            "formula": self.formula,
            "bytes_formula": self.bytes_formula,
            "numbers": self.numbers,
            "reads": {name: io._entry() for name, io in self.reads.items()},
            "writes": {name: io._entry() for name, io in self.writes.items()},
        }

    def _entry(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "bytes": self.bytes, "formula": self.formula}


def text(e: Formula | None) -> str:
    """A formula as text that sympy can read."""
    return "" if e is None else str(e)


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for v in values:
        if v is None:
            return None
        total += v
    return total


def _total(parts: Iterable[Part], form: str, in_bytes: bool) -> Formula | None:
    import sympy

    total = sympy.Integer(0)
    for p in parts:
        e = p.formulas(form)
        if e is None:
            return None
        total += e * p.dtype.bytes if in_bytes else e
    return total if total.has(sympy.Sum) else sympy.expand(total)

"""Operands of PTX instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Reg:
    """A register, also a special one (%tid.x) and the sink `_`; `negated` for !%p."""

    name: str
    negated: bool = False

    def __str__(self) -> str:
        return f"{'!' * self.negated}{self.name}"


@dataclass(frozen=True, slots=True)
class Imm:
    """An integer literal."""

    value: int


@dataclass(frozen=True, slots=True)
class FloatImm:
    """A floating-point literal: its bits, and how many there are (32 or 64)."""

    bits: int
    width: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable or parameter, or a label."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """[base + offset]."""

    base: Reg | Symbol | Imm
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """{a, b, ...}."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """a|b: a second destination."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Group:
    """(a, b): arguments of a call."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """The same operand of several instructions that are executed together. It is in no PTX."""

    elements: tuple[Operand, ...]


Operand: TypeAlias = Reg | Imm | FloatImm | Symbol | Address | Vector | Pair | Group | Stack


def registers(operand: Operand | None) -> list[str]:
    """Names of all registers in an operand."""
    if isinstance(operand, Reg):
        return [operand.name] if operand.name != "_" else []
    if isinstance(operand, Address):
        return registers(operand.base)
    if isinstance(operand, Vector | Group | Stack):
        return [r for e in operand.elements for r in registers(e)]
    if isinstance(operand, Pair):
        return registers(operand.first) + registers(operand.second)
    return []

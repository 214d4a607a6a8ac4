"""PTX text to functions of instructions. What an instruction means is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tilecc.emulator.operands import Operand, Reg
from tilecc.emulator.types import TYPES, EmulatorError, Type


@dataclass(frozen=True)
class SourceLine:
    """A line of the source that the PTX was compiled from (from .loc and .file)."""

    file: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Instruction:
    """An instruction. `opcode` is its first word up to the first dot, `modifiers` the rest."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    predicate: Reg | None
    line: int
    text: str
    loc: SourceLine | None = None
    used: int | None = None
    """Of a load, which of its bytes are used, as bits (`.pragma "used_bytes_mask"`)."""

    @property
    def name(self) -> str:
        """Opcode and modifiers as they stand in the text."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Variable:
    """A variable of a state space, or a parameter. `size` in bytes; None for `extern x[]`."""

    name: str
    space: str
    type: Type
    size: int | None
    align: int
    initial: bytes = b""


@dataclass(eq=False)
class Function:
    """A kernel (or another function, which is kept but cannot be called)."""

    name: str
    entry: bool
    params: list[Variable]
    registers: dict[str, Type] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    """Index into `body` of the instruction that a label stands before."""


@dataclass(eq=False)
class Module:
    """All functions and module-level variables of a PTX text."""

    functions: dict[str, Function]
    variables: list[Variable]
    target: str
    version: str

    def kernel(self, name: str | None = None) -> Function:
        """The kernel of that name; the only one if None.

        Raises:
            EmulatorError: there is none, or more than one and no name.
        """
        entries = {n: f for n, f in self.functions.items() if f.entry}
        if name is None and len(entries) == 1:
            return next(iter(entries.values()))
        if name not in entries:
            raise EmulatorError(
                f"no kernel {name!r}: the module has {', '.join(entries) or 'none'}"
            )
        return entries[name]


def type_named(name: str, line: int) -> Type:
    """The type that a directive or a modifier names, with or without its dot."""
    found = TYPES.get(name.lstrip("."))
    if found is None:
        raise EmulatorError(f"PTX line {line}: unknown type {name!r}")
    return found


_PARSED = 8
"""Texts that are remembered: one is run with many arguments, and in many orders."""


@lru_cache(maxsize=_PARSED)
def parse(text: str) -> Module:
    """Parse a module. It is not to be changed.

    Raises:
        EmulatorError: text that is not PTX as compilers emit it; the message names the line.
    """
    from tilecc.emulator.parser import Parser

    return Parser(text).module()

"""Errors that a user sees, and the source positions that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Loc:
    """A line of the user's program; `file` is relative to the working directory where it can be."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Diagnostic:
    """One finding: what is wrong at `loc`, and what to write instead."""

    message: str
    loc: Loc | None = None
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.loc}: " if self.loc else ""
        hint = f"\n    {self.hint}" if self.hint else ""
        return f"{where}{self.message}{hint}"


class TileccError(Exception):
    """Base of all errors that tilecc raises for a user's mistake or an unsupported request."""


class DiagnosticError(TileccError):
    """An error made of one or more diagnostics, all of which are in its text."""

    def __init__(self, diagnostics: Sequence[Diagnostic] | Diagnostic | str) -> None:
        if isinstance(diagnostics, str):
            diagnostics = Diagnostic(diagnostics)
        if isinstance(diagnostics, Diagnostic):
            diagnostics = [diagnostics]
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(map(str, self.diagnostics)))


class SpecError(DiagnosticError):
    """A program in the DSL that is wrong; carries every error of the program."""


class IRError(DiagnosticError):
    """IR text that does not parse, or IR that the verifier refuses."""


class CompileError(DiagnosticError):
    """A program that is right but that the compiler cannot turn into a right kernel."""


class LoadError(DiagnosticError):
    """A file that holds no kernel, or none that runs on this machine; or it cannot be written."""


class ArgumentError(DiagnosticError, ValueError):
    """A kernel called with wrong arguments (shape, dtype, device, layout)."""

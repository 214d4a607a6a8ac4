"""Which of a file's object files this machine can run, decided before any of it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilecc.errors import Diagnostic, LoadError


@dataclass(frozen=True)
class Machine:
    """A CPU as object files see it: its architecture and operating system, and its features."""

    platform: str
    features: frozenset[str]

    @staticmethod
    def here() -> Machine:
        """The machine that this process runs on."""
        from tilecc.host import architecture, cpu_features

        return Machine(f"{architecture()}-{sys.platform}", cpu_features())

    def best(self, path: str, images: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Of the object files that run here, the one that uses most of the CPU.

        Raises:
            LoadError: there is none; the message says what each lacks.
        """
        runs = [i for i in images if self._missing(i) == ""]
        if runs:
            return max(runs, key=lambda i: len(i["features"]))
        needs = "; ".join(f"code for {i['arch']} {self._missing(i)}" for i in images)
        hint = f'save it with archs=["x86-64-v3"], say, or on such a machine ({self.platform})'
        message = f"{path} has no code that this machine can run: {needs}"
        raise LoadError(Diagnostic(message, None, hint))

    def _missing(self, image: Mapping[str, Any]) -> str:
        if image["platform"] != self.platform:
            return f"is for {image['platform']}"
        lacking = sorted(set(image["features"]) - self.features)
        return f"needs {', '.join(lacking)}" if lacking else ""

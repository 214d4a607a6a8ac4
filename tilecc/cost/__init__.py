"""The cost model: traffic, footprint and arithmetic of a program by walking its IR; tile sizes.

Numbers come without sympy; formulas load it when they are asked for.
"""

from __future__ import annotations

from tilecc.cost.choice import (
    Candidate,
    Choice,
    candidates,
    choose_tile,
    refuse_what_cannot_run,
)
from tilecc.cost.io import Io, Part
from tilecc.cost.report import Report, report

__all__ = [
    "Candidate",
    "Choice",
    "Io",
    "Part",
    "Report",
    "candidates",
    "choose_tile",
    "refuse_what_cannot_run",
    "report",
]

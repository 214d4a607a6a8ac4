"""The cost model's public names; see `tilecc.cost`."""

from tilecc.cost import (
    Candidate,
    Choice,
    Io,
    Part,
    Report,
    candidates,
    choose_tile,
    report,
)

__all__ = [
    "Candidate",
    "Choice",
    "Io",
    "Part",
    "Report",
    "candidates",
    "choose_tile",
    "report",
]

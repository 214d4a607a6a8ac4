"""What may be tuned on a GPU: tile sizes. Which of them fit, the plan says (`ledger.py`)."""

from __future__ import annotations

from tilecc.codegen.space import Space
from tilecc.target import Target


def space(target: Target) -> Space:
    """Rows of whole warps' fragments, and tiles of the streamed axis in steps of a fragment."""
    return Space(rows=(16, 32, 64, 128, 256), streamed=(16, 32, 64, 96, 128, 192, 256))

"""What `kernel.tile` is: the tile sizes, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ChosenTile(Mapping[str, int]):
    """Tile sizes by axis, and where they come from. Prints as a table."""

    sizes: Mapping[str, int]
    candidates: tuple[Any, ...] = field(default=(), repr=False)
    """What the cost model looked at; empty if the sizes were given."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Of the code generator, where they are not at their defaults."""
    tuned: tuple[str, ...] = ()
    """For tiles that were measured: for what, with the other configurations of this kernel."""

    def __getitem__(self, axis: str) -> int:
        return self.sizes[axis]

    def __iter__(self) -> Any:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __str__(self) -> str:
        sizes = [f"{a}={n}" for a, n in (*self.sizes.items(), *self.options.items())]
        head = ", ".join(sizes) or "no tiled axes"
        if self.tuned:
            return "\n  ".join([f"{head} ({self.tuned[0]})", *self.tuned[1:]])
        if not self.candidates:
            return f"{head} (given)"
        lines = [f"{head} (the best of {sum(c.fits for c in self.candidates)} that fit)"]
        for c in self.candidates:
            tile = ", ".join(f"{a}={n}" for a, n in c.tile.items())
            lines.append(f"  {tile:16} {'fits   ' if c.fits else 'refused'} {c.reason}")
        return "\n".join(lines)

"""A configuration: what is chosen for one program, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class Config:
    """Tile sizes by axis, and the code generator's options that are not at their defaults."""

    tile: tuple[tuple[str, int], ...] = ()
    options: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(tile: Mapping[str, int], options: Mapping[str, int] | None = None) -> Config:
        """The configuration with these, in an order of its own."""
        return Config(tuple(sorted(tile.items())), tuple(sorted((options or {}).items())))

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Config:
        """What `to_json` wrote.

        Raises:
            ValueError: it did not write that.
        """
        if not isinstance(found, Mapping):
            raise ValueError(f"{found!r} is no configuration")
        parts = []
        for name in ("tile", "options"):
            table = found.get(name, {})
            if not isinstance(table, Mapping):
                raise ValueError(f"{name} is {table!r}, not a table")
            for key, value in table.items():
                if not isinstance(key, str) or type(value) is not int or value < 0:
                    raise ValueError(f"{name} has {key!r}: {value!r}")
            parts.append(dict(table))
        return Config.of(*parts)

    def to_json(self) -> dict[str, dict[str, int]]:
        """Tables of numbers."""
        return {"tile": dict(self.tile), "options": dict(self.options)}

    def renamed(self, names: Mapping[str, str]) -> Config:
        """With other names for the axes."""
        return Config.of({names.get(a, a): n for a, n in self.tile}, dict(self.options))

    def __str__(self) -> str:
        return ", ".join(f"{n}={v}" for n, v in (*self.tile, *self.options)) or "no choice"

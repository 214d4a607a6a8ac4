"""A saved kernel's costs: formulas as they were written down, numbers by walking its IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilecc.cost import Io, Report

_WAYS = ("unfused", "ideal", "fused")


@dataclass(frozen=True)
class SavedIo:
    """Traffic of one way to run a program. Formulas are text; numbers None for unknown extents."""

    data: Mapping[str, Any]

    @property
    def formula(self) -> str:
        """Elements moved if tiles divide the extents."""
        return str(self.data["formula"])

    @property
    def bytes_formula(self) -> str:
        """Bytes moved if tiles divide the extents."""
        return str(self.data["bytes_formula"])

    @property
    def exact(self) -> str:
        """Elements moved for any extents."""
        return str(self.data.get("exact", self.formula))

    @property
    def numbers(self) -> int | None:
        """Elements moved."""
        return self.data["numbers"]  # type: ignore[no-any-return]

    @property
    def bytes(self) -> int | None:
        """Bytes moved."""
        return self.data["bytes"]  # type: ignore[no-any-return]

    @property
    def reads(self) -> dict[str, SavedIo]:
        """What is read, by tensor."""
        return {name: SavedIo(d) for name, d in self.data["reads"].items()}

    @property
    def writes(self) -> dict[str, SavedIo]:
        """What is written, by tensor."""
        return {name: SavedIo(d) for name, d in self.data["writes"].items()}


class SavedCost:
    """What `Kernel.cost` gives, of a kernel that was loaded."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = dict(data)

    @cached_property
    def fused(self) -> SavedIo:
        """Traffic of the tiled program, as compiled."""
        return SavedIo(self._data["fused"])

    @cached_property
    def unfused(self) -> SavedIo | None:
        """One kernel for each operation of the graph."""
        return self._way("unfused")

    @cached_property
    def ideal(self) -> SavedIo | None:
        """Fused, with every input read once a pass."""
        return self._way("ideal")

    def _way(self, name: str) -> SavedIo | None:
        found = self._data[name]
        return SavedIo(found) if found is not None else None

    @property
    def extents(self) -> dict[str, int]:
        """The extents that are known."""
        return dict(self._data["extents"])

    @property
    def tile(self) -> dict[str, int]:
        """Tile sizes of the kernels."""
        return dict(self._data["tile"])

    @property
    def seconds(self) -> float | None:
        """The roofline's time on the target; None while extents are unknown."""
        return self._data["seconds"]  # type: ignore[no-any-return]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data, as `Report.to_json`."""
        return dict(self._data)

    def __str__(self) -> str:
        lines = []
        for title in ("unfused", "fused"):
            io = self._way(title)
            if io is not None:
                size = "" if io.bytes is None else f" = {io.numbers} numbers, {io.bytes} bytes"
                lines.append(f"{title:8} {io.formula}{size}")
        lines.append(f"tile     {', '.join(f'{a}={n}' for a, n in self.tile.items())}")
        return "\n".join(lines)


def with_numbers(saved: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """A saved report with the numbers of `report`, which has the same program and more extents."""
    work, line = report.arithmetic, report.roofline
    data = {
        **saved,
        "extents": dict(report.extents),
        "scalars": dict(report.scalars),
        "flops": work.flops if work is not None else None,
        "element_ops": work.elementwise if work is not None else None,
        "exps": work.exps if work is not None else None,
        "intensity": report.intensity,
        "seconds": report.seconds,
        "roofline": line.to_json() if line is not None else None,
    }
    for way in _WAYS:
        if saved[way] is not None:
            data[way] = _filled(saved[way], getattr(report, way))
    return data


def _filled(saved: Mapping[str, Any], io: Io) -> dict[str, Any]:
    data = {**saved, "numbers": io.numbers, "bytes": io.bytes}
    for what, parts in (("reads", io.reads), ("writes", io.writes)):
        data[what] = {
            name: {**saved[what][name], "numbers": p.numbers, "bytes": p.bytes}
            for name, p in parts.items()
        }
    return data

"""What `tilecc.emulate` gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilecc.emulator import Finding, Result, SharedAccess, Traffic
from tilecc.emulator.report import place

if TYPE_CHECKING:
    from tilecc.check import Check


@dataclass(frozen=True)
class Moved:
    """Bytes between global memory and the kernels, by tensor."""

    bytes_read: dict[str, int]
    bytes_written: dict[str, int]
    asked: dict[str, int | None] = field(default_factory=dict)
    """Of tensors that are read at computed places the bytes that lanes ask for, each for itself.
    Lanes that read one place ask for it once: requested are these without those that are `shared`,
    a symbol that data and positions decide. None: not counted."""


@dataclass(frozen=True)
class Launched:
    """One kernel's run: of `grid` CTAs, `result.ctas` ran."""

    name: str
    grid: int
    result: Result


@dataclass
class Emulation:
    """A kernel's run in the emulator."""

    outputs: tuple[Any, ...]
    """In the order of the program's; what CTAs that did not run would write is not set."""
    kernels: tuple[Launched, ...]
    predicted: Moved | None
    """The cost model's bytes for all CTAs; None where data decides them."""
    check: Check | None
    """The comparison with float64; None if it was not asked for, or nothing can be compared."""

    @property
    def ctas(self) -> int:
        """CTAs that ran, of all kernels."""
        return sum(k.result.ctas for k in self.kernels)

    @property
    def grid(self) -> int:
        """CTAs that a launch has."""
        return sum(k.grid for k in self.kernels)

    @property
    def complete(self) -> bool:
        """Whether all CTAs ran."""
        return self.ctas == self.grid

    @property
    def max_error(self) -> float | None:
        """The largest difference from float64, of what was computed."""
        return self.check.error if self.check is not None else None

    def _all(self, kind: str) -> list[Any]:
        return [x for k in self.kernels for x in getattr(k.result, kind)]

    @property
    def findings(self) -> list[Finding]:
        """Everything that is wrong with how the kernels run."""
        return self._all("findings")

    @property
    def races(self) -> list[Finding]:
        """Accesses that no synchronisation orders."""
        return self._all("races")

    @property
    def undefined(self) -> list[Finding]:
        """Registers and memory read before they were written."""
        return self._all("undefined")

    @property
    def out_of_bounds(self) -> list[Finding]:
        """Accesses outside of every tensor, or of shared or local memory."""
        return self._all("out_of_bounds")

    @property
    def bank_conflicts(self) -> list[SharedAccess]:
        """Accesses to shared memory that need more steps than the ideal."""
        return self._all("bank_conflicts")

    @property
    def instructions(self) -> Counter[str]:
        """Executions by warps, by opcode with modifiers."""
        return sum((k.result.instructions for k in self.kernels), Counter[str]())

    def traffic(self, direction: str) -> dict[str, Traffic]:
        """Requests, bytes and sectors by tensor; `direction` is read or write."""
        total: dict[str, Traffic] = {}
        for k in self.kernels:
            for name, t in k.result.traffic(direction).items():
                total.setdefault(name, Traffic()).add(t)
        return total

    @property
    def bytes_read(self) -> dict[str, int]:
        """Bytes requested from global memory, by tensor."""
        return {n: t.bytes for n, t in self.traffic("read").items()}

    @property
    def bytes_written(self) -> dict[str, int]:
        """Bytes written to global memory, by tensor."""
        return {n: t.bytes for n, t in self.traffic("write").items()}

    @property
    def shared(self) -> dict[str, int]:
        """Bytes that several lanes of a request named, by tensor read at computed places."""
        names = self.predicted.asked if self.predicted is not None else {}
        read = self.traffic("read")
        return {n: read[n].asked - read[n].bytes for n in names if n in read}

    @property
    def differences(self) -> list[str]:
        """Where the bytes requested by all CTAs are not those that the cost model predicts.

        Of reads at computed places it is what lanes ask for that must be equal (`Moved.asked`).
        """
        if self.predicted is None or not self.complete:
            return []
        found = []
        for verb, have, want in (
            ("reads", self.bytes_read, self.predicted.bytes_read),
            ("writes", self.bytes_written, self.predicted.bytes_written),
        ):
            for name in dict.fromkeys([*want, *have]):
                n, m = have.get(name, 0), want.get(name, 0)
                if n != m and not (verb == "reads" and name in self.predicted.asked):
                    found.append(f"{verb} {n} bytes of {name}, and the cost model predicts {m}")
        read = self.traffic("read")
        for name, m in ((k, v) for k, v in self.predicted.asked.items() if v is not None):
            n = read[name].asked if name in read else 0
            if n != m:
                found.append(f"lanes ask for {n} bytes of {name}, and the cost model predicts {m}")
        return found

    @property
    def ok(self) -> bool:
        """No finding, outputs within the tolerance, bytes as predicted."""
        right = self.check is None or self.check.ok
        return right and not self.findings and not self.differences

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        requested = {"read": self.bytes_read, "write": self.bytes_written}
        predicted = None
        if self.predicted is not None:
            model = self.predicted
            predicted = _by_tensor({"read": model.bytes_read, "write": model.bytes_written})
        return {
            "ok": self.ok,
            "ctas": self.ctas,
            "grid": self.grid,
            "max_error": self.max_error,
            "tolerance": self.check.tolerance if self.check else None,
            "compared": self.check.compared if self.check else 0,
            "findings": [f.as_dict() for f in self.findings],
            "races": [f.as_dict() for f in self.races],
            "undefined": [f.as_dict() for f in self.undefined],
            "out_of_bounds": [f.as_dict() for f in self.out_of_bounds],
            "bank_conflicts": [_shared(a) for a in self.bank_conflicts],
            "bytes": {
                "requested": _by_tensor(requested),
                "predicted": predicted,
                "asked": dict(self.predicted.asked) if self.predicted else {},
                "shared": self.shared,
            },
            "sectors": {
                d: {n: [t.sectors, t.ideal_sectors] for n, t in self.traffic(d).items()}
                for d in ("read", "write")
            },
            "instructions": dict(self.instructions),
        }

    def __str__(self) -> str:
        lines = [f"ran       {self.ctas} of {self.grid} CTAs"]
        if self.check is not None:
            verdict = "agrees with" if self.check.ok else "DIFFERS FROM"
            lines.append(
                f"check     {verdict} float64: largest error {self.check.error:.2e}, "
                f"allowed {self.check.tolerance:.2e}"
            )
        else:
            lines.append("check     no output was compared")
        lines += [f"bytes     {line}" for line in self._table()]
        for kind in ("races", "undefined", "out_of_bounds", "bank_conflicts"):
            lines.append(f"{kind.replace('_', ' '):13} {len(self._all(kind))}")
        lines += [str(f) for f in self.findings]
        lines += [
            f"bank conflicts: {a.wavefronts} steps where {a.ideal} would do\n{place(a)}"
            for a in self.bank_conflicts
        ]
        return "\n".join([*lines, *self.differences])

    def _table(self) -> Iterable[str]:
        model = self.predicted or Moved({}, {})
        for verb, have, want, direction in (
            ("reads", self.bytes_read, model.bytes_read, "read"),
            ("writes", self.bytes_written, model.bytes_written, "write"),
        ):
            for name, t in self.traffic(direction).items():
                used = t.ideal_sectors / t.sectors if t.sectors else 1.0
                expected = f"{want[name]} predicted" if name in want else "no prediction"
                if direction == "read" and name in model.asked:
                    all_of = "predicted" if model.asked[name] == t.asked else "asked for"
                    expected = f"= {t.asked} {all_of} - {t.asked - t.bytes} shared by lanes"
                yield (
                    f"{verb:6} {name:8} {have[name]:>12} {expected}, {t.requests} requests, "
                    f"sectors used {used:.0%}"
                )


def _by_tensor(moved: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """{direction: {tensor: bytes}} as {tensor: {direction: bytes}}."""
    names = dict.fromkeys(n for by in moved.values() for n in by)
    return {n: {d: by.get(n, 0) for d, by in moved.items()} for n in names}


def _shared(a: SharedAccess) -> dict[str, Any]:
    return {
        "line": a.line,
        "text": a.text,
        "source": str(a.loc) if a.loc else None,
        "origin": a.origin,
        "direction": a.direction,
        "requests": a.requests,
        "wavefronts": a.wavefronts,
        "ideal": a.ideal,
    }

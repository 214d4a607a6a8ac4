"""What a kernel's numbers are like: errors, extreme inputs, and that nothing else decides on them.

A row's result may depend neither on what else is in the batch, nor on threads, nor on the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.check import logits_of, reference
from tilecc.inputs import random_inputs
from tilecc.ir.core import Func
from tilecc.ir.expr import Extent, indices, walk
from tilecc.sample import cut, independent_axes

if TYPE_CHECKING:
    from numpy.typing import NDArray

Call = Callable[..., Any]
"""A kernel: arrays by name, and `threads=`."""

EXTREME = 1e4


@dataclass(frozen=True)
class Finding:
    """One check. `numbers` has what was measured: errors, the worst element, counts."""

    name: str
    ok: bool
    numbers: dict[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Numerics:
    """Checks of a kernel for a program (graph IR) with numbers for its extents and scalars."""

    func: Func
    kernel: Call
    sizes: Mapping[str, int]
    scalars: Mapping[str, float]
    seed: int = 0

    def findings(self) -> Iterator[Finding]:
        """All checks, in order."""
        inputs = random_inputs(self.func, self.sizes, self.scalars, self.seed)
        yield self.accuracy("accuracy", inputs)
        yield self.extreme(inputs)
        yield from self.infinite(inputs)
        yield from self.masked(inputs)
        yield self.deterministic(inputs)
        yield from self.invariant(inputs)

    def accuracy(self, name: str, inputs: Mapping[str, Any], note: str = "") -> Finding:
        """Against float64: largest and RMS error, and where the largest is."""
        outputs = self._run(inputs)
        expected = reference(self.func, self.sizes, inputs)
        check = expected.check(outputs)
        worst = expected.worst(outputs)
        numbers: dict[str, Any] = {
            "max": check.error,
            "allowed": check.tolerance,
            "rms": worst.rms,
            "worst": worst.place,
            "got": worst.got,
            "wanted": worst.wanted,
            "rows_of_0": worst.zero_rows,
            "minus_infinities": worst.minus_infinities,
        }
        return Finding(name, check.ok, numbers, note)

    def extreme(self, inputs: Mapping[str, Any]) -> Finding:
        """Logits of +-1e4: one input, which they are linear in, made larger."""
        first = next((p for p in self.func.params if _scalable(p)), None)
        largest = logits_of(self.func, self.sizes, inputs)
        if first is None or not largest:
            return Finding("logits of 1e4", True, note="there is no exponential")
        scaled = inputs[first.name].astype("f8") * (EXTREME / max(largest, 1.0))
        changed = {**inputs, first.name: scaled.astype(inputs[first.name].dtype)}
        note = f"{first.name} times {EXTREME / max(largest, 1.0):.3g}"
        return self.accuracy("logits of 1e4", changed, note)

    def infinite(self, inputs: Mapping[str, Any]) -> Iterator[Finding]:
        """-inf in what is added to logits, where a contraction does not meet it."""
        met = {v for op in self.func.walk() if op.name in ("contract", "at") for v in op.operands}
        rng = np.random.default_rng(self.seed + 1)
        for p in self.func.params:
            if _scalable(p) and p not in met:
                x = inputs[p.name]
                hit = np.where(rng.random(x.shape) < 0.3, -np.inf, x).astype(x.dtype)
                yield self.accuracy(f"-inf in {p.name}", {**inputs, p.name: hit})

    def masked(self, inputs: Mapping[str, Any]) -> Iterator[Finding]:
        """Masks and lengths, that is integers that are no coordinates, all 0."""
        tables = {v for op in self.func.walk() if op.name == "at" for v in op.operands[1:]}
        for p in self.func.params:
            if p.type.axes and p.type.dtype.kind in ("int", "bool") and p not in tables:
                yield self.accuracy(
                    f"{p.name} of 0", {**inputs, p.name: np.zeros_like(inputs[p.name])}
                )

    def deterministic(self, inputs: Mapping[str, Any]) -> Finding:
        """Runs, and numbers of threads, give the same bits."""
        first = self._run(inputs, threads=1)
        others = [self._run(inputs, threads=n) for n in (1, 2, 3)]
        ok = all(_same(a, b) for other in others for a, b in zip(first, other, strict=True))
        return Finding("the same in each run, for 1 to 3 threads", ok)

    def invariant(self, inputs: Mapping[str, Any]) -> Iterator[Finding]:
        """A row alone gives the same bits as in a batch, for axes of independent rows."""
        for axis in independent_axes(self.func):
            name = self._own_extent(axis)
            if name is None or self.sizes[name] < 2 or axis in _indexed(self.func):
                continue
            whole = self._run(inputs)
            wrong = []
            for k in sorted({0, self.sizes[name] // 2, self.sizes[name] - 1}):
                at = {axis: (k, 1)}
                alone = {
                    p.name: cut(inputs[p.name], p.type.names, at) if p.type.axes else inputs[p.name]
                    for p in self.func.params
                }
                parts = self._run(alone)
                pairs = zip(self.func.returns, whole, parts, strict=True)
                if not all(_same(cut(w, v.type.names, at), x) for v, w, x in pairs):
                    wrong.append(k)
            note = f"differs for {axis} = {', '.join(map(str, wrong))}" if wrong else ""
            yield Finding(f"a row of {axis} alone is as in the batch", not wrong, note=note)

    def _own_extent(self, axis: str) -> str | None:
        """The name of the extent that belongs to this axis of inputs and outputs, and no other."""
        axes = {a for p in self.func.params for a in p.type.axes}
        own = {a.extent for a in axes if a.name == axis}
        others = {n for a in axes if a.name != axis for n in walk(a.extent)}
        if len(own) != 1 or not isinstance(e := own.pop(), Extent) or e in others:
            return None
        return e.name

    def _run(self, inputs: Mapping[str, Any], **more: Any) -> tuple[NDArray[Any], ...]:
        out = self.kernel(**inputs, **more)
        return out if isinstance(out, tuple) else (out,)


def _scalable(p: Any) -> bool:
    return bool(p.type.axes) and p.type.dtype.kind == "float"


def _indexed(func: Func) -> set[str]:
    """Axes whose coordinate some expression reads."""
    found: set[str] = set()
    for op in func.walk():
        for e in [op.attrs.get("expr"), *(x for _, x in op.attrs.get("coords", ()))]:
            found |= indices(e) if e is not None else set()
    return found


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether all bits are the same."""
    return a.shape == b.shape and np.ascontiguousarray(a).tobytes() == b.tobytes()

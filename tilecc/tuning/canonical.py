"""A program's canonical form: the same for all ways to name its values, axes and extents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tilecc.ir.core import Axis, Cloner, Func, Range, TensorType, Value
from tilecc.ir.expr import Expr, Extent, Index, transform
from tilecc.ir.printer import print_ir
from tilecc.target import Target

# Attributes whose strings name axes: alone, in tuples, or first in pairs.
_AXES = frozenset(("over", "axis", "coords", "pad", "clip", "tile"))


@dataclass(frozen=True)
class Canonical:
    """The canonical text, and what each axis and extent of the program is called in it."""

    text: str
    axes: Mapping[str, str]
    extents: Mapping[str, str]


def canonical(func: Func) -> Canonical:
    """The canonical form of a program after `simplify`, or of one that was written as IR."""
    renaming = _Renaming()
    text = print_ir(renaming.func(func), locs=False)
    return Canonical(text, dict(renaming.axes), dict(renaming.names))


class _Renaming(Cloner):
    """Copies a program with names by order of first appearance."""

    def __init__(self) -> None:
        super().__init__()
        self.axes: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self._in_axes = False

    def func(self, f: Func) -> Func:
        new = super().func(f)
        new.name, new.attrs = "f", {}
        return new

    def axis(self, name: str) -> str:
        return self.axes.setdefault(name, f"a{len(self.axes)}")

    def fresh(self, v: Value) -> Value:
        new = Value(self.type(v.type), "v")
        self.mapping[v] = new
        return new

    def op(self, op: Any) -> Any:
        new = super().op(op)
        for r in new.results:
            r.name = "v"
        for name in _AXES & set(new.attrs):
            new.attrs[name] = self._axes_in(op.attrs[name])
        return new

    def type(self, t: TensorType) -> TensorType:
        axes = tuple(Axis(self.axis(a.name), self._expr(a.extent)) for a in t.axes)
        return TensorType(t.dtype, axes, *([t.space] if hasattr(t, "space") else []))

    def attr(self, a: Any) -> Any:
        if isinstance(a, Expr):
            return self._expr(a)
        if isinstance(a, TensorType):
            return self.type(a)
        if isinstance(a, Axis):
            return Axis(self.axis(a.name), self._expr(a.extent))
        if isinstance(a, Range):
            return Range(self._expr(a.base), self.axis(a.axis))
        if isinstance(a, tuple):
            return tuple(self.attr(x) for x in a)
        return a

    def _axes_in(self, a: Any) -> Any:
        if isinstance(a, str):
            return self.axis(a)
        if isinstance(a, tuple):
            return tuple(self._axes_in(x) for x in a)
        return self.attr(a)

    def _expr(self, e: Expr) -> Expr:
        return transform(e, self._rename)

    def _rename(self, e: Expr) -> Expr | None:
        if isinstance(e, Index):
            return Index(self.axis(e.axis))
        if isinstance(e, Extent):
            return Extent(self.names.setdefault(e.name, f"n{len(self.names)}"))
        return None


def machine(target: Target) -> str:
    """What of a machine decides which kernel is fast on it."""
    caches = [(m.name, m.size) for m in target.memories if m.space in ("sram", "cache")]
    facts = {
        "kind": target.kind,
        "arch": target.arch,
        "model": target.model,
        "cores": int(target.cores.value),
        "features": sorted(target.features),
        "vector_bits": target.vector_bits,
        "caches": caches,
    }
    return json.dumps(facts, sort_keys=True)


def versions() -> str:
    """Of what makes kernels: tilecc, TVM."""
    from tilecc import __version__

    try:
        tvm = version("apache-tvm")
    except PackageNotFoundError:
        tvm = "none"
    return f"tilecc {__version__}, tvm {tvm}"


def digest(*parts: str) -> str:
    """A short name for texts, the same for the same texts only."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

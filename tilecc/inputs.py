"""Seeded random inputs that a program can be run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilecc.ir.core import Func, Value
from tilecc.ir.expr import Call, Env, Expr, arg_numbers, evaluate, indices, walk
from tilecc.ir.interp_expr import integer

_ORDERS = ("lt", "le", "gt", "ge")


def random_inputs(
    func: Func, sizes: Mapping[str, int], scalars: Mapping[str, float], seed: int = 0
) -> dict[str, Any]:
    """An argument for each parameter: normal floats, integers, and the given numbers.

    Integers that are coordinates, such as a page's number, are within the tensor; those that
    coordinates are compared with, such as lengths, within the axis; others 0 and 1.
    """
    rng = np.random.default_rng(seed)
    ends = _bound_ends(func, sizes) | _coordinate_ends(func, sizes)
    found: dict[str, Any] = {}
    for p in func.params:
        t = p.type.dtype
        if not p.type.axes:
            found[p.name] = scalars[p.name]
            continue
        shape = [integer(a.extent, sizes) for a in p.type.axes]
        if t.kind == "float":
            found[p.name] = rng.standard_normal(shape, dtype=np.float32).astype(t.numpy)
        else:
            found[p.name] = rng.integers(0, ends.get(p, 2), shape).astype(t.numpy)
    return found


def _coordinate_ends(func: Func, sizes: Mapping[str, int]) -> dict[Value, int]:
    """For parameters that say where another is read: the first number that is outside of it."""
    ends: dict[Value, int] = {}
    for op in func.walk():
        if op.name != "at":
            continue
        for axis, e in replaced(op.attrs):
            extent = integer(op.operands[0].type.axis(axis).extent, sizes)
            for p in {p for k in arg_numbers(e) for p in _sources(op.operands[k])}:
                first = _coordinate(e, op.operands, p, 0, sizes)
                end = max(extent - first, 1)
                if _coordinate(e, op.operands, p, end - 1, sizes) == first + end - 1:
                    ends[p] = min(end, ends.get(p, end))
    return ends


def _bound_ends(func: Func, sizes: Mapping[str, int]) -> dict[Value, int]:
    """For parameters that bound coordinates: the first number that is past the longest axis."""
    ends: dict[Value, int] = {}
    for op in func.walk():
        for e in walk(op.expr) if op.name == "map" else ():
            if not isinstance(e, Call) or e.fn not in _ORDERS:
                continue
            axes = [op.result.type.axis(a) for a in indices(e)]
            longest = max((integer(a.extent, sizes) for a in axes), default=0)
            for p in {p for k in arg_numbers(e) for p in _sources(op.operands[k])} if axes else ():
                ends[p] = max(longest + 1, ends.get(p, 2))
    return ends


def _sources(v: Value) -> set[Value]:
    """Integer parameters that an element of `v` is computed from."""
    if v.owner is None:
        return {v} if v.type.dtype.kind == "int" else set()
    if v.owner.name == "at":
        return _sources(v.owner.operands[0])
    if v.owner.name != "map":
        return set()
    return {p for x in v.owner.operands for p in _sources(x)}


def _coordinate(
    e: Expr, operands: Sequence[Value], p: Value, value: int, sizes: Mapping[str, int]
) -> int:
    """A coordinate where parameter `p` has this value, and all else is 0."""

    def number(v: Value) -> int:
        if v.owner is None or v.owner.name not in ("at", "map"):
            return value if v is p else 0
        if v.owner.name == "at":
            return number(v.owner.operands[0])
        return _coordinate(v.owner.expr, v.owner.operands, p, value, sizes)

    env = Env(extent=sizes.__getitem__, index=lambda a: 0, arg=lambda k: number(operands[k]))
    return int(evaluate(e, env))


def replaced(attrs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The axes that an `at` replaces, with their expressions."""
    found = attrs.get("coords", ())
    return list(found.items()) if isinstance(found, Mapping) else list(found)

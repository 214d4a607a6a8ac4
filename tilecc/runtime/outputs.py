"""What the host computes for a call: shapes, grids, the arrays that a user gives for outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilecc.errors import ArgumentError, Diagnostic
from tilecc.ir.core import Value
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Env, Expr, evaluate
from tilecc.runtime.arguments import Bound, Held, Refused

_WORK: Any = 1000  # candidates that the test for shared elements may look at


def host_integer(e: Expr, extents: Mapping[str, int], reads: Sequence[Any]) -> int:
    """A host expression over extents and the values `reads`."""
    return int(evaluate(e, Env(arg=reads.__getitem__, extent=extents.__getitem__)))


def grid_size(grid: Iterable[Expr], extents: Mapping[str, int], reads: Sequence[Any]) -> int:
    """The points of a grid, none when a dimension has none."""
    return math.prod(max(0, host_integer(e, extents, reads)) for e in grid)


def shapes_of(values: Iterable[Value], extents: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The shape of each tensor."""
    return [tuple(host_integer(a.extent, extents, ()) for a in v.type.axes) for v in values]


def given_outputs(
    out: Any,
    params: Sequence[Value],
    returns: Sequence[Value],
    bound: Bound,
    shapes: Mapping[Value, tuple[int, ...]],
    read: Callable[..., Held],
) -> dict[Value, Held]:
    """The tensors in `out`, checked, by the value that is to be written there.

    Raises:
        ArgumentError: they are not what the outputs are, or overlap an argument or each other.
    """
    if out is None:
        return {}
    outs = list(out) if isinstance(out, tuple | list) else [out]
    n = len(returns)
    if len(outs) != n:
        raise ArgumentError(f"out= holds {len(outs)} arrays, and there are {n} outputs")
    found: dict[Value, Held] = {}
    taken = [
        (f"argument {p.name}", h, p.type.dtype)
        for p, h in zip(params, bound.held, strict=True)
        if h is not None
    ]
    problems = []
    for k, (v, x) in enumerate(zip(returns, outs, strict=True)):
        name = "out" if n == 1 else f"out[{k}]"
        try:
            found[v] = _output(x, v, shapes, taken, read)
            taken.append((name, found[v], v.type.dtype))
        except Refused as e:
            problems.append(Diagnostic(f"{name} {e.message}", None, e.hint))
    if problems:
        raise ArgumentError(problems)
    return found


def _output(
    x: Any,
    v: Value,
    shapes: Mapping[Value, tuple[int, ...]],
    taken: Sequence[tuple[str, Held, DType]],
    read: Callable[..., Held],
) -> Held:
    if v not in shapes:
        raise Refused("is given for an output that is an argument as it came")
    h = read(x, v.type.dtype, v.type.names, writable=True)
    if h.shape != shapes[v]:
        for a, have, want in zip(v.type.names, h.shape, shapes[v], strict=False):
            if len(h.shape) == len(shapes[v]) and have != want:
                raise Refused(f"has {have} along axis {a}, where the output has {want}")
        raise Refused(f"has shape {h.shape}, and the output {shapes[v]}")
    repeats = any(s == 0 and n > 1 for s, n in zip(h.strides, h.shape, strict=True))
    if repeats and 0 not in h.shape:
        raise Refused("repeats elements (a stride is 0), so it cannot be written")
    for name, other, t in taken:
        if _overlap(h, v.type.dtype, other, t):
            raise Refused(f"overlaps {name} in memory", "pass another array, or leave out= out")
    return h


def _overlap(a: Held, a_type: DType, b: Held, b_type: DType) -> bool:
    a_low, a_high = a.span(a_type.bytes)
    b_low, b_high = b.span(b_type.bytes)
    if a_low >= b_high or b_low >= a_high:
        return False
    if isinstance(a.source, np.ndarray) and isinstance(b.source, np.ndarray):
        try:  # interleaved arrays share a range, and no element
            return np.shares_memory(a.source, b.source, max_work=_WORK)
        except np.exceptions.TooHardError:
            return True
    return True

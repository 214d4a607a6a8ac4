"""Executes graph, loop and tile IR in numpy: what the IR means, and the reference for kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilecc.errors import ArgumentError, Diagnostic, IRError
from tilecc.ir import interp_graph, interp_loop, interp_tile
from tilecc.ir.core import Func, Op
from tilecc.ir.dtypes import DType, dtype
from tilecc.ir.expr import Const, Extent
from tilecc.ir.interp_expr import Numbers, integer
from tilecc.ir.interp_state import Array, Run

Handler = Callable[[Run, Op], None]
Inputs = Sequence[Any] | Mapping[str, Any]

DEFAULT_CHUNK = 16
# Finite, since a weight of 0 excludes what it multiplies; of both signs, for max and min.
_POISONS = (61.25, -61.25)


def _run_kernel(run: Run, op: Op) -> None:
    (interp_tile.run_kernel_grid if "grid" in op.attrs else interp_loop.run_kernel_loop)(run, op)


HANDLERS: dict[str, Handler] = {
    "map": interp_graph.run_map,
    "contract": interp_graph.run_contract,
    "reduce": interp_graph.run_reduce,
    "softmax": interp_graph.run_softmax,
    "logsumexp": interp_graph.run_logsumexp,
    "at": interp_graph.run_at,
    "kernel": _run_kernel,
    "stream": interp_loop.run_stream,
    "update": interp_loop.run_update,
    "alloc": interp_tile.run_alloc,
    "load": interp_tile.run_load,
    "store": interp_tile.run_store,
    "for": interp_tile.run_for,
    "if": interp_tile.run_if,
}


def interpret(
    func: Func,
    inputs: Inputs,
    *,
    chunk: int | None = None,
    exact: bool = False,
    extents: Mapping[str, int] | None = None,
    complete: bool = True,
) -> tuple[Array, ...]:
    """The outputs of `func` for `inputs`, given in order of the parameters or by their names.

    `chunk` is the length in which `stream` walks its axis; results depend on it by rounding only.
    With `exact`, all floats are f64 and casts to narrower floats do not round. `extents` gives
    those that no parameter's shape determines. Unless `complete`, outputs may have elements that no
    store writes.

    Raises:
        ArgumentError: an input is missing, or its shape or dtype does not fit.
        IRError: a read outside of a tensor reaches an output, or an output has elements that no
            store wrote.
    """
    numbers = Numbers(exact)
    arrays = _arguments(func, inputs)
    bound = bind_shapes(func, [a.shape for a in arrays], extents)
    pairs = zip(func.params, arrays, strict=True)
    held = [_hold(p.name, a, p.type.dtype, numbers) for p, a in pairs]

    def execute(poisoned: frozenset[Op], poison: float) -> tuple[tuple[Array, ...], set[Op]]:
        run = Run(func, bound, numbers, chunk or DEFAULT_CHUNK, HANDLERS, poisoned, poison)
        for p, x in zip(func.params, held, strict=True):
            run.set(p, x)
        with np.errstate(all="ignore"):
            outputs = run.block(func.body)
        if complete:
            _check_written(func, run)
        return tuple(outputs), run.outside

    outputs, outside = execute(frozenset(), 0.0)
    if outside:
        # What was read through a poisoned table is poison too, so other reads pass it on.
        inner = frozenset(op for op in func.walk() if op.name == "at") - outside
        _check_outside(outputs, outside, lambda ops, x: execute(ops | inner, x)[0])
    return tuple(
        np.array(x if exact and v.type.dtype.kind == "float" else x.astype(v.type.dtype.numpy))
        for x, v in zip(outputs, func.returns, strict=True)
    )


def _check_outside(
    outputs: tuple[Array, ...],
    outside: set[Op],
    execute: Callable[[frozenset[Op], float], tuple[Array, ...]],
) -> None:
    """What a read outside of an extent gives may not matter: no output may depend on it."""

    def shows(ops: frozenset[Op]) -> bool:
        return not all(
            np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            for poison in _POISONS
            for a, b in zip(outputs, execute(ops, poison), strict=True)
        )

    if shows(frozenset(outside)):
        guilty = [op for op in outside if shows(frozenset([op]))] or list(outside)
        raise IRError(
            [
                Diagnostic(
                    f"at: a read outside of {op.operands[0]!r} reaches an output",
                    op.loc,
                    "exclude it by a `where` on the same condition",
                )
                for op in guilty
            ]
        )


def _check_written(func: Func, run: Run) -> None:
    found = []
    for v in func.returns:
        written = run.written.get(v)
        if written is not None and not written.all():
            place = tuple(int(i) for i in np.argwhere(~written)[0])
            count = int(written.size - written.sum())
            loc = v.owner.loc if v.owner else None
            found.append(
                Diagnostic(f"alloc: {count} elements of {v!r} are never stored: {place}", loc)
            )
    if found:
        raise IRError(found)


def _arguments(func: Func, inputs: Inputs) -> list[Array]:
    names = [p.name for p in func.params]
    if isinstance(inputs, Mapping):
        missing = [n for n in names if n not in inputs]
        unknown = [n for n in inputs if n not in names]
        if missing or unknown:
            raise ArgumentError(f"{func.name}: missing inputs {missing}, unknown inputs {unknown}")
        inputs = [inputs[n] for n in names]
    if len(inputs) != len(names):
        raise ArgumentError(f"{func.name} takes {len(names)} inputs {names}, not {len(inputs)}")
    return [np.asarray(x) for x in inputs]


def bind_shapes(
    func: Func, shapes: Sequence[tuple[int, ...]], extents: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Extents by name, from the shapes of the arguments.

    Raises:
        ArgumentError: a rank is wrong, two axes disagree about an extent, or a number differs.
    """
    bound = dict(extents or {})
    origin = dict.fromkeys(bound, "the caller")
    problems: list[str] = []
    computed = []
    for p, shape in zip(func.params, shapes, strict=True):
        if len(shape) != len(p.type.axes):
            axes = ", ".join(p.type.names)
            problems.append(f"argument {p.name}: has {len(shape)} axes, wanted [{axes}]")
            continue
        for a, n in zip(p.type.axes, shape, strict=True):
            if not isinstance(a.extent, Extent):
                computed.append((p.name, a, n))
                continue
            name = a.extent.name
            if bound.setdefault(name, n) != n:
                problems.append(
                    f"argument {p.name}: axis {a.name} has extent {n}, "
                    f"but {name} is {bound[name]} ({origin[name]})"
                )
            origin.setdefault(name, f"axis {a.name} of argument {p.name}")
    for owner, a, n in computed:
        want = _wanted(a.extent, bound, problems, owner, a.name)
        if want is not None and want != n:
            problems.append(f"argument {owner}: axis {a.name} has extent {n}, wanted {want}")
    if problems:
        raise ArgumentError([Diagnostic(p) for p in problems])
    return bound


def _wanted(
    extent: Any, bound: dict[str, int], problems: list[str], owner: str, axis: str
) -> int | None:
    if isinstance(extent, Const):
        return int(extent.value)
    try:
        return integer(extent, bound)
    except KeyError as e:
        problems.append(f"argument {owner}: axis {axis}: extent {e.args[0]} is not determined")
        return None


def _hold(name: str, x: Array, t: DType, numbers: Numbers) -> Array:
    """An input in the carrier of its type; a float is not taken for an integer."""
    try:
        given = dtype(x.dtype)
    except ValueError as e:
        raise ArgumentError(f"argument {name}: {e}") from None
    if ("bool", "int", "float").index(given.kind) > ("bool", "int", "float").index(t.kind):
        raise ArgumentError(f"argument {name} has dtype {given}, wanted {t}")
    out: Array = numbers.hold(x, t)
    return out

"""Execution of tile IR: grids, loops, loads with padding, stores with clipping."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecc.ir.core import Op, Range, Value
from tilecc.ir.dtypes import I64, DType
from tilecc.ir.expr import Const, arg_numbers, indices
from tilecc.ir.interp_state import Array, Run, fail


def run_alloc(run: Run, op: Op) -> None:
    """`alloc : T`: filled with NaN (or the lowest integer), so that use before a store shows."""
    t = op.result.type
    shape, carrier = run.shape(t), run.numbers.carrier(t.dtype)
    run.set(op.result, np.full(shape, _unset(t.dtype), carrier))
    run.written[op.result] = np.zeros(shape, np.bool_)


def _unset(t: DType) -> Any:
    if t.kind == "float":
        return np.nan
    return True if t.kind == "bool" else np.iinfo(t.numpy).min


def run_kernel_grid(run: Run, op: Op) -> None:
    """`kernel grid(%x: EXPR, ...)`: the body once for each point, in order."""
    sizes = [int(run.scalar(op, f"grid {k}", e)) for k, e in enumerate(op.attrs["grid"])]
    for point in itertools.product(*map(range, sizes)):
        for v, x in zip(op.body.args, point, strict=True):
            run.set(v, np.asarray(x))
        run.block(op.body)


def run_for(run: Run, op: Op) -> None:
    """`for %k in LO .. HI carry(...)`."""
    lo = int(run.scalar(op, "lo", op.attrs["lo"]))
    hi = int(run.scalar(op, "hi", op.attrs["hi"]))
    counter, *carried = op.body.args
    state = [run.read(v) for v in op.operands[: len(carried)]]
    for k in range(lo, hi):
        run.set(counter, np.asarray(k))
        for v, x in zip(carried, state, strict=True):
            run.set(v, x)
        state = run.block(op.body)
    for v, x in zip(op.results, state, strict=True):
        run.set(v, x)


def run_if(run: Run, op: Op) -> None:
    """`if EXPR {...} else {...}`."""
    taken = op.regions[0 if run.scalar(op, "cond", op.attrs["cond"]) else 1]
    for v, x in zip(op.results, run.block(taken), strict=True):
        run.set(v, x)


@dataclass(frozen=True)
class _Access:
    """How the coordinates of a load or store reach a tensor, as far as that is known beforehand.

    `box`: every coordinate is a range with its own axis or one point for the whole tile, so that
    the tile is a slice. `axes`: for each coordinate the tile axes that it depends on.
    """

    box: bool
    axes: tuple[frozenset[str], ...]

    @staticmethod
    def of(op: Op, names: tuple[str, ...]) -> _Access:
        axes = []
        box = True
        for c in op.attrs["coords"]:
            e = c.base if isinstance(c, Range) else c
            own = {c.axis} if isinstance(c, Range) else set[str]()
            read = indices(e) | {a for k in arg_numbers(e) for a in op.operands[k].type.names}
            box &= not read
            axes.append(frozenset(own | read))
        named = [c.axis for c in op.attrs["coords"] if isinstance(c, Range)]
        return _Access(box and sorted(named) == sorted(names), tuple(axes))


def _bases(run: Run, op: Op) -> list[int]:
    out = []
    for k, c in enumerate(op.attrs["coords"]):
        e = c.base if isinstance(c, Range) else c
        if isinstance(e, Const):
            out.append(int(e.value))
        else:
            out.append(int(run.scalar(op, f"coord {k}", e)))
    return out


def _box(
    run: Run, op: Op, tensor: Array, tile: dict[str, int], loose: tuple[str, ...]
) -> tuple[tuple[Any, ...], tuple[slice, ...], bool]:
    """Where a box lies in the tensor and in the tile (axes in order of the coordinates).

    The flag says that the whole tile is inside.
    """
    there: list[Any] = []
    here: list[slice] = []
    whole = True
    for k, (c, base) in enumerate(zip(op.attrs["coords"], _bases(run, op), strict=True)):
        size = tensor.shape[k]
        if not isinstance(c, Range):
            if not 0 <= base < size:
                raise _outside(op, k, base, base + 1, size)
            there.append(base)
            continue
        length = tile[c.axis]
        lo, hi = min(max(base, 0), size), max(min(base + length, size), 0)
        hi = max(lo, hi)
        if hi - lo < length:
            whole = False
            if c.axis not in loose:
                raise _outside(op, k, base, base + length, size)
        there.append(slice(lo, hi))
        here.append(slice(lo - base, hi - base) if hi > lo else slice(0, 0))
    return tuple(there), tuple(here), whole


def _outside(op: Op, k: int, lo: int, hi: int, size: int) -> Exception:
    tensor = op.operands[1 if op.name == "store" else 0]
    axis = tensor.type.axes[k].name
    word = "clip" if op.name == "store" else "pad"
    span = str(lo) if hi == lo + 1 else f"{lo} to {hi - 1}"
    return fail(
        op, f"coordinate {span} of axis {axis} of {tensor!r} is outside 0 .. {size} (no `{word}`)"
    )


def _places(
    run: Run, op: Op, access: _Access, tensor: Array, v: Value, loose: tuple[str, ...]
) -> tuple[tuple[Array, ...], Array]:
    """Index arrays over the tile of `v` for each axis of the tensor, and which lie inside."""
    names, shape = v.type.names, run.shape(v.type)
    frame = run.frame(op, names, shape)
    valid = np.ones(shape, np.bool_)
    places = []
    for k, c in enumerate(op.attrs["coords"]):
        e = c.base if isinstance(c, Range) else c
        i = np.asarray(run.code(op, f"gather {k}", e, to=I64)(frame))
        if isinstance(c, Range):
            i = i + frame.index(c.axis)
        size = tensor.shape[k]
        inside = (i >= 0) & (i < size)
        if not inside.all() and not access.axes[k] & set(loose):
            bad = int(np.broadcast_to(i, inside.shape)[~inside][0])
            raise _outside(op, k, bad, bad + 1, size)
        valid &= inside
        places.append(np.broadcast_to(np.clip(i, 0, max(size - 1, 0)), shape))
    return tuple(places), valid


def run_load(run: Run, op: Op) -> None:
    """`load t[coords] pad axes`: what lies outside along padded axes is 0."""
    v = op.result
    names, loose = v.type.names, tuple(op.attrs.get("pad", ()))
    tensor = run.read(op.operands[0])
    shape = run.shape(v.type)
    access = run.plan(op, "access", lambda: _Access.of(op, names))
    if not access.box:
        places, valid = _places(run, op, access, tensor, v, loose)
        if tensor.size == 0:
            run.set(v, np.zeros(shape, tensor.dtype))
        else:
            run.set(v, np.where(valid, tensor[places], tensor.dtype.type(0)))
        return
    there, here, whole = _box(run, op, tensor, dict(zip(names, shape, strict=True)), loose)
    order = run.plan(op, "order", lambda: _order(op, names))
    part = tensor[there].transpose(order)
    if whole:
        # A tensor that stores may change is copied; parameters are not.
        run.set(v, part.copy() if op.operands[0] in run.written else part)
        return
    out = np.zeros(shape, tensor.dtype)
    out[tuple(here[k] for k in order)] = part
    run.set(v, out)


def _order(op: Op, names: tuple[str, ...]) -> tuple[int, ...]:
    """For each tile axis, its place among the ranges of the coordinates."""
    ranged = [c.axis for c in op.attrs["coords"] if isinstance(c, Range)]
    return tuple(ranged.index(a) for a in names)


def run_store(run: Run, op: Op) -> None:
    """`store x, t[coords] clip axes`: what lies outside along clipped axes is not written."""
    v, target = op.operands[:2]
    names, loose = v.type.names, tuple(op.attrs.get("clip", ()))
    x, tensor, written = run.read(v), run.values[target], run.written[target]
    access = run.plan(op, "access", lambda: _Access.of(op, names))
    if not access.box:
        places, valid = _places(run, op, access, tensor, v, loose)
        at = tuple(i[valid] for i in places)
        tensor[at] = np.broadcast_to(x, valid.shape)[valid]
        written[at] = True
        return
    there, here, _ = _box(run, op, tensor, dict(zip(names, x.shape, strict=True)), loose)
    order = run.plan(op, "order", lambda: _order(op, names))
    back = tuple(order.index(k) for k in range(len(order)))
    tensor[there] = x.transpose(back)[here]
    written[there] = True

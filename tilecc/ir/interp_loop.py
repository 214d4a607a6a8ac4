"""Execution of loop IR: kernels, streams in chunks, and states with repairs."""

from __future__ import annotations

import numpy as np

from tilecc.ir.core import Op, Value
from tilecc.ir.expr import indices
from tilecc.ir.interp_state import Array, Chunk, Run, align
from tilecc.ir.ops import REDUCERS, identity


def run_kernel_loop(run: Run, op: Op) -> None:
    """`kernel over AXES`: the parallel axes are run all at once."""
    for v, x in zip(op.results, run.block(op.body), strict=True):
        run.set(v, x)


def run_stream(run: Run, op: Op) -> None:
    """`stream j [where PRED]`: the body once for each chunk of the axis."""
    chunk = Chunk(op.attrs["axis"])
    size = run.plan(op, "size", lambda: run.length(chunk.axis, op.body))
    yields = op.body.terminator.operands
    for update in (o for o in op.body.ops if o.name == "update"):
        t = update.result.type
        start = identity(update.attrs["kind"], t.dtype).value
        chunk.states[update.result] = np.full(run.shape(t), start, run.numbers.carrier(t.dtype))
    emits = [v not in chunk.states for v in yields]
    parts: list[list[Array]] = [[] for _ in yields]
    run.chunks.append(chunk)
    # A stream over nothing still gives its outputs the right shape: one chunk of length 0.
    starts = range(0, size, run.chunk) or (range(1) if any(emits) else range(0))
    for start in starts:
        chunk.start, chunk.stop = start, min(start + run.chunk, size)
        # Only states are unchanged where PRED is false; an output needs every position.
        if not any(emits) and not _may_hold(run, op):
            continue
        chunk.previous = dict(chunk.states)
        for part, x in zip(parts, run.block(op.body), strict=True):
            part.append(x)
    run.chunks.pop()
    for k, (v, inner) in enumerate(zip(op.results, yields, strict=True)):
        if inner in chunk.states:
            run.set(v, chunk.states[inner])
        else:
            run.set(v, np.concatenate(parts[k], axis=_position(inner, chunk.axis)))


def _position(v: Value, axis: str) -> int:
    return v.type.names.index(axis)


def _may_hold(run: Run, op: Op) -> bool:
    """Whether the predicate of the stream holds anywhere in the present chunk."""
    where = op.attrs.get("where")
    if where is None:
        return True
    named = (a for v in op.operands for a in v.type.names)
    axes = tuple(dict.fromkeys([*sorted(indices(where)), *named]))
    spans = [run.span(a) for a in axes]
    shape = tuple(
        run.length(a, op.body) if s is None else s[1] - s[0]
        for a, s in zip(axes, spans, strict=True)
    )
    return bool(np.any(run.code(op, "where", where)(run.frame(op, axes, shape))))


def run_update(run: Run, op: Op) -> None:
    """`update KIND x [repair EXPR]`: new = combine(repair(acc), x)."""
    chunk, t = run.chunks[-1], op.result.type
    x = run.read(op.operands[0])
    acc = chunk.states[op.result]
    repair = op.attrs.get("repair")
    if repair is not None:
        frame = run.frame(op, t.names, run.shape(t))
        frame.acc = acc
        frame.old = {
            k: _aligned(run, op, k, chunk) for k, v in enumerate(op.operands) if v in chunk.previous
        }
        acc = run.code(op, "repair", repair, to=t.dtype, acc=t.dtype)(frame)
    new = np.asarray(REDUCERS[op.attrs["kind"]].ufunc(acc, x))
    chunk.states[op.result] = new
    run.set(op.result, new)


def _aligned(run: Run, op: Op, k: int, chunk: Chunk) -> Array:
    v = op.operands[k]
    return align(chunk.previous[v], v.type.names, op.result.type.names)

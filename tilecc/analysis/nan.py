"""Finds maxima that need not propagate NaN, since the outputs get it by sums anyway.

A hardware maximum drops NaN; one that keeps it costs more for every score. Where the running
maximum serves only as a reference of sums to which a NaN contributes NaN, it may drop it.
"""

from __future__ import annotations

from tilecc.analysis.signs import ANY, NAN, SignEnv, signs
from tilecc.analysis.streams import free_values
from tilecc.ir.core import Op, Value, uses
from tilecc.ir.expr import Arg, Const, Expr, call, shift_args, transform


def nan_elsewhere(kernel: Op) -> list[Op]:
    """The `reduce max` and `reduce min` of `kernel` whose NaN reaches all outputs by sums."""
    found = []
    readers = uses(kernel.body)
    for stream in (op for op in kernel.body.ops if op.name == "stream"):
        for update in (op for op in stream.body.ops if op.name == "update"):
            reduce = update.operands[0].owner
            if reduce is None or reduce.name != "reduce":
                continue
            if reduce.attrs["kind"] not in ("max", "min"):
                continue
            only = readers[reduce.result] == [update]
            if only and _dispensable(kernel, stream, update.result, reduce):
                found.append(reduce)
    return found


def _dispensable(kernel: Op, stream: Op, state: Value, extreme: Op) -> bool:
    """Whether outputs that depend on `state` are NaN if what `extreme` reduces ever is."""
    poisoned: set[Value] = set()
    touched = {state}
    for op in stream.body.ops[:-1]:
        if not touched & set(op.operands):
            continue
        touched.update(op.results)
        if op.name == "update":
            if not _takes_nan(op, extreme):
                return False
            poisoned.add(op.result)
    inner = stream.body.terminator.operands
    if any(y in touched and y is not state and y not in poisoned for y in inner):
        return False
    results = dict(zip(stream.results, inner, strict=True))
    known = {r for r, y in results.items() if y in poisoned}
    outside = {r for r, y in results.items() if y is state}
    for op in kernel.body.ops:
        if op is stream or op.name == "yield":
            continue
        if op.name != "map":
            if outside & set(free_values(op)):
                return False
        elif outside & set(op.operands):
            outside.update(op.results)
    return all(_is_nan(y, known) for y in kernel.body.terminator.operands if y in outside)


def _takes_nan(update: Op, extreme: Op) -> bool:
    """Whether the sum is NaN from the chunk on in which `extreme` meets a NaN."""
    source = update.operands[0].owner
    if update.attrs["kind"] not in ("sum", "prod") or source is None:
        return False
    if source.name not in ("reduce", "contract") or source.attrs.get("acc"):
        return False
    if not set(extreme.over) <= set(source.over):  # another sum than that may read the reference
        return False
    repair = update.attrs.get("repair")
    if repair is not None and signs(repair, SignEnv(acc=NAN)) != NAN:
        return False
    return any(_is_nan(v, {extreme.operands[0]}) for v in source.operands)


def _is_nan(v: Value, known: set[Value]) -> bool:
    leaves: list[Value] = []
    e = _expand(v, known, leaves)
    for k in known:  # a map may hold the same expression within a larger one
        written = _expand(k, set(), leaves)
        leaves += [k] if k not in leaves else []
        place = Arg(leaves.index(k))
        e = transform(e, lambda n, w=written, p=place: p if n == w else None)  # type: ignore[misc]
    env = SignEnv({k: NAN if leaf in known else ANY for k, leaf in enumerate(leaves)})
    return signs(e, env) == NAN


def _expand(v: Value, stops: set[Value], leaves: list[Value]) -> Expr:
    """`v` as an expression of `leaves`, maps being expanded down to `stops`."""
    if v not in stops and v.owner is not None and v.owner.name == "map":
        args = {k: _expand(x, stops, leaves) for k, x in enumerate(v.owner.operands)}
        return shift_args(v.owner.expr, args)
    if v.type.dtype.kind == "bool":
        return call("eq", Arg(-1), Const(0.0))
    if v not in leaves:
        leaves.append(v)
    return Arg(leaves.index(v))

"""Execution of the operations on whole tensors, which loop and tile IR have too."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce as fold

import numpy as np

from tilecc.ir.core import Op
from tilecc.ir.dtypes import DType
from tilecc.ir.interp_state import Array, Run, align
from tilecc.ir.ops import REDUCERS, identity


def run_map(run: Run, op: Op) -> None:
    """`map EXPR`."""
    t = op.result.type
    shape = run.shape(t)
    code = run.code(op, "expr", op.expr, to=t.dtype)
    x = run.numbers.hold(code(run.frame(op, t.names, shape)), t.dtype)
    run.set(op.result, x if x.shape == shape else np.broadcast_to(x, shape))


@dataclass(frozen=True)
class _Matmul:
    """A contraction of two operands as a product of (batch, m, k) with (batch, k, n)."""

    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]

    def __call__(self, a: Array, an: tuple[str, ...], b: Array, bn: tuple[str, ...]) -> Array:
        # An axis that is summed and in one operand only is summed first.
        kept = {*self.batch, *self.m, *self.n, *self.k}
        a, an = _sum_others(a, an, kept)
        b, bn = _sum_others(b, bn, kept)
        a = align(a, an, self.batch + self.m + self.k)
        b = align(b, bn, self.batch + self.k + self.n)
        r = len(self.batch)
        batch, m, n = a.shape[:r], a.shape[r : r + len(self.m)], b.shape[r + len(self.k) :]
        k = int(np.prod(b.shape[r : r + len(self.k)], dtype=np.int64))
        left = a.reshape(*batch, int(np.prod(m, dtype=np.int64)), k)
        right = b.reshape(*batch, k, int(np.prod(n, dtype=np.int64)))
        out: Array = np.matmul(left, right).reshape(batch + m + n)
        return out


def _sum_others(x: Array, names: tuple[str, ...], kept: set[str]) -> tuple[Array, tuple[str, ...]]:
    gone = tuple(k for k, name in enumerate(names) if name not in kept)
    if not gone:
        return x, names
    return np.add.reduce(x, axis=gone), tuple(name for name in names if name in kept)


def _matmul_plan(op: Op) -> _Matmul | None:
    operands = op.operands[:-1] if op.attrs.get("acc") else op.operands
    if len(operands) != 2:
        return None
    a, b = (v.type.names for v in operands)
    out, over = op.result.type.names, op.over
    return _Matmul(
        batch=tuple(x for x in a if x in b and x in out),
        m=tuple(x for x in a if x not in b and x in out),
        n=tuple(x for x in b if x not in a and x in out),
        k=tuple(x for x in a if x in b and x in over),
    )


def run_contract(run: Run, op: Op) -> None:
    """`contract a, b over axes [acc x]`: operands go to the accumulator's type first."""
    t = op.result.type
    has_acc = bool(op.attrs.get("acc"))
    factors = op.operands[:-1] if has_acc else op.operands
    carrier = run.numbers.carrier(t.dtype)
    arrays = [run.read(v).astype(carrier, copy=False) for v in factors]
    names = [v.type.names for v in factors]
    plan = run.plan(op, "matmul", lambda: (_matmul_plan(op),))[0]
    if any(0 in x.shape for x in arrays):
        out: Array = np.zeros(run.shape(t), carrier)
    elif plan is not None:
        product = plan(arrays[0], names[0], arrays[1], names[1])
        out = align(product, plan.batch + plan.m + plan.n, t.names)
    else:
        number = {a: k for k, a in enumerate(dict.fromkeys(a for n in names for a in n))}
        pairs = [y for x, n in zip(arrays, names, strict=True) for y in (x, [number[a] for a in n])]
        out = np.einsum(*pairs, [number[a] for a in t.names])
    if has_acc:
        out = run.read(op.operands[-1]) + out
    run.set(op.result, out)


def reduce_array(
    kind: str, x: Array, names: tuple[str, ...], over: tuple[str, ...], t: DType
) -> Array:
    """`x` reduced over axes by name; starts at the identity, and NaN propagates through max."""
    axes = tuple(names.index(a) for a in over)
    start = identity(kind, t).value
    out: Array = np.asarray(REDUCERS[kind].ufunc.reduce(x, axis=axes, initial=start, dtype=x.dtype))
    return out


def run_reduce(run: Run, op: Op) -> None:
    """`reduce KIND x over axes`."""
    (v,) = op.operands
    t = op.result.type
    x = run.read(v).astype(run.numbers.carrier(t.dtype), copy=False)
    out = reduce_array(op.attrs["kind"], x, v.type.names, op.over, t.dtype)
    run.set(op.result, align(out, v.type.without(*op.over).names, t.names))


def _shifted(run: Run, op: Op) -> tuple[Array, Array, Array]:
    """exp(x - max), its sum, and max over the axes, which stay with length 1."""
    (v,) = op.operands
    x = run.read(v).astype(run.numbers.carrier(op.result.type.dtype), copy=False)
    axes = tuple(v.type.names.index(a) for a in op.over)
    top = np.maximum.reduce(x, axis=axes, initial=-np.inf, keepdims=True)
    # A row that is masked throughout has max -inf: exp(-inf - 0) is 0 for all of it.
    p = np.exp(x - np.where(top == -np.inf, x.dtype.type(0), top))
    return p, np.add.reduce(p, axis=axes, keepdims=True), top


def run_softmax(run: Run, op: Op) -> None:
    """`softmax x over axes`; a fully masked row gives 0."""
    p, total, _ = _shifted(run, op)
    out = np.where(total == 0, p.dtype.type(0), p / total)
    run.set(op.result, align(out, op.operands[0].type.names, op.result.type.names))


def run_logsumexp(run: Run, op: Op) -> None:
    """`logsumexp x over axes`; a fully masked or empty row gives -inf."""
    _, total, top = _shifted(run, op)
    v = op.operands[0]
    axes = tuple(v.type.names.index(a) for a in op.over)
    out = np.squeeze(np.where(top == -np.inf, top, top + np.log(total)), axis=axes)
    run.set(op.result, align(out, v.type.without(*op.over).names, op.result.type.names))


def run_at(run: Run, op: Op) -> None:
    """`at t[axis = EXPR, ...]`: what lies outside reads nothing; see `Run`."""
    tensor, t = op.operands[0], op.result.type
    shape = run.shape(t)
    coords = dict(op.attrs["coords"])
    frame = run.frame(op, t.names, shape)
    x = run.read(tensor, keep=tuple(coords))
    places: list[Array] = []
    inside: list[Array] = []
    for k, name in enumerate(tensor.type.names):
        if name in coords:
            i = np.asarray(run.code(op, f"coord {name}", coords[name])(frame))
            inside.append((i >= 0) & (i < x.shape[k]))
            i = np.clip(i, 0, max(x.shape[k] - 1, 0))
        else:
            i = align(np.arange(x.shape[k]), (name,), t.names)
        places.append(i)
    valid = fold(np.logical_and, inside, np.asarray(True))
    fill = _fill(run, op, x)
    if x.size == 0:
        out = np.full(shape, fill, x.dtype)
        valid = np.asarray(False)
    else:
        out = np.where(valid, x[tuple(places)], fill).astype(x.dtype, copy=False)
    if not np.broadcast_to(valid, shape).all():
        run.outside.add(op)
    run.set(op.result, np.broadcast_to(out, shape))


def _fill(run: Run, op: Op, x: Array) -> Array:
    if op not in run.poisoned:
        return np.zeros((), x.dtype)
    if x.dtype.kind == "f":
        return np.asarray(run.poison, x.dtype)
    if x.dtype.kind == "b":
        return np.asarray(True)
    info = np.iinfo(x.dtype)
    return np.asarray(info.max if run.poison > 0 else info.min, x.dtype)

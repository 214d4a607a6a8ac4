"""The operations, declared: what each is called, where it may stand, and what type it gives.

`OPS` is the table that printer, parser and verifier read. The functions below build operations with
inferred result types, so that the rules of typing are in one place:

- operands broadcast by axis name; a result's axes come in order of first appearance;
- floats narrower than f32 compute as f32, contractions and reductions accumulate in f32 (f64 if an
  operand is f64), integers in i64; a narrower result is an explicit `cast` in a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilecc.ir.core import Axis, Builder, Op, Range, TensorType, Value, broadcast_axes
from tilecc.ir.dtypes import BOOL, F32, F64, I64, DType, accumulator, promote
from tilecc.ir.expr import (
    FUNCTIONS,
    Acc,
    Arg,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    Index,
    Old,
)


@dataclass(frozen=True)
class OpDef:
    """Where an operation may stand. `terminator`: it ends a block; `regions`: how many it has."""

    name: str
    levels: frozenset[str]
    results: int | None = 1  # None: any number
    regions: int = 0
    terminator: bool = False


def _levels(names: str) -> frozenset[str]:
    return frozenset(names.split())


OPS: dict[str, OpDef] = {
    d.name: d
    for d in [
        OpDef("contract", _levels("graph loop tile")),
        OpDef("map", _levels("graph loop tile")),
        OpDef("reduce", _levels("graph loop tile")),
        OpDef("softmax", _levels("graph")),
        OpDef("logsumexp", _levels("graph")),
        OpDef("at", _levels("graph loop")),
        OpDef("kernel", _levels("loop tile"), results=None, regions=1),
        OpDef("stream", _levels("loop"), results=None, regions=1),
        OpDef("update", _levels("loop")),
        OpDef("alloc", _levels("tile")),
        OpDef("load", _levels("tile")),
        OpDef("store", _levels("tile"), results=0),
        OpDef("for", _levels("tile"), results=None, regions=1),
        OpDef("if", _levels("tile"), results=None, regions=2),
        OpDef("yield", _levels("loop tile"), results=0, terminator=True),
        OpDef("return", _levels("graph loop tile"), results=0, terminator=True),
    ]
}


@dataclass(frozen=True)
class Reducer:
    """A commutative monoid: its identity and its binary function (a name of the scalar table)."""

    name: str
    identity: float
    combine: str
    ufunc: np.ufunc


REDUCERS: dict[str, Reducer] = {
    r.name: r
    for r in [
        Reducer("sum", 0.0, "add", np.add),
        Reducer("max", -np.inf, "maximum", np.maximum),
        Reducer("min", np.inf, "minimum", np.minimum),
        Reducer("prod", 1.0, "mul", np.multiply),
    ]
}


def identity(kind: str, dtype: DType) -> Const:
    """The reducer's identity as a constant of `dtype` (integers have no infinity)."""
    value = REDUCERS[kind].identity
    if dtype.kind == "float":
        return Const(float(value))
    if dtype.kind == "bool":
        return Const(value > 0)
    if np.isinf(value):
        info = np.iinfo(dtype.numpy)
        return Const(int(info.min if value < 0 else info.max))
    return Const(int(value))


class _Weak:
    """The type of a Python number: it takes the type of what it meets."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def infer_dtype(e: Expr, args: Sequence[DType], acc: DType = F32) -> DType:
    """The element type of `e`, its operands having types `args`. Lone literals: f32, i64, bool."""
    return _settle(_infer(e, args, acc))


def _settle(t: DType | _Weak) -> DType:
    if isinstance(t, DType):
        return t
    return {"bool": BOOL, "int": I64, "float": F32}[t.kind]


def _infer(e: Expr, args: Sequence[DType], acc: DType) -> DType | _Weak:
    match e:
        case Const(value):
            if isinstance(value, bool):
                return BOOL
            return _Weak("int" if isinstance(value, int) else "float")
        case Arg(k) | Old(k):
            return args[k]
        case Index() | Extent():
            return I64
        case Acc():
            return acc
        case Cast(_, to):
            return to
        case Call(fn, fargs):
            kids = [_infer(a, args, acc) for a in fargs]
            kind = FUNCTIONS[fn].kind
            if kind == "bool":
                return BOOL
            if kind == "select":
                a, b = kids[1], kids[2]
                return a if a is b else _meet(a, b)
            met = kids[0]
            for kid in kids[1:]:
                met = _meet(met, kid)
            if len(kids) == 1 and isinstance(met, DType):
                met = promote(met, met)
            if kind == "float" and (met.kind != "float"):
                return F32 if isinstance(met, DType) else _Weak("float")
            return met
    raise TypeError(f"not an expression: {e!r}")


def _meet(a: DType | _Weak, b: DType | _Weak) -> DType | _Weak:
    if isinstance(a, DType) and isinstance(b, DType):
        return promote(a, b)
    if isinstance(a, _Weak) and isinstance(b, _Weak):
        return a if a.kind == "float" else b
    strong, weak = (a, b) if isinstance(a, DType) else (b, a)
    assert isinstance(strong, DType)
    if weak.kind == "float" and strong.kind != "float":
        return F32
    return promote(strong, strong)


def map_type(e: Expr, operands: Sequence[Value], extra_axes: Sequence[Axis] = ()) -> TensorType:
    """Type of `map e`: the operands' axes in order, then `extra_axes` (those only indexed)."""
    axes = broadcast_axes([*(v.type for v in operands), TensorType(F32, tuple(extra_axes))])
    return TensorType(infer_dtype(e, [v.type.dtype for v in operands]), axes)


def contract_type(operands: Sequence[Value], over: Sequence[str]) -> TensorType:
    """Type of a contraction of `operands` over the axes `over`."""
    axes = broadcast_axes([v.type for v in operands])
    dtype = accumulator(*(v.type.dtype for v in operands))
    return TensorType(dtype, tuple(a for a in axes if a.name not in over))


def reduce_type(operand: Value, over: Sequence[str], kind: str) -> TensorType:
    """Type of a reduction of `operand` over the axes `over`."""
    t = operand.type
    dtype = accumulator(t.dtype) if kind in ("sum", "prod") or t.dtype.kind == "float" else t.dtype
    return t.without(*over).with_dtype(dtype)


# Constructors: append to a builder, return the value.


def make_map(
    b: Builder,
    e: Expr,
    operands: Sequence[Value],
    *,
    type: TensorType | None = None,
    name: str = "",
) -> Value:
    """`map e`; the type is inferred unless given (give it where axes are only indexed)."""
    t = type or map_type(e, operands)
    return b.op("map", operands, [t], names=[name], expr=e).result


def make_contract(
    b: Builder,
    operands: Sequence[Value],
    over: Sequence[str],
    *,
    acc: Value | None = None,
    name: str = "",
) -> Value:
    """`contract a, b over axes [acc x]`."""
    t = acc.type if acc is not None else contract_type(operands, over)
    values = [*operands, acc] if acc is not None else list(operands)
    return b.op("contract", values, [t], names=[name], over=tuple(over), acc=acc is not None).result


def make_reduce(
    b: Builder, kind: str, operand: Value, over: Sequence[str], *, name: str = ""
) -> Value:
    """`reduce kind x over axes`."""
    t = reduce_type(operand, over, kind)
    return b.op("reduce", [operand], [t], names=[name], kind=kind, over=tuple(over)).result


def make_at(
    b: Builder,
    tensor: Value,
    coords: dict[str, Expr],
    reads: Sequence[Value],
    type: TensorType,
    *,
    name: str = "",
) -> Value:
    """`at tensor[axis = expr, ...]`; in the expressions Arg(0) is the tensor, Arg(k) reads[k-1]."""
    pairs = tuple(coords.items())
    return b.op("at", [tensor, *reads], [type], names=[name], coords=pairs).result


def make_update(
    b: Builder,
    kind: str,
    operand: Value,
    repair: Expr | None = None,
    reads: Sequence[Value] = (),
    *,
    name: str = "",
) -> Value:
    """`update kind x [repair e]`; in the repair Arg(k) and Old(k) refer to [x, *reads]."""
    values = [operand, *reads]
    return b.op("update", values, [operand.type], names=[name], kind=kind, repair=repair).result


def make_load(
    b: Builder,
    tensor: Value,
    coords: Sequence[Range | Expr],
    type: TensorType,
    *,
    reads: Sequence[Value] = (),
    pad: Sequence[str] = (),
    name: str = "",
) -> Value:
    """`load t[coords] pad axes : space type`; Arg(k) in coordinates refers to [t, *reads]."""
    return b.op(
        "load", [tensor, *reads], [type], names=[name], coords=tuple(coords), pad=tuple(pad)
    ).result


def make_store(
    b: Builder,
    value: Value,
    tensor: Value,
    coords: Sequence[Range | Expr],
    *,
    reads: Sequence[Value] = (),
    clip: Sequence[str] = (),
) -> Op:
    """`store x, t[coords] clip axes`; Arg(k) in coordinates refers to [x, t, *reads]."""
    return b.op("store", [value, tensor, *reads], coords=tuple(coords), clip=tuple(clip))


def compute_dtype(t: DType) -> DType:
    """The type in which elementwise arithmetic on `t` is done."""
    return t if t.kind != "float" or t is F64 else F32

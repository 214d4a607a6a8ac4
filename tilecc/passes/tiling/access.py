"""Loads and stores of tiles: coordinates, padding at the ends, access maps."""

from __future__ import annotations

from collections.abc import Collection

from tilecc.ir.core import Op, Range, TensorType, Value
from tilecc.ir.expr import Arg, Call, Const, Expr, Index, arg_numbers, indices, shift_args
from tilecc.passes.tiling.scope import Operands, Scope


def load(scope: Scope, v: Value, ragged: Collection[str]) -> Value:
    """The current tile of tensor `v`, which lies in HBM; `ragged` axes may reach beyond its end."""
    if not v.type.axes and v.owner is None:
        return scope.values.get(v, v)  # a scalar parameter, read where it is used
    tensor = scope.values.get(v, v)  # its axes may lie in another order
    operands = Operands([tensor])
    coords = [_coordinate(scope, a.name, operands) for a in tensor.type.axes]
    return _load(scope, v.name, tensor.type, coords, operands, ragged)


def load_at(scope: Scope, at: Op, ragged: Collection[str]) -> Value:
    """The tile that an access map reads: tables first, then through them."""
    tensor, tables = at.operands[0], at.operands[1:]
    operands = Operands([scope.values.get(tensor, tensor)])
    mapped = dict(at.attrs["coords"])
    sources = [operands.values[0], *(_tile(scope, t, ragged) for t in tables)]
    coords: list[Range | Expr] = []
    for a in operands.values[0].type.axes:
        if a.name in mapped:
            e = operands.adopt(mapped[a.name], sources)
            coords.append(_named(scope, _range(scope.globalise(e, operands)), operands, a.name))
        else:
            coords.append(_coordinate(scope, a.name, operands))
    return _load(scope, at.result.name, at.result.type, coords, operands, ragged)


def _tile(scope: Scope, v: Value, ragged: Collection[str]) -> Value:
    """The tile value of any loop-level value, loaded if it lies in HBM."""
    if v in scope.values and not _in_memory(v):
        return scope.values[v]
    if v.owner is not None and v.owner.name == "at":
        return load_at(scope, v.owner, ragged)
    return load(scope, v, ragged)


def _in_memory(v: Value) -> bool:
    return v.owner is None or v.owner.name in ("kernel", "alloc")


def tile_of(scope: Scope, v: Value, ragged: Collection[str]) -> Value:
    """The tile value of a loop-level operand in this scope."""
    return _tile(scope, v, ragged)


def _coordinate(scope: Scope, axis: str, operands: Operands) -> Range | Expr:
    base = scope.base(axis, operands)
    return base if scope.plan[axis].size is None else Range(base, axis)


def _range(e: Expr) -> Range | Expr:
    """base + index(a) with a base that reads no index is a contiguous range."""
    if isinstance(e, Index):
        return Range(Const(0), e.axis)
    if isinstance(e, Call) and e.fn == "add":
        base, index = e.args
        if isinstance(index, Index) and not indices(base):
            return Range(base, index.axis)
    return e


def _named(scope: Scope, c: Range | Expr, operands: Operands, axis: str) -> Range | Expr:
    """A computed point coordinate becomes a scalar of its own: no division for each element."""
    if isinstance(c, Range | Arg | Const) or indices(c):
        return c
    used = sorted(arg_numbers(c))
    if any(operands.values[k].type.axes for k in used):
        return c
    e = shift_args(c, {k: Arg(n) for n, k in enumerate(used)})
    return operands.ref(scope.scalar(e, [operands.values[k] for k in used], axis))


def _load(
    scope: Scope,
    name: str,
    whole: TensorType,
    coords: list[Range | Expr],
    operands: Operands,
    ragged: Collection[str],
) -> Value:
    read = _read_axes(coords, operands)
    t = scope.type(whole.without(*(a for a in whole.names if a not in read)), "sram")
    pad = tuple(a.name for a in t.axes if a.name in ragged)
    op = Op(
        "load",
        operands.values,
        [t],
        {"coords": tuple(coords), "pad": pad},
        loc=scope.builder.loc,
        names=[name],
    )
    return scope.once(("load", tuple(operands.values), tuple(coords), pad), op)


def _read_axes(coords: list[Range | Expr], operands: Operands) -> set[str]:
    """Tile axes along which the coordinates move."""
    axes: set[str] = set()
    for c in coords:
        axes |= {c.axis} | indices(c.base) if isinstance(c, Range) else indices(c)
    for table in operands.values[1:]:
        axes |= set(table.type.names)
    return axes


def store(scope: Scope, tile: Value, target: Value) -> None:
    """Write a tile to its place in HBM; what reaches beyond the end is clipped."""
    operands = Operands([tile, target])
    coords = tuple(_coordinate(scope, a.name, operands) for a in target.type.axes)
    clip = tuple(a.name for a in tile.type.axes if scope.plan[a.name].ragged)
    scope.builder.op("store", operands.values, coords=coords, clip=clip)

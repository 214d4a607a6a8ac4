"""Divisions of coordinates, done once a tile, row or column instead of once an element."""

from __future__ import annotations

from collections.abc import Callable

from tilecc.ir.core import TensorType, Value
from tilecc.ir.dtypes import I64
from tilecc.ir.expr import (
    Arg,
    Call,
    Const,
    Expr,
    Index,
    arg_numbers,
    call,
    indices,
    rebuild,
    shift_args,
    walk,
)
from tilecc.ir.ops import infer_dtype
from tilecc.passes.tiling.narrow import narrow_comparisons
from tilecc.passes.tiling.scope import Operands, Scope

_DIVISIONS = frozenset({"floordiv", "ceildiv", "mod"})


def share_coordinates(scope: Scope, e: Expr, operands: Operands, type: TensorType) -> Expr:
    """`e`, a map of that type, with integer parts that divide and lack an axis as their own maps.

    where((%qi * 64 + index(i)) // %w == (%kj * 32 + index(j)) // %w, %s, -inf) : f32[i:64, j:32]
    -->
    %a = map (%qi * 64 + index(i)) // %w : i64[i:64]
    %b = map (%kj * 32 + index(j)) // %w : i64[j:32]
    where(%a == %b, %s, -inf) : f32[i:64, j:32]

    A sum is divided part by part: (i - j) % r from i % r and -j % r, which together are less than
    2 r, so that one comparison is left to each element. No vector unit divides integers, so what an
    element costs is many times the rest of the map.
    """
    e = narrow_comparisons(scope, e, operands, type)
    if len(type.axes) < 2 or not any(isinstance(n, Call) and n.fn in _DIVISIONS for n in walk(e)):
        return e
    dtypes = [v.type.dtype for v in operands.values]

    def axes(n: Expr) -> set[str]:
        held = {a for k in arg_numbers(n) for a in operands.values[k].type.names}
        return held | (indices(n) & set(type.names))

    def made(n: Expr) -> Expr:
        return operands.ref(_made(scope, n, operands, axes(n), type))

    def go(n: Expr) -> Expr:
        if not isinstance(n, Arg | Index) and n.children():
            divides = any(isinstance(x, Call) and x.fn in _DIVISIONS for x in walk(n))
            narrow = 0 < len(axes(n)) < len(type.axes)
            if divides and narrow and infer_dtype(n, dtypes) is I64:
                return made(n)
            if isinstance(n, Call) and n.fn in ("floordiv", "mod") and not axes(n.args[1]):
                parts = _by_axes(n.args[0], axes)
                if len(parts) > 1 and infer_dtype(n, dtypes) is I64:
                    return _divided(n.fn, parts, n.args[1], made)
            return rebuild(n, tuple(go(c) for c in n.children()))
        return n

    return go(e)


def _by_axes(e: Expr, axes: Callable[[Expr], set[str]]) -> list[Expr]:
    """The parts of a sum, one for each axis that it reads; the sum itself if it is not of such."""
    groups: dict[frozenset[str], Expr] = {}

    def add(x: Expr, sign: int) -> None:
        match x:
            case Call("add" | "sub" as fn, (a, b)):
                add(a, sign)
                add(b, sign if fn == "add" else -sign)
            case Call("neg", (a,)):
                add(a, -sign)
            case _:
                key = frozenset(axes(x))
                x = x if sign > 0 else call("neg", x)
                groups[key] = call("add", groups[key], x) if key in groups else x

    add(e, 1)
    rest = groups.pop(frozenset(), None)
    parts = list(groups.values())
    if any(len(key) != 1 for key in groups) or not parts:
        return [e]
    return parts if rest is None else [call("add", parts[0], rest), *parts[1:]]


def _divided(fn: str, parts: list[Expr], by: Expr, made: Callable[[Expr], Expr]) -> Expr:
    """The quotient or the remainder of a sum from those of its parts, rounded down.

    Remainders r, s have the sign of the divisor d, and r + s is less than 2 d, in magnitude.
    """
    remainder = made(call("mod", parts[0], by))
    quotient = made(call("floordiv", parts[0], by)) if fn == "floordiv" else remainder
    for x in parts[1:]:
        together = call("add", remainder, made(call("mod", x, by)))
        above = call("ge", together, by)
        if not (isinstance(by, Const) and int(by.value) > 0):
            below = call("and", call("le", together, by), call("lt", by, Const(0)))
            above = call("or", call("and", above, call("gt", by, Const(0))), below)
        if fn == "floordiv":
            carry = call("where", above, Const(1), Const(0))
            quotient = call("add", call("add", quotient, made(call("floordiv", x, by))), carry)
        remainder = call("where", above, call("sub", together, by), together)
    return quotient if fn == "floordiv" else remainder


def name_divisions(scope: Scope, e: Expr, operands: Operands) -> Expr:
    """`e`, about whole tiles, with its divisions as scalars of their own, each computed once.

    A division by a power of two is a shift and stays where it is.
    """
    if not isinstance(e, Call):
        return e
    e = Call(e.fn, tuple(name_divisions(scope, a, operands) for a in e.args))
    if e.fn not in _DIVISIONS or _is_shift(e.args[1]) or not arg_numbers(e):
        return e
    return operands.ref(scope.scalar(e, operands.values, "at"))


def _is_shift(divisor: Expr) -> bool:
    return isinstance(divisor, Const) and int(divisor.value).bit_count() == 1


def _made(scope: Scope, e: Expr, operands: Operands, names: set[str], type: TensorType) -> Value:
    used = sorted(arg_numbers(e))
    local = shift_args(e, {k: Arg(n) for n, k in enumerate(used)})
    kept = tuple(a for a in type.axes if a.name in names)
    return scope.map(local, [operands.values[k] for k in used], TensorType(I64, kept, "reg"), "at")

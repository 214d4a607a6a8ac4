"""What scalar functions want of their operands: checks, and conversions that are written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilecc.ir.dtypes import F64, I32, I64, DType, promote
from tilecc.ir.expr import FUNCTIONS, Call, Cast, Const, Expr, call


class Refused(Exception):
    """An operation without a meaning on its operands: what is wrong, and what to write instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


@dataclass(frozen=True)
class Scalar:
    """An operand of a scalar function: its expression and element type."""

    expr: Expr
    dtype: DType

    @property
    def weak(self) -> bool:
        """Whether it is a plain number, which takes the type of what it meets."""
        return isinstance(self.expr, Const)


_LOGICAL = {"and": "&", "or": "|", "xor": "^", "not": "~"}
_EQUALITY = {"eq", "ne"}
# Of integers, what these give may need more bits than they have.
_GROWING = {"add", "sub", "mul", "neg", "abs"}


def scalar_call(fn: str, args: Sequence[Scalar], default: DType) -> Expr:
    """`fn(*args)` with conversions written out; `default` is the type that the spec computes in.

    Raises:
        Refused: the operands' types do not fit.
    """
    kind = FUNCTIONS[fn].kind
    if fn in _LOGICAL:
        _want_predicates(_LOGICAL[fn], args)
    elif kind == "select":
        if args[0].dtype.kind != "bool":
            hint = "write a comparison, such as x != 0"
            raise Refused(f"where wants a predicate as its condition, not {args[0].dtype}", hint)
        branches = args[1:]
        if any(a.dtype.kind != "bool" for a in branches):
            branches = [_number(a) for a in branches]
            _want_room(branches)
        args = [args[0], *_double(branches, default, any(_is_float(a) for a in branches))]
    elif not (fn in _EQUALITY and all(a.dtype.kind == "bool" for a in args)):
        args = [_number(a) for a in args]
        if kind == "int":
            _want_integers(fn, args)
        _want_room(args)
        floating = any(_is_float(a) for a in args)
        args = _double(args, default, floating or (kind == "float" and fn not in _REWRITES))
        if fn in _GROWING:
            args = _wide(args)
    if all(a.weak for a in args):
        return fold(fn, [a.expr for a in args])
    rewrite = _REWRITES.get(fn)
    return (rewrite(args) if rewrite else None) or call(fn, *(a.expr for a in args))


def fold(fn: str, args: Sequence[Expr]) -> Const:
    """A function of plain numbers, evaluated in double precision."""
    values = [a.value for a in args if isinstance(a, Const)]
    with np.errstate(all="ignore"):
        result = FUNCTIONS[fn].numpy(*values)
    return Const(result.item() if isinstance(result, np.generic | np.ndarray) else result)


def _is_float(a: Scalar) -> bool:
    return a.dtype.kind == "float"


def _number(a: Scalar) -> Scalar:
    """Predicates in arithmetic count as 0 and 1."""
    if a.dtype.kind != "bool":
        return a
    if isinstance(a.expr, Const):
        return Scalar(Const(int(a.expr.value)), I64)
    return Scalar(Cast(a.expr, I64), I64)


def _double(args: Sequence[Scalar], default: DType, floating: bool) -> list[Scalar]:
    """In a spec in f64, integers that become floats become f64 (by themselves they become f32)."""
    strong = any(_is_float(a) and not a.weak for a in args)
    if default is not F64 or strong or not floating:
        return list(args)
    return [a if a.weak or _is_float(a) else Scalar(Cast(a.expr, F64), F64) for a in args]


def _wide(args: Sequence[Scalar]) -> list[Scalar]:
    """32-bit integers as 64-bit ones: sums wrap nowhere, so a mask may be solved for a coordinate.

    Narrower ones become 32-bit integers by themselves.
    """
    strong = [a.dtype for a in args if not a.weak]
    if any(a.dtype.kind != "int" for a in args) or I32 not in strong or I64 in strong:
        return list(args)
    return [a if a.weak else Scalar(Cast(a.expr, I64), I64) for a in args]


def _want_predicates(symbol: str, args: Sequence[Scalar]) -> None:
    for a in args:
        if a.dtype.kind != "bool":
            message = f"{symbol} works on predicates, and an operand is {a.dtype}"
            hint = f"compare first, in parentheses: (a < b) {symbol} (c != 0)"
            raise Refused(message, hint)


def _want_integers(fn: str, args: Sequence[Scalar]) -> None:
    symbol = FUNCTIONS[fn].infix or fn
    for a in args:
        if a.dtype.kind == "float":
            message = f"{symbol} works on integers, and an operand is {a.dtype}"
            raise Refused(message, "write tc.floor(a / b) for the floor of a quotient of floats")
    if args[1].expr == Const(0):
        raise Refused(f"{symbol} by zero", "the divisor is a constant 0")


def _want_room(args: Sequence[Scalar]) -> None:
    """Whole numbers must fit the integers that they meet, whose type they take."""
    strong = [a.dtype for a in args if not a.weak]
    if not strong or any(t.kind != "int" for t in strong) or any(_is_float(a) for a in args):
        return
    met = strong[0]
    for t in strong:
        met = promote(met, t)
    limits = np.iinfo(met.numpy)
    for a in args:
        if isinstance(a.expr, Const) and not limits.min <= a.expr.value <= limits.max:
            message = f"{a.expr.value} does not fit {met}, the type of what it meets"
            raise Refused(message, 'write tc.cast(x, "int64") first')


def _power(args: Sequence[Scalar]) -> Expr | None:
    """Small whole powers are products, which are exact; powers of 2 are exp2."""
    base, exponent = args
    if isinstance(exponent.expr, Const):
        p = exponent.expr.value
        if p in (2, 3, 4):
            square: Call = call("mul", base.expr, base.expr)
            return {2: square, 3: call("mul", square, base.expr), 4: call("mul", square, square)}[
                int(p)
            ]
        if p == 1:
            return base.expr
        if p == 0.5:
            return call("sqrt", base.expr)
    if base.dtype.kind == exponent.dtype.kind == "int":
        hint = "write the product out, or make the base a float (2.0, or tc.cast)"
        raise Refused("an integer to an integer's power has no exact type", hint)
    if isinstance(base.expr, Const) and base.expr.value == 2:
        return call("exp2", exponent.expr)
    return None


def _floor(args: Sequence[Scalar]) -> Expr | None:
    return args[0].expr if args[0].dtype.kind == "int" else None


# These keep integers as they are where they can.
_REWRITES: dict[str, Callable[[Sequence[Scalar]], Expr | None]] = {"pow": _power, "floor": _floor}

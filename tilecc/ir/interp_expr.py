"""Scalar expressions compiled to numpy closures under the IR's rules of typing.

numpy promotes i64 with f32 to f64; the IR does not. So every node's type comes from
`ops.infer_dtype`, and its arguments are converted to that type before numpy sees them. Literals are
folded in double precision and take the type of what they meet.

A value of a type narrower than f32 is held in f32 (its "carrier"), already rounded; in exact mode
every float is held in f64 and nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecc.ir.dtypes import BOOL, F32, F64, I64, DType
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
    call,
    evaluate,
)
from tilecc.ir.expr import Env as FoldEnv
from tilecc.ir.ops import infer_dtype


@dataclass
class Frame:
    """What the leaves of a compiled expression stand for: arrays that broadcast together."""

    args: Sequence[Any]
    index: Callable[[str], Any]
    acc: Any = None
    old: Mapping[int, Any] | None = None


Code = Callable[[Frame], Any]


@dataclass(frozen=True)
class Fixed:
    """A part of an expression whose value is known before any element is."""

    value: Any


@dataclass(frozen=True)
class Numbers:
    """How numbers are held: the carrier of each type, and where rounding happens."""

    exact: bool

    def carrier(self, t: DType) -> np.dtype[Any]:
        """The numpy type in which values of type `t` are held."""
        if t.kind != "float":
            return t.numpy
        return np.dtype(np.float64) if self.exact or t is F64 else np.dtype(np.float32)

    def hold(self, x: Any, t: DType) -> Any:
        """`x` rounded to `t`, in its carrier."""
        x = np.asarray(x)
        if t.kind == "float" and t.bits < 32 and not self.exact:
            x = x.astype(t.numpy)
        return x.astype(self.carrier(t), copy=False)


@dataclass
class _Compiler:
    types: Sequence[DType]
    acc: DType
    extents: Mapping[str, int]
    numbers: Numbers

    def infer(self, e: Expr) -> DType:
        return infer_dtype(e, self.types, self.acc)

    def visit(self, e: Expr) -> Code | Fixed:
        match e:
            case Const(value):
                return Fixed(value)
            case Extent(name):
                return Fixed(np.int64(self.extents[name]))
            case Arg(k):
                return lambda f: f.args[k]
            case Index(axis):
                return lambda f: f.index(axis)
            case Acc():
                return lambda f: f.acc
            case Old(k):
                return lambda f: f.old[k] if f.old is not None else None
            case Cast(arg, to):
                hold = self.numbers.hold
                return _apply(lambda x: hold(x, to)[()], [self.visit(arg)])
            case Call(fn, args):
                return self.call(e, fn, args)
        raise TypeError(f"not an expression: {e!r}")

    def call(self, e: Expr, fn: str, args: tuple[Expr, ...]) -> Code | Fixed:
        if _is_literal(e):
            return Fixed(evaluate(e, FoldEnv()))
        function = FUNCTIONS[fn]
        if fn in ("and", "or", "xor", "not"):
            types = [BOOL] * len(args)
        elif function.kind == "bool":  # comparison: both sides in the type of their sum
            types = [self.infer(call("add", *args))] * 2
        elif function.kind == "select":
            types = [BOOL, *[self.infer(e)] * 2]
        else:
            types = [self.infer(e)] * len(args)
        parts = [self.typed(a, t) for a, t in zip(args, types, strict=True)]
        return _apply(function.numpy, parts)

    def typed(self, e: Expr, to: DType) -> Code | Fixed:
        """`e` converted to the carrier of `to`."""
        node = self.visit(e)
        target = self.numbers.carrier(to)
        if isinstance(node, Fixed):
            return Fixed(np.asarray(node.value).astype(target)[()])
        if self.numbers.carrier(self.infer(e)) == target:
            return node
        return lambda f: node(f).astype(target)


def _is_literal(e: Expr) -> bool:
    """Whether `e` is made of Python numbers alone (a bool has a type of its own)."""
    if isinstance(e, Const):
        return not isinstance(e.value, bool)
    if not isinstance(e, Call) or FUNCTIONS[e.fn].kind == "bool":
        return False
    return all(map(_is_literal, e.args))


def _apply(fn: Callable[..., Any], parts: list[Code | Fixed]) -> Code | Fixed:
    if all(isinstance(p, Fixed) for p in parts):
        return Fixed(fn(*(p.value for p in parts if isinstance(p, Fixed))))
    codes = [_constant(p.value) if isinstance(p, Fixed) else p for p in parts]
    if len(codes) == 1:
        (a,) = codes
        return lambda f: fn(a(f))
    if len(codes) == 2:
        a, b = codes
        return lambda f: fn(a(f), b(f))
    return lambda f: fn(*[c(f) for c in codes])


def _constant(value: Any) -> Code:
    return lambda f: value


def compile_expr(
    e: Expr,
    types: Sequence[DType],
    extents: Mapping[str, int],
    numbers: Numbers,
    *,
    to: DType | None = None,
    acc: DType = F32,
) -> Code:
    """A function from a Frame to the value of `e`, in the carrier of its type (or of `to`)."""
    compiler = _Compiler(types, acc, extents, numbers)
    node = compiler.typed(e, to or compiler.infer(e))
    return _constant(node.value) if isinstance(node, Fixed) else node


def integer(e: Expr, extents: Mapping[str, int]) -> int:
    """The value of an extent expression.

    Raises:
        KeyError: it names an extent that is not in `extents`.
    """
    if isinstance(e, Const):
        return int(e.value)
    return int(compile_expr(e, (), extents, Numbers(False), to=I64)(Frame((), _no_index)))


def _no_index(axis: str) -> Any:
    raise KeyError(f"index({axis}) has no value here")

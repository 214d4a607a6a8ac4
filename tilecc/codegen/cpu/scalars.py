"""Scalar expressions to TIR, with the IR's rules of typing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tilecc.codegen.cpu import mathlib
from tilecc.codegen.cpu.casts import cast, register_name
from tilecc.codegen.cpu.isa import Isa
from tilecc.codegen.cpu.layout import register_dtype
from tilecc.ir.dtypes import BOOL, I32, I64, DType
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
from tilecc.ir.ops import infer_dtype

Prim = Any
"""A TIR expression."""


def const(value: bool | int | float, t: DType) -> Prim:
    """A TIR constant of the register type of `t`."""
    t = register_dtype(t)
    if t is BOOL:
        return tirx.const(bool(value), "bool")
    return tirx.const(float(value) if t.kind == "float" else int(value), register_name(t))


@dataclass
class ExprLowering:
    """Lowers expressions whose leaves are given by functions; `isa` picks instructions."""

    isa: Isa
    dtypes: Sequence[DType]
    arg: Callable[[int], Prim]
    index: Callable[[str], Prim]
    extent: Callable[[str], Prim]
    bind: Callable[[Prim, DType], Prim]
    spread: Callable[[Prim], Prim]  # a scalar to as many lanes as values have
    compare: Callable[[str, Sequence[Expr]], Prim | None]  # of positions, in a way of its own

    def lower(self, e: Expr, want: DType | None = None) -> Prim:
        """TIR for `e` in the register type of `want` (default: the type that the IR infers)."""
        natural = infer_dtype(e, self.dtypes)
        want = want or natural
        if isinstance(e, Const):
            return self.spread(const(e.value, want))
        x, t = self._node(e, want)
        return cast(x, t, want) if t is not want else x

    def _node(self, e: Expr, want: DType) -> tuple[Prim, DType]:
        match e:
            case Arg(k):
                return self.spread(self.arg(k)), self.dtypes[k]
            case Index(axis):
                return self.spread(self.index(axis)), I64
            case Extent(name):
                return self.spread(self.extent(name)), I64
            case Cast(arg, to):
                return self.lower(arg, to) if isinstance(arg, Const) else self._cast(arg, to), to
            case Acc() | Old():
                raise TypeError("repairs are expanded before code generation")
            case Call(fn, args):
                return self._call(fn, args, e)
        raise TypeError(f"not an expression: {e!r}")

    def _cast(self, arg: Expr, to: DType) -> Prim:
        source = infer_dtype(arg, self.dtypes)
        return cast(self.bind(self.lower(arg), source), source, to)

    def _call(self, fn: str, args: tuple[Expr, ...], e: Expr) -> tuple[Prim, DType]:
        kind = FUNCTIONS[fn].kind
        out = infer_dtype(e, self.dtypes)
        if kind == "select":
            cond = self.lower(args[0], BOOL)
            return tirx.Select(cond, self.lower(args[1], out), self.lower(args[2], out)), out
        if kind == "bool":
            short = self.compare(fn, args)
            if short is not None:
                return short, BOOL
            inner = BOOL if fn in ("and", "or", "xor", "not") else self._meet(args)
            return mathlib.lower(fn, [self.lower(a, inner) for a in args], inner, self.isa), BOOL
        values = [self.lower(a, out) for a in args]
        if fn not in ("add", "sub", "mul", "div", "neg"):
            values = [self.bind(v, out) for v in values]  # read more than once below
        return mathlib.lower(fn, values, out, self.isa), out

    def _meet(self, args: tuple[Expr, ...]) -> DType:
        """The type in which a comparison's sides are compared."""
        t = infer_dtype(Call("add", args), self.dtypes)
        return I64 if t is I32 and not all(map(self._is_short, args)) else t

    def _is_short(self, e: Expr) -> bool:
        """Whether an integer is one that 32 bits hold as it is, not a sum that they may not."""
        if isinstance(e, Const):
            return -(2**31) <= int(e.value) < 2**31
        return isinstance(e, Arg) and self.dtypes[e.k].kind == "int" and self.dtypes[e.k].bits <= 32

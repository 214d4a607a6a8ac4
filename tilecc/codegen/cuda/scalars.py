"""Scalar expressions to TIR, with the IR's rules of typing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx

from tilecc.codegen.cuda.mathlib import Math, Prim, register_type
from tilecc.ir.dtypes import BOOL, I32, I64, DType
from tilecc.ir.expr import FUNCTIONS, Arg, Call, Cast, Const, Expr, Extent, Index
from tilecc.ir.ops import infer_dtype

_FAR = 1 << 30


def constant(value: bool | int | float, t: DType) -> Prim:
    """A TIR constant of the register type of `t`."""
    name = register_type(t)
    if name == "bool":
        return tirx.const(bool(value), "bool")
    return tirx.const(float(value) if name.startswith("float") else int(value), name)


@dataclass
class ExprLowering:
    """Lowers expressions whose leaves are given by functions.

    `sizes`: how many coordinates each axis has; `uniform(k)`: whether operand k is a scalar.
    """

    math: Math
    dtypes: Sequence[DType]
    arg: Callable[[int], Prim]
    index: Callable[[str], Prim]  # an i32
    extent: Callable[[str], Prim]
    uniform: Callable[[int], bool]
    sizes: Mapping[str, int]

    def lower(self, e: Expr, want: DType | None = None) -> Prim:
        """TIR for `e` in the register type of `want` (default: the type that the IR infers)."""
        natural = infer_dtype(e, self.dtypes)
        want = want or natural
        if isinstance(e, Const):
            return constant(e.value, want)
        x, t = self._node(e)
        return self.math.cast(x, t, want) if t is not want else x

    def _node(self, e: Expr) -> tuple[Prim, DType]:
        match e:
            case Arg(k):
                return self.arg(k), self.dtypes[k]
            case Index(axis):
                return tirx.Cast("int64", self.index(axis)), I64
            case Extent(name):
                return self.extent(name), I64
            case Cast(arg, to):
                if isinstance(arg, Const):
                    return self.lower(arg, to), to
                source = infer_dtype(arg, self.dtypes)
                return self.math.cast(self.lower(arg), source, to), to
            case Call(fn, args):
                return self._call(fn, args, e)
        raise TypeError(f"not an expression of tile IR: {e!r}")

    def _call(self, fn: str, args: tuple[Expr, ...], e: Expr) -> tuple[Prim, DType]:
        kind = FUNCTIONS[fn].kind
        out = infer_dtype(e, self.dtypes)
        if kind == "select":
            cond = self.lower(args[0], BOOL)
            return tirx.Select(cond, self.lower(args[1], out), self.lower(args[2], out)), out
        if kind == "bool":
            if fn in ("and", "or", "xor", "not"):
                return self.math.lower(fn, [self.lower(a, BOOL) for a in args], BOOL), BOOL
            inner = self._meet(args)
            near = self._near(fn, args) if inner is I64 else None
            if near is not None:
                return near, BOOL
            return self.math.lower(fn, [self.lower(a, inner) for a in args], inner), BOOL
        return self.math.lower(fn, [self.lower(a, out) for a in args], out), out

    def _meet(self, args: tuple[Expr, ...]) -> DType:
        """The type in which a comparison's sides are compared."""
        t = infer_dtype(Call("add", args), self.dtypes)
        return I64 if t is I32 else t

    def _near(self, fn: str, args: tuple[Expr, ...]) -> Prim | None:
        """A comparison of coordinates in 32 bits: what is the same for all elements goes right.

        a + x < b + y, with x and y within the tile, is x - y < b - a; and as x - y is small, b - a
        may be clamped.
        """
        terms: list[tuple[int, Expr]] = []
        if not (self._terms(args[0], 1, terms) and self._terms(args[1], -1, terms)):
            return None
        local = [(c, e.axis) for c, e in terms if isinstance(e, Index)]
        reach = sum(abs(c) * self.sizes[a] for c, a in local)
        if not local or reach >= _FAR:
            return None
        left: Prim = tirx.const(0, "int32")
        for c, a in local:
            left = left + self.index(a) * tirx.const(c, "int32")
        right: Prim = tirx.const(0, "int64")
        for c, e in terms:
            if not isinstance(e, Index):
                right = right - self.lower(e, I64) * tirx.const(c, "int64")
        far = tirx.const(_FAR, "int64")
        clamped = tirx.Cast("int32", tirx.max(tirx.min(right, far), tirx.const(-_FAR, "int64")))
        return self.math.lower(fn, [left, clamped], I32)

    def _terms(self, e: Expr, sign: int, out: list[tuple[int, Expr]]) -> bool:
        """Take a sum apart into (factor, index or what all elements have in common)."""
        match e:
            case Call("add", (a, b)):
                return self._terms(a, sign, out) and self._terms(b, sign, out)
            case Call("sub", (a, b)):
                return self._terms(a, sign, out) and self._terms(b, -sign, out)
            case Call("neg", (a,)):
                return self._terms(a, -sign, out)
            case Call("mul", (a, Const(c))) | Call("mul", (Const(c), a)) if isinstance(c, int):
                inner: list[tuple[int, Expr]] = []
                if abs(c) >= _FAR or not self._terms(a, sign, inner):
                    return False
                out += [(c * k, x) for k, x in inner]
                return True
            case Index():
                out.append((sign, e))
                return True
        if not self._is_uniform(e):
            return False
        out.append((sign, e))
        return True

    def _is_uniform(self, e: Expr) -> bool:
        if isinstance(e, Index):
            return False
        if isinstance(e, Arg):
            return self.uniform(e.k)
        return all(self._is_uniform(c) for c in e.children())

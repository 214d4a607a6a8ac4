"""Comparisons of rows with columns in 32 bits, where only one side is a position of the tile.

A mask compares what is known of a column with what is known of a row. Both are 64-bit numbers, of
which a vector holds half as many as of scores, and some instruction sets cannot even compare them.
But in a tile the column's take few values, all near one that is the same for all of them:

    (%t * 96 + index(j)) // %w <= %b             %b : i64[i]
    -->
    %c = map %t * 96 // %w : i64
    %y = map cast((%t * 96 + index(j)) // %w - %c, i32) : i32[j]
    %x = map cast(clamp(%b - %c, -2**30, 2**30), i32) : i32[i]
    %y <= %x

Cutting %x changes no answer, since no %y is near the ends. A remainder may jump, by the divisor and
once or more often: its values lie near the first of them, near 0, or near the divisor. So both
sides are replaced by f(x) = cut(x - first) + cut(x) + cut(x - divisor), which never falls, and
rises with x at every value that the column has: an order of the two, or an equality, is that of
their f.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilecc.analysis.forms import Linear, is_integer
from tilecc.analysis.linear import linear
from tilecc.ir.core import TensorType, Value
from tilecc.ir.dtypes import I32, I64, DType
from tilecc.ir.expr import (
    Call,
    Cast,
    Const,
    Expr,
    Index,
    add,
    arg_numbers,
    call,
    indices,
    mul,
    rebuild,
    transform,
    walk,
)
from tilecc.passes.tiling.scope import Operands, Scope

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_CUT, _WINDOW = 1 << 30, 1 << 28
_FAR = 1 << 58
"""Beyond all positions: a user's number may be larger, and sums of such would overflow."""


def narrow_comparisons(scope: Scope, e: Expr, operands: Operands, type: TensorType) -> Expr:
    """`e`, a map of that type, with its comparisons of a row and a column in 32 bits."""
    if len(type.axes) < 2:
        return e
    return _Narrow(scope, operands, type).go(e)


@dataclass
class _Narrow:
    scope: Scope
    operands: Operands
    type: TensorType

    def go(self, e: Expr) -> Expr:
        if not e.children():
            return e
        if isinstance(e, Call) and e.fn in _COMPARISONS:
            dtypes = [v.type.dtype for v in self.operands.values]
            if all(is_integer(a, dtypes) for a in e.args):
                return self._comparison(e.fn, *e.args)
        return rebuild(e, tuple(self.go(c) for c in e.children()))

    def _comparison(self, fn: str, a: Expr, b: Expr) -> Expr:
        if isinstance(b, Call) and b.fn in ("abs", "mod") and not self._axes(a):
            return self._comparison(_SWAPPED.get(fn, fn), b, a)
        match a:
            case Call("abs", (x,)) if len(self._axes(x)) > 1 and fn not in ("eq", "ne"):
                both = [self._comparison(fn, y, b) for y in (x, call("neg", x))]
                return call("and" if fn in ("lt", "le") else "or", *both)
            case Call("mod", (x, by)) if fn in ("eq", "ne") and not self._axes(by):
                found = self._remainder(fn, x, by, b)
                if found is not None:
                    return found
        return self._narrowed(fn, a, b) or Call(fn, (a, b))

    def _remainder(self, fn: str, x: Expr, by: Expr, wanted: Expr) -> Expr | None:
        """x % by == wanted for a sum of a row's and a column's: their remainders are equal."""
        parts = self._parts(linear(x))
        if parts is None or len(parts[0]) != 2 or self._axes(wanted):
            return None
        (one, other), shared = parts[0].values(), parts[1]
        left = call("mod", (one + shared).expr(), by)
        right = call("mod", (linear(wanted) - other).expr(), by)
        equal = self._narrowed(fn, left, right)
        if equal is None or wanted == Const(0):
            return equal
        reached = call(fn, call("mod", wanted, by), wanted)
        return call("and" if fn == "eq" else "or", reached, equal)

    def _narrowed(self, fn: str, a: Expr, b: Expr) -> Expr | None:
        """`a fn b` by two maps of 32 bits; None where neither side stays near one number."""
        form = linear(a) - linear(b)
        parts = self._parts(form)
        if parts is None or len(parts[0]) != 2:
            return None
        (by_axis, shared) = parts
        if all(isinstance(s, Index) for part in by_axis.values() for s, _ in part.terms):
            return None  # of positions alone: code generation knows how
        for axis in sorted(by_axis, key=lambda x: self.type.names.index(x), reverse=True):
            (other,) = (p for x, p in by_axis.items() if x != axis)
            column, rest, order = by_axis[axis], other + shared, fn
            if column.terms[0][1] < 0:
                column, rest, order = -column, -rest, _SWAPPED.get(fn, fn)
            near = self._near(axis, column)
            if near is not None:
                return call(order, self._cut(column, near), self._cut(-rest, near))
        return None

    def _parts(self, form: Linear) -> tuple[dict[str, Linear], Linear] | None:
        """The sum's parts by the axis that they read, and what is the same for all elements."""
        found: dict[str, Linear] = {}
        shared = Linear((), form.const)
        for s, c in form.terms:
            axes = self._axes(s)
            if len(axes) > 1 or self._is_large(s):
                return None
            term = Linear(((s, c),))
            if axes:
                (a,) = axes
                found[a] = found.get(a, Linear()) + term
            else:
                shared = shared + term
        return found, shared

    def _near(self, axis: str, part: Linear) -> list[Expr] | None:
        """The numbers near which all values of a column's part are; [] stands for 0, exactly."""
        size = self.type.axis(axis).size
        if all(isinstance(s, Index) for s, _ in part.terms):
            return [] if sum(abs(c) for _, c in part.terms) * size < _WINDOW else None
        if len(part.terms) != 1 or size >= _WINDOW:
            return None
        ((s, c),) = part.terms
        match s:
            case Call("floordiv" | "mod" as fn, (x, by)) if c == 1 and not self._axes(by):
                inside = linear(x)
                if abs(inside.coefficient(Index(axis))) != 1:
                    return None
                if self._axes(inside.without(Index(axis)).expr()):
                    return None
                at_first = transform(s, lambda n: Const(0) if n == Index(axis) else None)
                first = self._scalar(linear(at_first).expr())
                jumps = [] if fn == "floordiv" else [Const(0), self._scalar(by)]
                return list(dict.fromkeys([first, *jumps]))
        return None

    def _cut(self, part: Linear, near: Sequence[Expr]) -> Expr:
        """A part in 32 bits: f of it, as an operand."""
        x = self._bounded(part)
        if not near and all(isinstance(s, Index) for s, _ in part.terms):
            return self._made(Cast(x, I32), I32)
        ends = _CUT
        if len(near) > 1:
            x, ends = self._made(x, I64), _WINDOW
        total: Expr = Const(0)
        for n in near or [Const(0)]:
            total = add(total, _clamp(x if n == Const(0) else call("sub", x, n), ends))
        return self._made(Cast(total, I32), I32)

    def _bounded(self, part: Linear) -> Expr:
        """The sum, whose terms that a user's numbers decide are cut: it does not overflow."""
        own = set(self.scope.scalars.values())
        free = {n for n, v in enumerate(self.operands.values) if _is_free(v, own)}
        out: Expr = Const(part.const)
        for s, c in part.terms:
            x = self._once(s)
            out = add(out, mul(_clamp(x, _FAR) if arg_numbers(s) & free else x, c))
        return out

    def _once(self, s: Expr) -> Expr:
        """A term of a row or a column, as a map of its own where it divides."""
        divides = any(isinstance(n, Call) and n.fn in ("floordiv", "mod") for n in walk(s))
        return self._made(s, I64) if divides and self._axes(s) else s

    def _made(self, e: Expr, dtype: DType) -> Expr:
        axes = self._axes(e)
        kept = tuple(a for a in self.type.axes if a.name in axes)
        e, values = self.operands.used(e)
        t = TensorType(dtype, kept, "reg" if kept else "")
        return self.operands.ref(self.scope.map(e, values, t, "at"))

    def _scalar(self, e: Expr) -> Expr:
        return (
            e
            if isinstance(e, Const)
            else self.operands.ref(self.scope.scalar(e, self.operands.values, "at"))
        )

    def _is_large(self, s: Expr) -> bool:
        """Whether a term comes from 64-bit numbers in memory, which may be anything."""
        read = [self.operands.values[k] for k in arg_numbers(s)]
        return any(v.type.axes and _reads_large(v) for v in read)

    def _axes(self, e: Expr) -> set[str]:
        held = {a for k in arg_numbers(e) for a in self.operands.values[k].type.names}
        return held | (indices(e) & set(self.type.names))


def _clamp(x: Expr, end: int) -> Expr:
    return call("maximum", call("minimum", x, Const(end)), Const(-end))


def _is_free(v: Value, own: Collection[Value]) -> bool:
    """Whether a scalar is a 64-bit number of the user's, or made of one; `own` count tiles."""
    if v.type.axes or v.type.dtype is not I64 or v in own:
        return False
    op = v.owner
    return op is None or op.name != "map" or any(_is_free(x, own) for x in op.operands)


def _reads_large(v: Value) -> bool:
    """Whether a value is a load of 64-bit numbers, or made of one."""
    op = v.owner
    if op is None or op.name == "load":
        return v.type.dtype.bits > 32
    return op.name != "map" or any(_reads_large(x) for x in op.operands if x.type.axes)

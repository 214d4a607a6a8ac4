"""Names in scope while a kernel is tiled: where each loop-level value and axis has got to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilecc.analysis.forms import widened
from tilecc.ir.core import Axis, Block, Builder, Op, TensorType, Value
from tilecc.ir.dtypes import I64
from tilecc.ir.expr import (
    Arg,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    add,
    arg_numbers,
    mul,
    shift_args,
    transform,
)
from tilecc.ir.ops import infer_dtype
from tilecc.passes.tiling.plan import AxisPlan


@dataclass
class Operands:
    """The operand list of an operation under construction; `ref` gives the Arg of a value."""

    values: list[Value] = field(default_factory=list)

    def ref(self, v: Value) -> Arg:
        """The operand `v`, which is added if it is new."""
        if v not in self.values:
            self.values.append(v)
        return Arg(self.values.index(v))

    def adopt(self, e: Expr, operands: Sequence[Value]) -> Expr:
        """`e` over `operands`, renumbered to this list."""
        return shift_args(e, {k: self.ref(operands[k]) for k in sorted(arg_numbers(e))})

    def used(self, e: Expr) -> tuple[Expr, list[Value]]:
        """`e` over only those operands that it reads, and these."""
        numbers = sorted(arg_numbers(e))
        e = shift_args(e, {k: Arg(n) for n, k in enumerate(numbers)})
        return e, [self.values[k] for k in numbers]


@dataclass
class Scope:
    """A block under construction, with the tile values of loop-level values.

    `scalars` gives for each parallel or streamed axis the grid or loop variable that counts its
    tiles (its coordinate, if it is a point).
    """

    plan: Mapping[str, AxisPlan]
    builder: Builder
    values: dict[Value, Value] = field(default_factory=dict)
    scalars: dict[str, Value] = field(default_factory=dict)
    shared: dict[tuple[object, ...], Value] = field(default_factory=dict)

    def inner(self, block: Block) -> Scope:
        """A scope for a nested block: sees all of this one, keeps what it defines to itself."""
        return Scope(
            self.plan,
            Builder(block, self.builder.loc),
            dict(self.values),
            dict(self.scalars),
            dict(self.shared),
        )

    def type(self, t: TensorType, space: str = "reg") -> TensorType:
        """The tile of a tensor of type `t`: points gone, sizes bound."""
        axes = []
        for a in t.axes:
            size = self.plan[a.name].size
            if size is not None:
                axes.append(Axis(a.name, Const(size)))
        return TensorType(t.dtype, tuple(axes), space if axes else "")

    def base(self, axis: str, operands: Operands) -> Expr:
        """First coordinate of the current tile of `axis`."""
        p = self.plan[axis]
        if p.role == "inner":
            return Const(0)
        if axis not in self.scalars:
            return Const(0)
        return mul(operands.ref(self.scalars[axis]), p.size or 1)

    def coordinate(self, axis: str, operands: Operands) -> Expr:
        """The global coordinate along `axis` of an element of the current tile."""
        base = self.base(axis, operands)
        return base if self.plan[axis].size is None else add(base, Index(axis))

    def globalise(self, e: Expr, operands: Operands) -> Expr:
        """`e` with `index(axis)` written out from tile positions."""

        def f(n: Expr) -> Expr | None:
            if isinstance(n, Index) and n.axis in self.plan:
                return self.coordinate(n.axis, operands)
            if isinstance(n, Call) and n.fn == "floordiv":
                return _exact_floordiv(n, self.plan)
            return None

        return transform(e, f)

    def map(self, e: Expr, operands: Sequence[Value], type: TensorType, name: str = "") -> Value:
        """A `map`, made once for an expression and operands; a bare operand is itself."""
        if (
            isinstance(e, Arg)
            and replace(type, space=operands[e.k].type.space) == operands[e.k].type
        ):
            return operands[e.k]
        dtypes = [v.type.dtype for v in operands]
        wide = widened(e, dtypes)
        if wide != e:  # of coordinates and data: bounds are solved for in 64 bits
            e = wide if infer_dtype(wide, dtypes) is type.dtype else Cast(wide, type.dtype)
        key = ("map", e, tuple(operands), type)
        if key not in self.shared:
            op = self.builder.op("map", operands, [type], names=[name], expr=e)
            self.shared[key] = op.result
        return self.shared[key]

    def scalar(self, e: Expr, operands: Sequence[Value], name: str) -> Value:
        """An i64 scalar; loop bounds are computed once and named."""
        e, values = Operands(list(operands)).used(e)
        if infer_dtype(e, [v.type.dtype for v in values]) is not I64:
            e = Cast(e, I64)
        return self.map(e, values, TensorType(I64), name)

    def once(self, key: tuple[object, ...], op: Op) -> Value:
        """The result of `op`, which is added unless the same key was before."""
        if key not in self.shared:
            self.shared[key] = self.builder.add(op).result
        return self.shared[key]


def _exact_floordiv(n: Call, plan: Mapping[str, AxisPlan]) -> Expr | None:
    """(t * B + index(a)) // B is t, when a's tile has B elements: a tile of one group of heads."""
    top, bottom = n.args
    if not (isinstance(bottom, Const) and isinstance(top, Call) and top.fn == "add"):
        return None
    base, index = top.args
    if not (isinstance(index, Index) and index.axis in plan):
        return None
    size = plan[index.axis].size
    if size is None or int(bottom.value) % size:
        return None
    # The tile starts at a multiple of its size and does not cross a multiple of the divisor.
    ratio = int(bottom.value) // size
    if isinstance(base, Const) and int(base.value) % size == 0:
        return Const(int(base.value) // int(bottom.value))
    if isinstance(base, Call) and base.fn == "mul" and base.args[1] == Const(size):
        tile = base.args[0]
        return tile if ratio == 1 else Call("floordiv", (tile, Const(ratio)))
    return None

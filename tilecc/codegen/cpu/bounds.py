"""Which coordinates are known to stay within a tensor, so that no test of them is emitted."""

from __future__ import annotations

from collections.abc import Sequence

from tilecc.ir.core import Op, Range, Value
from tilecc.ir.expr import Arg, Call, Const, Expr, Extent, Index

_KEEP = {"add", "mul", "mod", "floordiv", "ceildiv", "minimum", "where"}
"""Functions that make no negative integer of integers that are not."""


class Bounds:
    """What a kernel's integers are known to be."""

    def __init__(self, kernel: Op) -> None:
        self.tasks: dict[Value, Expr] = dict(
            zip(kernel.body.args, kernel.attrs["grid"], strict=True)
        )
        """How many tasks there are along each coordinate of theirs."""
        self.natural: set[Value] = set(kernel.body.args)
        """Integers that are never negative."""
        for op in kernel.body.walk():
            if op.name == "for" and self.never_negative(op.attrs["lo"], op.operands):
                self.natural.add(op.body.args[0])
            elif (
                op.name == "map"
                and not op.result.type.axes
                and op.result.type.dtype.kind == "int"
                and self.never_negative(op.expr, op.operands)
            ):
                self.natural.add(op.result)

    def never_negative(self, e: Expr, operands: Sequence[Value]) -> bool:
        """Whether an integer expression is known not to be negative."""
        match e:
            case Const(value):
                return value >= 0
            case Index() | Extent():
                return True
            case Arg(k):
                return operands[k] in self.natural
            case Call("maximum", args):
                return any(self.never_negative(a, operands) for a in args)
            case Call(fn, args) if fn in _KEEP:
                read = args[1:] if fn in ("where", "mod") else args
                return all(self.never_negative(a, operands) for a in read)
        return False

    def may_leave(self, op: Op, n: int) -> bool:
        """Whether coordinate n of a load or store may be outside its tensor."""
        return self.may_be_low(op, n) or self.may_be_high(op, n)

    def may_be_low(self, op: Op, n: int) -> bool:
        """Whether coordinate n of a load or store may be negative."""
        c = op.attrs["coords"][n]
        if isinstance(c, Range):
            loose = op.attrs.get("pad", ()) or op.attrs.get("clip", ())
            return c.axis in loose and not self.never_negative(c.base, op.operands)
        return self._point_may_leave(op, n, c)

    def may_be_high(self, op: Op, n: int) -> bool:
        """Whether coordinate n of a load or store may be beyond its tensor's end."""
        c = op.attrs["coords"][n]
        if isinstance(c, Range):
            return c.axis in (op.attrs.get("pad", ()) or op.attrs.get("clip", ()))
        return self._point_may_leave(op, n, c)

    def _point_may_leave(self, op: Op, n: int, c: Expr) -> bool:
        """A point may be anywhere, unless it is a task's coordinate along the tensor's axis.

        Others can come from a table or a number of the user's, whatever the program promises.
        """
        tensor = op.operands[1 if op.name == "store" else 0]
        tasks = self.tasks.get(op.operands[c.k]) if isinstance(c, Arg) else None
        return tasks is None or tasks != tensor.type.axes[n].extent

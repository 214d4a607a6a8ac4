"""Loads of a loop whose place moves on by the same stride in each iteration.

Their addresses are kept from one iteration to the next, and not computed from the coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilecc.codegen.cuda.elements import At
from tilecc.codegen.cuda.layout import Layout
from tilecc.codegen.cuda.mathlib import Prim
from tilecc.ir.core import Op, Range, Value
from tilecc.ir.dtypes import I64
from tilecc.ir.expr import Arg, Call, Const, Expr, Extent

if TYPE_CHECKING:
    from tilecc.codegen.cuda.emit import Emitter


class Moving:
    """What a loop's scalars are, as functions of its counter."""

    def __init__(self, loop: Op) -> None:
        self.loop, self.counter = loop, loop.body.args[0]
        self.inside = {v for op in loop.body.walk() for v in op.results} | set(loop.body.args[1:])

    def loads(self) -> Iterator[tuple[Op, tuple[int, ...]]]:
        """Loads, and by how much each of their coordinates grows in an iteration.

        Those in the body, or done until a bound is reached: none is left out between two others.
        Loads that are told where the tensor ends compute their coordinates in any case.
        """
        for op in self.loop.body.ops:
            if op.name == "if" and self._ends_once(op):
                found: Sequence[Op] = op.regions[0].ops
            else:
                found = [op]
            for load in found:
                if load.name == "load" and not load.attrs.get("pad"):
                    slopes = [self.coordinate(load, c) for c in load.attrs["coords"]]
                    if None not in slopes:
                        yield load, tuple(s for s in slopes if s is not None)

    def _ends_once(self, op: Op) -> bool:
        match op.attrs["cond"]:
            case Call("lt", (a, b)):
                growth = self.slope(a, op.operands)
                return growth is not None and growth >= 0 and self.slope(b, op.operands) == 0
        return False

    def coordinate(self, op: Op, c: Range | Expr) -> int | None:
        """The growth of a coordinate; points may be moved into the tensor, and must stand still."""
        slope = self.slope(c.base if isinstance(c, Range) else c, op.operands)
        return slope if isinstance(c, Range) or slope == 0 else None

    def slope(self, e: Expr, operands: Sequence[Value]) -> int | None:
        """By how much an integer grows in each iteration, if it is by the same number."""
        match e:
            case Const() | Extent():
                return 0
            case Arg(k):
                v = operands[k]
                if v is self.counter:
                    return 1
                if v not in self.inside:
                    return 0
                if v.owner is None or v.owner.name != "map" or v.type.axes:
                    return None
                return self.slope(v.owner.expr, v.owner.operands)
            case Call(fn, args):
                return self._of_call(fn, [self.slope(a, operands) for a in args], args)
        return None

    def _of_call(self, fn: str, slopes: list[int | None], args: Sequence[Expr]) -> int | None:
        known = [s for s in slopes if s is not None]
        if len(known) < len(slopes):
            return None
        match fn, args:
            case "add", _:
                return sum(known)
            case "sub", _:
                return known[0] - known[1]
            case "neg", _:
                return -known[0]
            case "mul", (_, Const(by)):
                return known[0] * int(by)
            case "mul", (Const(by), _):
                return known[1] * int(by)
        return None if any(known) else 0

    def at_entry(self, em: Emitter, operands: Sequence[Value], lo: Prim) -> Callable[[Expr], Prim]:
        """Lowers integers over `operands` as they are in the first iteration, number `lo`."""

        def value(v: Value) -> Prim:
            if v is self.counter:
                return lo
            if v not in self.inside:
                return em.read(v, At(_NOWHERE, {}))
            assert v.owner is not None
            return self.at_entry(em, v.owner.operands, lo)(v.owner.expr)

        lowering = replace(
            em.lowering(operands, At(_NOWHERE, {})), arg=lambda k: value(operands[k])
        )
        return lambda e: lowering.lower(e, I64)


_NOWHERE = Layout((), ())


def make_pointers(em: Emitter, loop: Op, lo: Prim) -> None:
    """Pointers for the loads of a loop that is about to start."""
    moving = Moving(loop)
    for op, slopes in moving.loads():
        copy = em.memory.copy_of(op)
        if copy is not None and copy.row_axis is not None:
            copy.place(copy.corner(moving.at_entry(em, op.operands, lo)))
            em.pointers[op] = copy.point(), slopes

"""A streamed axis in parts: what a part is, and whether a kernel can be split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from tilecc.analysis.streams import free_values
from tilecc.errors import Loc
from tilecc.ir.core import Axis, Op, Value
from tilecc.ir.expr import Arg, Expr, Index, Old, add, call, indices, mul, walk
from tilecc.passes.tiling.plan import kernel_axes, rows


@dataclass(frozen=True)
class Parts:
    """Part s of axis `of` is the positions s * chunk <= j < (s + 1) * chunk.

    axis: the axis that counts parts; chunk: positions in a part, a positive number of extents.
    """

    axis: Axis
    of: str
    chunk: Expr

    @property
    def inside(self) -> Expr:
        """Whether position index(of) is in part index(axis)."""
        first, j = mul(Index(self.axis.name), self.chunk), Index(self.of)
        return call("and", call("le", first, j), call("lt", j, add(first, self.chunk)))


@dataclass(frozen=True)
class Obstacle:
    """Why a kernel cannot be split, and the line where that shows."""

    reason: str
    loc: Loc | None


def has_few_rows(kernel: Op, most: int) -> bool:
    """Whether the axes along which tiles share what they read are static, `most` rows together."""
    axes = kernel_axes(kernel)
    sizes = [axes[a].static for a in rows(kernel)]
    return None not in sizes and prod(n or 0 for n in sizes) <= most


def streams_of(kernel: Op) -> list[Op]:
    """The kernel's streams, in order."""
    return [op for op in kernel.body.ops if op.name == "stream"]


def states_of(stream: Op) -> list[Op]:
    """The updates of a stream: all that it carries, whether it gives it or not."""
    return [op for op in stream.body.ops if op.name == "update"]


def obstacle(kernel: Op) -> Obstacle | None:
    """What keeps a kernel with streams from being split over its streamed axis, if anything does.

    States are merged as they are carried: each needs a reducer, and where it reads other states a
    repair that reads nothing but those.
    """
    stream, *more = streams_of(kernel)
    axis = stream.attrs["axis"]
    if more:
        first = ", ".join(f"%{r.name}" for r in stream.results)
        again = next((s for s in more if s.attrs["axis"] == axis), more[0])
        what = "again" if again.attrs["axis"] == axis else f"over {again.attrs['axis']}"
        why = f"the kernel walks {what} after {first}, for want of a repair"
        return Obstacle(why if what == "again" else f"the kernel also walks {what}", again.loc)
    states = {op.result: op for op in states_of(stream)}
    for y in stream.body.terminator.operands:
        if y not in states:
            loc = y.owner.loc if y.owner is not None else stream.loc
            return Obstacle(f"%{y.name} is written for each {axis}", loc)
    for v, update in states.items():
        lacking = [a for a in kernel.attrs["over"] if not v.type.has(a)]
        if lacking:
            return Obstacle(f"the state %{v.name} has no axis {lacking[0]}", update.loc)
        if not _is_summed(update.operands[0], axis, set(stream.body.ops)):
            return Obstacle(f"what %{v.name} gets does not come from {axis}", update.loc)
        moving = _reads_positions(update, stream, states)
        if moving is not None:
            return Obstacle(f"the repair of %{v.name} reads %{moving.name}", update.loc)
    return None


def _is_summed(v: Value, axis: str, inside: set[Op]) -> bool:
    """Whether `v` depends on a reduction over `axis`."""
    op = v.owner
    if op is None or op not in inside or op.name == "update":
        return False
    if op.name in ("reduce", "contract") and axis in op.over:
        return True
    return any(_is_summed(x, axis, inside) for x in op.operands)


def _reads_positions(update: Op, stream: Op, states: Iterable[Value]) -> Value | None:
    """A value that the repair reads and that is no function of states alone, if there is one."""
    repair = update.attrs.get("repair")
    if repair is None:
        return None
    axis = stream.attrs["axis"]
    if axis in indices(repair):
        return update.result
    known, inside = set(states), set(stream.body.ops)

    def moves(v: Value) -> bool:
        if v in known or v.owner not in inside:
            return v.type.has(axis)
        op = v.owner
        steady = op is not None and op.name == "map" and not v.type.has(axis)
        if not steady or op is None or axis in indices(op.expr):
            return True
        return any(moves(x) for x in free_values(op))

    read = {n.k for n in walk(repair) if isinstance(n, Arg | Old)}
    return next((update.operands[k] for k in sorted(read) if moves(update.operands[k])), None)

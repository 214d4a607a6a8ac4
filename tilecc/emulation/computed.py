"""Reads at computed places: what lanes ask for, each for itself, and what data leaves of it.

A warp's lanes that name one place ask for it once. How many do depends on the places, so on data
(a page table) or on positions (a bucket of distances): of the bytes that are requested,

    requested = asked - shared

`asked` is counted from the tile IR alone: every element of every tile that is loaded. Positions
beyond an axis are part of it where their places are computed: some place is read for them. `shared`
is a symbol, which a run gives its value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tilecc.cost.nest import Access
from tilecc.cost.whole import Names
from tilecc.ir.core import Func, Op, Range
from tilecc.ir.expr import arg_numbers, indices

if TYPE_CHECKING:
    from tilecc.cost.report import Report


def at_computed_places(op: Op) -> bool:
    """Whether a load is of no box: a table or a position says where each element is."""
    points = [c for c in op.attrs["coords"] if not isinstance(c, Range)]
    tables = [op.operands[k].type.axes for e in points for k in arg_numbers(e)]
    return any(tables) or any(indices(e) for e in points)


def tensors(func: Func) -> list[str]:
    """Names of those that a tiled program reads at computed places."""
    names = Names(func)
    for op in func.walk():
        if op.name == "alloc":
            names.name(op.result)
    loads = (op for op in func.walk() if op.name == "load" and at_computed_places(op))
    return list(dict.fromkeys(names.name(op.operands[0]) for op in loads))


def asked(cost: Report) -> dict[str, int | None]:
    """Bytes by tensor, of the tensors that are read at computed places.

    None for those of which single elements are read, too: lanes without number ask for these.

    Args:
        cost: a program's, with numbers.
    """
    assert cost.counter is not None
    names, total = Names(cost.tile_func), dict[str, int]()
    computed, single = set[str](), set[str]()
    for a in (a for k in cost.kernels for a in k.accesses):
        name = names.name(a.tensor)
        if a.write:
            continue
        if at_computed_places(a.op):
            computed.add(name)
            a = _whole(a)
        if not a.op.result.type.axes:
            single.add(name)
        (elements,) = cost.counter.elements([a])
        total[name] = total.get(name, 0) + elements * a.tensor.type.dtype.bytes
    return {n: total[n] if n not in single else None for n in total if n in computed}


def _whole(a: Access) -> Access:
    """All elements along axes that are no range of the tensor's."""
    inside = {c.axis for c in a.op.attrs["coords"] if isinstance(c, Range)}
    sizes = {axis.name: axis.static or 0 for axis in a.op.result.type.axes}
    spans = tuple(s for s in a.spans if s.axis in inside)
    here = {s.axis for s in spans}
    return replace(a, spans=spans, whole=tuple((x, n) for x, n in sizes.items() if x not in here))

"""Ranges of loads and stores that are proved to be inside of their tensors, and those that are not.

The tile pass says by `pad` and `clip` along which axes a tile may reach beyond its tensor. Of a
program that a person wrote that is no more than a claim, and a wrong one would be memory read or
overwritten; so it is taken on trust only where it is plain.
"""

from __future__ import annotations

from tilecc.ir.core import Axis, Cloner, Func, Op, Range
from tilecc.ir.expr import Const

_LOOSE = {"load": "pad", "store": "clip"}


def keep_inside(func: Func) -> Func:
    """Tile IR in which all ranges but those that are plainly inside are padded, or clipped."""
    out = Cloner().func(func)
    for op in out.walk():
        if key := _LOOSE.get(op.name):
            tensor = op.operands[0 if op.name == "load" else 1]
            pairs = zip(op.attrs["coords"], tensor.type.axes, strict=True)
            more = [
                c.axis
                for c, a in pairs
                if isinstance(c, Range) and c.axis not in op.attrs[key] and not _inside(op, c, a)
            ]
            op.attrs[key] = (*op.attrs[key], *more)
    return out


def _inside(op: Op, c: Range, a: Axis) -> bool:
    """Whether a range starts at a number, and ends within an extent that is one."""
    tile = op.result if op.name == "load" else op.operands[0]
    if not isinstance(c.base, Const) or a.static is None:
        return False
    return c.base.value >= 0 and c.base.value + tile.type.axis(c.axis).size <= a.static

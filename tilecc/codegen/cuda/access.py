"""What is known of a load or store before it is emitted: boxes, contiguity, units of copies."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING

from tilecc.codegen.cuda.shared import CHUNK, SharedTile
from tilecc.ir.core import Op, Range, Value
from tilecc.ir.expr import Arg, Call, Const, Expr, arg_numbers, indices

if TYPE_CHECKING:
    from tilecc.codegen.cuda.intrinsics import Intrinsics


def memory_order(op: Op) -> list[str]:
    """The axes of a tile that is loaded or stored, in the order of the tensor's axes."""
    found: dict[str, None] = {}
    for c in op.attrs["coords"]:
        e = c.base if isinstance(c, Range) else c
        for k in sorted(arg_numbers(e)):
            found |= dict.fromkeys(op.operands[k].type.names)
        found |= dict.fromkeys(sorted(indices(e)))
        if isinstance(c, Range):
            found[c.axis] = None
    tile = op.operands[0] if op.name == "store" else op.result
    return [a for a in found if tile.type.has(a)]


def divisor(e: Expr, operands: Sequence[Value]) -> int:
    """A number that an integer expression is a multiple of (0: of all)."""
    match e:
        case Const(value):
            return abs(int(value))
        case Call("add" | "sub", (a, b)) | Call("minimum" | "maximum", (a, b)):
            return gcd(divisor(a, operands), divisor(b, operands))
        case Call("mul", (a, b)):
            return divisor(a, operands) * divisor(b, operands)
        case Call("neg", (a,)):
            return divisor(a, operands)
        case Arg(k):
            owner = operands[k].owner
            if owner is not None and owner.name == "map":
                return divisor(owner.expr, owner.operands)
    return 1


def is_uniform(op: Op, c: Range | Expr) -> bool:
    """Whether a coordinate's expression is the same for all elements of the tile."""
    e = c.base if isinstance(c, Range) else c
    return not indices(e) and all(not op.operands[k].type.axes for k in arg_numbers(e))


def copy_unit(op: Op, tile: SharedTile, intrinsics: Intrinsics, aligned: bool) -> int:
    """Bytes that one asynchronous copy of a load moves; 0 if elements go through registers."""
    coords, t = op.attrs["coords"], tile.dtype
    if not intrinsics.has("cp_async_16") or not all(is_uniform(op, c) for c in coords):
        return 0
    ranged = [c.axis for c in coords if isinstance(c, Range)]
    if not ranged or sorted(ranged) != sorted(op.result.type.names):
        return 0
    last = coords[-1]
    alone = t.bytes if t.bytes in (4, 8) else 0
    if not aligned or not isinstance(last, Range) or last.axis != tile.inner:
        return alone
    step = gcd(divisor(last.base, op.operands), dict(tile.axes)[last.axis]) * t.bytes
    return next((n for n in (16, 8, 4) if step % n == 0 and n >= t.bytes), alone)


def goes_by_rows(op: Op) -> bool:
    """Whether a store may write 16 bytes at a time, if the tensor is aligned.

    The tile is a box with the tensor's last axis innermost, in whole units; its elements are the
    tensor's.
    """
    v, tensor = op.operands[:2]
    coords = op.attrs["coords"]
    if not all(is_uniform(op, c) for c in coords) or v.type.dtype is not tensor.type.dtype:
        return False
    ranged = [c.axis for c in coords if isinstance(c, Range)]
    if len(v.type.axes) < 2 or sorted(ranged) != sorted(v.type.names):
        return False
    last = coords[-1]
    if not isinstance(last, Range) or v.type.dtype.bytes > 8:
        return False
    step = gcd(divisor(last.base, op.operands), v.type.axis(last.axis).size)
    return step * v.type.dtype.bytes % CHUNK == 0

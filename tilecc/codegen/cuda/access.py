"""What is known of a load or store before it is emitted: boxes, contiguity, units of copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from tilecc.codegen.cuda.shared import SharedTile
from tilecc.ir.core import Op, Range, Value
from tilecc.ir.expr import Arg, Call, Const, Expr, arg_numbers, indices
from tilecc.target import Target


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


def copy_unit(op: Op, tile: SharedTile, target: Target, aligned: bool) -> int:
    """Bytes that one asynchronous copy of a load moves; 0 if elements go through registers."""
    coords, t = op.attrs["coords"], tile.dtype
    if not target.has("cp.async") or not all(is_uniform(op, c) for c in coords):
        return 0
    ranged = [c.axis for c in coords if isinstance(c, Range)]
    if not ranged or sorted(ranged) != sorted(op.result.type.names):
        return 0
    last = coords[-1]
    alone = t.bytes if t.bytes in (4, 8) else 0
    if not aligned or not isinstance(last, Range) or last.axis != tile.inner:
        return alone
    return _unit(op, last, dict(tile.axes)[last.axis], t.bytes) or alone


def store_unit(op: Op, aligned: bool) -> int:
    """Bytes that one write of a store moves where neighbouring threads write neighbours in memory.

    The tile goes through shared memory then. 0 if each thread had better write the elements that it
    has: the tile is no box of rows, or its elements are not the tensor's. `aligned`: whether the
    tensor is; else units are elements.
    """
    v, tensor = op.operands[:2]
    coords, size = op.attrs["coords"], v.type.dtype.bytes
    if not all(is_uniform(op, c) for c in coords) or v.type.dtype is not tensor.type.dtype:
        return 0
    ranged = [c.axis for c in coords if isinstance(c, Range)]
    if len(v.type.axes) < 2 or sorted(ranged) != sorted(v.type.names):
        return 0
    last = coords[-1]
    if not isinstance(last, Range) or size > 8:
        return 0
    return (aligned and _unit(op, last, v.type.axis(last.axis).size, size)) or size


def _unit(op: Op, last: Range, length: int, size: int) -> int:
    """The most bytes at once, of 16, 8 and 4, that divide rows of `length` elements of `size` bytes
    and where they begin; 0 if none do.
    """
    step = gcd(divisor(last.base, op.operands), length) * size
    return next((n for n in (16, 8, 4) if step % n == 0 and n >= size), 0)


@dataclass(frozen=True)
class Portions:
    """How a tile's rows are shared out to threads, in units of `each` elements.

    `shape`: (axis, size) in memory order. Where a row has no more units than there are threads,
    each thread stays in its column, and `together` rows are copied at once; else that is 0.
    `dense`: units are shared out one after the other where no number of whole rows is for all
    threads, so that a warp's are without a gap, and as well placed as those of the one before.
    """

    shape: tuple[tuple[str, int], ...]
    each: int
    threads: int
    dense: bool = False

    @staticmethod
    def of(tile: SharedTile, unit: int, threads: int, *, dense: bool = False) -> Portions:
        """Those of a tile that is copied `unit` bytes at a time."""
        shape = tuple((a, tile.size(a) if tile.zero else n) for a, n in tile.axes)
        return Portions(shape, unit // tile.dtype.bytes, threads, dense)

    @property
    def columns(self) -> int:
        """Units in a row."""
        return -(-self.shape[-1][1] // self.each)

    @property
    def rows(self) -> int:
        """Rows."""
        return prod(n for _, n in self.shape[:-1])

    @property
    def together(self) -> int:
        """Rows copied at once."""
        if self.dense and self.threads % self.columns:
            return 0
        return self.threads // self.columns

    @property
    def pieces(self) -> int:
        """Units that a thread copies."""
        if self.together:
            return -(-self.rows // self.together)
        return -(-self.rows * self.columns // self.threads)

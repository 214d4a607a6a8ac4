"""Where a streamed axis is cut: a choice from static facts alone.

What a row gives must not depend on what else is in the batch, so parts have a fixed length whatever
the number of rows, heads and threads is. Only kernels with few, static rows are cut unasked: others
have programs enough in their grids, and states as large as their outputs.
"""

from __future__ import annotations

from math import prod

from tilecc.cost.candidates import SMALL, kernels_of
from tilecc.ir.core import Func, Op
from tilecc.passes.splitting.parts import has_few_rows, streams_of
from tilecc.target import Target

# A part reads at least this much: what it costs to begin one, and to write and merge its states, is
# then 2 % of the time or less, and a cache of 64 thousand keys of 64 numbers has 32 parts.
PART_BYTES = 1 << 20
PART_LIMITS = (256, 8192)

Splitting = int | str | None


def split_pass(func: Func, target: Target, split: Splitting, workers: int) -> str:
    """The pass that `split` asks for, as text; "" for none.

    Args:
        func: a loop-level program whose inner extents are numbers.
        split: parts, "auto" (parts of a fixed length where rows are few, on machines with threads),
            "fill" (parts for `workers` threads), or None.
    """
    if split is None:
        return ""
    if split == "fill":
        return f"split{{workers={workers}}}"
    if split == "auto":
        few = any(streams_of(k) and has_few_rows(k, SMALL) for k in kernels_of(func))
        chunk = part_length(func)
        return f"split{{chunk={chunk},rows={SMALL}}}" if few and target.kind == "cpu" else ""
    return f"split{{parts={split}}}"


def part_length(func: Func) -> int:
    """Positions in a part: the least power of two that reads `PART_BYTES`."""
    read = max((_bytes_each(k, s) for k in kernels_of(func) for s in streams_of(k)), default=0)
    low, high = PART_LIMITS
    wanted = -(-PART_BYTES // max(read, 1))
    return min(max(1 << (wanted - 1).bit_length(), low), high)


def _bytes_each(kernel: Op, stream: Op) -> int:
    """Bytes that one position of a stream reads from tensors."""
    axis, walked = stream.attrs["axis"], {*kernel.attrs["over"]}
    read = {
        v
        for op in stream.body.ops
        if op.name != "at"
        for v in op.operands
        if v.type.has(axis) and (v.owner is None or v.owner.name in ("at", "kernel"))
    }
    each = [
        prod(a.static or 1 for a in v.type.axes if a.name not in walked and a.name != axis)
        * v.type.dtype.bytes
        for v in read
    ]
    return sum(each)

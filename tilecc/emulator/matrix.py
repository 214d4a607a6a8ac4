"""ldmatrix: fragments of matrices from shared memory (PTX manual 9.7.14.5).

Lane l gives the address of row l % 8 of matrix l / 8, 16 bytes. Register r of lane l is the pair
of elements at row l / 4 and columns 2 (l % 4) and the next of matrix r; transposed, the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilecc.emulator import access
from tilecc.emulator.context import Context, Mask, UnknownInstruction
from tilecc.emulator.decode import TOGETHER, Modifiers, Step, decode, decoder
from tilecc.emulator.memory import address
from tilecc.emulator.operands import Operand, Stack, Vector, registers
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.types import TYPES, Array
from tilecc.emulator.warp import require_whole_warps

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand


_COUNTS = ("x1", "x2", "x4")


@decoder("ldmatrix")
def load_matrix(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """ldmatrix.sync.aligned.m8n8.xN{.trans}.shared.b16 {d, ...}, [a]."""
    for needed in ("sync", "aligned", "m8n8", "b16"):
        mods.one(needed)
    count = int(mods.one(*_COUNTS)[1])
    transposed = mods.flag("trans")
    space = mods.one("shared", "shared::cta", default="")
    put = ctx.apart(ins, _registers(ins, count), TYPES["b32"])
    where = address(ctx, ins, ins.operands[1])
    if not space or len(ins.operands) != 2:
        raise UnknownInstruction(ins, "a form of ldmatrix")
    site = ctx.site(ins, "read", 4, 4)
    giving = np.arange(32) < 8 * count

    def step(s: Strand, m: Mask) -> None:
        require_whole_warps(s, m, ins)
        chosen = m if count == 4 else np.broadcast_to(giving, s.shape) & (True if m is None else m)
        offsets, good = access.shared_offsets(s, chosen, site, where(s))
        t = s.threads(good)
        at = offsets.ravel() if good is None else offsets[good]
        rows = np.zeros((s.shape[0], 32, 4), np.uint32)
        if len(at):
            access.check_shared_read(s, site, t, at, together=True)
            words = access.load_flat(s.batch.shared, t.cta, at, 4, 4)
            if good is None:
                rows = words
            else:
                rows[good] = words
        put(s, m, _spread(rows.reshape(1, *s.shape, 4), count, transposed))

    return step


def _registers(ins: Instruction, count: int) -> tuple[Operand, ...]:
    first = ins.operands[0]
    found = first.elements if isinstance(first, Vector) else (first,)
    if len(found) != count:
        raise UnknownInstruction(ins, f"{len(found)} registers for {count}")
    return found


def _spread(rows: Array, count: int, transposed: bool) -> Array:
    """Rows (instructions, warps, 32, 4 words) as registers: (instructions * count, warps, 32)."""
    n, warps = rows.shape[:2]
    matrices = rows.reshape(n, warps, 4, 8, 4)[:, :, :count]
    if transposed:
        swapped = matrices.view(np.uint16).swapaxes(3, 4)
        matrices = np.ascontiguousarray(swapped).view(np.uint32)
    return np.ascontiguousarray(matrices.swapaxes(1, 2)).reshape(n * count, warps, 32)


def _load_together(ctx: Context, group: Sequence[Instruction]) -> Step:
    """Several, with no write to shared memory between. One by one where anything is wrong."""
    start = len(ctx.sites)
    alone = [decode(ctx, ins) for ins in group]
    sites = ctx.sites[start:]
    first = group[0]
    count = int(next(x for x in first.modifiers if x in _COUNTS)[1])
    transposed = "trans" in first.modifiers
    addresses = [ins.operands[1] for ins in group]
    where = address(ctx, first, Stack(tuple(addresses)))
    bases = [ctx.index[registers(a)[0]] for a in addresses]
    results = [r for ins in group for r in _registers(ins, count)]
    put = ctx.apart(first, results, TYPES["b32"])

    def step(s: Strand, m: Mask) -> None:
        words = (
            access.read_rows(s, m, sites, bases, where(s)) if m is None or m is s.whole else None
        )
        if words is not None:
            put(s, m, _spread(words, count, transposed))
            return
        for each in alone:
            each(s, m)

    return step


TOGETHER["ldmatrix"] = _load_together

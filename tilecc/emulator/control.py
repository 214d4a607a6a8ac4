"""How a block ends, barriers, and instructions that only order or wait (manual 9.7.12, 9.7.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tilecc.emulator import report
from tilecc.emulator.context import Context, Mask, Source, UnknownInstruction
from tilecc.emulator.decode import Modifiers, Step, check_undefined, decoder
from tilecc.emulator.flow import BARRIERS, Block
from tilecc.emulator.operands import Operand
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.types import TYPES, Array
from tilecc.emulator.warp import ALL, members, require_whole_warps

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand

BLOCKED = 1 << 20
EXIT = 1 << 28
APART = -1
End: TypeAlias = "Callable[[Strand, Mask], int]"
"""Where all go on that ran the block; APART if not at one place."""


def go(s: Strand, m: Mask, rank: int) -> int:
    """Threads go on at a block; behind the last one they are done."""
    to = rank if rank >= 0 else EXIT
    if m is None:
        s.pc[...] = to
    else:
        s.pc[m] = to
    return to


def end_of(ctx: Context, block: Block) -> End:
    """What happens after a block's last instruction.

    Raises:
        UnknownInstruction: a branch or barrier in a form that is not known.
    """
    ins, following = block.terminator, block.following
    if ins is None:
        return lambda s, m: go(s, m, following)
    mods = Modifiers(ins)
    if ins.opcode in BARRIERS:
        end = _barrier(ctx, ins, mods, following)
        mods.finish()
        if ins.predicate is not None:
            raise UnknownInstruction(ins, "a barrier under a predicate")
        return end
    if ins.opcode == "bra":
        mods.flag("uni")
    if ins.opcode == "ret":
        mods.flag("uni")
    mods.finish()
    target = block.target if ins.opcode == "bra" else -1
    if ins.predicate is None:
        return _noted(ins, lambda s, m: go(s, m, target))
    holds = ctx.source(ins, ins.predicate, TYPES["pred"])
    check = check_undefined(ctx, ins, predicate=True)

    to_target = _noted(ins, lambda s, m: go(s, m, target))

    def branch(s: Strand, m: Mask) -> int:
        if check is not None:
            check(s, m)
        p = holds(s)
        taken = p if m is None else p & m
        count = np.count_nonzero(taken)
        if not count:
            return go(s, m, following)
        if count == s.executing:
            return to_target(s, m)
        to_target(s, taken)
        go(s, ~p if m is None else m & ~p, following)
        return APART

    return branch


def _noted(ins: Instruction, end: End) -> End:
    if ins.opcode != "trap":
        return end

    def trap(s: Strand, m: Mask) -> int:
        s.find(report.TRAP, ins, "the kernel gives up")
        return end(s, m)

    return trap


def _barrier(ctx: Context, ins: Instruction, mods: Modifiers, following: int) -> End:
    """bar.sync a{, b} and bar.red.op d, a{, b}, c. `bar` is `barrier.aligned`."""
    mods.one("cta", default="")
    aligned = mods.flag("aligned") or ins.opcode == "bar"
    kind = mods.one("sync", "red")
    operands = list(ins.operands)
    reduce_to = None
    if kind == "red":
        op = mods.one("popc", "and", "or")
        t = mods.type("u" if op == "popc" else "p")
        put = ctx.sink(ins, operands.pop(0), t)
        value = ctx.source(ins, operands.pop(), TYPES["pred"])
        reduce_to = (op, value, put)
    number, count = _barrier_operands(ctx, ins, operands)

    def arrive(s: Strand, m: Mask) -> int:
        if aligned:
            require_whole_warps(s, m, ins, those_left=True)
        s.batch.barriers.wait(s, m, ins, number(s), count(s), reduce_to)
        return go(s, m, BLOCKED + (following if following >= 0 else EXIT - BLOCKED))

    return arrive


def _barrier_operands(
    ctx: Context, ins: Instruction, operands: list[Operand]
) -> tuple[Source, Source]:
    u32 = TYPES["u32"]
    if len(operands) not in (1, 2):
        raise UnknownInstruction(ins, "a form of barrier")
    number = ctx.source(ins, operands[0], u32)
    if len(operands) == 1:
        return number, lambda s: np.zeros((), np.uint32)
    return number, ctx.source(ins, operands[1], u32)


@decoder("bar", "barrier")
def barrier_without_waiting(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """bar.arrive a, b and bar.warp.sync membermask."""
    u32 = TYPES["u32"]
    mods.one("cta", default="")
    if mods.flag("warp"):
        mods.one("sync")
        if len(ins.operands) != 1:
            raise UnknownInstruction(ins, "a form of bar.warp")
        mask = ctx.source(ins, ins.operands[0], u32)
        return lambda s, m: _sync_warps(s, m, ins, mask(s))
    mods.one("arrive")
    aligned = mods.flag("aligned") or ins.opcode == "bar"
    if len(ins.operands) != 2:
        raise UnknownInstruction(ins, "a form of bar.arrive")
    number, count = (ctx.source(ins, o, u32) for o in ins.operands)

    def arrive(s: Strand, m: Mask) -> None:
        if aligned:
            require_whole_warps(s, m, ins, those_left=True)
        s.batch.barriers.arrive(s, m, ins, number(s), count(s))

    return arrive


def _sync_warps(s: Strand, m: Mask, ins: Instruction, mask: Array) -> None:
    executing = members(s, m, ins, mask)
    live = s.live()
    named = np.broadcast_to(mask, s.shape)
    here = np.ones(s.shape, bool) if m is None else m
    rows = here.any(axis=1)
    whole = np.where(here, named == ALL, True).all(axis=1) | (here == live).all(axis=1)
    if not whole[rows].all():
        raise UnknownInstruction(ins, "bar.warp.sync of a part of a warp")
    assert executing.shape == (s.shape[0], 1)
    warps = np.zeros(s.batch.clocks.now.shape, bool)
    warps[s.row_cta, s.row_warp] = rows
    s.batch.clocks.sync_warps(warps)


@decoder("membar", "fence")
def fence(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """Orders a thread's own accesses; here all are executed in order."""
    mods.one("sc", "acq_rel", default="")
    mods.one("cta", "gl", "gpu", "sys")
    return lambda s, m: None


@decoder("nanosleep")
def sleep(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """nanosleep.u32 t: no time passes here."""
    mods.one("u32")
    return lambda s, m: None

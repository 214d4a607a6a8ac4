"""Instructions by which the lanes of a warp exchange values (PTX manual 9.7.9.6, 9.7.13)."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.emulator import report
from tilecc.emulator.context import Context, Mask, UnknownInstruction
from tilecc.emulator.decode import Modifiers, Step, decoder
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.types import TYPES, Array, EmulatorError

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand

LANES = np.arange(32, dtype=np.uint32)
ALL = np.uint32(0xFFFFFFFF)


def bits_of(flags: Array) -> Array:
    """Booleans (..., 32) as one u32 each: (..., 1)."""
    packed = np.packbits(flags, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(np.uint32)


def members(s: Strand, m: Mask, ins: Instruction, mask: Array) -> Array:
    """Lanes that execute, as bits (warps, 1); a member that does not is a finding."""
    if (m is None or m is s.whole) and (mask == ALL).all():
        return np.full((s.shape[0], 1), ALL) if m is None else bits_of(m)
    here = np.ones(s.shape, bool) if m is None else m
    executing = bits_of(here)
    absent = mask & ~executing & bits_of(s.live())
    own = mask >> LANES & np.uint32(1)
    wrong = here & ((absent != 0) | (own == 0))
    if wrong.any():
        at = tuple(int(i[0]) for i in np.nonzero(wrong))
        message = f"{s.thread(at)} names lanes {int(np.broadcast_to(mask, s.shape)[at]):#010x}"
        message += f", but {int(executing[at[0], 0]):#010x} execute"
        s.find(report.DIVERGENT, ins, message, int(wrong.sum()))
    return executing


def require_whole_warps(s: Strand, m: Mask, ins: Instruction, those_left: bool = False) -> None:
    """For .aligned: all lanes of a warp execute (all `those_left`, which have not exited)."""
    if m is None or m is s.whole:
        return
    partial = m.any(axis=1) & ((s.live() & ~m) if those_left else ~m).any(axis=1)
    if partial.any():
        row = int(np.nonzero(partial)[0][0])
        message = f"only {int(m[row].sum())} lanes of {s.warp(row)} execute it"
        s.find(report.DIVERGENT, ins, message, int(partial.sum()))


@decoder("shfl")
def shuffle(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """shfl.sync.mode.b32 d{|p}, a, b, c, membermask."""
    mods.one("sync")
    mode = mods.one("up", "down", "bfly", "idx")
    t = mods.type("b")
    if t.bits != 32 or len(ins.operands) != 5:
        raise UnknownInstruction(ins, "a form of shfl")
    a, b, c, mask = ctx.sources(ins, TYPES["b32"])
    put, put_valid = ctx.pair(ins, t, TYPES["pred"])
    lane = LANES.astype(np.int64)

    def step(s: Strand, m: Mask) -> None:
        executing = members(s, m, ins, mask(s))
        value = np.broadcast_to(a(s), s.shape)
        by, clamp = (b(s) & np.uint32(31)).astype(np.int64), c(s).astype(np.int64)
        segment, bound = clamp >> 8 & 31, clamp & 31
        low = lane & segment
        high = low | bound & ~segment
        at = {
            "up": lane - by,
            "down": lane + by,
            "bfly": lane ^ by,
            "idx": low | by & ~segment & 31,
        }[mode]
        valid = at >= high if mode == "up" else at <= high
        source = np.broadcast_to(np.where(valid, at, lane), s.shape)
        if m is not None:
            heard = executing >> source.astype(np.uint32) & np.uint32(1)
            silent = m & (heard == 0)
            if silent.any():
                message = "a lane reads a lane that does not execute"
                s.find(report.UNDEFINED, ins, message, int(silent.sum()))
        put(s, m, np.take_along_axis(value, source, axis=1))
        if put_valid is not None:
            put_valid(s, m, np.broadcast_to(valid, s.shape))

    return step


@decoder("vote")
def vote(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """vote.sync.{all,any,uni}.pred and .ballot.b32."""
    mods.one("sync")
    mode = mods.one("all", "any", "uni", "ballot")
    t = mods.type("p" if mode != "ballot" else "b")
    if len(ins.operands) != 3 or t.bits not in (8, 32):
        raise UnknownInstruction(ins, "a form of vote")
    put = ctx.sink(ins, ins.operands[0], t)
    p = ctx.source(ins, ins.operands[1], TYPES["pred"])
    mask = ctx.source(ins, ins.operands[2], TYPES["b32"])

    def step(s: Strand, m: Mask) -> None:
        executing = members(s, m, ins, mask(s))
        among = mask(s) & executing
        yes = bits_of(np.broadcast_to(p(s), s.shape)) & among
        out = {
            "all": yes == among,
            "any": yes != 0,
            "uni": (yes == among) | (yes == 0),
            "ballot": yes,
        }[mode]
        put(s, m, np.broadcast_to(out, s.shape))

    return step


@decoder("activemask")
def active_mask(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """activemask.b32 d."""
    t = mods.type("b")
    put = ctx.sink(ins, ins.operands[0], t)

    def step(s: Strand, m: Mask) -> None:
        here = np.ones(s.shape, bool) if m is None else m
        put(s, m, np.broadcast_to(bits_of(here), s.shape))

    return step


_REDUCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "add": (np.add, "us"),
    "min": (np.minimum, "us"),
    "max": (np.maximum, "us"),
    "and": (np.bitwise_and, "b"),
    "or": (np.bitwise_or, "b"),
    "xor": (np.bitwise_xor, "b"),
}


@decoder("redux")
def reduction(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """redux.sync.op.type d, a, membermask."""
    mods.one("sync")
    fn, kinds = _REDUCTIONS[mods.one(*_REDUCTIONS)]
    t = mods.type(kinds)
    if t.bits != 32 or len(ins.operands) != 3:
        raise UnknownInstruction(ins, "a form of redux")
    put = ctx.sink(ins, ins.operands[0], t)
    a, mask = ctx.source(ins, ins.operands[1], t), ctx.source(ins, ins.operands[2], TYPES["b32"])

    def step(s: Strand, m: Mask) -> None:
        lanes = np.broadcast_to(mask(s), s.shape)
        executing = members(s, m, ins, lanes)
        here = np.ones(s.shape, bool) if m is None else m
        value, out = np.broadcast_to(a(s), s.shape), np.zeros(s.shape, t.dtype)
        for row in np.nonzero(here.any(axis=1))[0]:
            for mask_value in np.unique(lanes[row][here[row]]):
                among = int(mask_value) & int(executing[row, 0])
                chosen = [i for i in range(32) if among >> i & 1]
                if not chosen:
                    raise EmulatorError(f"PTX line {ins.line}: no lanes: {ins.text}")
                out[row][lanes[row] == mask_value] = reduce(fn, value[row, chosen])
        put(s, m, out)

    return step

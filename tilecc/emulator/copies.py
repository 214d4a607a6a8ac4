"""cp.async: copies from global to shared memory that land when nobody looks (manual 9.7.9.25)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilecc.emulator import access, global_races, report
from tilecc.emulator.access import Site
from tilecc.emulator.context import Context, Mask, Source, UnknownInstruction
from tilecc.emulator.decode import Modifiers, Step, decoder
from tilecc.emulator.memory import address
from tilecc.emulator.operands import Imm, Reg
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.races import Threads
from tilecc.emulator.spaces import Region
from tilecc.emulator.types import TYPES, Array

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand

_SIZES = {"ca": (4, 8, 16), "cg": (16,)}


@dataclass
class Piece:
    """What a copy reads of one region: `threads` index the copy's arrays, `size` bytes each."""

    region: Region
    threads: Array
    offsets: Array
    size: int


@dataclass
class Copy:
    """An executed cp.async that some threads have not waited for."""

    site: Site
    threads: Threads
    part: Array
    """Which of the strand's threads."""
    group: Array
    """How many groups the thread had committed before: it is done when that one is."""
    offsets: Array
    """In shared memory."""
    pieces: list[Piece]
    landed: bool
    waiting: Array
    """Threads that have not waited yet."""

    def land(self, s: Strand, chosen: Array) -> None:
        """Move the bytes of some threads; what is not read is zero."""
        content = np.zeros((len(self.part), self.site.size), np.uint8)
        for piece in self.pieces:
            index = np.arange(piece.size)
            if piece.size == self.site.size:
                words = access.load_region(piece.region, piece.offsets, 4, piece.size // 4)
                content[piece.threads] = np.ascontiguousarray(words).view(np.uint8)
            else:
                found = piece.region.memory[piece.offsets[:, None] + index]
                content[piece.threads[:, None], index] = found
        words = content.view(np.uint32)
        access.store_flat(
            s.batch.shared, self.threads.cta[chosen], self.offsets[chosen], words[chosen]
        )


@decoder("cp")
def copy_async(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """cp.async in all its forms for sm_80."""
    mods.one("async")
    if mods.flag("commit_group"):
        return _commit
    if mods.flag("wait_all"):
        return _wait_all
    if mods.flag("wait_group"):
        if len(ins.operands) != 1 or not isinstance(ins.operands[0], Imm):
            raise UnknownInstruction(ins, "the number of groups is no number")
        most = ins.operands[0].value
        return lambda s, m: wait(s, m, most)
    return _copy(ctx, ins, mods)


def _copy(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    sizes = _SIZES[mods.one(*_SIZES)]
    mods.one("shared", "shared::cta")
    mods.one("global")
    mods.one("L2::64B", "L2::128B", "L2::256B", default="")
    hint = int(mods.flag("L2::cache_hint"))
    count = len(ins.operands) - hint
    size = ins.operands[2]
    if count not in (3, 4) or not isinstance(size, Imm) or size.value not in sizes:
        raise UnknownInstruction(ins, "a form of cp.async")
    to, of = address(ctx, ins, ins.operands[0]), address(ctx, ins, ins.operands[1])
    taken = _source_size(ctx, ins, size.value) if count == 4 else None
    reads = ctx.site(ins, "read", 4, size.value // 4)
    writes = ctx.site(ins, "write", 4, size.value // 4)

    def step(s: Strand, m: Mask) -> None:
        offsets, m = access.shared_offsets(s, m, writes, to(s))
        if m is not None and not m.any():
            return
        at = offsets.ravel() if m is None else offsets[m]
        t = s.threads(m)
        access.check_shared_write(s, writes, t, at, in_flight=True)
        bytes_read = None if taken is None else np.broadcast_to(taken(s), s.shape)
        pieces = list(_pieces(s, m, reads, of(s), bytes_read))
        group = s.commits.ravel() if m is None else s.commits[m]
        early = s.batch.lands_early()
        everyone = np.ones(len(at), bool)
        copy = Copy(writes, t, s.parts(m), group.copy(), at, pieces, early, everyone)
        if early:
            copy.land(s, everyone)
        s.copies.append(copy)

    return step


def _source_size(ctx: Context, ins: Instruction, size: int) -> Source:
    operand = ins.operands[3]
    if isinstance(operand, Reg) and ctx.function.registers[operand.name] is TYPES["pred"]:
        ignored = ctx.source(ins, operand, TYPES["pred"])
        return lambda s: np.where(ignored(s), 0, size)
    given = ctx.source(ins, operand, TYPES["u32"])

    def bytes_read(s: Strand) -> Array:
        n = given(s).astype(np.int64)
        if (n > size).any():
            s.find(report.OUT_OF_BOUNDS, ins, f"the source size is more than {size}")
        return np.minimum(n, size)

    return bytes_read


def _pieces(s: Strand, m: Mask, site: Site, where: Array, sizes: Array | None) -> list[Piece]:
    index = np.cumsum(np.ones(s.shape, np.int64) if m is None else m).reshape(s.shape) - 1
    found = []
    each = [site.size] if sizes is None else np.unique(sizes if m is None else sizes[m])
    for n in (int(x) for x in each if x > 0):
        part = m
        if sizes is not None and not (sizes == n).all():
            part = sizes == n if m is None else (sizes == n) & m
        smaller = site.resized(n)
        for region, offsets, good in access.by_region(s, part, smaller, where):
            if region.tensor:
                smaller.count_global(region, offsets, good)
            at = offsets.ravel() if good is None else offsets[good]
            threads = index.ravel() if good is None else index[good]
            t = s.threads(good)
            if n == site.size:
                global_races.check_read(s, site, region, t, at)
            else:
                step = 1 << s.launch.granule_shift if n % 2 == 0 else 1
                times = n // step
                many = Threads(*(np.repeat(x, times) for x in (t.cta, t.warp, t.lane)))
                spread = (at[:, None] + np.arange(0, n, step)).ravel()
                global_races.check_read(s, site.resized(step), region, many, spread)
            found.append(Piece(region, threads, at, n))
    return found


def _commit(s: Strand, m: Mask) -> None:
    s.commits = s.commits + (1 if m is None else m)


def _wait_all(s: Strand, m: Mask) -> None:
    _commit(s, m)
    wait(s, m, 0)


def wait(s: Strand, m: Mask, most: int) -> None:
    """Until at most that many of each thread's groups are pending."""
    shadow, shift = s.batch.shadow, s.launch.granule_shift
    committed = s.commits.ravel()
    here = None if m is None else m.ravel()
    left = []
    for copy in s.copies:
        done = copy.waiting & (copy.group < committed[copy.part] - most)
        if here is not None:
            done &= here[copy.part]
        if done.any():
            if not copy.landed:
                copy.land(s, done)
            n = max(1, copy.site.size >> shift)
            shadow.record_write(copy.threads.at(done), copy.offsets[done] >> shift, n)
            copy.waiting = copy.waiting & ~done
        if copy.waiting.any():
            left.append(copy)
    s.copies = left

"""atom and red (PTX manual 9.7.13.5): lanes that meet at an address follow one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.emulator import access, global_races, report
from tilecc.emulator.access import Site
from tilecc.emulator.context import Context, Mask, UnknownInstruction
from tilecc.emulator.decode import Modifiers, Step, decoder
from tilecc.emulator.memory import address
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.types import UNSIGNED, Array, Type

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand

Update = Callable[[Array, list[Array]], Array]
"""What is stored, of what was there and the operands."""

_UPDATES: dict[str, tuple[str, int, Update]] = {
    "add": ("usf", 1, lambda old, b: old + b[0]),
    "min": ("us", 1, lambda old, b: np.minimum(old, b[0])),
    "max": ("us", 1, lambda old, b: np.maximum(old, b[0])),
    "and": ("b", 1, lambda old, b: old & b[0]),
    "or": ("b", 1, lambda old, b: old | b[0]),
    "xor": ("b", 1, lambda old, b: old ^ b[0]),
    "exch": ("b", 1, lambda old, b: b[0]),
    "cas": ("b", 2, lambda old, b: np.where(old == b[0], b[1], old)),
    "inc": ("u", 1, lambda old, b: np.where(old >= b[0], 0, old + 1).astype(old.dtype)),
    "dec": ("u", 1, lambda old, b: np.where((old == 0) | (old > b[0]), b[0], old - 1)),
}


@decoder("atom", "red")
def atomic(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """atom{.order}{.scope}.space.op.type d, [a], b{, c}; red without d."""
    t = mods.type("usbf")
    mods.one("relaxed", "acquire", "release", "acq_rel", default="")
    mods.one("cta", "gpu", "sys", default="")
    space = mods.one("global", "shared::cta", "shared").removesuffix("::cta")
    name = mods.one(*_UPDATES)
    kinds, count, update = _UPDATES[name]
    mods.flag("noftz")
    if t.kind not in kinds or t.bits not in (32, 64):
        raise UnknownInstruction(ins, f"does not take .{t.name}")
    first = 0 if ins.opcode == "red" else 1
    if len(ins.operands) != first + 1 + count:
        raise UnknownInstruction(ins, "wrong number of operands")
    where = address(ctx, ins, ins.operands[first])
    operands = [ctx.source(ins, o, t) for o in ins.operands[first + 1 :]]
    put = ctx.sink(ins, ins.operands[0], t) if first else None
    site = ctx.site(ins, "write", t.bytes, 1)

    def step(s: Strand, m: Mask) -> None:
        values = [np.broadcast_to(f(s), s.shape) for f in operands]
        run = _shared if space == "shared" else _global
        old = run(s, m, site, where(s), values, t, update)
        if put is not None:
            put(s, m, old)

    return step


def _shared(
    s: Strand, m: Mask, site: Site, where: Array, values: list[Array], t: Type, update: Update
) -> Array:
    offsets, m = access.shared_offsets(s, m, site, where)
    threads = s.threads(m)
    at = offsets.ravel() if m is None else offsets[m]
    if not len(at):
        return np.zeros(s.shape, t.dtype)
    fresh = s.batch.shadow.last_writes(threads, at >> s.launch.granule_shift, 1) == 0
    if fresh.any():
        s.find(report.UNINITIALISED, site.ins, "updates what nothing has written")
    access.check_shared_write(s, site, threads, at, atomic=True)
    rows = s.batch.shared.rows(t.bytes, 1)[:, 0].view(t.dtype)
    index = (threads.cta * s.batch.shared.stride + at) // t.bytes
    return _spread(s, m, _in_turn(rows, index, [_taken(m, v) for v in values], update))


def _global(
    s: Strand, m: Mask, site: Site, where: Array, values: list[Array], t: Type, update: Update
) -> Array:
    out = np.zeros(s.shape, t.dtype)
    for region, offsets, part in access.by_region(s, m, site, where):
        if region.tensor:
            site.count_global(region, offsets, part)
        if not region.writable:
            s.find(report.READ_ONLY, site.ins, f"{region.name} may not be written")
            continue
        at = offsets.ravel() if part is None else offsets[part]
        global_races.check_write(s, site, region, s.threads(part), at, atomic=True)
        octets = at[:, None] + np.arange(t.bytes)
        there, index = np.unique(at, return_inverse=True)
        cells = np.ascontiguousarray(region.memory[there[:, None] + np.arange(t.bytes)])
        words = cells.view(UNSIGNED[t.bits])[:, 0].view(t.dtype)
        old = _in_turn(words, index, [_taken(part, v) for v in values], update)
        region.memory[octets] = cells[index]
        out = np.where(True if part is None else part, _spread(s, part, old), out)
    return out


def _taken(m: Mask, values: Array) -> Array:
    out: Array = values.ravel() if m is None else values[m]
    return out


def _spread(s: Strand, m: Mask, values: Array) -> Array:
    return s.spread(m, values[:, None])[0]


def _in_turn(cells: Array, index: Array, values: list[Any], update: Update) -> Array:
    """Update cells, threads in order; what each found there."""
    found = np.zeros(len(index), cells.dtype)
    left = np.arange(len(index))
    while len(left):
        _, first = np.unique(index[left], return_index=True)
        now = left[first]
        found[now] = cells[index[now]]
        cells[index[now]] = update(found[now], [v[now] for v in values])
        left = np.delete(left, first)
    return found

"""ld and st (PTX manual 9.7.9.8, 9.7.9.11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilecc.emulator import access, global_races, report
from tilecc.emulator.access import Site
from tilecc.emulator.context import Context, Mask, Source, UnknownInstruction
from tilecc.emulator.decode import Modifiers, Step, decoder
from tilecc.emulator.operands import Address, Imm, Operand, Reg, Stack, Symbol, Vector
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.spaces import LOCAL_BASE, WINDOWS, space_of
from tilecc.emulator.types import TYPES, UNSIGNED, Array, Type

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand

_ORDER = ("weak", "volatile", "relaxed", "acquire", "release")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_CACHE = ("ca", "cg", "cs", "lu", "cv", "wb", "wt")
_EVICTION = tuple(
    f"L1::{p}"
    for p in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate")
)
_PREFETCH = ("L2::64B", "L2::128B", "L2::256B")
SPACES = ("global", "shared::cta", "shared", "local", "param", "const")


def take_hints(mods: Modifiers) -> int:
    """Take off what changes nothing here; the number of operands that it brings along."""
    if mods.one(*_ORDER, default="weak") in ("relaxed", "acquire", "release"):
        mods.one(*_SCOPES)
    mods.one(*_CACHE, default="")
    mods.one(*_EVICTION, default="")
    mods.one(*_PREFETCH, default="")
    return int(mods.flag("L2::cache_hint"))


def address(ctx: Context, ins: Instruction, operand: Operand) -> Source:
    """Addresses as u64, one a thread; of a stack of registers with offsets one more axis."""
    if isinstance(operand, Stack):
        return _addresses(ctx, ins, [e for e in operand.elements if isinstance(e, Address)])
    if not isinstance(operand, Address):
        raise UnknownInstruction(ins, "expected an address")
    base, offset = operand.base, operand.offset
    if isinstance(base, Symbol | Imm):
        where = ctx.constant(ins, base, TYPES["u64"]) + np.uint64(offset % (1 << 64))
        return lambda s: np.full(s.shape, where)
    if not isinstance(base, Reg) or base.name not in ctx.index:
        raise UnknownInstruction(ins, "an address that is no register")
    width = 32 if ctx.function.registers[base.name].bits == 32 else 64
    source = ctx.source(ins, base, TYPES[f"u{width}"])
    if width == 32:
        # [%r + n] of 32 bits: the sum is a 32-bit address
        shift = np.uint32(offset % (1 << 32))
        return lambda s: (source(s) + shift).astype(np.uint64)
    if offset == 0:
        return source
    far = np.uint64(offset % (1 << 64))
    return lambda s: source(s) + far


def _addresses(ctx: Context, ins: Instruction, operands: list[Address]) -> Source:
    base = operands[0].base
    assert isinstance(base, Reg)
    width = 32 if ctx.function.registers[base.name].bits == 32 else 64
    t = TYPES[f"u{width}"]
    bases = ctx.source(ins, Stack(tuple(o.base for o in operands)), t)
    offsets = np.array([o.offset % (1 << width) for o in operands], t.dtype)[:, None, None]
    return lambda s: (bases(s) + offsets).astype(np.uint64, copy=False)


def load_shared(s: Strand, m: Mask, site: Site, where: Array) -> list[Array]:
    """Words by element, each of the strand's shape."""
    offsets, m = access.shared_offsets(s, m, site, where)
    t = s.threads(m)
    at = offsets.ravel() if m is None else offsets[m]
    if len(at):
        access.check_shared_read(s, site, t, at)
    words = access.load_flat(s.batch.shared, t.cta, at, site.width, site.count)
    return s.spread(m, words)


def store_shared(s: Strand, m: Mask, site: Site, where: Array, values: list[Array]) -> None:
    """Write words by element."""
    offsets, m = access.shared_offsets(s, m, site, where)
    t = s.threads(m)
    at = offsets.ravel() if m is None else offsets[m]
    if not len(at):
        return
    access.check_shared_write(s, site, t, at)
    if not access.store_flat(s.batch.shared, t.cta, at, s.gather(m, values)):
        message = "lanes write different values to the same shared memory"
        s.find(report.RACE, site.ins, message)


def load_global(s: Strand, m: Mask, site: Site, where: Array) -> list[Array]:
    """Words by element, each of the strand's shape."""
    out = [np.zeros(s.shape, UNSIGNED[8 * site.width]) for _ in range(site.count)]
    for region, offsets, part in access.by_region(s, m, site, where):
        if region.tensor:
            site.count_global(region, offsets, part)
        t = s.threads(part)
        at = offsets.ravel() if part is None else offsets[part]
        global_races.check_read(s, site, region, t, at)
        found = s.spread(part, access.load_region(region, at, site.width, site.count))
        if part is None:
            return found
        out = [np.where(part, new, old) for new, old in zip(found, out, strict=True)]
    return out


def store_global(s: Strand, m: Mask, site: Site, where: Array, values: list[Array]) -> None:
    """Write words by element."""
    for region, offsets, part in access.by_region(s, m, site, where):
        if region.tensor:
            site.count_global(region, offsets, part)
        if not region.writable:
            s.find(report.READ_ONLY, site.ins, f"{region.name} may not be written")
            continue
        t = s.threads(part)
        at = offsets.ravel() if part is None else offsets[part]
        global_races.check_write(s, site, region, t, at)
        if not access.store_region(region, at, s.gather(part, values)):
            message = f"lanes write different values to the same element of {region.name}"
            s.find(report.RACE, site.ins, message)


def load_local(s: Strand, m: Mask, site: Site, where: Array) -> list[Array]:
    """Words of each thread's own memory."""
    offsets = where.astype(np.int64) - LOCAL_BASE
    m = access.valid(s, m, site, offsets, s.local.size, 0, "local memory")
    at = offsets.ravel() if m is None else offsets[m]
    part = s.parts(m)
    written = access.load_flat(s.local_written, part, at, site.width, site.count)
    missing = ~written & _used_bits(site)
    if missing.any():
        message = "reads local memory that was not written"
        s.find(report.UNINITIALISED, site.ins, message, int(np.count_nonzero(missing)))
    return s.spread(m, access.load_flat(s.local, part, at, site.width, site.count))


def _used_bits(site: Site) -> Array:
    """Of each word that is loaded, the bits that are used."""
    used = (1 << site.size) - 1 if site.ins.used is None else site.ins.used
    octets = [0xFF * (used >> k & 1) for k in range(site.size)]
    return np.array(octets, np.uint8).view(f"u{site.width}")


def store_local(s: Strand, m: Mask, site: Site, where: Array, values: list[Array]) -> None:
    """Write words of each thread's own memory."""
    offsets = where.astype(np.int64) - LOCAL_BASE
    m = access.valid(s, m, site, offsets, s.local.size, 0, "local memory")
    at = offsets.ravel() if m is None else offsets[m]
    part, words = s.parts(m), s.gather(m, values)
    access.store_flat(s.local, part, at, words)
    access.store_flat(s.local_written, part, at, np.full_like(words, np.iinfo(words.dtype).max))


_LOADS = {"shared": load_shared, "global": load_global, "local": load_local, "const": load_global}
_STORES = {"shared": store_shared, "global": store_global, "local": store_local}


def _by_window(s: Strand, m: Mask, where: Array) -> list[tuple[str, Mask, Array]]:
    """Generic addresses by state space: threads, and addresses in the space."""
    spaces = space_of(where)
    found = []
    for name in np.unique(spaces if m is None else spaces[m]):
        part = spaces == name if m is None else (spaces == name) & m
        found.append((str(name), part, where - np.uint64(WINDOWS[str(name)])))
    return found


def _elements(ins: Instruction, operand: Operand, mods: Modifiers) -> tuple[Operand, ...]:
    count = {"v2": 2, "v4": 4, "": 1}[mods.one("v2", "v4", default="")]
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count:
        raise UnknownInstruction(ins, f"a vector of {len(elements)} for {count}")
    return elements


def _register_type(t: Type) -> Type:
    """Halves are loaded as bits."""
    return TYPES[f"b{t.bits}"] if t.kind in "fx2" and t.bits == 16 else t


@decoder("ld")
def load(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """ld{.space}{.nc}{.v2,.v4}.type d, [a]."""
    t = _register_type(mods.type("usbf"))
    extra = take_hints(mods)
    space = mods.one(*SPACES, default="").removesuffix("::cta")
    if mods.flag("nc") and space != "global":
        raise UnknownInstruction(ins, ".nc is for .global")
    elements = _elements(ins, ins.operands[0], mods)
    if len(ins.operands) != 2 + extra or t.bytes * len(elements) > 16:
        raise UnknownInstruction(ins, "a form of ld")
    sinks = [ctx.sink(ins, e, t) for e in elements]
    if space == "param":
        return _load_param(ctx, ins, t, len(elements))
    where = address(ctx, ins, ins.operands[1])
    site = ctx.site(ins, "read", t.bytes, len(elements))

    def step(s: Strand, m: Mask) -> None:
        if space:
            for put, words in zip(sinks, _LOADS[space](s, m, site, where(s)), strict=True):
                put(s, m, words.view(t.dtype))
            return
        for name, part, at in _by_window(s, m, where(s)):
            for put, words in zip(sinks, _LOADS[name](s, part, site, at), strict=True):
                put(s, part, words.view(t.dtype))

    return step


def _load_param(ctx: Context, ins: Instruction, t: Type, count: int) -> Step:
    operand = ins.operands[1]
    if not isinstance(operand, Address) or not isinstance(operand.base, Symbol):
        raise UnknownInstruction(ins, "a parameter that is not named")
    if operand.base.name not in ctx.symbols:
        raise UnknownInstruction(ins, f"unknown name {operand.base.name}")
    at = ctx.symbols[operand.base.name] + operand.offset
    if at < 0 or at + t.bytes * count > ctx.params or at % t.bytes:
        raise UnknownInstruction(ins, "outside of the parameters")
    destination = ins.operands[0]
    elements = destination.elements if isinstance(destination, Vector) else (destination,)
    sinks = [ctx.sink(ins, e, t) for e in elements]

    def step(s: Strand, m: Mask) -> None:
        values = np.frombuffer(s.launch.params, t.dtype, count, at)
        for put, v in zip(sinks, values, strict=True):
            put(s, m, np.full(s.shape, v))

    return step


@decoder("st")
def store(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """st{.space}{.v2,.v4}.type [a], b."""
    t = _register_type(mods.type("usbf"))
    extra = take_hints(mods)
    space = mods.one("global", "shared::cta", "shared", "local", default="").removesuffix("::cta")
    elements = _elements(ins, ins.operands[1], mods)
    if len(ins.operands) != 2 + extra or t.bytes * len(elements) > 16:
        raise UnknownInstruction(ins, "a form of st")
    bits = TYPES[f"b{t.bits}"] if t.kind != "f" else t
    sources = [ctx.source(ins, e, bits) for e in elements]
    where = address(ctx, ins, ins.operands[0])
    site = ctx.site(ins, "write", t.bytes, len(elements))
    unsigned = UNSIGNED[t.bits]

    def step(s: Strand, m: Mask) -> None:
        values = [np.broadcast_to(f(s), s.shape).view(unsigned) for f in sources]
        if space:
            _STORES[space](s, m, site, where(s), values)
            return
        for name, part, at in _by_window(s, m, where(s)):
            _STORES[name](s, part, site, at, values)

    return step

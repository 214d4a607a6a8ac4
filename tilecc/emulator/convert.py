"""cvt and cvta (PTX manual 9.7.9.21 and following)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilecc.emulator import rounding
from tilecc.emulator.context import Context, UnknownInstruction
from tilecc.emulator.decode import Modifiers, Step, apply, decoder
from tilecc.emulator.integer import saturated
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.spaces import WINDOWS
from tilecc.emulator.types import TYPES, Array, Type, integer_range

_INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_FLOAT = ("rn", "rz", "rm", "rp", "rna")
Convert = Callable[[Array], Array]


@decoder("cvt")
def convert(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """cvt.d.a d, a and cvt.d2.f32 d, a, b, which packs a above b."""
    out, t = mods.types(2)
    if out.kind in "bp" or t.kind in "bp":
        raise UnknownInstruction(ins, "a conversion of bits")
    fn = _conversion(ins, mods, out.half if out.kind == "x2" else out, t)
    put = ctx.sink(ins, ins.operands[0], out)
    if out.kind != "x2":
        if len(ins.operands) != 2:
            raise UnknownInstruction(ins, "takes one source")
        return apply(fn, ctx.sources(ins, t), put)
    if t.name != "f32" or len(ins.operands) != 3:
        raise UnknownInstruction(ins, "a form of cvt")

    def pack(a: Array, b: Array) -> Array:
        high, low = (fn(x).view(np.uint16).astype(np.uint32) for x in (a, b))
        return high << np.uint32(16) | low

    return apply(pack, ctx.sources(ins, t), put)


def _conversion(ins: Instruction, mods: Modifiers, out: Type, t: Type) -> Convert:
    ftz, sat = mods.flag("ftz"), mods.flag("sat")
    if ftz and "f32" not in (out.name, t.name):
        raise UnknownInstruction(ins, "unknown modifier .ftz")
    if t.kind == "f" and out.kind == "f":
        fn = _float_to_float(ins, mods, out, t, plain=ftz or sat)
    elif t.kind == "f":
        fn = _float_to_integer(_INTEGRAL[mods.one(*_INTEGRAL)], out, t)
    elif out.kind == "f":
        fn = _integer_to_float(mods.one(*_FLOAT[:4]), out)
    else:
        return (lambda a: saturated(a, out).astype(out.dtype)) if sat else _truncate(out)
    if sat and out.kind == "f":
        fn = _chain(fn, rounding.saturate)
    if ftz and t.name == "f32":
        fn = _chain(rounding.flush, fn)
    if ftz and out.name == "f32":
        fn = _chain(fn, rounding.flush)
    return fn


def _chain(first: Convert, second: Convert) -> Convert:
    return lambda a: second(first(a))


def _truncate(out: Type) -> Convert:
    return lambda a: a.astype(out.dtype)


def _float_to_integer(to_integral: Convert, out: Type, t: Type) -> Convert:
    """Clamped; NaN to 0, or to the top bit where one side has 64 bits."""
    low, high = integer_range(out)
    above = float(high + 1)
    wide = np.dtype("int64" if out.kind == "s" else "uint64")
    nan = 1 << (out.bits - 1) if t.bits == 64 or out.bits == 64 else 0
    bits = np.dtype(f"uint{out.bits}")

    def fn(a: Array) -> Array:
        x = to_integral(a.astype(np.float64))
        inside = (x >= low) & (x < above)
        value = np.where(inside, x, 0).astype(wide)
        value = np.where(x >= above, wide.type(high), np.where(x < low, wide.type(low), value))
        narrow = value.astype(out.dtype).view(bits)
        return np.where(np.isnan(x), bits.type(nan), narrow).view(out.dtype)

    return fn


def _integer_to_float(mode: str, out: Type) -> Convert:
    def nearest(a: Array) -> Array:
        if out.bits >= 32:
            return a.astype(out.dtype)
        return rounding.narrow(a.astype(np.float64), out.dtype)

    return nearest if mode == "rn" else _directed(nearest, mode)


def _directed(nearest: Convert, mode: str) -> Convert:
    def fn(a: Array) -> Array:
        x = nearest(a)
        rest = a.astype(np.longdouble) - x.astype(np.float64).astype(np.longdouble)
        return rounding.DIRECTED[mode](x, rest.astype(np.float64))

    return fn


def _float_to_float(ins: Instruction, mods: Modifiers, out: Type, t: Type, plain: bool) -> Convert:
    if out.name == "tf32":
        return _to_tf32(ins, mods, t)
    if t.name == "tf32":
        raise UnknownInstruction(ins, "a conversion of .tf32")
    relu = mods.flag("relu")
    if relu and (out.bits != 16 or t.name != "f32"):
        raise UnknownInstruction(ins, "unknown modifier .relu")
    if out.bits > t.bits:
        return lambda a: a.astype(out.dtype)
    if out.name == t.name:
        mode = mods.one(*_INTEGRAL, default="" if plain else None)
        return _INTEGRAL[mode] if mode else np.asarray
    if out.bits == t.bits:
        raise UnknownInstruction(ins, "a conversion between 16-bit types")
    mode = mods.one(*_FLOAT[:4])

    def nearest(a: Array) -> Array:
        if out.bits == 32:
            return a.astype(out.dtype)
        return rounding.narrow(a.astype(np.float64), out.dtype)

    fn = nearest if mode == "rn" else _directed(nearest, mode)
    if relu:
        fn = _chain(lambda a: np.where(a < 0, a.dtype.type(0), a), fn)
    return fn


def _to_tf32(ins: Instruction, mods: Modifiers, t: Type) -> Convert:
    """Ten bits of fraction in 32; the other 13 are zero here."""
    mode = mods.one("rna", "rn", "rz")
    if t.name != "f32":
        raise UnknownInstruction(ins, "a form of cvt")

    def fn(a: Array) -> Array:
        bits = a.view(np.uint32)
        if mode == "rna":
            bits = bits + np.uint32(0x1000)
        elif mode == "rn":
            bits = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
        rounded = (bits & np.uint32(0xFFFFE000)).view(np.float32)
        return np.where(np.isfinite(a), rounded, a)

    return fn


@decoder("cvta")
def convert_address(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """cvta{.to}.space: between generic addresses and those of a state space."""
    t = mods.type("u")
    to = mods.flag("to")
    space = mods.one(*WINDOWS)
    if t.bits != 64:
        raise UnknownInstruction(ins, "addresses are .u64")
    shift = np.uint64(WINDOWS[space])
    put = ctx.sink(ins, ins.operands[0], t)
    (a,) = ctx.sources(ins, t)
    return lambda s, m: put(s, m, a(s) - shift if to else a(s) + shift)


@decoder("isspacep")
def in_space(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """isspacep.space p, a."""
    from tilecc.emulator.spaces import space_of

    space = mods.one(*WINDOWS)
    put = ctx.sink(ins, ins.operands[0], TYPES["pred"])
    (a,) = ctx.sources(ins, TYPES["u64"])
    return lambda s, m: put(s, m, space_of(a(s)) == space)

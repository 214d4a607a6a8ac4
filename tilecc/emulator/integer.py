"""Integer and logic instructions (PTX manual 9.7.1, 9.7.8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilecc.emulator.context import Context, UnknownInstruction
from tilecc.emulator.decode import Modifiers, Step, apply, elementwise
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.types import SIGNED, TYPES, UNSIGNED, Array, Type, integer_range

_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def divide(a: Array, b: Array) -> Array:
    """Quotient towards zero. By zero: all ones (the manual: unspecified)."""
    if a.dtype.kind == "u":
        return np.where(b == 0, ~a.dtype.type(0), a // b)
    rest = np.fmod(a, b)
    return np.where(b == 0, a.dtype.type(-1), (a - rest) // b)


def remainder(a: Array, b: Array) -> Array:
    """What `divide` leaves; it has the sign of a."""
    return np.where(b == 0, a, np.fmod(a, b))


def high_product(a: Array, b: Array) -> Array:
    """The upper half of the product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        product: Array = a.astype(wide) * b.astype(wide) >> wide.type(bits)
        return product.astype(a.dtype)
    x, y = a.view(np.uint64), b.view(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    top = x1 * y1 + (middle >> half) + (x0 * y1 + (middle & low) >> half)
    if a.dtype.kind == "i":
        zero = np.uint64(0)
        top = top - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    out: Array = top.view(a.dtype)
    return out


def arithmetic(ctx: Context, ins: Instruction, mods: Modifiers, t: Type) -> Step:
    """add, sub, min, max and the like on integers."""
    fn, count = _ARITHMETIC[ins.opcode]
    return elementwise(ctx, ins, fn, t, count)


_ARITHMETIC: dict[str, tuple[Callable[..., Any], int]] = {
    "add": (np.add, 2),
    "sub": (np.subtract, 2),
    "min": (np.minimum, 2),
    "max": (np.maximum, 2),
    "div": (divide, 2),
    "rem": (remainder, 2),
    "abs": (np.abs, 1),
    "neg": (np.negative, 1),
}


def multiply(ctx: Context, ins: Instruction, mods: Modifiers, t: Type) -> Step:
    """mul and mad: .lo, .hi, .wide."""
    part = mods.one("lo", "hi", "wide")
    out = TYPES[_WIDE[t.name]] if part == "wide" and t.name in _WIDE else t
    if part == "wide" and out is t:
        raise UnknownInstruction(ins, f".wide of .{t.name}")
    count = 3 if ins.opcode == "mad" else 2
    if len(ins.operands) != count + 1:
        raise UnknownInstruction(ins, f"takes {count} sources")
    a, b = (ctx.source(ins, o, t) for o in ins.operands[1:3])
    put = ctx.sink(ins, ins.operands[0], out)
    product: Callable[[Array, Array], Array] = high_product if part == "hi" else np.multiply
    if part == "wide":

        def product(x: Array, y: Array) -> Array:
            wide: Array = x.astype(out.dtype) * y.astype(out.dtype)
            return wide

    if count == 2:
        return lambda s, m: put(s, m, product(a(s), b(s)))
    c = ctx.source(ins, ins.operands[3], out)
    return lambda s, m: put(s, m, product(a(s), b(s)) + c(s))


def shift(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """shl and shr: amounts of the width and more shift everything out."""
    t = mods.type("usb" if ins.opcode == "shr" else "b")
    if len(ins.operands) != 3:
        raise UnknownInstruction(ins, "takes two sources")
    value, by = ctx.source(ins, ins.operands[1], t), ctx.source(ins, ins.operands[2], TYPES["u32"])
    put = ctx.sink(ins, ins.operands[0], t)
    left, signed = ins.opcode == "shl", t.kind == "s"
    most = np.uint32(t.bits - 1)

    def step(a: Array, n: Array) -> Array:
        amount = np.minimum(n, most).astype(t.dtype)
        shifted: Array = a << amount if left else a >> amount
        return shifted if signed else np.where(n > most, t.dtype.type(0), shifted)

    return apply(step, [value, by], put)


def logic(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """and, or, xor, not, cnot on bits and predicates."""
    t = mods.type("bp")
    fn, count = _LOGIC[ins.opcode]
    return elementwise(ctx, ins, fn, t, count)


_LOGIC: dict[str, tuple[Callable[..., Any], int]] = {
    "and": (np.bitwise_and, 2),
    "or": (np.bitwise_or, 2),
    "xor": (np.bitwise_xor, 2),
    "not": (np.invert, 1),
    "cnot": (lambda a: (a == 0).astype(a.dtype), 1),
}


def lop3(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """Any function of three bits: bit (4a + 2b + c) of the table."""
    t = mods.type("b")
    if t.bits != 32 or len(ins.operands) != 5:
        raise UnknownInstruction(ins, "a form of lop3")
    table = int(ctx.constant(ins, ins.operands[4], TYPES["u32"]))
    put = ctx.sink(ins, ins.operands[0], t)

    def combine(a: Array, b: Array, c: Array) -> Array:
        out = np.zeros_like(a & b & c)
        for k in range(8):
            if table >> k & 1:
                out = out | (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
        return out

    return apply(combine, [ctx.source(ins, o, t) for o in ins.operands[1:4]], put)


def bit_length(a: Array) -> Array:
    """Position of the highest one bit plus one; 0 for 0."""
    if a.dtype.itemsize <= 4:
        return np.frexp(a.astype(np.float64))[1].astype(np.uint32)
    high = (a >> np.uint64(32)).astype(np.uint32)
    low = a.astype(np.uint32)
    return np.where(high != 0, bit_length(high) + np.uint32(32), bit_length(low))


def count_bits(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """popc, clz, bfind: results are u32."""
    shift_amount = ins.opcode == "bfind" and mods.flag("shiftamt")
    t = mods.type("us" if ins.opcode == "bfind" else "b")
    bits = np.uint32(t.bits)

    def find(a: Array) -> Array:
        u = np.where(a < 0, ~a, a).view(UNSIGNED[t.bits]) if t.kind == "s" else a
        at = bit_length(u) - np.uint32(1)
        return np.where(at == ~np.uint32(0), at, bits - np.uint32(1) - at) if shift_amount else at

    fns: dict[str, Callable[[Array], Array]] = {
        "popc": lambda a: np.bitwise_count(a).astype(np.uint32),
        "clz": lambda a: bits - bit_length(a),
        "bfind": find,
    }
    put = ctx.sink(ins, ins.operands[0], TYPES["u32"])
    return apply(fns[ins.opcode], ctx.sources(ins, t), put)


def reverse(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """brev: bits in reverse order."""
    t = mods.type("b")
    table = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)

    def fn(a: Array) -> Array:
        octets = np.ascontiguousarray(a)[..., None].view(np.uint8)
        return np.ascontiguousarray(table[octets][..., ::-1]).view(a.dtype)[..., 0]

    return elementwise(ctx, ins, fn, t, 1)


def extract(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """bfe: a field, sign- or zero-extended."""
    t = mods.type("us")
    wide = (SIGNED if t.kind == "s" else UNSIGNED)[64]
    sources = [ctx.source(ins, o, x) for o, x in zip(ins.operands[1:], _bit_field(t), strict=True)]

    def fn(a: Array, at: Array, length: Array) -> Array:
        at, length = at & np.uint32(255), length & np.uint32(255)
        x = a.astype(wide) >> np.minimum(at, np.uint32(63)).astype(wide)
        if t.kind == "u":
            x = np.where(at > 63, wide.type(0), x)
        cut = np.uint32(64) - np.clip(length, np.uint32(1), np.uint32(64))
        x = x << cut.astype(wide) >> cut.astype(wide)
        out: Array = np.where(length == 0, wide.type(0), x).astype(t.dtype)
        return out

    return apply(fn, sources, ctx.sink(ins, ins.operands[0], t))


def _bit_field(t: Type) -> list[Type]:
    return [t, TYPES["u32"], TYPES["u32"]]


def insert(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """bfi: a's low bits into b."""
    t = mods.type("b")
    types = [t, *_bit_field(t)]
    sources = [ctx.source(ins, o, x) for o, x in zip(ins.operands[1:], types, strict=True)]

    def fn(a: Array, b: Array, at: Array, length: Array) -> Array:
        at, length = at & np.uint32(255), length & np.uint32(255)
        up = np.minimum(at, np.uint32(63)).astype(np.uint64)
        cut = (np.uint32(64) - np.clip(length, np.uint32(1), np.uint32(64))).astype(np.uint64)
        ones = ~np.uint64(0) >> cut << up
        ones = np.where((length == 0) | (at > 63), np.uint64(0), ones)
        out: Array = (b.astype(np.uint64) & ~ones | a.astype(np.uint64) << up & ones).astype(
            t.dtype
        )
        return out

    return apply(fn, sources, ctx.sink(ins, ins.operands[0], t))


def permute(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """prmt: bytes of {b, a} picked by four nibbles; bit 3 replicates the sign."""
    t = mods.type("b")
    if t.bits != 32 or len(ins.operands) != 4:
        raise UnknownInstruction(ins, "a form of prmt")
    u32, u64 = np.uint32, np.uint64

    def fn(a: Array, b: Array, pick: Array) -> Array:
        both = b.astype(u64) << u64(32) | a.astype(u64)
        out = np.zeros((), u32)
        for k in range(4):
            nibble = pick >> u32(4 * k) & u32(15)
            octet = (both >> (nibble & u32(7)).astype(u64) * u64(8) & u64(255)).astype(u32)
            sign = (octet >> u32(7)) * u32(255)
            out = out | np.where(nibble & u32(8), sign, octet) << u32(8 * k)
        return out

    return apply(fn, ctx.sources(ins, t), ctx.sink(ins, ins.operands[0], t))


def funnel(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """shf: {b, a} shifted, its upper (left) or lower (right) half."""
    left = mods.one("l", "r") == "l"
    wrap = mods.one("wrap", "clamp") == "wrap"
    t = mods.type("b")
    if t.bits != 32 or len(ins.operands) != 4:
        raise UnknownInstruction(ins, "a form of shf")

    def fn(a: Array, b: Array, n: Array) -> Array:
        by = (n & np.uint32(31) if wrap else np.minimum(n, np.uint32(32))).astype(np.uint64)
        both = b.astype(np.uint64) << np.uint64(32) | a.astype(np.uint64)
        half = np.uint64(32)
        return (both << by >> half if left else both >> by).astype(np.uint32)

    return apply(fn, ctx.sources(ins, t), ctx.sink(ins, ins.operands[0], t))


def absolute_difference(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """sad: c + |a - b|."""
    t = mods.type("us")
    return elementwise(ctx, ins, lambda a, b, c: c + np.where(a < b, b - a, a - b), t, 3)


def saturated(a: Array, t: Type) -> Array:
    """An integer clamped to a type's range, in its own type."""
    low, high = integer_range(t)
    own = np.iinfo(a.dtype)
    clamped = np.clip(a, a.dtype.type(max(low, own.min)), a.dtype.type(min(high, own.max)))
    return np.asarray(clamped)


OPCODES: dict[str, Callable[[Context, Instruction, Modifiers], Step]] = {
    "shl": shift,
    "shr": shift,
    **dict.fromkeys(_LOGIC, logic),
    "lop3": lop3,
    **dict.fromkeys(("popc", "clz", "bfind"), count_bits),
    "brev": reverse,
    "bfe": extract,
    "bfi": insert,
    "prmt": permute,
    "shf": funnel,
    "sad": absolute_difference,
}

"""Opcodes that mean one thing on integers and another on floats; comparisons and selections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilecc.emulator import floating, integer
from tilecc.emulator.context import Context, UnknownInstruction
from tilecc.emulator.decode import DECODERS, Modifiers, Step, decoder
from tilecc.emulator.operands import Pair
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.rounding import flush
from tilecc.emulator.types import TYPES, Array, Type

DECODERS.update(integer.OPCODES)
DECODERS.update(floating.OPCODES)


@decoder("add", "sub", "mul", "mad", "div", "min", "max", "abs", "neg", "rem", "fma")
def by_type(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """Integer or floating-point arithmetic."""
    t = mods.type("usfx2")
    if t.kind in "us":
        if ins.opcode in ("mul", "mad"):
            return integer.multiply(ctx, ins, mods, t)
        if ins.opcode == "fma":
            raise UnknownInstruction(ins, "fma of integers")
        return integer.arithmetic(ctx, ins, mods, t)
    if ins.opcode == "rem" or t.name == "tf32":
        raise UnknownInstruction(ins, f"does not take .{t.name}")
    return floating.arithmetic(ctx, ins, mods, t)


_NOT_NAN = {"eq": np.equal, "ne": np.not_equal, "lt": np.less}
_NOT_NAN |= {"le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


def _ordered(fn: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: fn(a, b) & ~(np.isnan(a) | np.isnan(b))


def _unordered(fn: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: fn(a, b) | np.isnan(a) | np.isnan(b)


_FLOAT_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    **{name: _ordered(fn) for name, fn in _NOT_NAN.items()},
    **{f"{name}u": _unordered(fn) for name, fn in _NOT_NAN.items()},
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_UNSIGNED_COMPARISONS = {
    **_NOT_NAN,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_BOOLEAN: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _comparison(mods: Modifiers, t: Type) -> Callable[[Array, Array], Array]:
    if t.kind in "fx2":
        fns: dict[str, Any] = _FLOAT_COMPARISONS
        if t.kind == "x2" or t.name == "tf32":
            raise UnknownInstruction(mods.ins, f"does not take .{t.name}")
    elif t.kind == "b":
        fns = {k: _NOT_NAN[k] for k in ("eq", "ne")}
    else:
        fns = _UNSIGNED_COMPARISONS if t.kind == "u" else dict(_NOT_NAN)
    fn: Callable[[Array, Array], Array] = fns[mods.one(*fns)]
    if mods.flag("ftz"):
        if t.kind != "f":
            raise UnknownInstruction(mods.ins, "unknown modifier .ftz")
        return lambda a, b: fn(flush(a), flush(b))
    return fn


@decoder("setp")
def set_predicate(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """setp.cmp{.bool} p{|q}, a, b{, c}: p = cmp(a, b) bool c, q = !cmp(a, b) bool c."""
    t = mods.type("usbf")
    compare = _comparison(mods, t)
    joined = mods.one(*_BOOLEAN, default="")
    if len(ins.operands) != 3 + bool(joined):
        raise UnknownInstruction(ins, "wrong number of operands")
    a, b = (ctx.source(ins, o, t) for o in ins.operands[1:3])
    pred = TYPES["pred"]
    put, put_not = ctx.pair(ins, pred, pred)
    if not joined:
        if put_not is None:
            return lambda s, m: put(s, m, compare(a(s), b(s)))
        other = put_not

        def both(s: Any, m: Any) -> None:
            holds = compare(a(s), b(s))
            put(s, m, holds)
            other(s, m, ~holds)

        return both
    join, c = _BOOLEAN[joined], ctx.source(ins, ins.operands[3], pred)

    def step(s: Any, m: Any) -> None:
        holds, third = compare(a(s), b(s)), c(s)
        put(s, m, join(holds, third))
        if put_not is not None:
            put_not(s, m, join(~holds, third))

    return step


@decoder("set")
def set_value(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """set.cmp.dtype.stype d, a, b: all ones or 1.0 where it holds."""
    out, t = mods.types(2)
    compare = _comparison(mods, t)
    if out.name not in ("u32", "s32", "f32") or len(ins.operands) != 3:
        raise UnknownInstruction(ins, "a form of set")
    true = (
        np.float32(1) if out.kind == "f" else out.dtype.type(-1 if out.kind == "s" else 2**32 - 1)
    )
    a, b = ctx.sources(ins, t)
    put = ctx.sink(ins, ins.operands[0], out)
    return lambda s, m: put(s, m, np.where(compare(a(s), b(s)), true, out.dtype.type(0)))


@decoder("selp")
def select(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """selp d, a, b, p."""
    t = mods.type("usbf")
    if len(ins.operands) != 4:
        raise UnknownInstruction(ins, "takes three sources")
    a, b = (ctx.source(ins, o, t) for o in ins.operands[1:3])
    p = ctx.source(ins, ins.operands[3], TYPES["pred"])
    put = ctx.sink(ins, ins.operands[0], t)
    return lambda s, m: put(s, m, np.where(p(s), a(s), b(s)))


@decoder("slct")
def select_by_sign(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """slct d, a, b, c: a where c >= 0."""
    ftz = mods.flag("ftz")
    t, by = mods.types(2)
    if by.name not in ("s32", "f32") or len(ins.operands) != 4 or (ftz and by.kind != "f"):
        raise UnknownInstruction(ins, "a form of slct")
    a, b = (ctx.source(ins, o, t) for o in ins.operands[1:3])
    c = ctx.source(ins, ins.operands[3], by)
    put = ctx.sink(ins, ins.operands[0], t)
    sign = flush if ftz else np.asarray
    return lambda s, m: put(s, m, np.where(sign(c(s)) >= 0, a(s), b(s)))


_CLASSES: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
}


@decoder("testp")
def test_class(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """testp.class p, a."""
    t = mods.type("f")
    fn = _CLASSES[mods.one(*_CLASSES)]
    if t.bits < 32 or isinstance(ins.operands[0], Pair):
        raise UnknownInstruction(ins, "a form of testp")
    (a,) = ctx.sources(ins, t)
    put = ctx.sink(ins, ins.operands[0], TYPES["pred"])
    return lambda s, m: put(s, m, fn(a(s)))


@decoder("mov")
def move(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """mov: registers, special ones, addresses, packing and unpacking."""
    t = mods.type("usbfp")
    if len(ins.operands) != 2:
        raise UnknownInstruction(ins, "takes one source")
    (a,) = ctx.sources(ins, t)
    put = ctx.sink(ins, ins.operands[0], t)
    return lambda s, m: put(s, m, a(s))

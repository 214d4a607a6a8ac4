"""Floating-point instructions: f32, f64, f16, bf16 and pairs (PTX manual 9.7.3, 9.7.4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tilecc.emulator import rounding
from tilecc.emulator.context import Context, Source, UnknownInstruction
from tilecc.emulator.decode import Modifiers, Step, apply
from tilecc.emulator.operands import Operand
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.rounding import flush
from tilecc.emulator.types import Array, Type

_ROUNDINGS = ("rn", "rz", "rm", "rp")
_COUNT = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "mad": 3, "div": 2, "min": 2, "max": 2}
_COUNT |= {"abs": 1, "neg": 1, "rcp": 1, "sqrt": 1, "rsqrt": 1, "copysign": 2}
_COUNT |= dict.fromkeys(("ex2", "lg2", "sin", "cos", "tanh"), 1)


def float_source(ctx: Context, ins: Instruction, operand: Operand, t: Type) -> Source:
    """An operand as floats; of a pair type as twice as many in the last axis."""
    source = ctx.source(ins, operand, t)
    if t.kind != "x2":
        return source
    half = t.half.dtype
    try:
        constant = ctx.constant(ins, operand, t)
    except UnknownInstruction:
        return lambda s: source(s).view(half)
    both = np.tile(constant.reshape(1).view(half), 32)
    return lambda s: both


def float_step(
    ctx: Context, ins: Instruction, fn: Callable[..., Any], t: Type, ftz: bool, sat: bool = False
) -> Step:
    """d = fn(sources), with subnormals flushed before and after, and saturated."""
    count = _COUNT[ins.opcode]
    if len(ins.operands) != count + 1:
        raise UnknownInstruction(ins, f"takes {count} sources")
    sources = [float_source(ctx, ins, o, t) for o in ins.operands[1:]]
    if ftz:
        sources = [_flushed(f) for f in sources]
    put = ctx.sink(ins, ins.operands[0], t)
    compute = fn
    if sat:
        compute = _then(rounding.saturate, compute)
    if ftz:
        compute = _then(flush, compute)
    if t.kind == "x2":
        compute = _then(lambda x: x.view(t.dtype), compute)
    return apply(compute, sources, put)


def _flushed(f: Source) -> Source:
    return lambda s: flush(f(s))


def _then(after: Callable[[Array], Array], fn: Callable[..., Any]) -> Callable[..., Array]:
    return lambda *values: after(fn(*values))


def maximum(a: Array, b: Array) -> Array:
    """The number if one is NaN; +0 is more than -0."""
    bits = np.dtype(f"uint{8 * a.dtype.itemsize}")
    equal = (a.view(bits) & b.view(bits)).view(a.dtype)
    return np.where(a == b, equal, np.fmax(a, b))


def minimum(a: Array, b: Array) -> Array:
    """The number if one is NaN; -0 is less than +0."""
    bits = np.dtype(f"uint{8 * a.dtype.itemsize}")
    equal = (a.view(bits) | b.view(bits)).view(a.dtype)
    return np.where(a == b, equal, np.fmin(a, b))


def _extreme(opcode: str, nan: bool) -> Callable[[Array, Array], Array]:
    fn = maximum if opcode == "max" else minimum
    if not nan:
        return fn
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), fn(a, b))


def arithmetic(ctx: Context, ins: Instruction, mods: Modifiers, t: Type) -> Step:
    """add, sub, mul, fma, mad, div, min, max, abs, neg on floats."""
    op = ins.opcode
    ftz = mods.flag("ftz")
    if op == "div":
        return _division(ctx, ins, mods, t, ftz)
    if op in ("min", "max"):
        return float_step(ctx, ins, _extreme(op, mods.flag("NaN")), t, ftz)
    if op in ("abs", "neg"):
        return float_step(ctx, ins, np.abs if op == "abs" else np.negative, t, ftz)
    mode = mods.one(*_ROUNDINGS, default="rn")
    sat, relu = mods.flag("sat"), mods.flag("relu")
    fn = _rounded(ins, "fma" if op == "mad" else op, t, mode)
    if relu:
        fn = _then(lambda x: np.where(x <= 0, x.dtype.type(0), x), fn)
    return float_step(ctx, ins, fn, t, ftz, sat)


def _rounded(ins: Instruction, op: str, t: Type, mode: str) -> Callable[..., Any]:
    if mode == "rn":
        fused = {"f32": rounding.fma32, "f64": rounding.fma64}.get(t.name, rounding.fma16)
        nearest: dict[str, Callable[..., Any]] = {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "fma": fused,
        }
        return nearest[op]
    if t.name != "f32":
        raise UnknownInstruction(ins, f".{mode} of .{t.name}")
    directed: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: rounding.add_directed(a, b, mode),
        "sub": lambda a, b: rounding.add_directed(a, -b, mode),
        "mul": lambda a, b: rounding.multiply_directed(a, b, mode),
        "fma": lambda a, b, c: rounding.fma_directed(a, b, c, mode),
    }
    return directed[op]


def approximate_quotient(a: Array, b: Array) -> Array:
    """div.approx: a times 1/b, which is 0 where |b| > 2**126."""
    huge = np.abs(b) > np.float32(2.0**126)
    far = np.where(np.isinf(a), np.float32(np.nan), np.float32(0))
    return np.where(huge & ~np.isnan(a), np.where(np.isinf(b), a / b, far), a / b)


def _division(ctx: Context, ins: Instruction, mods: Modifiers, t: Type, ftz: bool) -> Step:
    kind = mods.one("approx", "full", *_ROUNDINGS)
    if kind in ("approx", "full") and t.name != "f32":
        raise UnknownInstruction(ins, f".{kind} of .{t.name}")
    if kind in ("rn", "full"):
        return float_step(ctx, ins, np.divide, t, ftz)
    if kind == "approx":
        return float_step(ctx, ins, approximate_quotient, t, ftz)
    if t.name != "f32":
        raise UnknownInstruction(ins, f".{kind} of .{t.name}")
    return float_step(ctx, ins, partial(rounding.divide_directed, mode=kind), t, ftz)


def reciprocal(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """rcp, sqrt: approximate or rounded; rsqrt."""
    t = mods.type("f")
    op, kind, ftz = ins.opcode, mods.one("approx", *_ROUNDINGS), mods.flag("ftz")
    if t.name not in ("f32", "f64") or (t.name == "f64" and kind == "approx" and not ftz):
        raise UnknownInstruction(ins, f".{kind} of .{t.name}")
    if op == "rsqrt" and kind != "approx":
        raise UnknownInstruction(ins, "rsqrt is .approx")
    fns: dict[str, Callable[[Array], Array]] = {
        "rcp": lambda a: a.dtype.type(1) / a,
        "sqrt": np.sqrt,
        "rsqrt": lambda a: (1 / np.sqrt(a.astype(np.float64))).astype(a.dtype),
    }
    fn = fns[op]
    if kind in rounding.DIRECTED:
        if t.name != "f32":
            raise UnknownInstruction(ins, f".{kind} of .{t.name}")
        one = np.ones((), np.float32)
        fn = {
            "rcp": lambda a: rounding.divide_directed(one, a, kind),
            "sqrt": lambda a: rounding.root_directed(a, kind),
        }[op]
    return float_step(ctx, ins, fn, t, ftz and t.name == "f32")


_TRANSCENDENTAL: dict[str, tuple[Callable[[Array], Array], frozenset[str]]] = {
    "ex2": (np.exp2, frozenset(["f32", "f16", "f16x2", "bf16", "bf16x2"])),
    "lg2": (np.log2, frozenset(["f32"])),
    "sin": (np.sin, frozenset(["f32"])),
    "cos": (np.cos, frozenset(["f32"])),
    "tanh": (np.tanh, frozenset(["f32", "f16", "f16x2", "bf16", "bf16x2"])),
}


def transcendental(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """ex2, lg2, sin, cos, tanh: .approx, here to the last bit but a few."""
    t = mods.type("fx2")
    mods.one("approx")
    fn, types = _TRANSCENDENTAL[ins.opcode]
    if t.name not in types:
        raise UnknownInstruction(ins, f"does not take .{t.name}")
    ftz = mods.flag("ftz")
    if t.name == "f32":
        return float_step(ctx, ins, fn, t, ftz)
    half = t.half.dtype if t.kind == "x2" else t.dtype

    def through_single(a: Array) -> Array:
        return fn(a.astype(np.float32)).astype(half)

    return float_step(ctx, ins, through_single, t, ftz)


def copy_sign(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """copysign: the sign of a, the magnitude of b."""
    t = mods.type("f")
    return float_step(ctx, ins, lambda a, b: np.copysign(b, a), t, False)


OPCODES: dict[str, Callable[[Context, Instruction, Modifiers], Step]] = {
    **dict.fromkeys(("rcp", "sqrt", "rsqrt"), reciprocal),
    **dict.fromkeys(_TRANSCENDENTAL, transcendental),
    "copysign": copy_sign,
}

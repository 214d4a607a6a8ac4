"""dp4a and dp2a: dot products of bytes within 32-bit registers (PTX manual 9.7.1.23, 9.7.1.24)."""

from __future__ import annotations

import numpy as np

from tilecc.emulator.context import Context, UnknownInstruction
from tilecc.emulator.decode import Modifiers, Step, apply, decoder
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.types import TYPES, Array


@decoder("dp4a", "dp2a")
def dot_product(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """dp4a d, a, b, c: c + the four products of bytes; dp2a: of a's two halves, b's low or high."""
    pairs = ins.opcode == "dp2a"
    first = 2 if pairs and mods.one("lo", "hi") == "hi" else 0
    ta, tb = mods.types(2)
    if {ta.name, tb.name} - {"u32", "s32"} or len(ins.operands) != 4:
        raise UnknownInstruction(ins, "a form of dot product")
    out = TYPES["u32" if {ta.name, tb.name} == {"u32"} else "s32"]
    wide = out.dtype
    elements_a = f"{'i' if ta.kind == 's' else 'u'}{2 if pairs else 1}"
    elements_b = f"{'i' if tb.kind == 's' else 'u'}1"

    def parts(x: Array, kind: str) -> Array:
        whole = np.ascontiguousarray(x)
        return whole.reshape(*whole.shape, 1).view(kind).astype(wide)

    def fn(a: Array, b: Array, c: Array) -> Array:
        x, y = parts(a, elements_a), parts(b, elements_b)
        y = y[..., first : first + x.shape[-1]]
        found: Array = c + (x * y).sum(axis=-1, dtype=wide)
        return found

    types = (ta, tb, out)
    sources = [ctx.source(ins, o, t) for o, t in zip(ins.operands[1:], types, strict=True)]
    return apply(fn, sources, ctx.sink(ins, ins.operands[0], out))

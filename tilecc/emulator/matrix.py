"""ldmatrix and mma.sync: fragments of matrices across the lanes of a warp (manual 9.7.14).

With g = lane / 4, t = lane % 4 and E elements in a 32-bit register, element e of register r is
  A (16 x K): row g + 8 (r % 2), column E t + e + 4 E (r / 2)
  B (K x 8):  row E t + e + 4 E r, column g
  C, D of 32 bits (16 x 8): row g + 8 (r / 2), column 2 t + r % 2
  C, D of 16 bits: row g + 8 r, column 2 t + e
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.emulator import access
from tilecc.emulator.context import Context, Mask, Sink, Source, UnknownInstruction
from tilecc.emulator.decode import Modifiers, Step, decoder
from tilecc.emulator.memory import address
from tilecc.emulator.operands import Operand, Vector
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.types import TYPES, Array
from tilecc.emulator.warp import require_whole_warps

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand


@decoder("ldmatrix")
def load_matrix(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """ldmatrix.sync.aligned.m8n8.xN{.trans}.shared.b16 {d, ...}, [a]."""
    for needed in ("sync", "aligned", "m8n8", "b16"):
        mods.one(needed)
    count = int(mods.one("x1", "x2", "x4")[1])
    transposed = mods.flag("trans")
    space = mods.one("shared", "shared::cta", default="")
    sinks = _registers(ctx, ins, ins.operands[0], count)
    where = address(ctx, ins, ins.operands[1])
    if not space or len(ins.operands) != 2:
        raise UnknownInstruction(ins, "a form of ldmatrix")
    site = ctx.site(ins, "read", 4, 4)
    giving = np.arange(32) < 8 * count

    def step(s: Strand, m: Mask) -> None:
        require_whole_warps(s, m, ins)
        chosen = m if count == 4 else np.broadcast_to(giving, s.shape) & (True if m is None else m)
        offsets, good = access.shared_offsets(s, chosen, site, where(s))
        t = s.threads(good)
        at = offsets.ravel() if good is None else offsets[good]
        rows = np.zeros((s.shape[0], 32, 4), np.uint32)
        if len(at):
            access.check_shared_read(s, site, t, at, together=True)
            words = access.load_flat(s.batch.shared, t.cta, at, 4, 4)
            if good is None:
                rows = words
            else:
                rows[good] = words
        matrices = rows.reshape(s.shape[0], 4, 8, 4)[:, :count]
        if transposed:
            swapped = matrices.view(np.uint16).swapaxes(2, 3)
            matrices = np.ascontiguousarray(swapped).view(np.uint32)
        for i, put in enumerate(sinks):
            put(s, m, matrices[:, i].reshape(s.shape))

    return step


def _registers(ctx: Context, ins: Instruction, operand: Operand, count: int) -> list[Sink]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count:
        raise UnknownInstruction(ins, f"{len(elements)} registers for {count}")
    return [ctx.sink(ins, e, TYPES["b32"]) for e in elements]


@dataclass(frozen=True)
class Shape:
    """A matrix instruction's operand: element type, registers of A and B, what K is."""

    k: int
    a: int
    b: int


_SHAPES: dict[tuple[str, str], Shape] = {
    **{(t, "m16n8k16"): Shape(16, 4, 2) for t in ("f16", "bf16")},
    **{(t, "m16n8k8"): Shape(8, 2, 1) for t in ("f16", "bf16")},
    ("tf32", "m16n8k8"): Shape(8, 4, 2),
    ("tf32", "m16n8k4"): Shape(4, 2, 1),
    **{(t, "m16n8k32"): Shape(32, 4, 2) for t in ("s8", "u8")},
    **{(t, "m16n8k16"): Shape(16, 2, 1) for t in ("s8", "u8")},
}
_ACCUMULATORS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",)}
_ACCUMULATORS |= {"s8": ("s32",), "u8": ("s32",)}


@decoder("mma")
def multiply_accumulate(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """mma.sync.aligned.shape.row.col.d.a.b.c: D = A B + C, products and sums in f32 (or s32)."""
    for needed in ("sync", "aligned", "row", "col"):
        mods.one(needed)
    names = [mods.left.pop() for _ in range(min(4, len(mods.left)))][::-1]
    shape_name = mods.one("m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32")
    if len(names) != 4 or len(ins.operands) != 4:
        raise UnknownInstruction(ins, "a form of mma")
    out, ta, tb, tc = names
    shape = _SHAPES.get((ta, shape_name))
    mixed = {ta, tb} <= {"s8", "u8"}
    if shape is None or out != tc or (ta != tb and not mixed) or out not in _ACCUMULATORS[ta]:
        raise UnknownInstruction(ins, "a combination of shape and types")
    a = _operand(ctx, ins, ins.operands[1], shape.a)
    b = _operand(ctx, ins, ins.operands[2], shape.b)
    half = out == "f16"
    wide = np.dtype(np.int32 if mixed else np.float32)
    words = 2 if half else 4
    c = _operand(ctx, ins, ins.operands[3], words)
    sinks = _registers(ctx, ins, ins.operands[0], words)

    def step(s: Strand, m: Mask) -> None:
        require_whole_warps(s, m, ins)
        left = a_matrix(_elements(s, a, ta))
        right = b_matrix(_elements(s, b, tb))
        add = accumulator(_elements(s, c, out))
        total = left.astype(wide) @ right.astype(wide) + add
        for put, word in zip(sinks, accumulator_words(total, out), strict=True):
            put(s, m, word)

    return step


def _operand(ctx: Context, ins: Instruction, operand: Operand, count: int) -> list[Source]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count:
        raise UnknownInstruction(ins, f"{len(elements)} registers for {count}")
    return [ctx.source(ins, e, TYPES["b32"]) for e in elements]


def _elements(s: Strand, sources: list[Source], name: str) -> Array:
    """Values (registers, warps, 8, 4, elements of a register)."""
    words = np.stack([np.broadcast_to(f(s), s.shape) for f in sources])
    if name == "tf32":
        words = words & np.uint32(0xFFFFE000)  # the low bits are ignored
    values: Array = words.view(TYPES[name].dtype)
    if name in ("f16", "bf16", "tf32"):
        values = values.astype(np.float32)
    return values.reshape(len(sources), s.shape[0], 8, 4, -1)


def a_matrix(values: Array) -> Array:
    """(registers, warps, g, t, e) to (warps, 16, K)."""
    n, warps, g, t, e = values.shape
    parts = values.reshape(n // 2, 2, warps, g, t, e)
    return parts.transpose(2, 1, 3, 0, 4, 5).reshape(warps, 16, -1)


def b_matrix(values: Array) -> Array:
    """(registers, warps, g, t, e) to (warps, K, 8)."""
    return values.transpose(1, 0, 3, 4, 2).reshape(values.shape[1], -1, 8)


def accumulator(values: Array) -> Array:
    """(registers, warps, g, t, e) to (warps, 16, 8)."""
    n, warps, g, t, _ = values.shape
    if n == 2:
        return values.transpose(1, 0, 2, 3, 4).reshape(warps, 16, 8)
    return values.reshape(2, 2, warps, g, t).transpose(2, 0, 3, 4, 1).reshape(warps, 16, 8)


def accumulator_words(matrix: Array, name: str) -> Any:
    """The inverse of `accumulator`: words of each register, (warps, 32) each."""
    warps = len(matrix)
    parts = matrix.reshape(warps, 2, 8, 4, 2)
    if name == "f16":
        halves = np.ascontiguousarray(parts.astype(np.float16).transpose(1, 0, 2, 3, 4))
        return halves.view(np.uint32).reshape(2, warps, 32)
    words = np.ascontiguousarray(parts.transpose(1, 4, 0, 2, 3))
    return words.view(np.uint32).reshape(4, warps, 32)

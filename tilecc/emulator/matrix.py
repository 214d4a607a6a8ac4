"""ldmatrix and mma.sync: fragments of matrices across the lanes of a warp (manual 9.7.14).

With g = lane / 4, t = lane % 4 and E elements in a 32-bit register, element e of register r is
  A (16 x K): row g + 8 (r % 2), column E t + e + 4 E (r / 2)
  B (K x 8):  row E t + e + 4 E r, column g
  C, D of 32 bits (16 x 8): row g + 8 (r / 2), column 2 t + r % 2
  C, D of 16 bits: row g + 8 r, column 2 t + e
So lane after lane (g, t) a register of A holds half the rows, and one of B a part of all columns,
each with its elements along K next to each other.
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
    wide = np.dtype(np.int32 if mixed else np.float32)
    a = _Fragment(ctx, ins, ins.operands[1], shape.a, ta, 2, wide)
    b = _Fragment(ctx, ins, ins.operands[2], shape.b, tb, 1, wide)
    words = 2 if out == "f16" else 4
    c = _operand(ctx, ins, ins.operands[3], words)
    sinks = _registers(ctx, ins, ins.operands[0], words)
    total = _add_halves if out == "f16" else _add_words

    def step(s: Strand, m: Mask) -> None:
        require_whole_warps(s, m, ins)
        product = a.matrix(s) @ b.matrix(s).swapaxes(1, 2)
        for put, word in zip(sinks, total(product, [f(s) for f in c]), strict=True):
            put(s, m, word)

    return step


class _Fragment:
    """A or B of an instruction as matrices. Several instructions in a row take the same one.

    `parts`: how many registers stand for rows (or columns) below each other: 2 of A, 1 of B.
    """

    def __init__(
        self,
        ctx: Context,
        ins: Instruction,
        operand: Operand,
        count: int,
        name: str,
        parts: int,
        wide: np.dtype[Any],
    ) -> None:
        self.sources = _operand(ctx, ins, operand, count)
        self.name, self.parts, self.wide = name, parts, wide
        self.key = operand, name, parts

    def matrix(self, s: Strand) -> Array:
        """A, or B transposed, for each warp in the type that products are made in.

        (warps, 16 or 8, K), K in the order of registers and their elements, the same for both.
        """
        words = [f(s) for f in self.sources]
        known = s.fragments.get(self.key)
        if known is not None and all(x is y for x, y in zip(known[0], words, strict=True)):
            return known[1]
        found = self._arranged(s, words)
        s.fragments[self.key] = words, found
        return found

    def _arranged(self, s: Strand, words: list[Array]) -> Array:
        warps, parts = s.shape[0], self.parts
        lanes = np.empty((warps, parts, 8, len(words) // parts, 4), np.uint32)
        for r, word in enumerate(words):
            lanes[:, r % parts, :, r // parts] = np.broadcast_to(word, s.shape).reshape(-1, 8, 4)
        if self.name == "tf32":
            lanes &= np.uint32(0xFFFFE000)  # the low bits are ignored
        values = lanes.view(TYPES[self.name].dtype).astype(self.wide)
        return values.reshape(warps, 8 * parts, -1)


def _operand(ctx: Context, ins: Instruction, operand: Operand, count: int) -> list[Source]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count:
        raise UnknownInstruction(ins, f"{len(elements)} registers for {count}")
    return [ctx.source(ins, e, TYPES["b32"]) for e in elements]


def _add_words(product: Array, c: list[Array]) -> list[Array]:
    """Registers of (warps, 16, 8) + C, 32 bits each."""
    warps = len(product)
    pairs = product.reshape(warps, 2, 32, 2)
    return [
        (pairs[:, r // 2, :, r % 2] + x.view(product.dtype)).view(np.uint32)
        for r, x in enumerate(c)
    ]


def _add_halves(product: Array, c: list[Array]) -> list[Array]:
    """Registers of (warps, 16, 8) + C, two halves each."""
    warps = len(product)
    parts = product.reshape(warps, 2, 8, 8).transpose(1, 0, 2, 3).reshape(2, warps, 64)
    added = [
        (part + np.broadcast_to(x, (warps, 32)).copy().view(np.float16).astype(np.float32))
        for part, x in zip(parts, c, strict=True)
    ]
    return [x.astype(np.float16).view(np.uint32) for x in added]

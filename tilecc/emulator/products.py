"""mma.sync: products of matrices in fragments across the lanes of a warp (manual 9.7.14).

With g = lane / 4, t = lane % 4 and E elements in a 32-bit register, element e of register r is
  A (16 x K): row g + 8 (r % 2), column E t + e + 4 E (r / 2)
  B (K x 8):  row E t + e + 4 E r, column g
  C, D of 32 bits (16 x 8): row g + 8 (r / 2), column 2 t + r % 2
  C, D of 16 bits: row g + 8 r, column 2 t + e
So lane after lane (g, t) a register of A holds half the rows, and one of B a part of all columns,
each with its elements along K next to each other.

Instructions that are executed together are products of all of some A with all of some B, so that
they are one product: the A below each other, and the B beside each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecc.emulator.context import Context, Mask, UnknownInstruction
from tilecc.emulator.decode import TOGETHER, Modifiers, Step, decoder
from tilecc.emulator.operands import Operand, Vector
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.types import TYPES, Array
from tilecc.emulator.warp import require_whole_warps

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand


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
Grid = list[list[Instruction]]
"""By A, then by B."""


@decoder("mma")
def multiply_accumulate(ctx: Context, ins: Instruction, mods: Modifiers) -> Step:
    """mma.sync.aligned.shape.row.col.d.a.b.c: D = A B + C, products and sums in f32 (or s32)."""
    return _product(ctx, [[ins]], mods)


def _products(ctx: Context, group: Sequence[Instruction]) -> Step:
    steps = []
    for grid in _grids(group):
        mods = Modifiers(grid[0][0])
        steps.append(_product(ctx, grid, mods))
        mods.finish()
    if len(steps) == 1:
        return steps[0]

    def step(s: Strand, m: Mask) -> None:
        for each in steps:
            each(s, m)

    return step


TOGETHER["mma"] = _products


def _grids(group: Sequence[Instruction]) -> list[Grid]:
    """Instructions by A and B, those A together that have the same B."""
    by_a: dict[Operand, list[Instruction]] = defaultdict(list)
    for ins in sorted(group, key=lambda ins: str(ins.operands[2])):
        by_a[ins.operands[1]].append(ins)
    by_b: dict[tuple[Operand, ...], Grid] = defaultdict(list)
    for row in by_a.values():
        by_b[tuple(ins.operands[2] for ins in row)].append(row)
    return list(by_b.values())


def _product(ctx: Context, grid: Grid, mods: Modifiers) -> Step:
    ins = grid[0][0]
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
    a = _Fragment(ctx, [row[0] for row in grid], 1, shape.a, ta, wide)
    b = _Fragment(ctx, grid[0], 2, shape.b, tb, wide)
    every = [each for row in grid for each in row]
    words = 2 if out == "f16" else 4
    c = ctx.together(ins, _elements(every, 3, words), TYPES["b32"])
    put = ctx.apart(ins, _elements(every, 0, words), TYPES["b32"])
    total = _add_halves if out == "f16" else _add_words

    def step(s: Strand, m: Mask) -> None:
        if m is not None and m is not s.whole:
            for each in every:
                require_whole_warps(s, m, each)
        product = a.matrix(s) @ b.matrix(s).swapaxes(1, 2)
        tiles = product.reshape(-1, len(grid), 2, 8, len(grid[0]), 4, 2)
        put(s, m, total(tiles, c(s)))

    return step


def _elements(group: Sequence[Instruction], k: int, count: int) -> tuple[Operand, ...]:
    """Registers of an operand of several instructions, of which each has `count`."""
    found: list[Operand] = []
    for ins in group:
        operand = ins.operands[k]
        each = operand.elements if isinstance(operand, Vector) else (operand,)
        if len(each) != count:
            raise UnknownInstruction(ins, f"{len(each)} registers for {count}")
        found += each
    return tuple(found)


class _Fragment:
    """A or B of instructions as matrices. Several in a row take the same one."""

    def __init__(
        self,
        ctx: Context,
        group: Sequence[Instruction],
        k: int,
        count: int,
        name: str,
        wide: np.dtype[Any],
    ) -> None:
        elements = _elements(group, k, count)
        self.words = ctx.together(group[0], elements, TYPES["b32"])
        self.number, self.count, self.name, self.wide = len(group), count, name, wide
        self.parts = 2 if k == 1 else 1
        """How many registers stand for rows (or columns) below each other."""
        self.key = elements, name, self.parts

    def matrix(self, s: Strand) -> Array:
        """A below each other, or B transposed, for each warp in the type that products have.

        (warps, 16 or 8 each, K), K in the order of registers and their elements.
        """
        words = self.words(s)
        known = s.fragments.get(self.key)
        if known is not None and known[0] is words:
            return known[1]
        warps = s.shape[0]
        shape = (self.number, self.count // self.parts, self.parts, warps, 8, 4)
        lanes = np.ascontiguousarray(words.reshape(shape).transpose(3, 0, 2, 4, 1, 5))
        if self.name == "tf32":
            lanes &= np.uint32(0xFFFFE000)  # the low bits are ignored
        values = lanes.view(TYPES[self.name].dtype).astype(self.wide)
        found = values.reshape(warps, self.number * 8 * self.parts, -1)
        s.fragments[self.key] = words, found
        return found


def _add_words(tiles: Array, c: Array) -> Array:
    """Registers of (warps, A, 2, 8, B, 4, 2) + C, 32 bits each."""
    warps = len(tiles)
    words: Array = tiles.transpose(1, 4, 2, 6, 0, 3, 5).reshape(-1, warps, 32)
    out: Array = (words + c.view(tiles.dtype)).view(np.uint32)
    return out


def _add_halves(tiles: Array, c: Array) -> Array:
    """Registers of (warps, A, 2, 8, B, 4, 2) + C, two halves each."""
    halves = tiles.transpose(1, 4, 2, 0, 3, 5, 6).reshape(-1, len(tiles), 64)
    total = halves + c.view(np.float16).astype(np.float32)
    out: Array = total.astype(np.float16).view(np.uint32)
    return out

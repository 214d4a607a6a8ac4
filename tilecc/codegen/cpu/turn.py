"""Blocks of a tensor turned in registers: rows that lie in memory become lanes, and back.

A tile whose rows are the lanes of vectors is read column by column, which would take a load for
each element. Here as many rows as there are lanes are loaded as vectors, turned by shuffles, and
written as columns: for 8 lanes 8 loads, 24 shuffles and 8 stores for 64 elements.

    turn.v8.i32(source, row, target, column): target[k * column + r] = source[r * row + k]
"""

from __future__ import annotations

import functools
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.isa import Isa
from tilecc.ir.dtypes import DType

Prim = Any

# LLVM's type in memory, its type in registers, and the conversion between them.
_CONVERSIONS: dict[str, tuple[str, str, str]] = {
    "bool": ("i8", "i8", ""),
    "i8": ("i8", "i32", "sext"),
    "u8": ("i8", "i32", "zext"),
    "i16": ("i16", "i32", "sext"),
    "i32": ("i32", "i32", ""),
    "i64": ("i64", "i64", ""),
    "f32": ("i32", "i32", ""),
    "f64": ("i64", "i64", ""),
    "f16": ("half", "float", "fpext"),
    "bf16": ("i16", "i32", "zext"),
    **{f"raw{n}": (f"i{8 * n}", f"i{8 * n}", "") for n in (1, 2, 4, 8)},
}
_BYTES = {"i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8}


def is_turned(t: DType, isa: Isa) -> bool:
    """Whether elements of this type can be turned as they are read from memory."""
    return t.name in _CONVERSIONS and (t.name != "f16" or isa.has_f16c)


def turn(kind: str, lanes: int, source: Prim, row: Prim, target: Prim, column: Prim) -> None:
    """Emit the turning of a block of lanes x lanes elements.

    Args:
        kind: a type, whose elements become those of its register type; or `raw4`, whatever has 4
            bytes.
        source, target: pointers to the first elements.
        row, column: elements between rows of the one, and between columns in the other.
    """
    steps = [x if hasattr(x, "ty") else tirx.const(x, "int64") for x in (row, column)]
    steps = [tirx.Cast("int64", x) for x in steps]
    T.evaluate(tirx.call_extern("void", _name(kind, lanes), source, steps[0], target, steps[1]))


def _name(kind: str, lanes: int) -> str:
    return f"tilecc.turn.v{lanes}.{kind}"


@functools.cache
def library(isa: Isa) -> str:
    """The functions for an instruction set, as LLVM IR."""
    widths = {n for n in (isa.lanes32, isa.lanes32 // 2) if n >= 4}
    kinds = [k for k in _CONVERSIONS if k != "f16" or isa.has_f16c]
    return "\n".join(_function(k, n) for n in sorted(widths) for k in kinds)


def _function(kind: str, lanes: int) -> str:
    memory, register, conversion = _CONVERSIONS[kind]
    wide, narrow = f"<{lanes} x {register}>", f"<{lanes} x {memory}>"
    size, size_out = (_BYTES[x] for x in (memory, register))
    lines = []
    for r in range(lanes):
        lines += [
            f"%so{r} = mul i64 %row, {r}",
            f"%sp{r} = getelementptr {memory}, ptr %source, i64 %so{r}",
            f"%l{r} = load {narrow}, ptr %sp{r}, align {size}",
        ]
        if conversion:
            lines.append(f"%c{r} = {conversion} {narrow} %l{r} to {wide}")
    values = [f"%{'c' if conversion else 'l'}{r}" for r in range(lanes)]
    if kind == "bf16":
        amount = ", ".join(["i32 16"] * lanes)
        lines += [f"%h{r} = shl {wide} {v}, <{amount}>" for r, v in enumerate(values)]
        values = [f"%h{r}" for r in range(lanes)]
    made, columns = shuffles(lanes)
    for n, (a, b, order) in enumerate(made):
        mask = ", ".join(f"i32 {k}" for k in order)
        operands = f"{wide} {values[a]}, {wide} {values[b]}"
        lines.append(f"%x{n} = shufflevector {operands}, <{lanes} x i32> <{mask}>")
        values.append(f"%x{n}")
    for k, v in enumerate(values[c] for c in columns):
        lines += [
            f"%to{k} = mul i64 %column, {k}",
            f"%tp{k} = getelementptr {register}, ptr %target, i64 %to{k}",
            f"store {wide} {v}, ptr %tp{k}, align {size_out}",
        ]
    head = f"define void @{_name(kind, lanes)}(ptr %source, i64 %row, ptr %target, i64 %column)"
    return "\n  ".join([f"{head} alwaysinline nounwind {{", *lines, "ret void"]) + "\n}"


def shuffles(lanes: int) -> tuple[list[tuple[int, int, list[int]]], list[int]]:
    """Shuffles (operand, operand, order) that turn values 0 .. lanes, and which are the columns.

    Their results are numbered on from `lanes`.

    Elements, then pairs, are zipped within quarters of 128 bits, where that is one instruction;
    then whole quarters change places.
    """
    rows, made = list(range(lanes)), []

    def shuffle(a: int, b: int, order: list[int]) -> int:
        made.append((a, b, order))
        return lanes + len(made) - 1

    for size in (1, 2):  # elements that stay together
        out: list[int] = []
        for base in range(0, lanes, 4):
            a, b, c, d = rows[base : base + 4]
            pairs = [(a, b), (c, d)] if size == 1 else [(a, c), (b, d)]
            for x, y in pairs:
                for half in (0, 1):
                    order = []
                    for quarter in range(0, lanes, 4):
                        first = quarter + 2 * half
                        own = list(range(first, first + 2))
                        other = [k + lanes for k in own]
                        zipped = [own[0], other[0], own[1], other[1]]
                        order += zipped if size == 1 else own + other
                    out.append(shuffle(x, y, order))
        rows = out
    # rows[4 q + c] has in its quarter g the column 4 g + c of rows 4 q .. 4 q + 3.
    quarters = lanes // 4
    step = 1
    while step < quarters:
        new = dict.fromkeys(range(lanes), 0)
        for q in (q for q in range(quarters) if not q & step):
            for c in range(4):
                x, y = rows[4 * q + c], rows[4 * (q + step) + c]
                for place, take in ((q, 0), (q + step, step)):
                    order = []
                    for g in range(quarters):
                        source = (g & ~step) | take
                        first = 4 * source + (lanes if g & step else 0)
                        order += range(first, first + 4)
                    new[4 * place + c] = shuffle(x, y, order)
        rows = [new[n] for n in range(lanes)]
        step *= 2
    return made, rows

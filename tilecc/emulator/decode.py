"""Instructions to Python functions, once each.

A step is `step(s, m)`: `s` the strand (the warps that run together, `machine.py`), `m` the threads
that execute it as booleans of shape (warps, 32), or None if all do. Registers are arrays of that
shape that are replaced, never changed in place. Each family of opcodes registers decoders by
opcode; a decoder takes every modifier off the list, and what is left over is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tilecc.emulator.context import Context, Mask, Sink, Source, UnknownInstruction
from tilecc.emulator.flow import written
from tilecc.emulator.operands import Stack, registers
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.report import UNDEFINED
from tilecc.emulator.types import TYPES, Type

if TYPE_CHECKING:
    from tilecc.emulator.machine import Strand

Step: TypeAlias = "Callable[[Strand, Mask], None]"
Decoder: TypeAlias = "Callable[[Context, Instruction, Modifiers], Step]"

DECODERS: dict[str, Decoder] = {}


def decoder(*opcodes: str) -> Callable[[Decoder], Decoder]:
    """Register a decoder for these opcodes."""

    def register(fn: Decoder) -> Decoder:
        DECODERS.update(dict.fromkeys(opcodes, fn))
        return fn

    return register


class Modifiers:
    """The modifiers of one instruction, taken off one by one."""

    def __init__(self, ins: Instruction) -> None:
        self.ins = ins
        self.left = list(ins.modifiers)

    def flag(self, *names: str) -> bool:
        """Whether one of these is there."""
        return self.one(*names, default="") != ""

    def one(self, *names: str, default: str | None = None) -> str:
        """The one of these that is there."""
        for name in names:
            if name in self.left:
                self.left.remove(name)
                return name
        if default is None:
            raise UnknownInstruction(self.ins, f"expected one of .{', .'.join(names)}")
        return default

    def types(self, count: int = 1) -> list[Type]:
        """The types at the end."""
        names, self.left = self.left[-count:], self.left[:-count]
        if len(names) < count or any(n not in TYPES for n in names):
            raise UnknownInstruction(self.ins, f"expected {count} known type(s)")
        return [TYPES[n] for n in names]

    def type(self, kinds: str = "usbfx2p") -> Type:
        """The type at the end, of one of these kinds."""
        (t,) = self.types()
        if t.kind not in kinds:
            raise UnknownInstruction(self.ins, f"does not take .{t.name}")
        return t

    def finish(self) -> None:
        """Nothing may be left."""
        if self.left:
            raise UnknownInstruction(self.ins, f"unknown modifier .{self.left[0]}")


def decode(ctx: Context, ins: Instruction) -> Step:
    """The step of an instruction that is no branch and no barrier, its predicate included.

    Raises:
        UnknownInstruction: an opcode, modifier or operand that is not known.
    """
    if ins.opcode not in DECODERS:
        raise UnknownInstruction(ins, f"unknown opcode {ins.opcode}")
    mods = Modifiers(ins)
    step = DECODERS[ins.opcode](ctx, ins, mods)
    mods.finish()
    return predicated(ctx, ins, _tracked(ctx, ins, step))


Together: TypeAlias = "Callable[[Context, Sequence[Instruction]], Step]"
TOGETHER: dict[str, Together] = {}
"""By opcode, how several are executed as one where stacks for operands do not do."""


def decode_group(ctx: Context, group: Sequence[Instruction]) -> Step:
    """The step of instructions that are executed together (`schedule.py`).

    Raises:
        UnknownInstruction: as `decode`.
    """
    first = group[0]
    if len(group) == 1:
        return decode(ctx, first)
    if first.opcode in TOGETHER:
        return TOGETHER[first.opcode](ctx, group)
    stacks = tuple(Stack(each) for each in zip(*(ins.operands for ins in group), strict=True))
    return decode(ctx, replace(first, operands=stacks))


def check_undefined(ctx: Context, ins: Instruction, predicate: bool) -> Step | None:
    """Reports reads of unassigned registers; None if none can be.

    Args:
        predicate: look at the instruction's predicate, or else at its operands.
    """
    names = ctx.uncertain.get(id(ins), frozenset())
    condition = set(registers(ins.predicate))
    operands = {r for o in ins.operands for r in registers(o)}
    names = names & (condition if predicate else operands)
    if not names:
        return None
    read = [(n, ctx.index[n]) for n in sorted(names)]

    def check(s: Strand, m: Mask) -> None:
        for name, i in read:
            known = s.defined.get(i, False)
            missing = np.broadcast_to(~np.asarray(known), s.shape)
            missing = missing if m is None else missing & m
            if missing.any():
                at = tuple(int(x[0]) for x in np.nonzero(missing))
                message = f"{s.thread(at)} reads {name}, which it has not assigned"
                s.find(UNDEFINED, ins, message, int(missing.sum()))

    return check


def _tracked(ctx: Context, ins: Instruction, step: Step) -> Step:
    """`step` with checks of what it reads and notes of what it assigns."""
    check = check_undefined(ctx, ins, predicate=False)
    assigned = [ctx.index[n] for n in written(ins) if n in ctx.tracked]
    if check is None and not assigned:
        return step

    def checked(s: Strand, m: Mask) -> None:
        if check is not None:
            check(s, m)
        step(s, m)
        for i in assigned:
            s.defined[i] = np.ones(s.shape, bool) if m is None else s.defined.get(i, False) | m

    return checked


def predicated(ctx: Context, ins: Instruction, step: Step) -> Step:
    """`step` for the threads whose predicate holds."""
    if ins.predicate is None:
        return step
    holds = ctx.source(ins, ins.predicate, TYPES["pred"])
    check = check_undefined(ctx, ins, predicate=True)

    def guarded(s: Strand, m: Mask) -> None:
        if check is not None:
            check(s, m)
        p = holds(s)
        if m is not None:
            p = p & m
        elif p.all():
            step(s, None)
            return
        if p.any():
            step(s, p)

    return guarded


def elementwise(
    ctx: Context, ins: Instruction, fn: Callable[..., Any], t: Type, count: int
) -> Step:
    """d = fn(a, b, ...) on `count` values of a type."""
    sources = ctx.sources(ins, t)
    if len(sources) != count:
        raise UnknownInstruction(ins, f"takes {count} sources")
    return apply(fn, sources, ctx.sink(ins, ins.operands[0], t))


def apply(fn: Callable[..., Any], sources: list[Source], put: Sink) -> Step:
    """The step that puts fn of the sources."""
    if len(sources) == 1:
        (a,) = sources
        return lambda s, m: put(s, m, fn(a(s)))
    if len(sources) == 2:
        a, b = sources
        return lambda s, m: put(s, m, fn(a(s), b(s)))
    return lambda s, m: put(s, m, fn(*[f(s) for f in sources]))

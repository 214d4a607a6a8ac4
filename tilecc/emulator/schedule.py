"""A block's instructions in another order: what does the same to other registers, together.

A numpy call costs more than what it computes for a few warps. So instructions of one form that do
not wait for each other are executed as one, on registers stacked above each other. Only registers
order instructions that compute; those with effects beyond registers keep their order.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence

from tilecc.emulator.operands import Address, FloatImm, Imm, Operand, Reg, Vector
from tilecc.emulator.ptx import Instruction
from tilecc.emulator.types import Type

_COMPUTING = frozenset(
    [
        *("add", "sub", "mul", "mad", "fma", "div", "min", "max", "abs", "neg", "mov", "cvt"),
        *("setp", "selp", "shl", "shr", "and", "or", "xor", "not"),
        *("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "mma", "shfl"),
    ]
)
"""No effect but on registers. What of these has no form below is executed alone."""
_ALONE = frozenset(["shfl"])
_MATRICES = frozenset(["mma", "ldmatrix"])
_NUMBER = "a number"
Group = list[Instruction]
Form = tuple[object, ...]


class Forms:
    """Which instructions of a function can be executed together: those of the same form."""

    def __init__(
        self, registers: Mapping[str, Type], checked: Container[int], apart: Container[str]
    ) -> None:
        self.registers = registers
        self.checked = checked
        """Instructions (by `id`) of which some read is checked."""
        self.apart = apart
        """Registers of which it is kept where they are assigned."""

    def of(self, ins: Instruction, local: Container[str]) -> Form | None:
        """What those that are executed together have in common; None: executed alone."""
        if ins.predicate is not None or id(ins) in self.checked or ins.opcode in _ALONE:
            return None
        if ins.opcode not in _COMPUTING and ins.opcode not in _MATRICES:
            return None
        kinds = [self._kind(o, ins.opcode in _MATRICES) for o in ins.operands]
        if not kinds or None in kinds:
            return None
        if _NUMBER in kinds and any(m.endswith("x2") for m in ins.modifiers):
            return None
        first = ins.operands[0]
        results = first.elements if isinstance(first, Vector) else (first,)
        names = [r.name for r in results if isinstance(r, Reg)]
        if len(names) < len(results) or any(n in self.apart for n in names):
            return None
        return (ins.opcode, ins.modifiers, tuple(kinds), all(n in local for n in names))

    def _kind(self, operand: Operand, of_matrices: bool) -> str | None:
        if isinstance(operand, Reg):
            known = self.registers.get(operand.name)
            return None if known is None or operand.negated else known.storage.str
        if isinstance(operand, Imm | FloatImm) and not of_matrices:
            return _NUMBER
        parts: tuple[Operand, ...] = ()
        if of_matrices and isinstance(operand, Vector):
            parts = operand.elements
        elif of_matrices and isinstance(operand, Address):
            parts = (operand.base,)
        kinds = [self._kind(p, True) for p in parts]
        return " ".join(k for k in kinds if k) if kinds and None not in kinds else None


class _Order:
    """What must come before what, within one block."""

    def __init__(
        self, body: Sequence[Instruction], touched: Sequence[tuple[list[str], list[str]]]
    ) -> None:
        self.after: list[set[int]] = [set() for _ in body]
        self.missing = [0] * len(body)
        self.effects: list[int] = []
        self.tied: set[int] = set()
        """Effects that registers order after the one before, too."""
        writer: dict[str, int] = {}
        readers: dict[str, list[int]] = defaultdict(list)
        for i, (ins, (reads, writes)) in enumerate(zip(body, touched, strict=True)):
            before = {writer[r] for r in reads if r in writer}
            if ins.predicate is not None or ins.opcode == "ld":
                before |= {writer[w] for w in writes if w in writer}
            for w in writes:
                before.update(readers[w], [writer[w]] if w in writer else [])
            if ins.opcode not in _COMPUTING:
                if before.intersection(self.effects[-1:]):
                    self.tied.add(i)
                before.update(self.effects[-1:])
                self.effects.append(i)
            before.discard(i)
            for r in reads:
                readers[r].append(i)
            for w in writes:
                writer[w] = i
                readers[w] = []
            self.missing[i] = len(before)
            for b in before:
                self.after[b].add(i)

    def urgency(self) -> list[int]:
        """By instruction, the first one with an effect that waits for it."""
        never = len(self.missing)
        found = [never] * never
        for i in self.effects:
            found[i] = i
        for i in reversed(range(never)):
            found[i] = min([found[i], *(found[j] for j in self.after[i])])
        return found

    def done(self, i: int) -> Iterable[int]:
        """Those that wait for nothing any more, now that `i` is executed."""
        for j in sorted(self.after[i]):
            self.missing[j] -= 1
            if not self.missing[j]:
                yield j


def groups(
    body: Sequence[Instruction],
    touched: Sequence[tuple[list[str], list[str]]],
    forms: Sequence[Form | None],
) -> list[Group]:
    """Instructions of a block in the order in which, and with which, they are executed.

    Args:
        body: the block.
        touched: registers that each reads and writes.
        forms: of each, from `Forms`.
    """
    order = _Order(body, touched)
    urgency = order.urgency()
    waiting: dict[object, list[int]] = defaultdict(list)
    first: list[tuple[int, int]] = []

    def ready(i: int) -> None:
        waiting[forms[i] or i].append(i)
        heapq.heappush(first, (urgency[i], i))

    for i, n in enumerate(order.missing):
        if not n:
            ready(i)
    done = [False] * len(body)
    found: list[Group] = []
    while first:
        _, i = heapq.heappop(first)
        if done[i]:
            continue
        members = sorted(waiting.pop(forms[i] or i))
        if body[i].opcode not in _COMPUTING:
            members = _run_of_effects(order, forms, i)
        for j in members:
            done[j] = True
        for j in members:
            for k in order.done(j):
                if not done[k]:
                    ready(k)
        found.append([body[j] for j in members])
    return found


def _run_of_effects(order: _Order, forms: Sequence[Form | None], i: int) -> list[int]:
    """An instruction with an effect, and those of its form that follow with no other between."""
    members = [i]
    if forms[i] is None:
        return members
    at = order.effects.index(i)
    for j in order.effects[at + 1 :]:
        if forms[j] != forms[i] or order.missing[j] != 1 or j in order.tied:
            break
        members.append(j)
    return members

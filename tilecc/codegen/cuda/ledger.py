"""What a kernel takes of an SM, from its plan: known before there is code, and without TVM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilecc.codegen.cuda.arrange import arrange
from tilecc.codegen.cuda.hazards import place_barriers
from tilecc.codegen.cuda.plan import Plan
from tilecc.codegen.cuda.steps import Item, Loop, Registers, Step
from tilecc.ir.core import Func, Value
from tilecc.target import Target


@dataclass(frozen=True)
class Room:
    """What a block of a kernel needs.

    shared: bytes of shared memory that it is launched with. registers: 32-bit ones of a thread that
    hold elements of tiles, at the step where most do. threads: of the block.
    """

    shared: int
    registers: int
    threads: int


def rooms(func: Func, target: Target) -> tuple[Room, ...]:
    """What each kernel of tile IR needs, as it would be compiled (after `pipeline`).

    Raises:
        CompileError: there is no code for an operation.
    """
    return tuple(_room(Plan(op, target)) for op in func.body.ops if op.name == "kernel")


def _room(plan: Plan) -> Room:
    arrange(plan)
    return Room(place_barriers(plan), _Lives(plan).most(), plan.roles.threads)


@dataclass
class _Life:
    """When a value is in registers: it is there after position `first`, and not after `last`."""

    words: int
    first: int
    last: int


@dataclass
class _Lives:
    """When the values in registers of a plan are in use, positions counted over all steps."""

    plan: Plan
    lives: dict[Value, _Life] = field(default_factory=dict)
    at: int = 0

    def most(self) -> int:
        """The most registers of a thread that values take at once."""
        self._block(self.plan.items)
        change: dict[int, int] = {}
        for life in self.lives.values():
            change[life.first] = change.get(life.first, 0) + life.words
            change[life.last] = change.get(life.last, 0) - life.words
        most = held = 0
        for at in sorted(change):
            held += change[at]
            most = max(most, held)
        return most

    def _block(self, items: Sequence[Item]) -> None:
        for item in items:
            self.at += 1
            if isinstance(item, Step):
                self._step(item)
            elif isinstance(item, Loop):
                self._loop(item)
            else:
                for side in (item.then, item.other):
                    self._block(side)
                for v in item.op.results:
                    self._made(v)

    def _step(self, step: Step) -> None:
        op, v = step.op, step.value
        match step.kind:
            case "start" if v is not None:
                self._read([op.operands[op.body.args.index(v) - 1]])
                self._made(v)
            case "yield":
                self._read(op.body.terminator.operands)
            case "join":
                self._read(op.regions[step.side].terminator.operands)
            case "copy" | "stage" if v is not None:
                self._read([v])
            case _:
                self._read(op.operands)
                for r in op.results:
                    self._made(r)

    def _loop(self, item: Loop) -> None:
        first, before = self.at, dict(self.lives)
        self._block(item.body)
        self.at += 1
        for v, life in before.items():  # what is read in one iteration is kept for the next
            if life.last > first and v not in item.op.body.args:
                life.last = self.at
        for v, end in zip(item.op.body.args[1:], item.op.body.terminator.operands, strict=True):
            if v is end and v in self.lives:
                self.lives[v].last = self.at
        for v in item.op.results:
            self._made(v)

    def _made(self, v: Value) -> None:
        home = self.plan.homes.get(v)
        if isinstance(home, Registers):
            self.lives[v] = _Life(_words(v, home), self.at, self.at)

    def _read(self, values: Iterable[Value]) -> None:
        for v in values:
            if v in self.lives:
                self.lives[v].last = max(self.lives[v].last, self.at)
            elif self.plan.homes.get(v) == "inline" and v.owner is not None:
                self._read(v.owner.operands)


def _words(v: Value, home: Registers) -> int:
    """32-bit registers of a thread."""
    if home.packed:
        return home.layout.count // 2
    return home.layout.count * max(1, v.type.dtype.bytes // 4)

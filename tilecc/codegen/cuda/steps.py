"""What a plan is made of: homes of values, and steps, loops and branches to emit."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilecc.codegen.cuda.layout import Layout
from tilecc.codegen.cuda.shared import SharedTile
from tilecc.ir.core import Op, Value


@dataclass(frozen=True)
class Registers:
    """A tile in registers; `packed`: 16-bit floats two to a register, along the source c."""

    layout: Layout
    packed: bool = False

    @property
    def words(self) -> int:
        """Registers of a thread, if elements have 32 bits where they are not packed."""
        return self.layout.count // 2 if self.packed else self.layout.count


@dataclass(eq=False)
class Step:
    """Something to emit. `kind` says what, `reads` and `writes` are tiles in shared memory.

    `fenced`: there is a barrier between its writes and its reads. `barrier`, `wait`: what the
    analysis of hazards puts before it.
    """

    kind: str
    op: Op
    value: Value | None = None
    reads: list[SharedTile] = field(default_factory=list)
    writes: list[SharedTile] = field(default_factory=list)
    fenced: bool = False
    barrier: bool = False
    wait: bool = False
    side: int = 0
    """Which region of an `if` ends here."""
    along: list[Step] = field(default_factory=list)
    """Loads whose copies are started between the instructions of this one."""


@dataclass(eq=False)
class Loop:
    """A `for` and its body; `carried` tiles keep their contents from one iteration to the next."""

    op: Op
    body: list[Item]
    carried: list[SharedTile] = field(default_factory=list)


@dataclass(eq=False)
class Branch:
    """An `if`."""

    op: Op
    then: list[Item]
    other: list[Item]
    barrier: bool = False
    wait: bool = False


Item = Step | Loop | Branch
Home = Registers | SharedTile | str
"""Registers, a tile in shared memory, "cell" (a scalar), "inline" (a map that readers compute)."""

"""Copies that are started between the instructions of a product.

Copies and a product's reads of its operands go through the same unit. In front of the product they
would keep tensor cores waiting; between its instructions there is time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cuda.copies import UNROLLED, Copy
from tilecc.codegen.cuda.plan import Plan
from tilecc.codegen.cuda.shared import SharedTile
from tilecc.codegen.cuda.steps import Branch, Item, Loop, Step
from tilecc.ir.core import Op

if TYPE_CHECKING:
    from tilecc.codegen.cuda.emit import Emitter


def put_off(plan: Plan, items: list[Item]) -> None:
    """Let loads that a product on tensor cores follows go along with it, throughout a block."""
    waiting: list[Step] = []
    kept: list[Item] = []
    for item in items:
        match item:
            case Loop():
                put_off(plan, item.body)
            case Branch():
                put_off(plan, item.then)
                put_off(plan, item.other)
            case Step(kind="load") if item.writes[0].asynchronous and not (
                waiting and item.barrier
            ):
                waiting.append(item)
                continue
            case Step(kind="scalar" | "start") if not item.barrier and not item.reads:
                kept.append(item)
                continue
            case Step(kind="contract") if item.op in plan.matrices and not item.barrier:
                if waiting:
                    item.along, item.barrier, item.wait = (
                        waiting,
                        waiting[0].barrier,
                        waiting[0].wait,
                    )
                    waiting = []
        kept += waiting
        waiting = []
        kept.append(item)
    items[:] = [*kept, *waiting]


def is_predicable(item: Branch, plan: Plan) -> bool:
    """Whether an `if` does no more than to start asynchronous copies, on its first side.

    Then they go under a predicate, which leaves the code around them in one block.
    """

    def moves_nothing(s: Item) -> bool:
        if not isinstance(s, Step) or s.kind != "join" or s.reads:
            return False
        return all(isinstance(plan.homes[v], SharedTile) for v in s.op.results)

    def copies(s: Item) -> bool:
        if not isinstance(s, Step) or s.barrier:
            return False
        scalar = s.kind == "scalar" and s.op.name == "map"
        return scalar or (s.kind == "load" and s.writes[0].asynchronous)

    return all(map(moves_nothing, item.other)) and all(
        copies(s) or moves_nothing(s) for s in item.then
    )


class Interleaved:
    """The copies of some loads, to be started while `op` is under way."""

    def __init__(self, em: Emitter, op: Op, loads: Sequence[Step]) -> None:
        self.em, self.op = em, op
        self.copies: list[tuple[Op, Copy]] = []
        for load in loads:
            em.mark(load.op)
            copy = em.memory.copy_of(load.op, load.writes[0])
            assert copy is not None
            if copy.pieces > UNROLLED:
                copy.emit()
            else:
                copy.begin()
                self.copies.append((load.op, copy))

    def between(self, steps: int) -> Iterator[Any]:
        """The numbers of so many steps; after each, its share of the copies."""
        if not self.copies:
            if steps:
                with T.unroll(0, steps) as k:
                    yield k
            return
        pieces = [(op, copy, k) for op, copy in self.copies for k in range(copy.pieces)]
        for step in range(steps):
            yield tirx.const(step, "int32")
            self.start(pieces[len(pieces) * step // steps : len(pieces) * (step + 1) // steps])

    def start(self, pieces: Sequence[tuple[Op, Copy, int]]) -> None:
        """Some of the copies."""
        for op, copy, k in pieces:
            self.em.mark(op)
            copy.piece(tirx.const(k, "int32"))
            if k == copy.pieces - 1:
                copy.end()
        if pieces:
            self.em.mark(self.op)

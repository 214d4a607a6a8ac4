"""Barriers: where one thread reads or overwrites shared memory that another wrote or read.

A walk over the plan with what has been read and written since the last barrier; loops until
nothing changes. A barrier also waits for asynchronous copies that are under way, so that the first
one after a copy makes it visible to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilecc.codegen.cuda.plan import Plan
from tilecc.codegen.cuda.shared import Life, SharedTile, allocate, overlap
from tilecc.codegen.cuda.steps import Branch, Item, Loop, Step


@dataclass
class _State:
    """Tiles read and written since the last barrier."""

    read: set[SharedTile] = field(default_factory=set)
    written: set[SharedTile] = field(default_factory=set)

    def copy(self) -> _State:
        return _State(set(self.read), set(self.written))

    def join(self, other: _State) -> bool:
        """Take in what is in `other`; whether anything is new."""
        new = not (other.read <= self.read and other.written <= self.written)
        self.read |= other.read
        self.written |= other.written
        return new

    def clear(self) -> bool:
        """A barrier that waits for copies; whether it has any to wait for."""
        waits = any(t.asynchronous for t in self.written)
        self.read.clear()
        self.written.clear()
        return waits

    def fence(self) -> None:
        """A barrier within a step, which waits for no copies: those under way stay so."""
        self.read.clear()
        self.written = {t for t in self.written if t.asynchronous}


def place_barriers(plan: Plan) -> int:
    """Place tiles in shared memory and barriers before steps; the bytes of shared memory."""
    size = allocate(_lives(plan))
    _block(plan.items, _State())
    return size


def _conflict(step: Step, state: _State) -> bool:
    used = state.read | state.written
    return any(overlap(w, x) for w in step.writes for x in used) or any(
        overlap(r, x) for r in step.reads for x in state.written
    )


def _step(step: Step, state: _State) -> None:
    step.barrier = _conflict(step, state)
    step.wait = state.clear() if step.barrier else False
    state.read |= set(step.reads)
    if step.fenced:
        state.fence()
        state.read |= set(step.writes)
    else:
        state.written |= set(step.writes)


def _block(items: Sequence[Item], state: _State) -> None:
    for item in items:
        match item:
            case Step():
                _step(item, state)
            case Loop():
                _loop(item, state)
            case Branch():
                _branch(item, state)


def _loop(loop: Loop, state: _State) -> None:
    # Each walk decides anew: what needs a barrier in the first may have one before it in the last.
    entry = state.copy()
    while True:
        inside = entry.copy()
        _block(loop.body, inside)
        if not entry.join(inside):
            break
    state.join(entry)


def _branch(branch: Branch, state: _State) -> None:
    branch.barrier = any(_needs_barrier(side, state) for side in (branch.then, branch.other))
    branch.wait = state.clear() if branch.barrier else False
    ends = []
    for side in (branch.then, branch.other):
        inside = state.copy()
        _block(side, inside)
        ends.append(inside)
    state.read, state.written = ends[0].read, ends[0].written
    state.join(ends[1])


def _needs_barrier(items: Sequence[Item], state: _State) -> bool:
    """Whether a step conflicts with what was done before the block.

    If one does, the barrier is better before the branch: then it is passed on either side.
    """
    for item in items:
        if isinstance(item, Step):
            if _conflict(item, state):
                return True
        elif isinstance(item, Loop):
            if _needs_barrier(item.body, state):
                return True
        elif any(_needs_barrier(side, state) for side in (item.then, item.other)):
            return True
    return False


def _lives(plan: Plan) -> Iterable[Life]:
    """When each tile is in use, positions counted over all steps."""
    spans: dict[SharedTile, list[int]] = {}
    loops: list[tuple[int, int, set[SharedTile]]] = []
    _positions(plan.items, 0, spans, loops)
    lives = {t: Life(t, min(at), max(at)) for t, at in spans.items()}
    # Inner loops come first: a tile that is kept through one may be kept through the next, too.
    for first, last, carried in loops:
        for life in lives.values():
            inside = any(first <= at <= last for at in spans[life.tile])
            whole = first <= life.first and life.last <= last
            if inside and (not whole or life.tile in carried):
                life.first, life.last = min(life.first, first), max(life.last, last)
    return lives.values()


def _positions(
    items: Sequence[Item],
    at: int,
    spans: dict[SharedTile, list[int]],
    loops: list[tuple[int, int, set[SharedTile]]],
) -> int:
    for item in items:
        at += 1
        if isinstance(item, Step):
            for tile in (*item.reads, *item.writes):
                spans.setdefault(tile, []).append(at)
        elif isinstance(item, Loop):
            first = at
            at = _positions(item.body, at, spans, loops) + 1
            for tile in item.carried:
                spans.setdefault(tile, []).append(first)
            loops.append((first, at, set(item.carried)))
        else:
            for side in (item.then, item.other):
                at = _positions(side, at, spans, loops)
    return at

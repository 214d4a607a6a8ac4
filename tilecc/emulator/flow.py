"""Control flow of a function: basic blocks in an order that reconverges, and what is assigned.

Threads that are at different places run the block of lowest rank first. Ranks are a topological
order in which a loop's blocks are contiguous and lie before all that follows the loop. So when a
block runs, all threads that can still come to it (in this iteration of the innermost loop around
it) have arrived: that is reconvergence at immediate post-dominators, without a stack.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import networkx as nx

from tilecc.emulator.operands import Symbol, registers
from tilecc.emulator.ptx import Function, Instruction
from tilecc.emulator.schedule import Forms, groups
from tilecc.emulator.types import EmulatorError

BARRIERS = frozenset(["bar", "barrier"])
_WITHOUT_RESULT = frozenset(
    ["st", "red", "bra", "cp", "bar", "barrier", "prefetch", "nanosleep", "stmatrix"]
)
_IN_PARTS = frozenset(["ld", "atom"])
"""What assigns a register to some threads after others, by where they read."""
_ENDS = frozenset(["bra", "ret", "exit", "trap"])


@dataclass
class Block:
    """Instructions that run one after another. `target`: the rank that its branch goes to."""

    start: int
    instructions: list[Instruction]
    terminator: Instruction | None = None
    following: int = -1
    target: int = -1
    groups: list[list[Instruction]] = field(default_factory=list)
    """The instructions as they are executed: those of a group together."""


@dataclass(frozen=True)
class Flow:
    """A function's blocks, by rank. Block 0 is where it starts."""

    blocks: list[Block]
    uncertain: dict[int, frozenset[str]] = field(default_factory=dict)
    """Registers that an instruction (by `id`) reads and that may be unassigned there."""
    live: list[frozenset[str]] = field(default_factory=list)
    """By block, the registers that threads there may still read before they assign them."""
    local: frozenset[str] = frozenset()
    """Registers that one block alone uses, which assigns them first, for all that run it: threads
    that are elsewhere need not keep them."""

    @property
    def tracked(self) -> frozenset[str]:
        """Registers of which it must be known where they are assigned."""
        return frozenset(r for names in self.uncertain.values() for r in names)


def is_barrier(ins: Instruction) -> bool:
    """Whether threads wait at it for other warps."""
    return ins.opcode in BARRIERS and "warp" not in ins.modifiers and "arrive" not in ins.modifiers


def ends_block(ins: Instruction) -> bool:
    """Whether what follows is another block."""
    return ins.opcode in _ENDS or is_barrier(ins)


@lru_cache(maxsize=8)
def analyse(f: Function) -> Flow:
    """Blocks and uncertain reads of a function, once for each.

    Raises:
        EmulatorError: a branch to a label that is not there.
    """
    blocks = _split(f)
    order = _order(blocks)
    rank = {b: r for r, b in enumerate(order)}
    ordered = [blocks[b] for b in order]
    for b in ordered:
        b.following = rank.get(b.following, -1)
        b.target = rank.get(b.target, -1)
    flow = Flow(ordered, _uncertain(ordered, f.registers), _live(ordered), _local(ordered))
    forms = Forms(f.registers, flow.uncertain, flow.tracked)
    for b in ordered:
        body = b.instructions
        touched = [(read(ins), written(ins)) for ins in body]
        b.groups = groups(body, touched, [forms.of(ins, flow.local) for ins in body])
    return flow


def _split(f: Function) -> list[Block]:
    starts = {0, *f.labels.values()}
    starts |= {i + 1 for i, ins in enumerate(f.body) if ends_block(ins)}
    cuts = sorted(s for s in starts if s < len(f.body))
    index = {s: i for i, s in enumerate(cuts)}
    blocks = []
    for i, start in enumerate(cuts):
        end = cuts[i + 1] if i + 1 < len(cuts) else len(f.body)
        b = Block(start, f.body[start:end])
        last = b.instructions[-1]
        if ends_block(last):
            b.terminator = b.instructions.pop()
        b.following = i + 1 if end < len(f.body) else -1
        if last.opcode == "bra":
            b.target = index.get(_label(f, last), -1)
        blocks.append(b)
    return blocks


def _label(f: Function, ins: Instruction) -> int:
    label = ins.operands[0] if ins.operands else None
    if not isinstance(label, Symbol) or label.name not in f.labels:
        raise EmulatorError(f"PTX line {ins.line}: no such label: {ins.text}")
    return f.labels[label.name]


def successors(b: Block) -> list[int]:
    """Ranks of the blocks that can run next; -1 (the function's end) is left out."""
    t = b.terminator
    found = []
    if t is not None and t.opcode == "bra":
        found.append(b.target)
    if t is None or t.predicate is not None or is_barrier(t):
        found.append(b.following)
    return [x for x in found if x >= 0]


def _order(blocks: list[Block]) -> list[int]:
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(range(len(blocks)))
    graph.add_edges_from((i, j) for i, b in enumerate(blocks) for j in successors(b))
    reachable = {0, *nx.descendants(graph, 0)} if blocks else set()
    return _loops_first(graph.subgraph(reachable).copy(), 0)


def _loops_first(graph: nx.DiGraph, start: int) -> list[int]:
    """Topological order of strongly connected components; in each, of what is left of it
    without the edges to its header."""
    condensed = nx.condensation(graph)
    members = {c: condensed.nodes[c]["members"] for c in condensed}
    found: list[int] = []
    for c in nx.lexicographical_topological_sort(condensed, key=lambda c: min(members[c])):
        nodes = members[c]
        if len(nodes) == 1:
            found += nodes
            continue
        entries = [n for n in nodes if n == start or not nodes.issuperset(graph.predecessors(n))]
        header = start if start in nodes else min(entries)
        inner = graph.subgraph(nodes).copy()
        inner.remove_edges_from([(p, header) for p in list(inner.predecessors(header))])
        found += _loops_first(inner, header)
    return found


def written(ins: Instruction) -> list[str]:
    """Registers that an instruction writes."""
    if ins.opcode in _WITHOUT_RESULT:
        is_reduction = ins.opcode in BARRIERS and "red" in ins.modifiers
        return registers(ins.operands[0]) if is_reduction else []
    return registers(ins.operands[0]) if ins.operands else []


def read(ins: Instruction) -> list[str]:
    """Registers that an instruction reads."""
    sources: Iterable[object] = ins.operands if not written(ins) else ins.operands[1:]
    found = [r for o in sources for r in registers(o)]  # type: ignore[arg-type]
    return found + registers(ins.predicate)


def _live(blocks: list[Block]) -> list[frozenset[str]]:
    """Backward to a fixed point."""
    needs: list[set[str]] = []
    kills: list[set[str]] = []
    for b in blocks:
        need: set[str] = set()
        kill: set[str] = set()
        for ins in [*b.instructions, *([b.terminator] if b.terminator is not None else [])]:
            need |= set(read(ins)) - kill
            if ins.predicate is None:
                kill |= set(written(ins))
        needs.append(need)
        kills.append(kill)
    before: dict[int, list[int]] = {i: [] for i in range(len(blocks))}
    for i, b in enumerate(blocks):
        for j in successors(b):
            before[j].append(i)
    live = [frozenset(n) for n in needs]
    pending = list(range(len(blocks)))
    while pending:
        j = pending.pop()
        for i in before[j]:
            more = live[i] | (live[j] - kills[i])
            if len(more) > len(live[i]):
                live[i] = more
                pending.append(i)
    return live


def _local(blocks: list[Block]) -> frozenset[str]:
    home: dict[str, int] = {}
    shared: set[str] = set()
    for n, b in enumerate(blocks):
        end = [b.terminator] if b.terminator is not None else []
        shared |= {r for ins in end for r in written(ins)}
        for ins in [*b.instructions, *end]:
            shared |= {r for r in read(ins) if home.get(r) != n}
            whole = ins.predicate is None and ins.opcode not in _IN_PARTS
            for r in written(ins):
                if not whole or home.setdefault(r, n) != n:
                    shared.add(r)
    return frozenset(home) - shared


def _uncertain(blocks: list[Block], declared: Container[str]) -> dict[int, frozenset[str]]:
    """Reads that some path reaches without an assignment: forward, all paths, to a fixed point."""
    bit: dict[str, int] = {}

    def bits(names: Iterable[str]) -> int:
        return sum({1 << bit.setdefault(n, len(bit)) for n in names})

    bodies = [[*b.instructions, *([b.terminator] if b.terminator else [])] for b in blocks]
    made = [
        bits(n for ins in body if ins.predicate is None for n in written(ins)) for body in bodies
    ]
    before = [0] + [-1] * (len(blocks) - 1)  # -1 has all bits
    pending = [0] if blocks else []
    while pending:
        i = pending.pop()
        after = before[i] | made[i]
        for j in successors(blocks[i]):
            if before[j] & after != before[j]:
                before[j] &= after
                pending.append(j)
    found = {}
    for body, known in zip(bodies, before, strict=True):
        for ins in body:
            missing = {r for r in read(ins) if r in declared and not known & bits([r])}
            if missing:
                found[id(ins)] = frozenset(missing)
            if ins.predicate is None:
                known |= bits(written(ins))
    return found

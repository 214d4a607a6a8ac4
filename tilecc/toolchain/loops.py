"""Loops in machine code: basic blocks, dominators, natural loops, and which is the main one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tilecc.toolchain.sass import Instruction

_ENDS = frozenset({"BRA", "BRX", "JMP", "EXIT", "RET"})
_MMA_SHAPE = re.compile(r"H(?:G?)MMA\.(?:SP\.)?(\d+)")
# Multiply-adds of a warp's instruction mma.mMnNkK, by the digits that SASS writes for MNK.
_HMMA = {"884": 256, "1684": 512, "1688": 1024, "16816": 2048, "16832": 4096}
_HGMMA = re.compile(r"[HQI]GMMA\.(\d+)x(\d+)x(\d+)")
_MULTIPLY_ADDS = {"FFMA": 32, "DFMA": 32, "HFMA2": 64, "FFMA2": 64}


@dataclass(frozen=True)
class _Block:
    begin: int
    end: int
    successors: tuple[int, ...]


def tensor_multiply_adds(i: Instruction) -> int:
    """Multiply-adds that one warp's matrix instruction makes (a quarter of a warpgroup's)."""
    if m := _HGMMA.match(i.opcode):
        return int(m[1]) * int(m[2]) * int(m[3]) // 4
    if m := _MMA_SHAPE.match(i.opcode):
        return _HMMA.get(m[1], 0)
    return 0


def main_loop(code: Sequence[Instruction]) -> list[Instruction]:
    """The steady loop: the innermost loop with matrix instructions, or, where there are none, with
    the most multiply-adds. Of several (masked and unmasked tiles), the one that takes the fewest
    instructions for its multiply-adds. Empty without loops."""
    found = [[code[k] for k in loop] for loop in _innermost(code)]
    tensor = [(sum(map(tensor_multiply_adds, body)), body) for body in found]
    scalar = [(sum(_MULTIPLY_ADDS.get(i.base, 0) for i in body), body) for body in found]
    weighed = [w for w in tensor if w[0]]
    if weighed:
        return min(weighed, key=lambda w: (len(w[1]) / w[0], w[1][0].address))[1]
    if not found:
        return []
    return max(scalar, key=lambda w: (w[0], len(w[1]), -w[1][0].address))[1]


def loops(code: Sequence[Instruction]) -> list[frozenset[int]]:
    """The natural loops, as sets of indices into `code`; those with one head are one loop."""
    blocks = _blocks(code)
    predecessors: list[list[int]] = [[] for _ in blocks]
    for n, b in enumerate(blocks):
        for s in b.successors:
            predecessors[s].append(n)
    dominators = _dominators(blocks, predecessors)
    bodies: dict[int, set[int]] = {}
    for n, b in enumerate(blocks):
        for head in b.successors:
            if dominators[n] >> head & 1:
                body = bodies.setdefault(head, {head})
                todo = [n]
                while todo:
                    x = todo.pop()
                    if x not in body:
                        body.add(x)
                        todo += predecessors[x]
    return [
        frozenset(k for n in body for k in range(blocks[n].begin, blocks[n].end))
        for body in bodies.values()
    ]


def _innermost(code: Sequence[Instruction]) -> list[list[int]]:
    """The loops that hold no other one that works; what only waits (no arithmetic) is left out."""
    found = loops(code)
    waits = [x for x in found if not any(_works(code[k]) for k in x)]
    rest = [x for x in found if x not in waits]
    idle = frozenset().union(*waits)
    return [sorted(x - idle) for x in rest if not any(y < x for y in rest)]


def _works(i: Instruction) -> bool:
    return i.base in _MULTIPLY_ADDS or tensor_multiply_adds(i) > 0


def _blocks(code: Sequence[Instruction]) -> list[_Block]:
    place = {i.address: k for k, i in enumerate(code)}
    starts = {0}
    for k, i in enumerate(code):
        if i.target in place:
            starts.add(place[i.target])
        if i.base in _ENDS and k + 1 < len(code):
            starts.add(k + 1)
    order = sorted(starts)
    number = {begin: n for n, begin in enumerate(order)}
    blocks = []
    for n, begin in enumerate(order):
        end = order[n + 1] if n + 1 < len(order) else len(code)
        last = code[end - 1]
        after = []
        if last.target in place:
            after.append(number[place[last.target]])
        if n + 1 < len(order) and (last.base not in _ENDS or _conditional(last)):
            after.append(n + 1)
        blocks.append(_Block(begin, end, tuple(dict.fromkeys(after))))
    return blocks


def _conditional(i: Instruction) -> bool:
    """Whether a branch may fall through: it has a predicate, or a condition among its operands."""
    return i.predicate not in ("", "@PT") or "," in i.operands


def _dominators(blocks: Sequence[_Block], predecessors: Sequence[Sequence[int]]) -> list[int]:
    """For each block the set of blocks on every way to it, as bits."""
    everything = (1 << len(blocks)) - 1
    found = [1] + [everything] * (len(blocks) - 1)
    changed = True
    while changed:
        changed = False
        for n in range(1, len(blocks)):
            common = everything if predecessors[n] else 0
            for p in predecessors[n]:
                common &= found[p]
            if common | 1 << n != found[n]:
                found[n], changed = common | 1 << n, True
    return found


_KINDS = {
    "spill": "LDL STL",
    "global": "LDG STG LDGSTS RED ATOMG",
    "shared": "LDS STS LDSM STSM",
    "sync": "BAR SYNCS WARPSYNC DEPBAR LDGDEPBAR WARPGROUP MEMBAR FENCE ERRBAR",
    "branch": "BRA BRX BSSY BSYNC EXIT CALL RET BREAK JMP",
    "int": "IADD3 IADD IMAD IDP LEA LOP3 SHF SHL SHR SGXT BMSK POPC FLO IABS IMNMX ISETP VIADD "
    "PRMT SEL P2R R2P PLOP3 VOTE",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def kind(i: Instruction) -> str:
    """What an instruction counts as: its own opcode for arithmetic, else a group's name."""
    if tensor_multiply_adds(i):
        return "mma"
    if i.base in ("MOV", "CS2R") or i.opcode.startswith("IMAD.MOV"):
        return "mov"
    if i.base == "MUFU":
        return "ex2" if ".EX2" in i.opcode else "mufu"
    if i.base in _KIND_OF:
        return _KIND_OF[i.base]
    return "uniform" if i.base.startswith("U") else i.base.lower()


def counts(body: Sequence[Instruction]) -> dict[str, int]:
    """Instructions of a warp by kind, most frequent first, after their `total`."""
    by_kind = Counter(kind(i) for i in body)
    return {"total": len(body), **dict(by_kind.most_common())}

"""A function as steps: kept, since kernels are launched many times, and decoding takes a while."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tilecc.emulator.access import Site
from tilecc.emulator.context import Context
from tilecc.emulator.control import BLOCKED, EXIT, End, end_of
from tilecc.emulator.counters import Memo
from tilecc.emulator.decode import Step, decode_group
from tilecc.emulator.flow import Block, analyse
from tilecc.emulator.machine import Unneeded
from tilecc.emulator.ptx import Function
from tilecc.emulator.report import GlobalAccess, SharedAccess

_KEPT = 8


@dataclass
class Compiled:
    """A block as steps; `warps` counts how often a warp ran it."""

    block: Block
    steps: list[Step]
    end: End
    warps: int = 0


class Decoded:
    """A function's blocks as steps, and what they count: of one launch at a time."""

    def __init__(self, f: Function, symbols: Mapping[str, int], params: int) -> None:
        flow = analyse(f)
        self.index = {name: i for i, name in enumerate(f.registers)}
        """Position of each register."""
        self.storage = [t.storage for t in f.registers.values()]
        self.sites: list[Site] = []
        ctx = Context(
            f, self.index, symbols, params, self.sites, flow.uncertain, flow.tracked, flow.local
        )
        self.blocks = [
            Compiled(b, [decode_group(ctx, g) for g in b.groups], end_of(ctx, b))
            for b in flow.blocks
        ]
        self.sites.sort(key=lambda site: site.ins.line)
        self._live = [
            frozenset(self.index[r] for r in names if r in self.index) for names in flow.live
        ]
        self._unneeded: dict[frozenset[int], Unneeded] = {}

    def restart(self) -> None:
        """Count from zero."""
        for b in self.blocks:
            b.warps = 0
        for site in self.sites:
            ins = site.ins
            site.shared = SharedAccess(ins.line, ins.text, ins.loc, site.direction)
            site.globals = GlobalAccess(ins.line, ins.text, ins.loc, site.direction)
            site.memo = Memo()

    def unneeded_at(self, places: frozenset[int]) -> Unneeded:
        """Registers that threads at these places do not need."""
        found = self._unneeded.get(places)
        if found is None:
            ranks = {p - BLOCKED if p >= BLOCKED else p for p in places if p != EXIT}
            needed = frozenset[int]().union(*(self._live[n] for n in ranks))
            found = self._unneeded[places] = Unneeded(frozenset(range(len(self.index))) - needed)
        return found

    def instructions(self) -> Counter[str]:
        """Executions by warps, by opcode with modifiers."""
        counts: Counter[str] = Counter()
        for b in self.blocks:
            end = [b.block.terminator] if b.block.terminator is not None else []
            for ins in [*b.block.instructions, *end]:
                counts[ins.name] += b.warps
        return +counts


Key: TypeAlias = tuple[Function, tuple[tuple[str, int], ...]]
_known: OrderedDict[Key, Decoded] = OrderedDict()


def take(f: Function, symbols: Mapping[str, int], params: int) -> Decoded:
    """A function decoded, for a launch of one's own until it is given back.

    Args:
        f: the function.
        symbols: where its variables lie.
        params: bytes of its parameters.
    """
    found = _known.pop((f, tuple(symbols.items())), None)
    if found is None:
        return Decoded(f, symbols, params)
    found.restart()
    return found


def give_back(f: Function, symbols: Mapping[str, int], decoded: Decoded) -> None:
    """Keep it for the next launch."""
    _known[f, tuple(symbols.items())] = decoded
    while len(_known) > _KEPT:
        _known.popitem(last=False)

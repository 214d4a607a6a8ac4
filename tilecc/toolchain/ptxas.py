"""What ptxas says of each kernel: registers, spills, shared memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for")
_FUNCTION = re.compile(r"Function properties for '?(?P<name>[^'\s]+)")
_FRAME = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"Used (?P<registers>\d+) registers")
_SHARED = re.compile(r"(?P<bytes>\d+)(?:\+\d+)? bytes smem")
_NOTE = re.compile(r"^ptxas .*(?:warning|\(C75\d\d\))", re.IGNORECASE)


@dataclass(frozen=True)
class Usage:
    """One kernel's: registers of a thread, bytes of local memory of a thread and of static shared
    memory of a CTA. Spills count each store and load instruction once, as ptxas does; those of
    functions that are not inlined are in the sums."""

    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    static_shared: int = 0


def usage(log: str) -> dict[str, Usage]:
    """The kernels of a log of `ptxas --verbose` by name."""
    found: dict[str, Usage] = {}
    entry = ""
    for line in log.splitlines():
        if m := _ENTRY.search(line):
            entry = m["name"]
            found[entry] = Usage()
        elif entry and (m := _FRAME.search(line)):
            u = found[entry]
            found[entry] = replace(
                u,
                stack=max(u.stack, int(m["stack"])),
                spill_stores=u.spill_stores + int(m["stores"]),
                spill_loads=u.spill_loads + int(m["loads"]),
            )
        elif entry and (m := _USED.search(line)):
            shared = _SHARED.search(line)
            found[entry] = replace(
                found[entry],
                registers=int(m["registers"]),
                static_shared=int(shared["bytes"]) if shared else 0,
            )
    return found


def notes(log: str) -> tuple[str, ...]:
    """ptxas's warnings, and its notes C75xx, which tell of code that it had to change."""
    return tuple(line.strip() for line in log.splitlines() if _NOTE.search(line))

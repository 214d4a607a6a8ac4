"""Ways to break the PTX of a kernel: each changes one place (or all of a kind), or does not apply.

A mutant that changes nothing that matters would be no fault of the emulator's; the places are
chosen so that each matters in kernels that stream tiles through shared memory by cp.async.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Mutation = Callable[[str], str | None]
Change = Callable[[re.Match[str]], str]


def _edit(text: str, pattern: str, change: Change, which: str) -> str | None:
    """Change the matches: all of them, the first, the middle or the last one."""
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if not found:
        return None
    at = {"first": 0, "middle": len(found) // 2, "last": -1}
    chosen = found if which == "all" else [found[at[which]]]
    for m in reversed(chosen):
        text = text[: m.start()] + change(m) + text[m.end() :]
    return text


def edit(pattern: str, change: str | Change, which: str = "middle") -> Mutation:
    into = change if callable(change) else lambda m: m.expand(change)
    return lambda text: _edit(text, pattern, into, which)


BARRIER = r"^\s*(?:bar\.sync|barrier\.sync)\s[^;]*;"
WAIT = r"cp\.async\.wait_(?:all|group)[^;]*;"
COPY = r"^\s*cp\.async\.c[ag]\.shared(?:::cta)?\.global[^;]*;"
STORE = r"\bst(?:\.global)?(?:\.v[24])?\.[bfsu]\d+\s"  # to global memory, or by generic addresses
MMA = r"(mma\.sync[^{]*\{[^}]*\}, *)\{([^,]*), ?([^,]*), ?([^,]*), ?([^}]*)\}"


MUTATIONS: dict[str, Mutation] = {
    "no barrier": edit(BARRIER, "", "all"),
    "no last barrier": edit(BARRIER, "", "last"),
    "no wait": edit(WAIT, "", "all"),
    "a weaker wait": edit(r"(cp\.async\.wait_group\s+)(\d+)",
                          lambda m: f"{m[1]}{int(m[2]) + 1}", "all"),
    "no commit": edit(r"cp\.async\.commit_group\s*;", "", "all"),
    "a copy left out": edit(COPY, ""),
    "a copy twice": edit(COPY, r"\g<0> cp.async.wait_all; bar.sync 0; \g<0>", "first"),
    "copies of whole chunks at the edge": edit(
        r"(cp\.async\.c[ag]\.shared(?:::cta)?\.global[^;]*\], (\d+)), %r\d+;", r"\1, \2;", "all"
    ),
    "registers of A exchanged": edit(MMA, r"\1{\2, \4, \3, \5}"),
    "registers of ldmatrix exchanged": edit(
        r"(ldmatrix[^{]*\{)([^,]*), ?([^,]*),", r"\1\3, \2,"
    ),
    "no .trans": edit(r"(ldmatrix[^;]*)\.trans", r"\1", "all"),
    "ldmatrix from the next row": edit(r"(ldmatrix[^;]*\[%\w+)(?:\+(\d+))?\]",
                                       lambda m: f"{m[1]}+{int(m[2] or 0) + 128}]"),
    "sums for products": edit(r"\bmul(\.(?:rn\.)?(?:ftz\.)?f32)", r"add\1", "all"),
    "another shuffle": edit(r"shfl\.sync\.bfly", "shfl.sync.down", "all"),
    "stores one element further": edit(rf"({STORE}[^;]*\[%rd\d+)(?:\+(\d+))?\]",
                                       lambda m: f"{m[1]}+{int(m[2] or 0) + 4}]", "all"),
    "no stores": edit(rf"^.*{STORE}[^;]*;", "", "all"),
    "one CTA too far": edit(r"(mov\.u32\s+%r\d+, )%ctaid\.x;", r"\g<1>%nctaid.x;", "all"),
    "other threads": edit(r"(mov\.u32\s+%r\d+, )%tid\.x;", r"\g<1>%laneid;", "all"),
}  # fmt: skip

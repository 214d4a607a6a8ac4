# ruff: noqa: E402, E501
"""Writes docs/zoo.md from the specs and from what the compiler says of them.

python tests/zoo/page.py [NAME ...]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[n]) for n in (0, 1)]

from cases import ZOO, arguments, sizes, spec_of, static_of

import tilecc as tc
from tilecc.given import extent_names

PAGE = ZOO.parents[1] / "docs" / "zoo.md"
HEAD = """# The zoo

<!-- Written by tests/zoo/page.py, and checked by tests/zoo/test_page.py. Do not edit. -->

Attention as people use it, each from a spec of a few lines in `examples/zoo/`. None is known to the compiler: it sees contractions, maps, reductions and access maps. Every spec is run by `tests/zoo/test_zoo.py`: each level of the IR and one compiled kernel for all lengths, against float64 numpy that is written from the formula and not from the spec. `tilecc run examples/zoo/causal.py` runs one.

Under each spec stands what the compiler makes of it: how many kernels, how often the keys are walked, and how many numbers move to and from memory, as a formula over the extents that comes from walking the loads and stores of the tile IR (tiles of {tile}, which divide the extents; heads of fixed size; not split over keys), beside the same for a kernel an operation. Where the bounds of the loops have no sum that could be read, only the unfused formula is given, and `tilecc cost` has the number. Where a mask depends on data, small kernels that run first map the tiles ([mask-tiles](passes/mask_tiles.md)), and `full_tiles` and `partial_tiles` are what they find. A map shows the tiles of {small} rows by {small} keys for about {rows} queries: `#` full, `+` crossed by the mask, `.` skipped.

```python
import math

import tilecc as tc
```
"""
TILE, SMALL, ROWS = 64, 16, 256
HEADS = 4  # where they are mixed, and so a tile has all of them
# Sections, and the rows of each.
ROWS_OF = {
    "Masks": (
        *("causal", "bottom_right", "sliding_window", "prefix_lm", "dilated", "global_window"),
        *("documents", "natten", "block_diffusion", "tree", "boolean_mask"),
    ),
    "Scores and positions": (
        *("alibi", "relative_bias", "t5_bias", "softcap", "rope_half", "rope_interleaved"),
        *("qk_norm", "temperature"),
    ),
    "Heads": ("cross_attention", "gqa", "mqa", "mla", "talking_heads"),
    "Normalisers": (
        *("sink", "softmax_one", "sigmoid", "relu", "differential", "linear", "linear_causal"),
        *("retention", "dropout"),
    ),
    "Structures": ("evoformer", "triangle", "ipa"),
    "Memory": ("bnhd", "packed", "paged", "cache", "kv_int8", "kv_fp8", "cascade"),
}
NAMES = [name for names in ROWS_OF.values() for name in names]


def compiled(name: str, tile: int = TILE) -> tc.Kernel:
    """For a machine of the table, so that the page is the same everywhere; no code is made."""
    static = {n: HEADS if n in ("G", "H") else 64 for n in static_of(name)}
    return tc.compile(spec_of(name), target="x86-64-v4", static=static, tile=tile, split=None)


def source(name: str) -> tuple[str, str, str]:
    """What a spec is, its formula, and its code without both."""
    text = (ZOO / f"{name}.py").read_text(encoding="utf-8")
    module = ast.parse(text)
    spec = next(n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == name)
    title, formula = ast.get_docstring(module), ast.get_docstring(spec)
    assert title and formula, f"{name} does not say what it is"
    lines = text.splitlines()
    first = next(n for n in module.body if isinstance(n, ast.FunctionDef))
    doc = spec.body[0]
    begin = first.lineno - 1 - len(first.decorator_list)
    kept = [*lines[begin : doc.lineno - 1], *lines[doc.end_lineno or doc.lineno :]]
    return title, formula, "\n".join(kept).strip()


def passes(kernel: tc.Kernel) -> str:
    """How many kernels, and how often each streamed axis is walked."""
    # Lines of the loop level: a kernel, and the streams in it.
    walks: list[list[str]] = []
    for line in kernel.ir("mask-tiles").splitlines():
        if " = kernel over " in line:
            walks.append([])
        elif " = stream " in line:
            walks[-1].append(line.split(" = stream ")[1].split()[0])
    said = []
    for axes in walks:
        counts = {a: axes.count(a) for a in axes}
        times = {1: "once", 2: "twice"}
        each = [f"{a} {times.get(n, f'{n} times')}" for a, n in counts.items()]
        said.append(f"walks {' and '.join(each)}" if each else "walks nothing")
    if len(said) == 1:
        return f"One kernel, which {said[0]}."
    return (
        f"{len(said)} kernels: " + "; ".join(f"number {n} {s}" for n, s in enumerate(said, 1)) + "."
    )


def pretty(formula: str) -> str:
    return formula.replace("**", "^").replace("*", " ")


def picture(name: str) -> str:
    """The map of tiles (of the first sequence), where some are left out; else nothing."""
    kernel, n = compiled(name, SMALL), sizes(name, ROWS, ROWS)
    inputs = arguments(name, n)
    data = {k for k, x in inputs.items() if isinstance(x, np.ndarray) and k not in kernel.deciding}
    extents = set(extent_names(spec_of(name).trace())) - set(static_of(name))
    known = {k: x for k, x in inputs.items() if k not in data} | {e: n[e] for e in extents}
    try:
        codes = kernel.tiles(**known).codes
    except tc.CompileError:  # all that is read along the keys is read through a table
        return ""
    if not (codes == 0).any():
        return ""
    first = codes.reshape(-1, *codes.shape[-2:])[0]
    return "\n".join("".join(".+#"[c] for c in line) for line in first)


def why_more(pass_name: str, message: str) -> bool:
    """Whether a remark says why there is more than one kernel, or one walk."""
    return pass_name == "online-softmax" or (pass_name == "fuse" and "is not fused" in message)


def quick(name: str, kernel: tc.Kernel) -> tuple[str, str, list[str]]:
    """Of a row what takes no time: what it is, its kernels, and why there are more."""
    title, formula, code = source(name)
    what = "\n".join((f"### {name}", "", f"{title} *{formula}*", "", "```python", code, "```"))
    said = [r.message for r in kernel.remarks if why_more(r.pass_name, r.message)]
    return what, passes(kernel), [f"- {message}" for message in dict.fromkeys(said)]


def row(name: str) -> str:
    """One row of the page."""
    kernel = compiled(name)
    what, kernels, remarks = quick(name, kernel)
    cost = kernel.cost()
    fused = cost.fused.formula
    parts = [what, "", kernels, ""]
    if fused and "Sum" not in fused:
        parts += [f"- fused: `{pretty(fused)}`"]
    parts += [f"- unfused: `{pretty(cost.unfused.formula)}`", *remarks]
    if drawn := picture(name):
        parts += ["", "```", drawn, "```"]
    return "\n".join(parts).rstrip() + "\n"


def current(text: str, name: str) -> str:
    """The row that the page has."""
    start = text.index(f"### {name}\n")
    end = re.search(r"\n(?=###? )|\Z", text[start:])
    assert end is not None
    return text[start : start + end.start()]


def head() -> str:
    return HEAD.format(tile=TILE, small=SMALL, rows=ROWS)


def page() -> Iterator[str]:
    yield head()
    for section, names in ROWS_OF.items():
        yield f"\n## {section}\n"
        for name in names:
            yield f"\n{row(name)}"


def replaced(text: str, name: str) -> str:
    """The page with one row written anew."""
    text = text.replace(current(text, name), row(name))
    return head() + text[text.index("\n## ") :]


if __name__ == "__main__":
    if sys.argv[1:]:  # these rows alone
        for name in sys.argv[1:]:
            PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), name), encoding="utf-8")
    else:
        PAGE.write_text("".join(page()), encoding="utf-8")

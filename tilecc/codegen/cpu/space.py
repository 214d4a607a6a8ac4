"""What may be tuned on a CPU: tile sizes, the register tile, how lanes lie, chunks of streams."""

from __future__ import annotations

from dataclasses import replace

from tilecc.codegen.cpu.isa import Isa, isa_for
from tilecc.codegen.cpu.layout import (
    choose_layout,
    contractions,
    is_horizontal,
    kept_loads,
)
from tilecc.codegen.cpu.streamed import is_streamed
from tilecc.codegen.space import Constraint, Option, Options, Space
from tilecc.ir.core import Func
from tilecc.target import Target

_VALUES = {"mr": (4, 6, 8, 12), "nr": (2, 3, 4, 6)}
LANES_OF_ROWS, LANES_OF_LAST_AXIS = 0, 1


def space(target: Target) -> Space:
    """The space of a CPU: rows are whole vectors, or so few that lanes lie along another axis."""
    isa = isa_for(target)
    width = isa.lanes32
    return Space(
        rows=(width // 4, width // 2, *(n * width for n in (1, 2, 4, 6, 8))),
        streamed=(32, 64, 128, 256, 512),
        options=(
            Option("mr", _VALUES["mr"], isa.mr, "rows of a register tile"),
            Option("nr", _VALUES["nr"], isa.nr, "vectors in a row of a register tile"),
            Option(
                "lanes",
                (LANES_OF_ROWS, LANES_OF_LAST_AXIS),
                LANES_OF_ROWS,
                "what lies in vector lanes: query rows (0), each value's own last axis (1)",
            ),
            Option("chunk", (8, 16, 32), 16, "KiB of a streamed factor between two blocks"),
        ),
        constraints=(Constraint("registers", _registers),),
        relevant=_relevant,
    )


def configured(isa: Isa, options: Options) -> Isa:
    """The instruction set with what was chosen put in."""
    return replace(
        isa,
        mr=options.get("mr", isa.mr),
        nr=options.get("nr", isa.nr),
        chunk=options.get("chunk", isa.chunk // 1024) * 1024,
    )


def _registers(options: Options, target: Target) -> str:
    """Accumulators, the vectors of a row and a broadcast must fit, or sums spill."""
    if not {"mr", "nr"} <= set(options):
        return ""
    mr, nr = options["mr"], options["nr"]
    isa = isa_for(target)
    needs = mr * nr + nr + 1
    if needs <= isa.registers or (mr, nr) == (isa.mr, isa.nr):
        return ""
    return f"{mr} x {nr} sums need {needs} of {isa.registers} vector registers"


def _relevant(func: Func, target: Target, options: Options) -> Options:
    """Without what no contraction of `func` looks at, and no register tile that is larger than all
    that there is to fill it; lanes along the last axis, where rows would fill them, are tried with
    one register tile.
    """
    isa = isa_for(target)
    matter: set[str] = set()
    rows, vectors = 1, 1  # the most that a contraction has
    own = options.get("lanes") == LANES_OF_LAST_AXIS
    for kernel in (op for op in func.body.ops if op.name == "kernel"):
        by_rows = choose_layout(kernel, isa)
        if by_rows.lane_axis is not None:
            matter.add("lanes")
            if own:
                continue
        layout = by_rows
        kept = kept_loads(kernel, layout, isa)
        for op in contractions(kernel):
            streamed = is_streamed(op, layout, kept)
            if not streamed and is_horizontal(op, layout):
                continue
            matter |= {"mr", "chunk"} if streamed else {"mr", "nr"}
            order = layout.order(op.result.type)
            sizes = [op.result.type.axis(a).size for a in order]
            vectors = max(vectors, -(-sizes[-1] // layout.width) if sizes else 1)
            rows = max(rows, *sizes[:-1], 1)
    most = {"mr": rows, "nr": vectors}
    found = {n: v for n, v in options.items() if n in matter}
    for name in most.keys() & found.keys():
        found[name] = _no_larger(found[name], most[name], _VALUES[name])
    return found


def _no_larger(value: int, most: int, values: tuple[int, ...]) -> int:
    """The least of `values` that is as good as `value` where only `most` are needed."""
    return value if value < most else min(v for v in values if v >= most or v == value)

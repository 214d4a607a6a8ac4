"""All costs of one program on one machine, in one object: for `Kernel.cost` and `tilecc cost`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilecc.cost.arithmetic import Arithmetic, arithmetic, factors
from tilecc.cost.choice import Candidate, Choice, candidates, explained
from tilecc.cost.count import Array, Counter
from tilecc.cost.data import summed, symbols
from tilecc.cost.footprint import Footprint, footprint
from tilecc.cost.io import Io, text
from tilecc.cost.limits import Need, needs
from tilecc.cost.nest import Kernel, kernels
from tilecc.cost.roofline import Roofline, roofline
from tilecc.cost.tiled import held, traffic
from tilecc.cost.whole import axis_names, ideal, unfused
from tilecc.ir.core import Func, Value
from tilecc.ir.dtypes import F32, DType
from tilecc.ir.expr import Const, Env, Expr, Extent, evaluate, extents
from tilecc.target import Target


def report(
    graph_func: Func | None,
    loop_func: Func | None,
    tile_func: Func,
    target: Target,
    extents: Mapping[str, int] | None = None,
    scalars: Mapping[str, float] | None = None,
    choice: Choice | None = None,
    arrays: Mapping[Value, Array] | None = None,
) -> Report:
    """The costs of a program.

    Args:
        graph_func: the program as it was traced, its extents symbols; None if there is none.
        loop_func: the last one before `tile`; None if there is none.
        tile_func: the tiled one.
        target: the machine.
        extents: numbers for extents. Unless all are known, costs are formulas without numbers.
        scalars: values of run-time arguments that decide which tiles are visited.
        arrays: tensors of `tile_func` from which a kernel reads what it visits: ids, lengths, and
            what the kernels before it made of them. Without them such counts are symbols.
        choice: how the tile was chosen, if it was; it is shown where there is no `loop_func`.

    Raises:
        CompileError: extents are given, and a run-time argument decides what is read that is not.
    """
    known = {**_bound(graph_func, tile_func), **(extents or {})}
    return Report(
        graph_func, loop_func, tile_func, target, known, dict(scalars or {}), choice, arrays
    )


@dataclass(eq=False)
class Report:
    """Costs, worked out when they are asked for (formulas need sympy, numbers do not)."""

    graph_func: Func | None
    loop_func: Func | None
    tile_func: Func
    target: Target
    extents: dict[str, int]
    scalars: dict[str, float]
    choice: Choice | None = None
    arrays: Mapping[Value, Array] | None = None
    names: dict[str, Expr] = field(init=False)
    kernels: list[Kernel] = field(init=False)
    counter: Counter | None = field(init=False)
    fused: Io = field(init=False)
    """Traffic of the tiled program, as compiled."""

    def __post_init__(self) -> None:
        bound = _bound(self.graph_func, self.tile_func)
        named = axis_names(self.graph_func) if self.graph_func is not None else {}
        self.names = {a: e for a, e in named.items() if extents(e) <= set(bound)}
        found = kernels(self.tile_func)
        decided = self.arrays is not None
        symbolic = [summed(k, found) for k in found]
        self.kernels = found if decided else symbolic
        known = {*self.extents, *self.scalars}
        complete = (
            _all_extents(self.tile_func) | (set() if decided else set(symbols(found))) <= known
        )
        reads = {name: r for k in found for name, r in k.reads.items()}
        counter = Counter(self.extents, self.scalars, reads, self.arrays)
        self.counter = counter if complete else None
        self.fused = traffic(self.tile_func, self.kernels, self.counter, self.names, symbolic)

    @cached_property
    def unfused(self) -> Io | None:
        """One kernel for each operation of the graph; intermediate results in main memory."""
        return unfused(self.graph_func, self.extents) if self.graph_func is not None else None

    @cached_property
    def ideal(self) -> Io | None:
        """Fused, with every input read once a pass: what no tiling can go below."""
        if self.loop_func is None:
            return None
        return ideal(self.loop_func, self.extents, self.names)

    @property
    def tile(self) -> dict[str, int]:
        """Tile sizes of the kernels."""
        sizes: dict[str, int] = {}
        for k in self.kernels:
            sizes |= k.tile
        return sizes

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """The tile sizes to choose from, compared with those at hand for the extents at hand."""
        if self.loop_func is None:
            return self.choice.candidates if self.choice is not None else ()
        found = candidates(self.loop_func, self.target, self.extents)
        return explained(found, self.tile)

    @cached_property
    def arithmetic(self) -> Arithmetic | None:
        """Operations; None while extents are unknown."""
        if self.counter is None:
            return None
        return sum((arithmetic(k, self.counter) for k in self.kernels), Arithmetic())

    @property
    def intensity(self) -> float | None:
        """Operations of contractions for each byte moved."""
        work, moved = self.arithmetic, self.fused.bytes
        return work.flops / moved if work is not None and moved else None

    @cached_property
    def roofline(self) -> Roofline | None:
        """The shortest time on the target; None while extents are unknown."""
        work, moved = self.arithmetic, self.fused.bytes
        if work is None or moved is None:
            return None
        unique = self.ideal.bytes if self.ideal is not None else None
        return roofline(self.target, work, moved, unique, self.factors)

    @property
    def seconds(self) -> float | None:
        """The roofline's time."""
        return self.roofline.seconds if self.roofline is not None else None

    @property
    def factors(self) -> str:
        """What contractions multiply: the inputs' type, or what tensor cores round f32 to."""
        return factors((op for k in self.kernels for op in k.op.body.walk()), self.dtype)

    @property
    def dtype(self) -> DType:
        """The type that contractions read: that of the first input in floats."""
        types = (p.type.dtype for p in self.tile_func.params if p.type.axes)
        return next((t for t in types if t.kind == "float"), F32)

    @cached_property
    def footprints(self) -> list[Footprint]:
        """What each kernel holds."""
        return [footprint(k.op) for k in self.kernels]

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """What the tiles need of each memory, that which they fill most first."""
        if not self.kernels:
            return ()
        return needs(self.footprints, self.target, None, self.tile_func)

    @property
    def need(self) -> Need | None:
        """What the tiles need of the memory that they fill most; None without kernels."""
        return next(iter(self.needs), None)

    def footprint_formula(self, *, square: bool = False, in_bytes: bool = False) -> str:
        """Elements (or bytes) that the largest kernel holds, over tile sizes B_i (or one B)."""
        if not self.kernels:
            return "0"
        pairs = zip(self.footprints, self.kernels, strict=True)
        f, k = max(pairs, key=lambda p: p[0].numbers())
        return text(held(f, k.tile, self.names, square=square, in_bytes=in_bytes))

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column heads and rows of traffic by tensor, as text."""
        head = ["", "tensor", "", "numbers", "bytes", "formula"]
        rows: list[list[str]] = []
        for title, io in (("unfused", self.unfused), ("fused", self.fused)):
            if io is None:
                continue
            for what, parts in (("reads", io.reads), ("writes", io.writes)):
                rows += [["", name, what, *self._cells(part)] for name, part in parts.items()]
            rows.append([title, "", "total", *self._cells(io)])
        return head, rows

    @cached_property
    def sums(self) -> dict[str, str]:
        """What the names of sums without a closed form stand for in the table's formulas."""
        import sympy

        said = {}
        for e, name in self._names_of_sums.items():
            limits = "; ".join(f"{x} = {lo} .. {sympy.expand(hi)}" for x, lo, hi in e.limits)
            said[str(name)] = f"the sum over {limits} of {e.function}"
        return said

    @cached_property
    def _names_of_sums(self) -> dict[Any, Any]:
        import sympy

        formulas = [p.formulas("even") for p in self.fused.parts]
        found = {x for e in formulas if e is not None for x in e.atoms(sympy.Sum)}
        names = ("visited", *(f"visited_{n}" for n in range(1, len(found))))
        ordered = sorted(found, key=str)
        return {e: sympy.Symbol(n) for e, n in zip(ordered, names, strict=False)}

    def _cells(self, io: Io) -> list[str]:
        known = io.numbers is not None and io.bytes is not None
        numbers = [f"{io.numbers:,}", f"{io.bytes:,}"] if known else ["", ""]
        e = io.expression()
        return [*numbers, text(e.xreplace(self._names_of_sums) if e is not None else e)]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        work, line, need = self.arithmetic, self.roofline, self.need
        return {
            "name": self.tile_func.name,
            "target": self.target.name,
            "dtype": self.dtype.name,
            "factors": self.factors,
            "extents": dict(self.extents),
            "scalars": dict(self.scalars),
            "unfused": self.unfused.to_json() if self.unfused is not None else None,
            "ideal": self.ideal.to_json() if self.ideal is not None else None,
            "fused": {**self.fused.to_json(), "exact": self.fused.exact},
            "tile": self.tile,
            "candidates": [c.to_json() for c in self.candidates],
            "flops": work.flops if work is not None else None,
            "element_ops": work.elementwise if work is not None else None,
            "exps": work.exps if work is not None else None,
            "intensity": self.intensity,
            "seconds": self.seconds,
            "roofline": line.to_json() if line is not None else None,
            "footprint": {
                "formula": self.footprint_formula(),
                "square": self.footprint_formula(square=True),
                "bytes_formula": self.footprint_formula(in_bytes=True),
                "needs": need.needs if need is not None else 0,
                "limit": need.limit if need is not None else None,
                "unit": self.target.unit,
                "memories": [n.to_json() for n in self.needs],
                "fits": need.fits if need is not None else True,
                "numbers": max((f.numbers() for f in self.footprints), default=0),
            },
        }

    def __str__(self) -> str:
        lines = []
        for title, io in (("unfused", self.unfused), ("fused", self.fused)):
            if io is not None:
                size = "" if io.bytes is None else f" = {io.numbers} numbers, {io.bytes} bytes"
                lines.append(f"{title:8} {io.formula}{size}")
        lines.append(f"tile     {', '.join(f'{a}={n}' for a, n in self.tile.items())}")
        lines.append(f"holds    {self.footprint_formula()}: {self.need}")
        return "\n".join(lines)


def _bound(graph: Func | None, tiled: Func) -> dict[str, int]:
    """Extents that are names in the graph and numbers in the tiled program."""
    found: dict[str, int] = {}
    if graph is None:
        return found
    for p, q in zip(graph.params, tiled.params, strict=False):
        for a, b in zip(p.type.axes, q.type.axes, strict=False):
            if isinstance(a.extent, Extent) and isinstance(b.extent, Const):
                found[a.extent.name] = int(evaluate(b.extent, Env()))
    return found


def _all_extents(func: Func) -> set[str]:
    types = [v.type for v in func.params]
    types += [r.type for op in func.walk() for r in op.results]
    return {name for t in types for a in t.axes for name in extents(a.extent)}

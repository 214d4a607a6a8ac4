"""Random programs in the DSL: the writer of their source, their inputs, and the strategy.

A program is source text, so that a failure prints a spec that anyone can run. The shapes of the
programs are in grammar_attention.py and grammar_others.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from evaluator import stored
from hypothesis import strategies as st

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

LENGTHS = (0, 1, 2, 3, 5, 7, 8, 9, 11, 13, 16, 17, 19)
INNER = (1, 2, 3, 4, 5, 8)
TILES = (1, 2, 3, 4, 5, 7, 8, 16)
KERNEL_TILES = (None, None, 1, 3, 4, 8, 16, 32)
CHUNKS = (1, 2, 3, 7, 16)


@dataclass(frozen=True)
class Input:
    """An argument: extents by axis (names or numbers), its own element type, and what is in it."""

    name: str
    axes: tuple[str, ...]  # "i:N"
    dtype: str | None
    fill: str

    @property
    def annotation(self) -> str:
        if not self.axes:
            return f'tc.Scalar("{self.dtype}")'
        own = f', "{self.dtype}"' if self.dtype else ""
        return f'tc.Tensor["{" ".join(self.axes)}"{own}]'

    def shape(self, extents: dict[str, int]) -> tuple[int, ...]:
        ends = [a.partition(":")[2] for a in self.axes]
        return tuple(int(e) if e.isdigit() else extents[e] for e in ends)


@dataclass(frozen=True)
class Program:
    """A spec, what it takes, and what is in it (for the statistics)."""

    source: str
    inputs: tuple[Input, ...]
    tags: frozenset[str]

    def __repr__(self) -> str:
        inputs = ",\n    ".join(map(repr, self.inputs))
        return f'Program("""{self.source}""", (\n    {inputs},\n), frozenset())'

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would show the source on one line


@dataclass(frozen=True)
class Trial:
    """Numbers for a program."""

    extents: dict[str, int]
    dtype: str
    seed: int
    scale: float
    tiles: tuple[int, ...]
    chunk: int

    def arrays(self, program: Program) -> dict[str, Any]:
        """The inputs, the same for the same trial."""
        return {x.name: self._array(x) for x in program.inputs}

    def _array(self, x: Input) -> Any:
        rng = np.random.default_rng([self.seed, zlib.crc32(x.name.encode())])
        data = FILLS[x.fill](rng, x.shape(self.extents), self)
        data = stored(np.asarray(data), x.dtype or self.dtype)
        return data if x.axes else data.item()


def _with_infinities(rng: Any, shape: Any, trial: Trial) -> np.ndarray:
    x = rng.standard_normal(shape)
    return np.where(rng.random(shape) < rng.choice([0.2, 0.5, 0.9]), -np.inf, x)


def _lengths(rng: Any, shape: Any, trial: Trial) -> np.ndarray:
    return rng.integers(-1, 1 + max(trial.extents.values(), default=0) + 1, shape)


# What an input holds. "scores" are what logits are made of: they get the trial's scale.
FILLS: dict[str, Callable[[Any, Any, Trial], np.ndarray]] = {
    "normal": lambda rng, shape, t: rng.standard_normal(shape),
    "scores": lambda rng, shape, t: rng.standard_normal(shape) * t.scale,
    "positive": lambda rng, shape, t: rng.random(shape) + 0.5,
    "infinities": _with_infinities,
    "lengths": _lengths,
    "ids": lambda rng, shape, t: np.sort(rng.integers(0, 4, shape), axis=-1),
    "some": lambda rng, shape, t: rng.random(shape) < rng.choice([0.0, 0.3, 0.7, 1.0]),
    "bits": lambda rng, shape, t: rng.integers(0, 2, shape) * rng.integers(0, 4) // 2,
    "small": lambda rng, shape, t: rng.integers(-3, 4, shape),
    "rows": lambda rng, shape, t: rng.integers(0, max(t.extents.get("V", 1), 1), shape),
}


@dataclass
class Writer:
    """A program as it is written. `draw` decides."""

    draw: Draw[Any]
    lines: list[str] = field(default_factory=list)
    inputs: dict[str, Input] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    count: int = 0
    statics: dict[str, str] = field(default_factory=dict)

    def pick(self, *choices: T) -> T:
        """One of the choices."""
        return self.draw(st.sampled_from(choices))

    def chance(self, percent: int) -> bool:
        """Whether to; shrinking leaves it out."""
        return bool(self.draw(st.integers(0, 99)) >= 100 - percent)

    def arg(self, name: str, axes: str, fill: str = "normal", dtype: str | None = None) -> str:
        """An argument with axes "i:N d", whose extents default to the axis in capitals."""
        known = {a.partition(":")[0]: a for x in self.inputs.values() for a in x.axes}
        full = []
        for a in axes.split():
            n, colon, _ = a.partition(":")
            full.append(known.get(n) or (a if colon else f"{a}:{a.upper()}"))
        while name in self.inputs:
            name += "_"
        self.inputs[name] = Input(name, tuple(full), dtype, fill)
        return name

    def scalar(self, name: str, fill: str, dtype: str) -> str:
        return self.arg(name, "", fill, dtype)

    def let(self, stem: str, expr: str) -> str:
        """A new variable called after `stem`."""
        self.count += 1
        name = f"{stem}_{self.count}"
        self.lines.append(f"{name} = {expr}")
        return name

    def program(self, *outputs: str, order: str = "") -> Program:
        """The program that returns these variables (in the axis order, for a single one)."""
        if len(outputs) > 1:
            self.tags.add("several outputs")
        used = " ".join([*self.lines, *outputs])
        inputs = [x for x in self.inputs.values() if _reads(used, x.name)]
        inputs += [
            Input(f"_{x.name}", x.axes, x.dtype, x.fill)  # its axes may matter
            for x in self.inputs.values()
            if x not in inputs and x.axes
        ]
        args = "".join(f"    {x.name}: {x.annotation},\n" for x in inputs)
        arrow = f' -> tc.Tensor["{order}"]' if order else ""
        body = "".join(f"    {line}\n" for line in self.lines)
        source = f"@tc.spec\ndef program(\n{args}){arrow}:\n{body}    return {', '.join(outputs)}\n"
        return Program(source, tuple(inputs), frozenset(self.tags))


def _reads(text: str, name: str) -> bool:
    import re

    return re.search(rf"(?<![\w.\"]){name}(?![\w\"=])", text) is not None


@st.composite
def programs(draw: Draw[Any]) -> Program:
    """Any program."""
    from grammar_attention import attention
    from grammar_others import OTHERS

    w = Writer(draw)
    if w.chance(72):
        return attention(w)
    return w.pick(*OTHERS)(w)


@st.composite
def trials(draw: Draw[Any], program: Program, dtypes: Sequence[str], count: int = 1) -> list[Trial]:
    """Numbers for a program; the extents that must be static are the same in all of them."""
    names = {a.partition(":")[2] for x in program.inputs for a in x.axes}
    names = {n for n in names if not n.isdigit()}
    dtype = draw(st.sampled_from(list(dtypes)))
    fixed = {n: draw(st.sampled_from(INNER)) for n in sorted(names) if n in "DEFR"}
    out = []
    for _ in range(count):
        extents = dict(fixed)
        for n in sorted(names - {*fixed}):
            few = draw(st.sampled_from((1, 1, 2, 3)))
            if n in ("B", "G", "H"):
                extents[n] = few if n != "H" else few * extents.get("G", 1)
            elif n in ("P", "S"):  # pages, and slots of a page
                extents[n] = few + 1
            else:
                extents[n] = draw(st.sampled_from(LENGTHS))
        # A table may not be empty if it is read.
        extents |= {n: max(extents[n], 1) for n in ("V", "W") if n in extents}
        scale = draw(st.sampled_from((1.0, 100.0, 1.0, 5.0, 30.0, 0.2)))
        tiles = tuple(draw(st.sampled_from(TILES)) for _ in range(3))
        seed, chunk = draw(st.integers(0, 2**16)), draw(st.sampled_from(CHUNKS))
        out.append(Trial(extents, dtype, seed, scale, tiles, chunk))
    return out


@dataclass(frozen=True)
class Case:
    """A program with numbers, and a tile size for a kernel. Its repr can be run."""

    program: Program
    trials: tuple[Trial, ...]
    tile: int | None


@st.composite
def cases(draw: Draw[Any], dtypes: Sequence[str], count: int = 1) -> Case:
    """Any program with `count` sets of numbers."""
    program = draw(programs())
    some = draw(trials(program, dtypes, count))
    return Case(program, tuple(some), draw(st.sampled_from(KERNEL_TILES)))

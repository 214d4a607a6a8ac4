"""What a tuner may choose for a family of targets, as data that each family declares.

A point of a space is a tile size for each tiled axis and a value for each of the family's options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from tilecc.errors import CompileError
from tilecc.ir.core import Func
from tilecc.target import Target

Options = Mapping[str, int]
"""Values of options by name; those that are left out have their defaults."""


@dataclass(frozen=True)
class Option:
    """One choice of the code generator: what it is called, what it may be, and what it means."""

    name: str
    values: tuple[int, ...]
    default: int
    meaning: str


@dataclass(frozen=True)
class Constraint:
    """What a point must satisfy to be worth trying.

    `broken` gives the reason in numbers, "" where it is satisfied; it sees the options that matter.
    """

    name: str
    broken: Callable[[Options, Target], str]


def _all_matter(func: Func, target: Target, options: Options) -> Options:
    return options


@dataclass(frozen=True)
class Space:
    """Tile sizes of rows and of streamed axes, options, and what their values must satisfy.

    `relevant(func, target, options)` are the options without those that make no (useful) difference
    to the code for `func` (tile IR): points that differ in nothing else are one.
    """

    rows: tuple[int, ...]
    streamed: tuple[int, ...]
    options: tuple[Option, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    relevant: Callable[[Func, Target, Options], Options] = _all_matter

    def complete(self, options: Options) -> dict[str, int]:
        """A value for every option."""
        return {o.name: options.get(o.name, o.default) for o in self.options}


# Where each kind of target has its function from a target to its space.
FAMILIES = {
    "cpu": ("tilecc.codegen.cpu.space", "space"),
    "cuda": ("tilecc.codegen.cuda.space", "space"),
}


def space_for(target: Target) -> Space:
    """The space of a target's family.

    Raises:
        CompileError: the family declares none.
    """
    if target.kind not in FAMILIES:
        raise CompileError(f"the code generator for {target.name} declares nothing to choose")
    module, name = FAMILIES[target.kind]
    found: Space = getattr(import_module(module), name)(target)
    return found


def check_options(options: Options, target: Target) -> dict[str, int]:
    """`options` if the target's family has them and they have allowed values.

    Raises:
        CompileError: they are not; the message says what there is.
    """
    if not options:
        return {}
    space = space_for(target)
    known = {o.name: o for o in space.options}
    for name, value in options.items():
        if name not in known:
            there_are = ", ".join(known) or "none"
            raise CompileError(f"{target.name} has no option {name!r} (options are {there_are})")
        if value not in known[name].values:
            may = ", ".join(map(str, known[name].values))
            raise CompileError(f"option {name} is {value!r}, not one of {may}")
    return dict(options)

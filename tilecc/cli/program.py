"""Getting from a command line's FILE and --shape to a program with sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tilecc.compiler import Compiler
    from tilecc.dsl.specification import Spec
    from tilecc.ir.core import Func
    from tilecc.kernel import Kernel

# Extents that --shape does not give, by the role of their axes.
DEFAULT_STATIC = 64  # whole in a tile: head dimensions
DEFAULT_TILED = 1024  # sequences
DEFAULT_OTHER = 1  # batch, heads
DEFAULT_SCALARS = {"float": 2.0, "int": 256, "bool": 1}


@dataclass(frozen=True)
class Sized:
    """A program, the number for each of its extents, and those that must be numbers to compile."""

    func: Func
    spec: Spec | None
    compiler: Compiler
    sizes: dict[str, int]
    given: frozenset[str]
    static: dict[str, int]

    def kernel(self, threads: int | None = None, *, build: bool = True) -> Kernel:
        """The program compiled for its static extents, as machine code only if `build`."""
        from tilecc.kernel import Kernel

        return Kernel(self.compiler, self.static, threads, self.spec, build=build)

    def scalars(self, given: Mapping[str, float]) -> dict[str, float]:
        """A number for each run-time scalar, given or by default.

        Raises:
            click.UsageError: a number is given for a scalar that the program does not have.
        """
        types = {p.name: p.type.dtype for p in self.func.params if not p.type.axes}
        unknown = [n for n in given if n not in types]
        if unknown:
            known = f"its scalars are {', '.join(types)}" if types else "it has none"
            raise click.UsageError(f"{self.func.name} has no scalar {unknown[0]} ({known})")
        found: dict[str, float] = {}
        for name, t in types.items():
            number = given.get(name, DEFAULT_SCALARS[t.kind])
            found[name] = number if t.kind == "float" else int(number)
        return found

    @property
    def defaults(self) -> dict[str, int]:
        """The sizes that were not given."""
        return {n: v for n, v in self.sizes.items() if n not in self.given}


def load_program(
    file: str, target: str, dtype: str, shape: Mapping[str, int], tile: Any, split: Any = "auto"
) -> Sized:
    """The program in `file`, with a size for every extent.

    Raises:
        click.UsageError: --shape names an extent that the program does not have.
        TileccError: the program is wrong, or cannot be compiled.
    """
    from tilecc.compiler import Compiler, extent_names, load
    from tilecc.target import resolve
    from tilecc.tuning.paths import remembered

    machine = resolve(target)
    func, spec = load(file, dtype)
    names = extent_names(func)
    for name in shape:
        if name not in names:
            near = get_close_matches(name, names, n=1, cutoff=0.5)
            guess = f"; did you mean {near[0]}?" if near else ""
            known = f"its extents are {', '.join(names)}" if names else "all extents are numbers"
            raise click.UsageError(f"{func.name} has no extent {name}{guess} ({known})")
    compiler = Compiler(func, machine, tile, split)
    if tile is None and split == "auto":
        compiler.remembered = remembered(machine)
    static_sizes = dict.fromkeys(names, DEFAULT_STATIC) | dict(shape)
    static = compiler.required(static_sizes)
    tiled = _tiled_extents(compiler, {n: static_sizes[n] for n in static})
    sizes = {}
    for n in names:
        default = DEFAULT_TILED if n in tiled else DEFAULT_OTHER
        sizes[n] = shape.get(n, DEFAULT_STATIC if n in static else default)
    chosen = {n: sizes[n] for n in names if n in static}
    return Sized(func, spec, compiler, sizes, frozenset(shape), chosen)


def _tiled_extents(compiler: Compiler, static: Mapping[str, int]) -> set[str]:
    """Extents of the axes that are, or could be, walked tile by tile."""
    from tilecc.ir.expr import extents
    from tilecc.passes.tiling.plan import kernel_axes, rows, streamed_axes

    func = compiler.front(static).func
    found: set[str] = set()
    for op in func.body.ops:
        if op.name == "kernel" and "grid" in op.attrs:
            sized = dict(op.attrs.get("tile", ()))
            axes = {a.name: a for p in func.params for a in p.type.axes}
            found |= {n for a in sized if a in axes for n in extents(axes[a].extent)}
        elif op.name == "kernel":
            axes = kernel_axes(op)
            found |= {n for a in (*rows(op), *streamed_axes(op)) for n in extents(axes[a].extent)}
    return found

"""Getting from a command line's FILE and --shape to a program with sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from tilecc.ir.expr import arg_numbers, extents, indices

if TYPE_CHECKING:
    from tilecc.compiler import Compiler
    from tilecc.dsl.specification import Spec
    from tilecc.ir.core import Axis, Func, Op
    from tilecc.kernel import Kernel

# Extents that --shape does not give, by the role of their axes.
DEFAULT_STATIC = 64  # whole in a tile: head dimensions
DEFAULT_TILED = 1024  # sequences
DEFAULT_TABLE = 64  # what data or positions point into: pages, offsets, biases by distance
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
    file: str,
    target: str,
    dtype: str,
    shape: Mapping[str, int],
    tile: Any,
    split: Any = "auto",
    tensor: str | None = None,
) -> Sized:
    """The program in `file`, with a size for every extent.

    Raises:
        click.UsageError: --shape names an extent that the program does not have.
        TileccError: the program is wrong, or cannot be compiled.
    """
    from tilecc.compiler import Compiler
    from tilecc.given import check_tensor, extent_names, load
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
    compiler.tensor = check_tensor(tensor, machine)
    if tile is None and split == "auto" and tensor is None:
        compiler.remembered = remembered(machine)
    static_sizes = dict.fromkeys(names, DEFAULT_STATIC) | dict(shape)
    static = compiler.required(static_sizes)
    default = _default_sizes(compiler, {n: static_sizes[n] for n in static})
    sizes = {n: shape.get(n, default.get(n, DEFAULT_OTHER)) for n in names}
    chosen = {n: sizes[n] for n in names if n in static}
    return Sized(func, spec, compiler, sizes, frozenset(shape), chosen)


def _default_sizes(compiler: Compiler, static: Mapping[str, int]) -> dict[str, int]:
    """Sizes for extents with a role in the kernels: static, walked tile by tile, pointed into."""
    func = compiler.front(static).func
    found = dict.fromkeys(static, DEFAULT_STATIC)
    for op in func.body.ops:
        if op.name != "kernel":
            continue
        walked = _walked(func, op)
        for a in walked.values():
            names = extents(a.extent) - set(static)
            for n in names:  # such as pages and their slots, whose product is walked
                found.setdefault(n, round(DEFAULT_TILED ** (1 / len(names))))
        for at in (o for o in op.body.walk() if o.name == "at"):
            for axis, e in at.attrs["coords"]:
                if arg_numbers(e) or indices(e) & set(walked):
                    for n in extents(at.operands[0].type.axis(axis).extent):
                        found.setdefault(n, DEFAULT_TABLE)
    return found


def _walked(func: Func, kernel: Op) -> dict[str, Axis]:
    """Axes of a kernel that are, or could be, walked tile by tile."""
    from tilecc.passes.tiling.plan import kernel_axes, rows, streamed_axes

    if "grid" in kernel.attrs:
        axes = {a.name: a for p in func.params for a in p.type.axes}
        return {a: axes[a] for a, _ in kernel.attrs.get("tile", ()) if a in axes}
    axes, parallel = kernel_axes(kernel), rows(kernel)
    tensors = [v for op in kernel.body.walk() if op.name == "contract" for v in op.operands]
    # Of rows of one tensor the last: those before it are heads.
    last = [
        a
        for n, a in enumerate(parallel)
        if not any(v.type.has(a) and v.type.has(b) for b in parallel[n + 1 :] for v in tensors)
    ]
    return {a: axes[a] for a in (*last, *streamed_axes(kernel))}

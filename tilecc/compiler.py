"""From a program to machine code: which passes run on what, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilecc.errors import CompileError, Diagnostic, TileccError
from tilecc.given import Splitting, Tiles, refuse_too_long
from tilecc.ir.core import Func, bind_extents
from tilecc.pipeline import Compilation, PassManager, too_deep
from tilecc.tuning.config import Config

if TYPE_CHECKING:
    from tilecc.codegen.program import DeviceProgram, Program
    from tilecc.kernel import Kernel
    from tilecc.runtime.build import Library
    from tilecc.runtime.cuda.library import DeviceLibrary
    from tilecc.target import Target
    from tilecc.tuning.answers import Answers

# The passes from each level on: what decides on kernels, and what makes them one pass over tiles.
_FRONT = {"graph": "simplify,fuse", "loop": "", "tile": ""}
_MIDDLE = {"graph": "online-softmax,mask-tiles,exponents", "loop": "", "tile": ""}
# And what a GPU needs on top.
_LAST = "pipeline"

PREDICTED = "predicted"


def loop_stage(names: Sequence[str]) -> str | None:
    """Of stages in order, the last before `tile`; None if the program came as tile IR."""
    before = list(names).index("tile") - 1 if "tile" in names else -1
    return names[before] if before >= 0 else None


def tile_stage(names: Sequence[str]) -> str:
    """Of stages in order, the one in which traffic is counted: `tile`, or what came as tile IR."""
    return "tile" if "tile" in names else [n for n in names if n not in _LAST.split(",")][-1]


class NeedsExtents(TileccError):
    """A program that can be compiled when more of its extents are numbers."""

    def __init__(self, names: frozenset[str], run: Compilation) -> None:
        self.names, self.run = names, run
        super().__init__(f"extents {', '.join(sorted(names))} must be numbers")


@dataclass
class Compiled:
    """One program for one binding of static extents, as far as it has been compiled."""

    static: dict[str, int]
    run: Compilation
    tile: dict[str, int]
    choice: Any = None  # the cost model's, if it chose
    program: Program | DeviceProgram | None = None
    library: Library | DeviceLibrary | None = None
    timings: dict[str, float] = field(default_factory=dict)
    leading: Kernel | None = None  # the kernels that make maps of tiles, compiled on their own
    options: dict[str, int] = field(default_factory=dict)
    """The code generator's, where they are not at their defaults."""
    config: Config | None = None
    """What a tuner found, if its tile and options are used; `answers`: all that it found."""
    answers: Answers | None = None

    @property
    def tiled(self) -> Func:
        """The program as `tile` left it: what its traffic is counted in."""
        return self.run.stage(tile_stage([s.name for s in self.run.stages])).func

    @property
    def loop(self) -> Func | None:
        """The program before `tile`; None if it came as tile IR."""
        name = loop_stage([s.name for s in self.run.stages])
        return self.run.stage(name).func if name is not None else None


class Compiler:
    """Compiles one program for one target, for any binding of its extents."""

    def __init__(
        self,
        func: Func,
        target: Target,
        tile: Tiles,
        split: Splitting = "auto",
        threads: int | None = None,
    ) -> None:
        """`threads`: how many there will be, for split="fill"; else the target's cores."""
        refuse_too_long(func)
        self.func, self.target, self.tile = func, target, tile
        self.level = func.level
        if self.level == "tile" and target.kind == "cpu":  # written by hand, perhaps
            from tilecc.analysis.ranges import keep_inside

            self.func = keep_inside(func)
        self.split, self.workers = split, threads or int(target.cores.value)
        self.options: dict[str, int] = {}
        self.tensor: str | None = None
        """What f32 factors may be rounded to, for tensor cores."""
        self.to_run = True
        """Else only costs are asked for, which tiles have too that could not run."""
        self.remembered: Callable[[Compilation], Answers | None] | None = None
        """What a tuner's database knows about a program, if there is one to be asked."""

    def passes(self, static: Mapping[str, int], config: Config | str | None = None) -> Compiled:
        """The tiled program.

        `config`: what a tuner found, PREDICTED for the cost model's choice of tile, or None: what
        is remembered, else predicted.

        Raises:
            NeedsExtents: `static` does not suffice.
            CompileError: a pass cannot do its work.
        """
        front = self.front(static)
        missing = self._missing(front.func)
        if missing:
            raise NeedsExtents(missing, front)
        run = _joined(front, PassManager(_MIDDLE[self.level]).run(front.func))
        run = self._split(run)
        if self.tensor is not None:
            run = _joined(run, PassManager(f"tensor{{{self.tensor}}}").run(run.func))
        start = time.perf_counter()
        answers = None
        if self.remembered is not None and self.level != "tile":
            answers = self.remembered(front)
        if answers is not None and config is None:
            config = (answers.select(static) or answers.first).config
            try:
                PassManager(_tile_pass(dict(config.tile))).run(run.func)
            except CompileError:  # it was of another program: all that is lost is speed
                config = answers = None
        choice, tile = None, "tile"
        if self.level == "tile":
            tile = ""
        elif isinstance(config, Config):
            tile = _tile_pass(dict(config.tile))
        elif self.tile is None:
            from tilecc.cost import choose_tile

            choice = choose_tile(run.func, self.target, dict(static))
            tile = _tile_pass(choice.tile)
        else:
            tile = _tile_pass(self.tile)
        run = _joined(run, PassManager(tile).run(run.func))
        unchecked = choice is None or self.target.kind == "cpu"
        if self.to_run and unchecked:
            from tilecc.cost import refuse_what_cannot_run

            refuse_what_cannot_run(run.func, self.target)
        found = Compiled(dict(static), run, _tile_sizes(run.func), choice, timings=run.timings)
        if tile:
            found.timings["tile"] = time.perf_counter() - start  # with the choice of sizes
        if self.target.kind == "cuda":
            found.run = _joined(run, PassManager(_LAST).run(run.func))
            found.timings = {**found.run.timings, **found.timings}
        found.config = config if isinstance(config, Config) else None
        found.options = dict(found.config.options) if found.config else self.options
        found.answers = answers
        return found

    def _split(self, run: Compilation) -> Compilation:
        """The run with its kernels split as asked."""
        from tilecc.cost.split import split_pass

        if self.level == "tile" and self.split not in (None, "auto"):
            hint = "compile loop IR, or write the parts into the program"
            raise CompileError(Diagnostic("tile IR cannot be split", self.func.loc, hint))
        if self.level == "tile" or (self.level == "loop" and self.split == "auto"):
            return run  # what was written by hand stays as it is
        text = split_pass(run.func, self.target, self.split, self.workers)
        return _joined(run, PassManager(text).run(run.func)) if text else run

    def front(self, static: Mapping[str, int]) -> Compilation:
        """The first passes, which decide what the kernels are and which extents are static."""
        bound = bind_extents(self.func, dict(static)) if static else self.func
        return PassManager(_FRONT[self.level]).run(bound)

    def required(self, sizes: Mapping[str, int]) -> frozenset[str]:
        """The extents that must be numbers, when those get the numbers in `sizes`.

        Raises:
            KeyError: one of them is not in `sizes`.
        """
        static: dict[str, int] = {}
        while missing := self._missing(self.front(static).func):
            static |= {name: sizes[name] for name in missing}
        return frozenset(static)

    def _missing(self, func: Func) -> frozenset[str]:
        if self.level == "tile":
            return frozenset()
        from tilecc.analysis.roles import static_extents

        return static_extents(func)

    def lower(self, compiled: Compiled) -> Program | DeviceProgram:
        """TIR for the target."""
        if compiled.program is None:
            from tilecc.codegen import lower

            start = time.perf_counter()
            func = compiled.run.func
            try:
                compiled.program = lower(func, self.target, compiled.options)
            except RecursionError:
                raise too_deep("tir", func) from None
            compiled.timings["tir"] = time.perf_counter() - start
        return compiled.program

    def build(self, compiled: Compiled) -> Library | DeviceLibrary:
        """Machine code for the target; for a GPU, once it is asked for."""
        if compiled.library is None:
            compiled.library = self.library(self.lower(compiled), self.target)
            if self.target.kind == "cpu":
                compiled.timings["llvm"] = compiled.library.seconds
        return compiled.library

    def library(self, program: Program | DeviceProgram, target: Target) -> Library | DeviceLibrary:
        """A program's machine code for a target of its kind.

        Raises:
            CompileError: there is no code generation for such a target.
        """
        from tilecc.codegen.program import DeviceProgram

        if isinstance(program, DeviceProgram):
            from tilecc.runtime.cuda.library import DeviceLibrary

            return DeviceLibrary(program, target)
        from tilecc.runtime.build import build

        return build(program, target)


def _tile_pass(tile: Mapping[str, int] | int) -> str:
    if isinstance(tile, Mapping):
        return f"tile{{{','.join(f'{a}={n}' for a, n in tile.items())}}}"
    return f"tile{{{tile}}}"


def _tile_sizes(func: Func) -> dict[str, int]:
    """The tile sizes that a tile-level program's kernels have."""
    sizes: dict[str, int] = {}
    for op in func.body.ops:
        sizes |= dict(op.attrs.get("tile", ()))
    return sizes


def _joined(first: Compilation, second: Compilation) -> Compilation:
    """Two runs, the second on what came out of the first, as one."""
    return Compilation(
        first.stages + second.stages[1:],
        first.remarks + second.remarks,
        first.details + second.details,
    )

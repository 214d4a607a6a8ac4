"""The compiled kernel that a user holds: called on arrays, asked for its IR, cost and tile."""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilecc.chosen import ChosenTile
from tilecc.codegen.program import DeviceProgram, Program
from tilecc.compiler import PREDICTED, Compiled, Compiler, NeedsExtents, extent_names
from tilecc.dsl.specification import Spec
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Func
from tilecc.ir.printer import print_type
from tilecc.passes.base import Remark
from tilecc.pipeline import Compilation, PipelineError
from tilecc.target import Target

if TYPE_CHECKING:
    from tilecc.codegen.program import DeviceProgram
    from tilecc.cost import Report
    from tilecc.cost.visits import Tiles
    from tilecc.runtime.arguments import Bound
    from tilecc.runtime.cuda.library import DeviceLibrary
    from tilecc.toolchain import Resources
    from tilecc.tuning.config import Config

_TEXTS: dict[str, tuple[str, ...]] = {"cpu": ("llvm", "asm"), "cuda": ("cuda", "ptx", "sass")}
"""What a kernel can be read as after TIR, by the kind of its target."""


class Kernel:
    """A compiled program. Call it with its arguments, in order or by name.

    Where extents that must be numbers are not known yet, it is compiled for those of the first
    call's arguments, and again for others; `compilations` counts. For few query rows (up to 4, and
    up to 16) there are variants of such a kernel, made when first called for: lanes of theirs do
    not wait for rows that are not there.
    """

    def __init__(
        self,
        compiler: Compiler,
        static: dict[str, int],
        threads: int | None = None,
        spec: Spec | None = None,
        *,
        build: bool = True,
        driver: Any = None,
    ) -> None:
        """`build`: make machine code at once, and not at the first call. `driver`: of the GPUs to
        run on (`runtime.cuda.driver.Driver`); else this machine's."""
        self._given_driver = driver
        self.spec = spec
        self.static = static
        self.threads = threads
        self.compilations = 0
        self._compiler = compiler
        self._binder: Any = None  # of arrays on the CPU
        self._call_binder: Any = None  # of arrays where the kernel runs
        self._lock = threading.RLock()
        self._needed: tuple[str, ...] = ()
        self._executables: dict[tuple[int, ...], Any] = {}
        self._specialised: dict[tuple[int, ...], Compiled] = {}
        self._few: dict[tuple[Any, ...], tuple[Compiled, dict[str, int]]] = {}  # rows
        self._compiled: Compiled | None = None
        self._front: Compilation | None = None
        try:
            self._compiled = compiler.passes(static)
        except NeedsExtents as e:
            self._needed, self._front = tuple(sorted(e.names)), e.run
        else:
            from tilecc.runtime.build import runs_here

            self.compilations = 1
            self._specialised[()] = self._compiled
            if build and runs_here(self.target):
                self._executables[()] = self._load(self._compiled)

    @property
    def name(self) -> str:
        """The program's name."""
        return self._compiler.func.name

    @property
    def target(self) -> Target:
        """The machine that it is compiled for."""
        return self._compiler.target

    @property
    def signature(self) -> str:
        """Parameters and results with their types, as text."""
        func = self._compiler.func
        params = ", ".join(f"{p.name}: {print_type(p.type)}" for p in func.params)
        results = ", ".join(print_type(v.type) for v in func.returns)
        return f"{func.name}({params}) -> {results}"

    def __repr__(self) -> str:
        static = "".join(f" {n}={v}" for n, v in self.static.items())
        return f"<kernel {self.signature} for {self.target.name}{static}>"

    def __call__(
        self, *args: Any, out: Any = None, threads: int | None = None, **kwargs: Any
    ) -> Any:
        """Run on arrays (numpy, torch, anything with DLPack; none is copied) and numbers.

        Args:
            args: the program's arguments in order.
            out: arrays to write the outputs to; they may not overlap an argument.
            threads: how many threads to use.
            kwargs: arguments by name.

        Returns:
            The output, or a tuple of them: new arrays of the arguments' kind, or `out`.

        Raises:
            ArgumentError: wrong arguments; the message names each, its axis, and both values.
            CompileError: the kernel cannot be compiled for these extents, or not run here.
        """
        if self._call_binder is None:
            self._driver = self._find_driver()
            self._call_binder = self._make_binder(on_device=self.target.kind == "cuda")
        from tilecc.runtime.pool import available_threads, check_threads

        bound = self._call_binder.bind(args, kwargs)
        count = check_threads(threads) or self.threads or available_threads()
        needed = self._needed
        executable = self._executables.get(tuple([bound.extents[n] for n in needed]))
        if executable is None:
            executable = self._specialise(bound.extents)
        return executable(bound, out, count)

    @property
    def func(self) -> Func:
        """The program as it was given."""
        return self._compiler.func

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """Arguments on the CPU, checked, with the extents that they have.

        Raises:
            ArgumentError: with everything that is wrong.
        """
        if self._binder is None:
            self._binder = self._make_binder(on_device=False)
        bound: Bound = self._binder.bind(args, kwargs)
        return bound

    def compiled_for(self, extents: Mapping[str, int]) -> Compiled:
        """The program for these extents as far as passes go; no machine code is made for it."""
        with self._lock:
            while True:
                static = {**self.static, **{n: extents[n] for n in self._needed}}
                if self._compiled is not None and self._compiled.static == static:
                    return self._compiled
                try:
                    self._compiled = self._compiler.passes(static)
                except NeedsExtents as e:
                    self._need_more(e)
                    continue
                self.compilations += 1

    def program(self, compiled: Compiled) -> Program | DeviceProgram:
        """Its kernels as generated code."""
        return self._compiler.lower(compiled)

    def _make_binder(self, *, on_device: bool) -> Any:
        from tilecc.runtime.arguments import Binder

        read = None
        if on_device:
            from tilecc.runtime.cuda.arrays import device_tensor

            read = device_tensor
        return Binder(self.name, self._compiler.func.params, self.static, read)

    def _find_driver(self) -> Any:
        """What runs GPU kernels; None for a CPU's.

        Raises:
            CompileError: there is no GPU, or the target is no machine at all.
        """
        if self.target.kind == "cuda":
            from tilecc.runtime.cuda.driver import driver

            return self._given_driver or driver()
        from tilecc.runtime.build import runs_here

        if not runs_here(self.target):
            raise CompileError(f"a kernel for {self.target.name} does not run on this machine")
        return None

    def _specialise(self, extents: Mapping[str, int]) -> Any:
        """Compile for these extents, unless another thread has just done so."""
        with self._lock:
            while True:
                key = tuple(extents[n] for n in self._needed)
                if key in self._executables:
                    return self._executables[key]
                static = {**self.static, **dict(zip(self._needed, key, strict=True))}
                if self._compiled is None or self._compiled.static != static:
                    try:
                        self._compiled = self._compiler.passes(static)
                    except NeedsExtents as e:
                        self._need_more(e)
                        continue
                    self.compilations += 1
                self._executables[key] = self._load(self._compiled)
                self._specialised[key] = self._compiled
                return self._executables[key]

    def _need_more(self, e: NeedsExtents) -> None:
        """With some extents bound, others are needed: what is kept is by the fewer ones."""
        self._executables.clear()
        self._specialised.clear()
        self._few.clear()
        self._needed = tuple(sorted({*self._needed, *e.names}))

    def _load(self, compiled: Compiled) -> Any:
        executable = self._executable(compiled)
        if compiled.answers is None:
            return self._by_rows(compiled, executable)
        from tilecc.dispatch import Dispatch

        return Dispatch(
            compiled.answers, self._variant(compiled.static), (compiled.config, executable)
        )

    def _by_rows(self, compiled: Compiled, general: Any) -> Any:
        """`general`, and variants for few rows where their number is for a call to say."""
        from tilecc.cost.rows import is_exact, rows_axis, variant
        from tilecc.dispatch import ByRows
        from tilecc.tuning.config import Config

        loop = compiled.loop
        if compiled.choice is None or loop is None or self.target.kind != "cpu":
            return general  # sizes were given, or there is nothing to choose
        found = rows_axis(loop)
        if found is None:
            return general
        axis, extent = found

        def build(rows: int) -> Any:
            config = Config.of({**compiled.tile, axis: rows}, compiled.options)
            with self._lock:
                if is_exact(rows):
                    static = {**compiled.static, extent: rows}
                    made = self._compiler.passes(static, PREDICTED)
                    most: dict[str, int] = {}
                else:
                    made = self._compiler.passes(compiled.static, config)
                    most = {extent: rows}
                executable = self._executable(made)
                self._few[(rows, *sorted(compiled.static.items()))] = made, most
                return executable

        return ByRows(extent, variant, build, general)

    def _executable(self, compiled: Compiled) -> Any:
        from tilecc.runtime.build import Library
        from tilecc.runtime.executable import Executable

        library, program = self._compiler.build(compiled), self._compiler.lower(compiled)
        func = compiled.run.func
        if isinstance(library, Library):
            assert isinstance(program, Program)
            return Executable(func, program, library.functions)
        from tilecc.runtime.cuda.executable import DeviceExecutable

        assert isinstance(program, DeviceProgram)
        return DeviceExecutable(func, program, library.images, self._driver)

    def _tuned_variants(self, compiled: Compiled) -> list[Compiled]:
        """Of a tuned program one for all calls, and one for each configuration, its own last."""
        if compiled.answers is None:
            return [compiled]
        found = self._compiler.passes(compiled.static, PREDICTED)
        found.answers = None
        others = [c for c in compiled.answers.configs if c != compiled.config]
        return [found, *(self._compiler.passes(compiled.static, c) for c in others), compiled]

    def _variant(self, static: dict[str, int]) -> Any:
        """What builds the executable for a remembered configuration, or (None) a predicted one."""

        def build(config: Config | None) -> Any:
            with self._lock:
                compiled = self._compiler.passes(static, config or PREDICTED)
                compiled.answers = None
                self.compilations += 1
                return self._load(compiled)

        return build

    def save(self, path: str | os.PathLike[str], archs: Sequence[str] | None = None) -> None:
        """Write what has been compiled to one file, which `tilecc.load` reads without TVM.

        Args:
            path: the file; an older one is replaced when the new one is whole.
            archs: further machines to make code for: CPUs such as "x86-64-v3", or for a GPU's
                kernel architectures such as "sm_90". The kernel's own target is always there.

        Raises:
            CompileError: nothing has been compiled yet, or not for such a machine.
            LoadError: the file cannot be written.
        """
        from tilecc.saved.save import Source, save

        self._done("there is nothing to save yet")
        with self._lock:
            few = [self._few[key] for key in sorted(self._few)]
            compiled = [v for c in self._specialised.values() for v in self._tuned_variants(c)]
        save(Source(self._compiler, compiled, self.static, self.threads, few), path, archs)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages whose IR can be asked for (of the last specialisation)."""
        if self._compiled is None:
            assert self._front is not None
            return tuple(s.name for s in self._front.stages)
        texts = _TEXTS.get(self.target.kind, ())
        return (*(s.name for s in self._compiled.run.stages), "tir", *texts)

    def ir(self, stage: str, locs: bool = False) -> str:
        """The program's text after a stage; `locs` adds the source line of each operation.

        Raises:
            CompileError: the stage is not reached until an extent is known.
            PipelineError: there is no such stage.
        """
        if self._compiled is None and self._front is not None:
            if stage in (s.name for s in self._front.stages):
                return self._front.stage(stage).text(locs=locs)
            raise self._unknown_extents(f"stage {stage!r} is not reached yet")
        compiled = self._done("")
        if stage.replace("_", "-") not in self.stages:
            near = difflib.get_close_matches(stage, self.stages, n=1, cutoff=0.5)
            guess = f"did you mean {near[0]}? " if near else ""
            hint = f"{guess}stages for {self.target.name} are {', '.join(self.stages)}"
            raise PipelineError(Diagnostic(f"there is no stage {stage!r}", None, hint))
        if stage == "tir":
            program = self._compiler.lower(compiled)
            return "\n".join(k.prim_func.script() for k in program.kernels)
        if stage in _TEXTS.get(self.target.kind, ()):
            return self._compiler.build(compiled).text(stage)
        return compiled.run.stage(stage).text(locs=locs)

    def _done(self, what: str) -> Compiled:
        if self._compiled is None:
            raise self._unknown_extents(what)
        return self._compiled

    def _unknown_extents(self, what: str) -> CompileError:
        names = ", ".join(self._needed)
        static = ", ".join(f'"{n}": ...' for n in self._needed)
        hint = f"compile with static={{{static}}}, or call the kernel once"
        return CompileError(Diagnostic(f"{what}: {names} must be known", None, hint))

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What the passes have to say."""
        run = self._compiled.run if self._compiled is not None else self._front
        assert run is not None
        return tuple(run.remarks)

    @property
    def timings(self) -> dict[str, float]:
        """Seconds for each stage of the last compilation."""
        return dict(self._compiled.timings) if self._compiled is not None else {}

    @property
    def tile(self) -> ChosenTile:
        """The tile sizes, and the candidates with the reason for each refusal.

        Raises:
            CompileError: not compiled yet, since extents are unknown.
        """
        compiled = self._done("no tile is chosen yet")
        candidates = compiled.choice.candidates if compiled.choice is not None else ()
        found: list[str] = []
        if compiled.answers is not None and compiled.config is not None:
            others = [c for c in compiled.answers.configs if c != compiled.config]
            found = [compiled.answers.describe(compiled.config)]
            found += [f"{c} {compiled.answers.describe(c)}" for c in others]
        return ChosenTile(compiled.tile, tuple(candidates), compiled.options, tuple(found))

    @property
    def scratch_bytes(self) -> int:
        """Memory that each thread needs beside inputs and outputs; it depends on no extent."""
        program = self._compiler.lower(self._done("not compiled yet"))
        return program.scratch_bytes if isinstance(program, Program) else 0

    def resources(self) -> tuple[Resources, ...]:
        """What each CUDA kernel takes of an SM, as ptxas and the disassembler tell.

        Raises:
            CompileError: not compiled yet, or not for a GPU, or NVIDIA's compiler is not installed.
        """
        return self._device("no report on its resources").resources()

    def cubins(self) -> list[bytes]:
        """The machine code of each CUDA kernel.

        Raises:
            CompileError: as `resources`.
        """
        return self._device("no cubin").cubins()

    def _device(self, missing: str) -> DeviceLibrary:
        from tilecc.runtime.cuda.library import DeviceLibrary

        if self.target.kind != "cuda":
            hint = 'compile for a GPU, such as target="sm_80"'
            message = f"{self.target.name} is not a GPU: there is {missing}"
            raise CompileError(Diagnostic(message, None, hint))
        library = self._compiler.build(self._done("nothing is compiled yet"))
        assert isinstance(library, DeviceLibrary)
        return library

    @property
    def loop_func(self) -> Func | None:
        """The program before `tile`; None if it came as tile IR."""
        return self._done("not compiled yet").loop

    def cost(self, **sizes: Any) -> Report:
        """Memory traffic, footprint and arithmetic as formulas.

        Args:
            sizes: extents by name, run-time numbers such as a window, and arrays that decide which
                tiles are visited (ids, masks; or `full_tiles` and `partial_tiles`, the counts).
                With all extents, costs are numbers too.

        Raises:
            CompileError: not compiled yet, or a run-time number decides what is read and is not
                given, or some extents are given and not all, or there is no such extent or number.
        """
        from tilecc.cost import report
        from tilecc.deciding import decided, told_apart

        compiled = self._done("no cost is known yet")
        func = self._compiler.func
        extents, scalars, arrays = known = told_apart(func, compiled, sizes)
        missing = [n for n in extent_names(func) if n not in extents]
        if missing and any(n in sizes for n in extents):
            more = ", ".join(f"{n}=..." for n in missing)
            hint = f"add {more}; without any extent costs are formulas"
            raise CompileError(
                Diagnostic(f"cost: {', '.join(missing)} must be known for numbers", None, hint)
            )
        # Maps that positions alone decide are made here: no argument could give their counts.
        numbers = {p.name for p in func.params if not p.type.axes}
        alone = not missing and not self.deciding and numbers <= set(scalars)
        open_counts = alone and not set(self.counts) <= set(scalars)
        return report(
            func if self._compiler.level == "graph" else None,
            self.loop_func,
            compiled.tiled,
            self.target,
            extents,
            scalars,
            compiled.choice,
            decided(compiled, self.target, known) if arrays or open_counts else None,
        )

    @property
    def deciding(self) -> tuple[str, ...]:
        """The arguments that decide which tiles are visited, by name."""
        from tilecc.cost.visits import deciding

        return tuple(v.name for v in deciding(self._done("no tiles are known yet").tiled))

    @property
    def counts(self) -> tuple[str, ...]:
        """The numbers of visits that they decide: symbols in the formulas of `cost`."""
        from tilecc.deciding import counts

        return counts(self._done("no tiles are known yet"))

    def tiles(self, stream: int = 0, **sizes: Any) -> Tiles:
        """Which tiles are full, partial and empty, from the loops and conditions of the tile IR.

        Args:
            stream: which walk over an axis, if there are several.
            sizes: extents by name, run-time numbers, and the arrays that decide it (ids, lengths,
                masks), by the names of the parameters. Arrays tell extents, too.

        Raises:
            CompileError: not compiled yet, or something that decides it is not given.
            ArgumentError: an array has the wrong shape.
        """
        from tilecc.cost.visits import visited
        from tilecc.deciding import decided, told_apart

        compiled = self._done("no tiles are known yet")
        extents, scalars, _ = known = told_apart(self._compiler.func, compiled, sizes)
        arrays = decided(compiled, self.target, known)
        return visited(compiled.tiled, extents, scalars, arrays, stream)

"""The compiled kernel that a user holds: called on arrays, asked for its IR, cost and tile."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilecc.chosen import ChosenTile
from tilecc.codegen.program import DeviceProgram, Program
from tilecc.compiler import Compiled, Compiler
from tilecc.dsl.specification import Spec
from tilecc.errors import CompileError, Diagnostic
from tilecc.given import extent_names
from tilecc.ir.core import Func
from tilecc.ir.printer import print_type
from tilecc.passes.base import Remark
from tilecc.pipeline import PipelineError
from tilecc.specialise import Specialisations
from tilecc.target import Target

if TYPE_CHECKING:
    from tilecc.codegen.program import DeviceProgram
    from tilecc.cost import Report
    from tilecc.cost.visits import Tiles
    from tilecc.runtime.arguments import Bound
    from tilecc.runtime.cuda.library import DeviceLibrary
    from tilecc.toolchain import Resources

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
        self._compiler = compiler
        self._binder: Any = None  # of arrays on the CPU
        self._call_binder: Any = None  # of arrays where the kernel runs
        self._variants = Specialisations(compiler, static)
        if build and self._variants.latest is not None:
            from tilecc.runtime.build import runs_here

            if runs_here(self.target):
                self._variants.build_first()

    @property
    def compilations(self) -> int:
        """How often it has been compiled; variants for few rows do not count."""
        return self._variants.compilations

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
            self._variants.driver = self._find_driver()
            self._call_binder = self._make_binder(on_device=self.target.kind == "cuda")
        from tilecc.runtime.pool import available_threads, check_threads

        bound = self._call_binder.bind(args, kwargs)
        count = check_threads(threads) or self.threads or available_threads()
        variants = self._variants
        key = tuple([bound.extents[n] for n in variants.needed])
        executable = variants.executables.get(key)
        if executable is None:
            executable = variants.executable(bound.extents)
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
        return self._variants.compiled_for(extents)

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
        compiled, few = self._variants.all_compiled()
        save(Source(self._compiler, compiled, self.static, self.threads, few), path, archs)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages whose IR can be asked for (of the last specialisation)."""
        reached = tuple(s.name for s in self._variants.run.stages)
        if self._variants.latest is None:
            return reached
        return (*reached, "tir", *_TEXTS.get(self.target.kind, ()))

    def ir(self, stage: str, locs: bool = False) -> str:
        """The program's text after a stage; `locs` adds the source line of each operation.

        Raises:
            CompileError: the stage is not reached until an extent is known.
            PipelineError: there is no such stage.
        """
        if self._variants.latest is None:
            if stage in self.stages:
                return self._variants.run.stage(stage).text(locs=locs)
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
        if self._variants.latest is None:
            raise self._unknown_extents(what)
        return self._variants.latest

    def _unknown_extents(self, what: str) -> CompileError:
        names = ", ".join(self._variants.needed)
        static = ", ".join(f'"{n}": ...' for n in self._variants.needed)
        hint = f"compile with static={{{static}}}, or call the kernel once"
        return CompileError(Diagnostic(f"{what}: {names} must be known", None, hint))

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What the passes have to say."""
        return tuple(self._variants.run.remarks)

    @property
    def timings(self) -> dict[str, float]:
        """Seconds for each stage of the last compilation."""
        latest = self._variants.latest
        return dict(latest.timings) if latest is not None else {}

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

"""The variants of a kernel: for the extents of a call, tuned ones, and those for few query rows."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilecc.codegen.program import DeviceProgram, Program
from tilecc.compiler import PREDICTED, Compiled, Compiler, NeedsExtents

if TYPE_CHECKING:
    from tilecc.pipeline import Compilation
    from tilecc.tuning.config import Config


class Specialisations:
    """What one program has been compiled to, and what it is compiled to when a call needs it.

    Attributes:
        needed: extents that must be numbers, and are known at a call only.
        latest: the program of the last compilation; None until `needed` extents are known.
        compilations: how many there have been for calls; those for few rows do not count.
        driver: of the GPUs to run on; None for a CPU.
    """

    def __init__(self, compiler: Compiler, static: dict[str, int]) -> None:
        self.compiler, self.static = compiler, static
        self.needed: tuple[str, ...] = ()
        self.latest: Compiled | None = None
        self._front: Compilation | None = None
        self.compilations = 0
        self.driver: Any = None
        self.executables: dict[tuple[int, ...], Any] = {}
        self.compiled: dict[tuple[int, ...], Compiled] = {}
        self.few: dict[tuple[Any, ...], tuple[Compiled, dict[str, int]]] = {}
        self._lock = threading.RLock()
        try:
            self.latest = compiler.passes(static)
        except NeedsExtents as e:
            self.needed, self._front = tuple(sorted(e.names)), e.run
        else:
            self.compilations = 1
            self.compiled[()] = self.latest

    @property
    def run(self) -> Compilation:
        """The passes of the last compilation; or as far as they come while extents are unknown."""
        found = self.latest.run if self.latest is not None else self._front
        assert found is not None
        return found

    def build_first(self) -> None:
        """Machine code now, and not at the first call, if all extents that it needs are known."""
        if self.latest is not None:
            self.executables[()] = self._load(self.latest)

    def compiled_for(self, extents: Mapping[str, int]) -> Compiled:
        """The program for these extents as far as passes go; no machine code is made for it."""
        with self._lock:
            while True:
                found = self._passes({**self.static, **{n: extents[n] for n in self.needed}})
                if found is not None:
                    return found

    def executable(self, extents: Mapping[str, int]) -> Any:
        """What runs for these extents, compiled unless another thread has just done so."""
        with self._lock:
            while True:
                key = tuple(extents[n] for n in self.needed)
                if key in self.executables:
                    return self.executables[key]
                static = {**self.static, **dict(zip(self.needed, key, strict=True))}
                found = self._passes(static)
                if found is None:
                    continue
                self.executables[key] = self._load(found)
                self.compiled[key] = found
                return self.executables[key]

    def _passes(self, static: dict[str, int]) -> Compiled | None:
        """The program for an assignment of extents; None: others are needed too."""
        if self.latest is None or self.latest.static != static:
            try:
                self.latest = self.compiler.passes(static)
            except NeedsExtents as e:  # what is kept is by the fewer ones
                self.executables.clear()
                self.compiled.clear()
                self.few.clear()
                self.needed = tuple(sorted({*self.needed, *e.names}))
                return None
            self.compilations += 1
        return self.latest

    def all_compiled(self) -> tuple[list[Compiled], list[tuple[Compiled, dict[str, int]]]]:
        """Every variant, and those for few rows with the most rows of each, in a steady order."""
        with self._lock:
            few = [self.few[key] for key in sorted(self.few)]
            return [v for c in self.compiled.values() for v in self._tuned(c)], few

    def _load(self, compiled: Compiled) -> Any:
        executable = self._executable(compiled)
        if compiled.answers is None:
            return self._by_rows(compiled, executable)
        from tilecc.dispatch import Dispatch

        first = compiled.config, executable
        return Dispatch(compiled.answers, self._configured(compiled.static), first)

    def _executable(self, compiled: Compiled) -> Any:
        from tilecc.runtime.build import Library
        from tilecc.runtime.executable import Executable

        library, program = self.compiler.build(compiled), self.compiler.lower(compiled)
        func = compiled.run.func
        if isinstance(library, Library):
            assert isinstance(program, Program)
            return Executable(func, program, library.functions)
        from tilecc.runtime.cuda.executable import DeviceExecutable

        assert isinstance(program, DeviceProgram)
        return DeviceExecutable(func, program, library.images, self.driver)

    def _by_rows(self, compiled: Compiled, general: Any) -> Any:
        """`general`, and variants for few rows where their number is for a call to say."""
        from tilecc.cost.rows import is_exact, rows_axis, variant
        from tilecc.dispatch import ByRows
        from tilecc.tuning.config import Config

        loop = compiled.loop
        if compiled.choice is None or loop is None or self.compiler.target.kind != "cpu":
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
                    made = self.compiler.passes(static, PREDICTED)
                    most: dict[str, int] = {}
                else:
                    made = self.compiler.passes(compiled.static, config)
                    most = {extent: rows}
                executable = self._executable(made)
                self.few[(rows, *sorted(compiled.static.items()))] = made, most
                return executable

        return ByRows(extent, variant, build, general)

    def _tuned(self, compiled: Compiled) -> list[Compiled]:
        """Of a tuned program one for all calls, and one for each configuration, its own last."""
        if compiled.answers is None:
            return [compiled]
        found = self.compiler.passes(compiled.static, PREDICTED)
        found.answers = None
        others = [c for c in compiled.answers.configs if c != compiled.config]
        return [found, *(self.compiler.passes(compiled.static, c) for c in others), compiled]

    def _configured(self, static: dict[str, int]) -> Any:
        """What builds the executable for a remembered configuration, or (None) a predicted one."""

        def build(config: Config | None) -> Any:
            with self._lock:
                compiled = self.compiler.passes(static, config or PREDICTED)
                compiled.answers = None
                self.compilations += 1
                return self._load(compiled)

        return build

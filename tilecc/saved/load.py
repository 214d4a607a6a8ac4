"""`tilecc.load`: a saved kernel, ready to be called, without the compiler that made it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilecc.codegen.program import DeviceProgram
from tilecc.errors import ArgumentError, CompileError, Diagnostic, DiagnosticError, LoadError, Loc
from tilecc.ir.core import Func
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir, print_type
from tilecc.runtime.arguments import Binder, Bound
from tilecc.saved import container
from tilecc.saved.cost import SavedCost, with_numbers
from tilecc.saved.device import device_program, device_text
from tilecc.saved.encode import entry_from, numbered, target_from
from tilecc.saved.machine import Machine
from tilecc.target import Target
from tilecc.tuning.buckets import Bucket, nearest


def load(path: str | os.PathLike[str], threads: int | None = None) -> LoadedKernel:
    """The kernel in a file that `Kernel.save` wrote.

    A file holds machine code: load only what you would run. The checksum tells of damage, not of
    who wrote the file.

    Args:
        path: the file.
        threads: how many threads a call uses if it does not say; else as it was saved.

    Raises:
        LoadError: it is no such file, damaged, of a newer format, or for CPUs that this one is not.
    """
    return LoadedKernel(os.fspath(path), threads)


@dataclass(frozen=True, eq=False)
class _Part:
    """What was compiled for one choice of static extents."""

    data: Mapping[str, Any]
    members: Mapping[str, bytes]
    level: str

    @property
    def static(self) -> dict[str, int]:
        return {name: int(n) for name, n in self.data["static"].items()}

    def fits(self, extents: Mapping[str, int]) -> bool:
        """Whether this is for calls with these extents."""
        static = all(extents.get(name) == n for name, n in self.static.items())
        return static and all(extents[name] <= n for name, n in self.data["most"].items())

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The calls that a tuner found this for; none: it did not, and this is for all calls."""
        tuned = self.data.get("tuned")
        return tuple(Bucket.from_text(t) for t in tuned["buckets"]) if tuned else ()

    @property
    def stages(self) -> tuple[str, ...]:
        """Passes' stages in order, and "tir"."""
        return tuple(self.data["stages"])

    def text(self, stage: str) -> str:
        return self.members[self.data["stages"][stage]].decode()

    def func(self, stage: str) -> Func:
        return parse_ir(self.text(stage), stage)

    @cached_property
    def tiled(self) -> Func:
        """The program as code was generated from it."""
        return self.func(self.passes[-1])

    @property
    def passes(self) -> tuple[str, ...]:
        return tuple(s for s in self.stages if s != "tir")


class LoadedKernel:
    """A compiled program from a file. It is called, and asked for IR and costs, as a `Kernel`."""

    def __init__(
        self,
        path: str,
        threads: int | None = None,
        *,
        machine: Machine | None = None,
        driver: Any = None,
    ) -> None:
        """`machine` and `driver`: what to run on; else this process's."""
        from tilecc.runtime.pool import check_threads

        self.path = path
        self._given_driver: Any = driver
        self._driver: Any = None
        manifest, self._members = container.read(path)
        with _contents(path):
            self.name: str = manifest["name"]
            self.target: Target = target_from(manifest["target"])
            self.static = {n: int(v) for n, v in manifest["static"].items()}
            self.threads = check_threads(threads) or check_threads(manifest["threads"])
            self._func = parse_ir(self._members["program.tcir"].decode(), "program.tcir")
            level = manifest["level"]
            self._parts = [_Part(c, self._members, level) for c in manifest["compiled"]]
            self._level = level
            on_device = self.target.kind == "cuda"
            self._executables: list[Any] = [
                None if on_device else self._cpu(p, machine) for p in self._parts
            ]
        self.binder = self._make_binder()
        """Checks a call's arguments."""
        self._last = self._parts[-1]

    def _make_binder(self) -> Binder:
        read = None
        if self.target.kind == "cuda":
            from tilecc.runtime.cuda.arrays import device_tensor

            read = device_tensor
        return Binder(self.name, self._func.params, self.static, read)

    def _gpu(self, part: _Part) -> Any:
        """A part's CUDA kernels, for GPUs that the driver knows.

        Raises:
            CompileError: there is no driver, or no GPU.
        """
        from tilecc.runtime.cuda.executable import DeviceExecutable

        with _contents(self.path):
            program, images = device_program(part.data, self._members, numbered(part.tiled))
        return DeviceExecutable(part.tiled, program, lambda k: images[k.name], self._driver)

    def _cpu(self, part: _Part, machine: Machine | None) -> Any:
        """The best of a part's object files, linked.

        Raises:
            LoadError: this machine can run none of them.
        """
        from tilecc.codegen.program import Program
        from tilecc.runtime.executable import Executable
        from tilecc.runtime.objects import load_object

        image = (machine or Machine.here()).best(self.path, part.data["cpu"])
        values = numbered(part.tiled)
        program = Program(tuple(entry_from(k, values) for k in image["kernels"]))
        names = [k.name for k in program.kernels]
        functions = load_object(self._members[image["object"]], names)
        return Executable(part.tiled, program, functions)

    def executable(self) -> Any:
        """What runs a call's checked arguments (runtime/executable.py), of the first part.

        Raises:
            CompileError: there is no device to run on.
        """
        if self.target.kind == "cuda":
            raise CompileError("there is no device to run the kernel on")
        return self._executables[0]

    @property
    def signature(self) -> str:
        """Parameters and results with their types, as text."""
        params = ", ".join(f"{p.name}: {print_type(p.type)}" for p in self._func.params)
        results = ", ".join(print_type(v.type) for v in self._func.returns)
        return f"{self.name}({params}) -> {results}"

    def __repr__(self) -> str:
        static = "".join(f" {n}={v}" for n, v in self.static.items())
        return f"<loaded kernel {self.signature} for {self.target.name}{static}>"

    def __call__(
        self, *args: Any, out: Any = None, threads: int | None = None, **kwargs: Any
    ) -> Any:
        """Run on arrays and numbers, as `Kernel.__call__`.

        Raises:
            ArgumentError: wrong arguments, or extents that the file has no code for.
            CompileError: there is no device to run on.
        """
        from tilecc.runtime.pool import available_threads, check_threads

        if self.target.kind == "cuda" and self._driver is None:
            from tilecc.runtime.cuda.driver import driver

            self._driver = self._given_driver or driver()
        bound = self.binder.bind(args, kwargs)
        count = check_threads(threads) or self.threads or available_threads()
        part = self._part(bound.extents)
        n = self._parts.index(part)
        if self._executables[n] is None:
            self._executables[n] = self._gpu(part)
        return self._executables[n](bound, out, count)

    @property
    def statics(self) -> list[dict[str, int]]:
        """The static extents of each specialisation in the file, the general ones last."""
        return [part.static for part in self._parts]

    @property
    def func(self) -> Func:
        """The program, as it was given to the compiler."""
        return self._func

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """Arguments on the CPU, checked, with the extents that they have.

        Raises:
            ArgumentError: with everything that is wrong.
        """
        return Binder(self.name, self._func.params, self.static).bind(args, kwargs)

    def device_code(self, extents: Mapping[str, int]) -> tuple[Func, DeviceProgram, dict[str, str]]:
        """For the emulator: the tiled program for these extents, its kernels, their PTX by name.

        Raises:
            ArgumentError: the file has no code for them.
        """
        part = self._part(extents)
        with _contents(self.path):
            program, images = device_program(part.data, self._members, numbered(part.tiled))
        texts = {
            name: i.data.decode()
            for name, found in images.items()
            for i in found
            if (i.arch, i.kind) == (program.arch, "ptx")
        }
        return part.tiled, program, texts

    def _part(self, extents: Mapping[str, int]) -> _Part:
        fitting = [part for part in self._parts if part.fits(extents)]
        if not fitting:
            raise self._no_code(extents)
        part = _tuned(fitting, extents) or next((p for p in fitting if not p.buckets), fitting[0])
        if part.static.keys() == self._parts[-1].static.keys() and not part.data["most"]:
            self._last = part  # and not one for few rows
        return part

    def _no_code(self, extents: Mapping[str, int]) -> ArgumentError:
        wanted = sorted(self._parts[-1].static.keys() - self.static.keys())
        asked = ", ".join(f"{n} = {extents[n]}" for n in wanted)
        found = [", ".join(f"{n} = {p.static[n]}" for n in wanted) for p in self._parts]
        there = " or ".join(dict.fromkeys(found))
        hint = "call the kernel with such arguments before it is saved"
        return ArgumentError(
            Diagnostic(f"{self.path} has code for {there}, not {asked}", None, hint)
        )

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages whose text is in the file; of a GPU's kernel, "cuda" and "ptx" too."""
        return (*self._last.stages, *(("cuda", "ptx") if self.target.kind == "cuda" else ()))

    def resources(self) -> list[dict[str, Any]]:
        """What each CUDA kernel takes of an SM, as `Resources.to_json` gave it; none of a CPU's."""
        return [dict(r) for r in self._last.data.get("resources", ())]

    def ir(self, stage: str, locs: bool = False) -> str:
        """The program's text after a stage; `locs` adds the source line of each operation.

        Raises:
            CompileError: there is no such stage in the file.
        """
        part = self._last
        wanted = stage.replace("_", "-")
        if wanted not in self.stages:
            known = ", ".join(self.stages)
            raise CompileError(f"{self.path} has no stage {stage!r}; stages are {known}")
        with _contents(self.path):
            if wanted in ("cuda", "ptx"):
                return device_text(part.data, self._members, wanted)
            if wanted not in part.passes or locs:
                return part.text(wanted)
            return print_ir(part.func(wanted), locs=False)

    @property
    def tile(self) -> dict[str, int]:
        """The tile sizes."""
        return dict(self._last.data["tile"])

    @property
    def remarks(self) -> tuple[Any, ...]:
        """What the passes had to say."""
        from tilecc.passes.base import Remark

        found = self._last.data["remarks"]
        return tuple(Remark(p, message, Loc(*at) if at else None) for p, message, at in found)

    def cost(self, **sizes: float) -> SavedCost:
        """Memory traffic as formulas (text) and, with all extents, as numbers; needs no sympy.

        Raises:
            CompileError: there is no such extent or number, or a run-time number decides what is
                read and is not given.
        """
        from tilecc.compiler import loop_stage, tile_stage
        from tilecc.cost import report
        from tilecc.given import check_static

        part, saved = self._last, self._last.data["cost"]
        loop, counted = loop_stage(part.passes), part.func(tile_stage(part.passes))
        if not sizes:
            return SavedCost(saved)
        numbers = {p.name for p in self._func.params if not p.type.axes}
        scalars = {n: v for n, v in sizes.items() if n in numbers}
        extents = check_static(
            self._func, {n: int(v) for n, v in sizes.items() if n not in scalars}
        )
        with _contents(self.path):
            found = report(
                self._func if self._level == "graph" else None,
                part.func(loop) if loop is not None else None,
                counted,
                self.target,
                {**part.static, **extents},
                scalars,
            )
            return SavedCost(with_numbers(saved, found))


def _tuned(parts: Sequence[_Part], extents: Mapping[str, int]) -> _Part | None:
    """What a tuner found for calls with these extents, as `Answers.select` has it."""
    choices = [(bucket, part) for part in parts for bucket in part.buckets]
    if not choices:
        return None
    names = choices[0][1].data["tuned"]["extents"]
    sizes = {names[n]: size for n, size in extents.items() if n in names}
    found = nearest([bucket for bucket, _ in choices], sizes)
    return None if found is None else choices[found][1]


@contextmanager
def _contents(path: str) -> Iterator[None]:
    """Turns what goes wrong with a file's contents into one error."""
    try:
        yield
    except (CompileError, LoadError):
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        raise container.unreadable(path, e) from e
    except DiagnosticError as e:
        raise container.unreadable(path, e) from e

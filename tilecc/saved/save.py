"""Writing a compiled kernel to a file, for the machines that are asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tilecc
from tilecc.codegen.program import DeviceProgram, Program
from tilecc.compiler import Compiled, Compiler
from tilecc.cost import report
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Func
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.saved import container
from tilecc.saved.encode import Data, entry_data, numbered, target_data
from tilecc.target import Target, resolve


@dataclass(frozen=True)
class Source:
    """What a kernel has for saving: its compiler, what that has compiled, its call interface."""

    compiler: Compiler
    compiled: Sequence[Compiled]
    """Those with answers of a tuner are for the buckets of their configuration."""
    static: Mapping[str, int]
    threads: int | None
    few: Sequence[tuple[Compiled, Mapping[str, int]]] = ()
    """For calls whose extents are at most so much, or its static ones; taken where they fit."""


def save(source: Source, path: str | os.PathLike[str], archs: Sequence[str] | None = None) -> None:
    """Write one file; see `Kernel.save`."""
    compiler = source.compiler
    members: dict[str, bytes] = {"program.tcir": print_ir(compiler.func).encode()}
    if isinstance(archs, str):
        hint = f"write archs=[{archs!r}]"
        raise CompileError(Diagnostic(f"archs={archs!r} is no list of machines", None, hint))
    manifest = {
        "tilecc": tilecc.__version__,
        "name": compiler.func.name,
        "level": compiler.level,
        "target": target_data(compiler.target),
        "static": dict(source.static),
        "threads": source.threads,
        "compiled": [
            {"most": dict(most), **_compiled(compiler, c, archs or (), _Folder(members, str(n)))}
            for n, (c, most) in enumerate([*source.few, *((c, {}) for c in source.compiled)])
        ],
    }
    container.write(path, manifest, members)


@dataclass(frozen=True)
class _Folder:
    """Where the members of one specialisation go."""

    members: dict[str, bytes]
    name: str

    def put(self, name: str, data: bytes | str) -> str:
        path = f"{self.name}/{name}"
        self.members[path] = data.encode() if isinstance(data, str) else data
        return path


def _machines(target: Target, archs: Sequence[str]) -> list[Target]:
    """The CPUs to make code for: the kernel's own, and those of the names given.

    Raises:
        CompileError: one is no CPU.
        TargetError: there is no such machine.
    """
    found = {target.arch: target}
    for name in archs:
        other = resolve(name)
        if other.kind != "cpu":
            raise CompileError(f"the kernel is compiled for CPUs, and {name} is none")
        found.setdefault(other.arch, other)
    return list(found.values())


def _architectures(target: Target, archs: Sequence[str]) -> list[str]:
    """The GPU architectures to make code for: the kernel's own, and those given.

    "sm_86" need not be in the table of machines; a machine's name stands for its architecture.

    Raises:
        CompileError: one is no GPU.
        TargetError: there is no such machine.
    """
    found = [target.arch]
    for name in archs:
        if not re.fullmatch(r"sm_\d+a?", name):
            other = resolve(name)
            if other.kind != "cuda":
                raise CompileError(f"the kernel is compiled for GPUs, and {name} is none")
            name = other.arch
        found.append(name)
    return list(dict.fromkeys(found))


def _compiled(compiler: Compiler, c: Compiled, archs: Sequence[str], folder: _Folder) -> Data:
    program = compiler.lower(c)
    texts = {s.name: folder.put(f"{s.name}.tcir", s.text(locs=True)) for s in c.run.stages}
    texts["tir"] = folder.put("tir.txt", "\n".join(k.prim_func.script() for k in program.kernels))
    candidates = c.choice.candidates if c.choice is not None else ()
    data = {
        "static": dict(c.static),
        "tuned": _tuned(c),
        "tile": dict(c.tile),
        "candidates": [x.to_json() for x in candidates],
        "remarks": [
            [r.pass_name, r.message, [r.loc.file, r.loc.line] if r.loc else None]
            for r in c.run.remarks
        ],
        "stages": texts,
        "cost": _cost(compiler, c),
    }
    if isinstance(program, DeviceProgram):
        return data | _device(compiler, c, archs, folder)
    machines = _machines(compiler.target, archs)
    return data | {"cpu": [_cpu(compiler, c, t, folder) for t in machines]}


def _tuned(c: Compiled) -> Data | None:
    """Which calls a tuner found this for; None: it did not, and this is for all calls."""
    if c.answers is None:
        return None
    buckets = [str(a.bucket) for a in c.answers.answers if a.config == c.config]
    return {"extents": dict(c.answers.extents), "buckets": buckets}


def _cost(compiler: Compiler, c: Compiled) -> Data:
    """The report, of the texts: values are called in it as they are when the texts are read."""
    loop = _read(c.loop) if c.loop is not None else None
    graph = _read(compiler.func) if compiler.level == "graph" else None
    made = report(graph, loop, _read(c.tiled), compiler.target, c.static, {}, c.choice)
    return made.to_json()


def _read(func: Func) -> Func:
    return parse_ir(print_ir(func))


def _cpu(compiler: Compiler, c: Compiled, target: Target, folder: _Folder) -> Data:
    """One machine's object file. All have the same tile IR; each its own code for it."""
    from tilecc.codegen import lower
    from tilecc.runtime.build import Library, build, code_features

    own = target is compiler.target
    program = compiler.lower(c) if own else lower(c.run.func, target, c.options)
    assert isinstance(program, Program)
    library = compiler.build(c) if own else build(program, target)
    assert isinstance(library, Library)
    values = numbered(c.run.func)
    return {
        "name": target.name,
        "arch": target.arch,
        "platform": library.platform,
        "features": sorted(code_features(target)),
        "object": folder.put(f"{target.arch}.o", library.object()),
        "scratch_bytes": program.scratch_bytes,
        "kernels": [entry_data(k, values) for k in program.kernels],
    }


def _device(compiler: Compiler, c: Compiled, archs: Sequence[str], folder: _Folder) -> Data:
    from tilecc.runtime.cuda.library import DeviceLibrary
    from tilecc.saved.device import device_members

    library = compiler.build(c)
    assert isinstance(library, DeviceLibrary)
    wanted = _architectures(compiler.target, archs)
    return device_members(library, wanted, numbered(c.run.func), folder.put)

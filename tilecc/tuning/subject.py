"""What is tuned: a program with its static extents bound, and the key that it is known by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilecc.compiler import Compiler
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Func, bind_extents
from tilecc.ir.expr import extents
from tilecc.passes.tiling.plan import kernel_axes, rows, streamed_axes
from tilecc.target import Target
from tilecc.tuning.answers import key_of
from tilecc.tuning.buckets import Bucket
from tilecc.tuning.canonical import Canonical, machine, versions
from tilecc.tuning.config import Config
from tilecc.tuning.database import Known


@dataclass(frozen=True)
class Subject:
    """One program for one machine.

    `source` is as it was traced, `loop` before `tile`; both have `static` bound. `lengths` are the
    extents that are walked in tiles and are no numbers yet.
    """

    name: str
    source: Func
    loop: Func
    target: Target
    static: Mapping[str, int]
    key: str
    form: Canonical
    lengths: frozenset[str]

    def bucket(self, sizes: Mapping[str, int]) -> Bucket:
        """The bucket of a call, in canonical names."""
        dynamic = {n: v for n, v in sizes.items() if n not in self.static}
        named = {self.form.extents.get(n, n): v for n, v in dynamic.items()}
        return Bucket.of(named, {self.form.extents.get(n, n) for n in self.lengths})

    def to_canonical(self, config: Config) -> Config:
        """With canonical names of axes."""
        return config.renamed(self.form.axes)

    def from_canonical(self, config: Config) -> Config:
        """With the program's own names of axes."""
        return config.renamed({v: k for k, v in self.form.axes.items()})

    @property
    def known(self) -> Known:
        """The database's record of the key."""
        own = {v: k for k, v in self.form.axes.items()}
        return Known(self.key, self.name, self.form.text, machine(self.target), versions(), own)


def subject(compiler: Compiler, static: Mapping[str, int]) -> Subject:
    """The subject for a compiler's program; `static` must suffice to compile it.

    Raises:
        CompileError: the program has no tiles to choose.
    """
    func = compiler.func
    if compiler.level == "tile":
        hint = "tune the spec, or the loop IR that it comes from"
        raise CompileError(Diagnostic("tile IR has its tiles already", func.loc, hint))
    compiled = compiler.passes(static)
    loop = compiled.loop
    assert loop is not None, "the program is not tile IR"
    key, form = key_of(compiled.run, compiler.target)
    source = bind_extents(func, dict(static)) if static else func
    return Subject(
        func.name, source, loop, compiler.target, dict(static), key, form, _lengths(loop)
    )


def _lengths(loop: Func) -> frozenset[str]:
    found: set[str] = set()
    for op in loop.body.ops:
        if op.name == "kernel":
            axes = kernel_axes(op)
            for a in (*rows(op), *streamed_axes(op)):
                found |= set(extents(axes[a].extent))
    return frozenset(found)

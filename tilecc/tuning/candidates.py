"""Building configurations of one program here: what a worker's runner does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilecc.codegen import Program, lower
from tilecc.errors import CompileError
from tilecc.ir.core import Func
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.passes.base import Remarks
from tilecc.passes.tile import Tile
from tilecc.runtime.arguments import Binder
from tilecc.runtime.build import build
from tilecc.runtime.executable import Executable
from tilecc.target import Target
from tilecc.tuning.config import Config
from tilecc.tuning.timing import Bench, Ready, Shape, make_shape

RUNNER = "tilecc.tuning.candidates:Runner"


@dataclass(frozen=True)
class Task:
    """A program to be tuned, as a worker is given it: IR, before any pass and before `tile`."""

    source: str
    loop: str
    target: Target
    shapes: tuple[Shape, ...]


def make_task(
    source: Func,
    loop: Func,
    target: Target,
    shapes: Sequence[Mapping[str, int]],
    scalars: Mapping[str, float],
) -> Task:
    """The task for shapes with sizes of all extents; `source` has static extents bound."""
    made = tuple(make_shape(source, sizes, scalars) for sizes in shapes)
    return Task(print_ir(source), print_ir(loop), target, made)


class Runner(Bench):
    """Builds configurations with TVM."""

    def __init__(self, task: Task) -> None:
        super().__init__(parse_ir(task.source, "source"), task.target, task.shapes)
        self.loop = parse_ir(task.loop, "loop")

    def _build(self, config: Config) -> Ready:
        tiled = Tile(config.tile).apply(self.loop, Remarks())
        program = lower(tiled, self.target, dict(config.options))
        if not isinstance(program, Program):
            raise CompileError(f"this process has no device to run {self.target.name} on")
        functions = build(program, self.target).functions
        executable = Executable(tiled, program, functions)
        return Ready(executable, Binder(self.source.name, self.source.params, {}))

"""What decides which tiles a compiled program visits: extents, numbers, and arrays worked out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilecc.compiler import Compiled, Compiler
from tilecc.cost.data import symbols
from tilecc.cost.nest import kernels
from tilecc.cost.visits import computed, deciding, extents_read, is_leading, leading
from tilecc.errors import CompileError, Diagnostic
from tilecc.given import check_static, extent_names
from tilecc.ir.core import Block, Builder, Func, Value

if TYPE_CHECKING:
    from tilecc.runtime.executable import Executable
    from tilecc.target import Target

Sizes = tuple[dict[str, int], dict[str, Any], dict[str, Any]]


def counts(compiled: Compiled) -> tuple[str, ...]:
    """The numbers of visits that data decides: symbols in the formulas of the cost model."""
    return tuple(symbols(kernels(compiled.tiled)))


def told_apart(func: Func, compiled: Compiled, given: Mapping[str, Any]) -> Sizes:
    """Extents, run-time numbers and arrays, by the names of a program's parameters.

    Raises:
        CompileError: there is no such extent or number.
        ArgumentError: an array's shape does not fit.
    """
    import numpy as np

    from tilecc.ir.interp import bind_shapes

    numbers = {p.name for p in func.params if not p.type.axes} | set(counts(compiled))
    tensors = {p.name: p for p in func.params if p.type.axes}
    arrays = {n: np.asarray(v) for n, v in given.items() if n in tensors and np.ndim(v)}
    scalars = {n: v for n, v in given.items() if n in numbers}
    rest = {n: v for n, v in given.items() if n not in scalars and n not in arrays}
    extents = {**compiled.static, **check_static(func, rest)}
    known = Func(func.name, [tensors[n] for n in arrays], func.body)
    return bind_shapes(known, [a.shape for a in arrays.values()], extents), scalars, arrays


def decided(compiled: Compiled, target: Target, sizes: Sizes) -> dict[Value, Any]:
    """The arrays, and what the program's leading kernels compute from them.

    Raises:
        CompileError: an array that they read is not given, or an extent.
    """
    func, (_, _, arrays) = compiled.tiled, sizes
    missing = [v.name for v in deciding(func) if v.name not in arrays]
    if missing:
        message = f"which tiles are visited depends on {', '.join(missing)}"
        raise CompileError(Diagnostic(message, None, f"give {missing[0]}= as an array"))
    values: dict[Value, Any] = {p: arrays[p.name] for p in func.params if p.name in arrays}
    program = leading(func)
    if program is not None:
        outputs = _run(program, compiled, target, sizes)
        values |= dict(zip(computed(func), outputs, strict=True))
    return values


def _run(program: Func, compiled: Compiled, target: Target, sizes: Sizes) -> tuple[Any, ...]:
    """What a part of the program computes; parameters that it does not read are left empty."""
    import numpy as np

    from tilecc.ir.interp import interpret
    from tilecc.ir.interp_expr import integer
    from tilecc.runtime.build import runs_here

    extents, scalars, arrays = sizes
    unknown = sorted(extents_read(program) - set(extents))
    if unknown:
        raise CompileError(f"which tiles are visited depends on {unknown[0]}, which is not given")
    extents = {**dict.fromkeys(extent_names(program), 1), **extents}
    inputs: dict[str, Any] = {}
    for p in program.params:
        kind = p.type.dtype.numpy
        if p.name in arrays:
            inputs[p.name] = arrays[p.name].astype(kind, copy=False)
        elif p.type.axes:  # memory that is never touched
            inputs[p.name] = np.empty([integer(a.extent, extents) for a in p.type.axes], kind)
        else:
            inputs[p.name] = kind.type(scalars.get(p.name, 0))
    if target.kind != "cpu" or not runs_here(target):
        return interpret(program, inputs, extents=extents, complete=False)
    built = _built(compiled)
    if built is not None:
        from tilecc.runtime.arguments import Binder

        static = dict(compiled.static)
        bound = Binder(program.name, program.params, static).bind((), inputs)
        outputs = built(bound, None, 1)
        return outputs if isinstance(outputs, tuple) else (outputs,)
    if compiled.leading is None:
        from tilecc.kernel import Kernel

        compiled.leading = Kernel(Compiler(program, target, None), {})
    outputs = compiled.leading(**inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _built(compiled: Compiled) -> Executable | None:
    """The leading kernels as they were built with the program; None where it is not built here."""
    from tilecc.codegen.program import Program
    from tilecc.runtime.build import Library
    from tilecc.runtime.executable import Executable

    func, program, library = compiled.tiled, compiled.program, compiled.library
    if func is not compiled.run.func or not isinstance(program, Program):
        return None
    if not isinstance(library, Library) or not library.functions:
        return None
    made = computed(func)
    names = {k.op for k in kernels(func) if is_leading(k, kernels(func))}
    every = [op for op in func.body.ops if op.name == "kernel"]
    pairs = zip(program.kernels, every, strict=True)
    entries = tuple(k for k, op in pairs if op in names)
    body = Block([], [op for op in func.body.ops if op.name == "alloc" and op.result in made])
    Builder(body, func.loc).op("return", made)
    part = Func(func.name, func.params, body)
    return Executable(part, Program(entries), library.functions)

"""Expressions, machines and the way to call kernels as plain data, and back.

Values of a tile-level function are numbered: its parameters, then its `alloc`s in order. What is
decoded may come from anywhere: wrong data raises KeyError, TypeError, ValueError or IndexError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tilecc.codegen.program import DeviceKernel, KernelEntry, Parameter, ScratchBuffer
from tilecc.ir.core import Func, Value
from tilecc.ir.dtypes import DTYPES
from tilecc.ir.expr import FUNCTIONS, Arg, Call, Cast, Const, Expr, Extent
from tilecc.target import Fact, Memory, Peak, Target

Data = Any  # what JSON holds


def numbered(func: Func) -> list[Value]:
    """The tensors and scalars that kernels of a tile-level function take."""
    return [*func.params, *(op.result for op in func.body.ops if op.name == "alloc")]


def expr_data(e: Expr) -> Data:
    """A host expression: over constants, extents and operands."""
    match e:
        case Const(value):
            return value
        case Extent(name):
            return name
        case Arg(k):
            return ["arg", k]
        case Cast(arg, to):
            return ["cast", to.name, expr_data(arg)]
        case Call(fn, args):
            return [fn, *map(expr_data, args)]
    raise TypeError(f"{e!r} is not computed by the host")


def expr_from(d: Data) -> Expr:
    """The expression of `expr_data`."""
    if isinstance(d, bool | int | float):
        return Const(d)
    if isinstance(d, str):
        return Extent(d)
    name, *rest = d
    if name == "arg":
        return Arg(int(rest[0]))
    if name == "cast":
        return Cast(expr_from(rest[1]), DTYPES[rest[0]])
    if len(rest) != FUNCTIONS[name].arity:
        raise ValueError(f"{name} of {len(rest)} arguments")
    return Call(name, tuple(map(expr_from, rest)))


def target_data(t: Target) -> Data:
    """A machine."""
    return {**asdict(t), "features": sorted(t.features)}


def target_from(d: Data) -> Target:
    """The machine of `target_data`."""
    fields = dict(d)
    fields["cores"] = Fact(**d["cores"])
    fields["clock"] = Fact(**d["clock"]) if d["clock"] else None
    fields["memories"] = tuple(Memory(**m) for m in d["memories"])
    fields["peaks"] = tuple(Peak(**p) for p in d["peaks"])
    fields["features"] = frozenset(d["features"])
    fields["tiles"] = tuple(d["tiles"])
    return Target(**fields)


def entry_data(k: KernelEntry, values: Sequence[Value]) -> Data:
    """How a CPU kernel is called."""
    return {
        "name": k.name,
        "args": [values.index(v) for v in k.args],
        "grid": list(map(expr_data, k.grid)),
        "grid_reads": [values.index(v) for v in k.grid_reads],
        "scratch": [[s.name, s.size, s.dtype.name] for s in k.scratch],
    }


def entry_from(d: Data, values: Sequence[Value]) -> KernelEntry:
    """The kernel of `entry_data`, without its TIR."""
    return KernelEntry(
        d["name"],
        None,
        _values(d["args"], values),
        tuple(map(expr_from, d["grid"])),
        _values(d["grid_reads"], values),
        tuple(ScratchBuffer(name, size, DTYPES[t]) for name, size, t in d["scratch"]),
    )


def device_data(k: DeviceKernel, values: Sequence[Value]) -> Data:
    """How a CUDA kernel is launched; its source and binaries are stored beside."""
    return {
        "name": k.name,
        "params": [
            {**vars(p), "value": None if p.value is None else values.index(p.value)}
            for p in k.params
        ],
        "grid": list(map(expr_data, k.grid)),
        "grid_reads": [values.index(v) for v in k.grid_reads],
        "threads": k.threads,
        "shared": k.shared,
        "alignment": [list(a) for a in k.alignment],
        "relaxed": device_data(k.relaxed, values) if k.relaxed is not None else None,
    }


def device_from(d: Data, values: Sequence[Value], sources: Sequence[str]) -> DeviceKernel:
    """The kernel of `device_data`; `sources` are its own and those of the kernels behind it."""
    relaxed = d["relaxed"]
    return DeviceKernel(
        name=d["name"],
        prim_func=None,
        source=sources[0],
        params=tuple(_parameter(p, values) for p in d["params"]),
        grid=tuple(map(expr_from, d["grid"])),
        grid_reads=_values(d["grid_reads"], values),
        threads=int(d["threads"]),
        shared=int(d["shared"]),
        alignment=tuple((name, int(n)) for name, n in d["alignment"]),
        relaxed=device_from(relaxed, values, sources[1:]) if relaxed is not None else None,
    )


def _parameter(d: Data, values: Sequence[Value]) -> Parameter:
    if d["kind"] not in ("tensor", "extent", "stride", "scalar"):
        raise ValueError(f"a parameter of kind {d['kind']!r}")
    value = d["value"]
    return Parameter(**{**d, "value": None if value is None else _values([value], values)[0]})


def _values(numbers: Sequence[int], values: Sequence[Value]) -> tuple[Value, ...]:
    if not all(0 <= n < len(values) for n in numbers):
        raise ValueError("a value that the program does not have")
    return tuple(values[n] for n in numbers)

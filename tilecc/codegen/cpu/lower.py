"""A tile-level kernel to a TIR function: arguments, scratch, the loop over tasks, then its body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.bounds import Bounds
from tilecc.codegen.cpu.casts import register_name
from tilecc.codegen.cpu.emit import Emitter
from tilecc.codegen.cpu.isa import Isa, isa_for
from tilecc.codegen.cpu.layout import Layout, choose_layout, kept_loads, register_dtype
from tilecc.codegen.cpu.nests import Planner
from tilecc.codegen.cpu.registers import Temps, Tensor, local
from tilecc.codegen.cpu.scalars import ExprLowering, Prim
from tilecc.codegen.cpu.space import LANES_OF_LAST_AXIS, configured
from tilecc.codegen.cpu.storage import Storage
from tilecc.codegen.cpu.vectors import imported
from tilecc.codegen.program import KernelEntry, Program, ScratchBuffer
from tilecc.codegen.space import Options
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Func, Op, Range, Value
from tilecc.ir.dtypes import I64, DType
from tilecc.ir.expr import Const, Expr, Extent, extents
from tilecc.target import Target

# Buffers for what one element's computation reads more than once; a kernel may need more.
_TEMPS = {"float32": 24, "float64": 24, "int32": 8, "int64": 12, "bool": 0}


def lower(func: Func, target: Target, options: Options) -> Program:
    """TIR for every kernel of a tile-level function; `options` are those of space.py.

    Raises:
        CompileError: `func` is not tile IR, or holds what this family cannot express.
    """
    isa = configured(isa_for(target), options)
    own_lanes = options.get("lanes") == LANES_OF_LAST_AXIS
    kernels: list[KernelEntry] = []
    for op in func.body.ops:
        if op.name == "kernel":
            if "grid" not in op.attrs:
                raise CompileError(Diagnostic("a kernel without a grid: run tile first", op.loc))
            layout = choose_layout(op, isa)
            if own_lanes:
                layout = replace(layout, lane_axis=None)
            name = f"{func.name}_{len(kernels)}"
            kernels.append(_lower_kernel(name, op, isa, layout, func.params))
    return Program(tuple(kernels))


def kernel_arguments(kernel: Op, params: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """(HBM tensors, rank-0 parameters) that a kernel reads or writes, in order of first use.

    Where it reads an extent that none of them has, a parameter that has it follows.
    """
    inside = set(kernel.body.args)
    for op in kernel.body.walk():
        inside |= set(op.results)
        for region in op.regions:
            inside |= set(region.args)
    outside: dict[Value, None] = dict.fromkeys(v for v in kernel.operands if v not in inside)
    for op in kernel.body.walk():
        outside |= dict.fromkeys(v for v in op.operands if v not in inside)
    tensors: list[Value] = []
    scalars: list[Value] = []
    for v in outside:
        is_param_scalar = not v.type.axes and v.owner is None
        (scalars if is_param_scalar else tensors).append(v)
    known = {a.extent for v in tensors for a in v.type.axes}
    for name in _extents_read(kernel):
        if Extent(name) in known:
            continue
        having = [p for p in params if Extent(name) in {a.extent for a in p.type.axes}]
        if not having:
            message = f"extent {name} is the extent of no parameter's axis, so it has no value"
            raise CompileError(Diagnostic(message, kernel.loc))
        tensors.append(having[0])
        known |= {a.extent for a in having[0].type.axes}
    return tensors, scalars


def _extents_read(kernel: Op) -> dict[str, None]:
    """Names of the extents in a kernel's expressions, in order."""
    found: dict[str, None] = {}

    def add(x: object) -> None:
        if isinstance(x, Expr):
            found.update(dict.fromkeys(sorted(extents(x))))
        elif isinstance(x, Range):
            add(x.base)
        elif isinstance(x, tuple):
            for item in x:
                add(item)

    for op in (kernel, *kernel.body.walk()):
        for attr in op.attrs.values():
            add(attr)
    return found


class _Signature:
    """The TIR arguments of a kernel and what they define."""

    def __init__(self, tensors: list[Value], scalars: list[Value]) -> None:
        self.extents: dict[str, Prim] = {}
        self.tensors: dict[Value, Tensor] = {}
        self.scalars: dict[Value, Prim] = {}
        for n, v in enumerate(tensors):
            handle = T.arg(f"t{n}", T.handle())
            self.tensors[v] = self._match(handle, f"t{n}", v)
        for n, v in enumerate(scalars):
            var = tirx.Var(f"s{n}", register_name(v.type.dtype))
            self.scalars[v] = T.arg(f"s{n}", var)

    def _match(self, handle: Any, name: str, v: Value) -> Tensor:
        shape: list[Prim] = []
        for n, a in enumerate(v.type.axes):
            e = a.extent
            if isinstance(e, Const):
                shape.append(tirx.const(int(e.value), "int64"))
            elif isinstance(e, Extent):
                if e.name not in self.extents:
                    self.extents[e.name] = tirx.Var(e.name, "int64")
                shape.append(self.extents[e.name])
            else:
                shape.append(tirx.Var(f"{name}_n{n}", "int64"))
        rank = len(shape)
        strides = [tirx.Var(f"{name}_s{n}", "int64") for n in range(rank - 1)]
        if rank:
            strides.append(tirx.const(1, "int64"))
        buffer = T.match_buffer(
            handle,
            tuple(shape),
            v.type.dtype.numpy.name,
            strides=strides or None,
            align=v.type.dtype.bytes,
        )
        return Tensor(buffer, shape)


def _lower_kernel(
    name: str, kernel: Op, isa: Isa, layout: Layout, params: Sequence[Value]
) -> KernelEntry:
    planner = Planner(kernel.body, kept_loads(kernel, layout, isa), layout)
    storage = Storage(layout, isa, planner).run()
    tensors, scalars = kernel_arguments(kernel, params)
    scratch = list(_scratch(storage, kernel))
    counts = _TEMPS
    while True:
        body, short = _prim_func(name, kernel, isa, layout, planner, storage, params, counts)
        if not short:
            break
        counts = {**counts, **short}
    return KernelEntry(
        name,
        body,
        (*tensors, *scalars),
        kernel.attrs["grid"],
        tuple(kernel.operands),
        tuple(scratch),
    )


def _prim_func(
    name: str,
    kernel: Op,
    isa: Isa,
    layout: Layout,
    planner: Planner,
    storage: Storage,
    params: Sequence[Value],
    temps: Mapping[str, int],
) -> tuple[Any, dict[str, int]]:
    """The TIR function, and the `temps` that it takes beyond those given: with any, it is wrong.

    A value that has no buffer would be written out wherever it is read. In a chain of values that
    are each read twice that is exponential.
    """
    tensors, scalars = kernel_arguments(kernel, params)
    with IRBuilder() as ib, T.prim_func(s_tir=True):
        T.func_name(name)
        T.func_attr({"tirx.noalias": True, "global_symbol": name})
        signature = _Signature(tensors, scalars)
        buffers = {
            s.name: T.match_buffer(
                T.arg(s.name, T.handle()), (s.size,), register_name(s.dtype), align=64
            )
            for s in _scratch(storage, kernel)
        }
        begin = T.arg("begin", tirx.Var("begin", "int64"))
        end = T.arg("end", tirx.Var("end", "int64"))
        emitter = _emitter(isa, kernel, layout, planner, storage, signature, buffers, temps)
        with imported(isa):
            _tasks(emitter, kernel, begin, end)
    return ib.get(), emitter.temps.short


def _scratch(storage: Storage, kernel: Op) -> Iterable[ScratchBuffer]:
    """Scratch of all slots, and lanes for reductions along the vector axis."""
    seen: set[str] = set()
    for slot in storage.made:
        yield slot.buffer
        seen.add(slot.buffer.name)
    for op in kernel.body.walk():
        if op.name != "reduce":
            continue
        order = storage.layout.order(op.operands[0].type)
        slot = storage.slots[op.result]
        name = f"{slot.buffer.name}_lanes"
        if order[-1] in op.over and name not in seen:
            seen.add(name)
            yield ScratchBuffer(name, slot.buffer.size * storage.layout.width, slot.buffer.dtype)


def _emitter(
    isa: Isa,
    kernel: Op,
    layout: Any,
    planner: Planner,
    storage: Storage,
    signature: _Signature,
    buffers: dict[str, Any],
    counts: Mapping[str, int],
) -> Emitter:
    used: set[DType] = set()
    for op in kernel.body.walk():
        used |= {register_dtype(v.type.dtype) for v in [*op.operands, *op.results]}
    names = {register_name(t) for t in used} | {"int64", "int32"}
    width = layout.width
    temps = {t: [local(width, t) for _ in range(n)] for t, n in counts.items() if t in names}
    count = 2 * len(storage.packed_by_nest)
    pairs = [local(width, "float32") for _ in range(count)]
    sums = {
        register_name(op.result.type.dtype) for op in kernel.body.walk() if op.name == "contract"
    }
    block = max(isa.mr * isa.nr, isa.registers * 3 // 4) * width
    accumulators = {t: local(block, t) for t in sorted(sums)}
    cells = iter([local(1, "int64") for _ in range(_scalar_count(kernel))])
    return Emitter(
        isa,
        layout,
        planner,
        storage,
        signature.tensors,
        signature.scalars,
        signature.extents,
        buffers,
        accumulators,
        Temps(temps, pairs),
        cells,
        Bounds(kernel),
    )


def _scalar_count(kernel: Op) -> int:
    walked = list(kernel.body.walk())
    maps = sum(op.name == "map" and not op.result.type.axes for op in walked)
    others = sum(op.name in ("contract", "if") for op in walked)
    return maps + others + len(kernel.body.args)


def _tasks(em: Emitter, kernel: Op, begin: Prim, end: Prim) -> None:
    """for task in begin .. end: the grid's coordinates, last dimension fastest, and the body."""
    # With an empty dimension there are no tasks, but TVM would divide by its constant 0.
    one = tirx.const(1, "int64")
    sizes = [tirx.max(_grid_size(em, e, kernel.operands), one) for e in kernel.attrs["grid"]]
    with T.serial(begin, tirx.max(begin, end)) as task:
        rest: Prim = task
        for n in reversed(range(len(sizes))):
            cell = next(em.cells)
            T.buffer_store(cell, tirx.truncmod(rest, sizes[n]) if n else rest, [0])
            em.scalars[kernel.body.args[n]] = cell[0]
            if n:
                rest = tirx.truncdiv(rest, sizes[n])
        em.block(em.planner.plan)


def _grid_size(em: Emitter, e: Expr, operands: list[Value]) -> Prim:
    lowering: ExprLowering = em.expression(e, operands, {})
    return lowering.lower(e, I64)

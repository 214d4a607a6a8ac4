"""A tile-level kernel to CUDA C++: signature, grid, shared memory, then its steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cpu.lower import kernel_arguments
from tilecc.codegen.cuda.arrange import arrange
from tilecc.codegen.cuda.elements import At
from tilecc.codegen.cuda.emit import MARK, Emitter
from tilecc.codegen.cuda.hazards import place_barriers
from tilecc.codegen.cuda.interleave import put_off
from tilecc.codegen.cuda.intrinsics import Intrinsics, number
from tilecc.codegen.cuda.layout import Layout
from tilecc.codegen.cuda.mathlib import MEMORY, Prim, register_type
from tilecc.codegen.cuda.memory import Tensor
from tilecc.codegen.cuda.plan import Plan
from tilecc.codegen.program import MARKED, DeviceKernel, DeviceProgram, Parameter
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Func, Op, Value
from tilecc.ir.expr import Const, Extent
from tilecc.ir.printer import print_op
from tilecc.target import Target

_C = {
    "uint8": "unsigned char",
    "int8": "signed char",
    "uint16": "unsigned short",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "float32": "float",
    "float64": "double",
    "bool": "bool",
}
_PREAMBLE = """\
#ifndef CUDART_INF_F
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000LL)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000ULL)
#endif
"""


def lower(func: Func, target: Target) -> DeviceProgram:
    """CUDA C++ for every kernel of a tile-level function.

    Raises:
        CompileError: `func` is not tile IR, or holds what cannot be lowered for `target`.
    """
    kernels: list[DeviceKernel] = []
    for op in func.body.ops:
        if op.name == "kernel":
            if "grid" not in op.attrs:
                raise CompileError(Diagnostic("a kernel without a grid: run tile first", op.loc))
            kernels.append(_kernel(f"{func.name}_{len(kernels)}", op, func.params, target))
    return DeviceProgram(tuple(kernels), target.arch)


def _kernel(name: str, op: Op, params: Sequence[Value], target: Target) -> DeviceKernel:
    kernel = _lower(name, op, params, target, aligned=True)
    if not kernel.alignment:
        return kernel
    return replace(kernel, relaxed=_lower(f"{name}_relaxed", op, params, target, aligned=False))


class _Signature:
    """The arguments of a kernel: tensors' pointers, strides, extents, scalars."""

    def __init__(self, tensors: Sequence[Value], scalars: Sequence[Value]) -> None:
        self.params: list[Parameter] = []
        self.extents: dict[str, Prim] = {}
        self.tensors: dict[Value, Tensor] = {}
        self.names: dict[Value, str] = {}
        self.scalars: dict[Value, Prim] = {}
        self._pointers: dict[Value, tuple[Prim, list[Prim], list[Prim]]] = {}
        for n, v in enumerate(tensors):
            self._tensor(n, v)
        for n, v in enumerate(scalars):
            t = register_type(v.type.dtype)
            name = f"s{n}_{v.name}" if v.name.isidentifier() else f"s{n}"
            self.params.append(Parameter("scalar", name, _C[t], v))
            self.scalars[v] = T.arg(name, tirx.Var(name, t))
        everything = tirx.const(1 << 62, "int64")
        for v, (data, shape, strides) in self._pointers.items():
            memory = MEMORY[v.type.dtype.name]
            buffer = T.decl_buffer((everything,), memory, data=data, scope="global")
            self.tensors[v] = Tensor(buffer, shape, strides)

    def _tensor(self, n: int, v: Value) -> None:
        name = f"t{n}_{v.name}" if v.name.isidentifier() else f"t{n}"
        memory = MEMORY[v.type.dtype.name]
        pointer = tvm.ir.PointerType(tvm.ir.PrimType(memory), "global")
        data = T.arg(name, tirx.Var(name, pointer))
        self.names[v] = name
        self.params.append(Parameter("tensor", name, f"{_C[memory]}*", v))
        shape: list[Prim] = []
        strides: list[Prim] = []
        last = len(v.type.axes) - 1
        for k in range(len(v.type.axes)):
            shape.append(self._extent(v, name, k))
            strides.append(
                tirx.const(1, "int64") if k == last else self._int(f"{name}_s{k}", "stride", v, k)
            )
        self._pointers[v] = data, shape, strides

    def _extent(self, v: Value, name: str, k: int) -> Prim:
        e = v.type.axes[k].extent
        if isinstance(e, Const):
            return tirx.const(int(e.value), "int64")
        if not isinstance(e, Extent):
            return self._int(f"{name}_n{k}", "extent", v, k)
        if e.name not in self.extents:
            self.extents[e.name] = self._int(e.name, "extent", v, k, e.name)
        return self.extents[e.name]

    def _int(self, name: str, kind: Any, v: Value, k: int, extent: str | None = None) -> Prim:
        self.params.append(Parameter(kind, name, "long long", v, k, extent))
        return T.arg(name, tirx.Var(name, "int64"))


def _lower(
    name: str, kernel: Op, params: Sequence[Value], target: Target, *, aligned: bool
) -> DeviceKernel:
    plan = Plan(kernel, target, aligned)
    intrinsics = Intrinsics(number(target.arch))
    arrange(plan)
    size = place_barriers(plan)
    _check_shared(size, kernel, target)
    put_off(plan, plan.items)
    tensors, scalars = kernel_arguments(kernel, params)
    with IRBuilder() as ib, T.prim_func(s_tir=True):
        T.func_name(name)
        T.func_attr(
            {
                "global_symbol": name,
                "tirx.noalias": True,
                "calling_conv": 2,
                "tirx.is_global_func": True,
                "tirx.kernel_launch_params": ["blockIdx.x", "threadIdx.x"],
            }
        )
        signature = _Signature(tensors, scalars)
        block = T.env_thread("blockIdx.x", "int32")
        thread = T.env_thread("threadIdx.x", "int32")
        with T.launch_thread(block, 1), T.launch_thread(thread, plan.roles.threads):
            shared = T.alloc_buffer((max(16, size),), "uint8", scope="shared.dyn")
            em = Emitter(
                plan, intrinsics, thread, shared, signature.tensors, signature.extents, aligned
            )
            em.cells |= {v: [x] for v, x in signature.scalars.items()}
            _coordinates(em, kernel, block)
            em.emit()
    alignment = tuple(
        (signature.names[v], t.alignment)
        for v, t in signature.tensors.items()
        if t.alignment > v.type.dtype.bytes
    )
    func = ib.get()
    return DeviceKernel(
        name,
        func,
        _source(name, func, target, em.marks),
        tuple(signature.params),
        kernel.attrs["grid"],
        tuple(kernel.operands),
        plan.roles.threads,
        size,
        alignment,
    )


def _check_shared(size: int, kernel: Op, target: Target) -> None:
    limit = target.sram.size
    if limit is not None and size > limit:
        message = f"needs {size} of {limit} bytes of shared memory"
        hint = "smaller tiles need less: tile= gives sizes by hand"
        raise CompileError(Diagnostic(message, kernel.loc, hint))


def _coordinates(em: Emitter, kernel: Op, block: Prim) -> None:
    """The CTA's point of the grid, from its number: the last dimension is the fastest."""
    nowhere = At(Layout((), ()), {})
    sizes = []
    for e in kernel.attrs["grid"]:
        n = em.lowering(kernel.operands, nowhere).lower(e)
        # The product of all is a number of CTAs, below 2^31; none is started if one is 0.
        sizes.append(tirx.max(tirx.Cast("int32", n), tirx.const(1, "int32")))
    rest: Prim = block
    for n in reversed(range(len(sizes))):
        x = tirx.truncmod(rest, sizes[n]) if n else rest
        em.cell(kernel.body.args[n], tirx.Cast("int64", x))
        rest = tirx.truncdiv(rest, sizes[n]) if n else rest


def _source(name: str, func: Any, target: Target, marks: Sequence[Op]) -> str:
    """CUDA C++ of one function."""
    machine = tvm.target.Target({"kind": "cuda", "arch": target.arch})
    module = tvm.IRModule({name: func.with_attr("target", machine)})
    module = tirx.transform.LowerIntrin()(module)
    text = str(tvm.get_global_func("target.build.cuda")(module, machine).inspect_source())
    # Swizzled addresses are XORed below bit 7.
    text = text.replace("__align__(64) uchar", "__align__(128) uchar")
    return _PREAMBLE + re.sub(rf"{MARK}\((\d+)\);", lambda m: _comment(marks[int(m[1])]), text)


def _comment(op: Op) -> str:
    """An operation and its source line, on one line."""
    text = print_op(op).split("\n")[0].strip()
    return f"{MARKED}{text}{f'  # {op.loc}' if op.loc else ''}"

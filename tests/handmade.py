"""A kernel whose TIR is written by hand, for tests of the runtime alone.

y[i, :] = x[i, :] * a for each row i, and rank[i] = the row's number, in tasks of one row.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.program import KernelEntry, Program, ScratchBuffer
from tilecc.compiler import Compiler
from tilecc.ir.dtypes import F32, dtype
from tilecc.ir.expr import Extent
from tilecc.ir.parser import parse_ir
from tilecc.kernel import Kernel
from tilecc.target import resolve

TEXT = """
func @scale(%x: {t}[i:N, d:D], %a: f32, %z: {t}[i, d], %n: i32) {{
  %y = alloc : {t}[i, d]
  %r = alloc : i64[i]
  kernel grid(%i: N) {{
    %u = load %x[%i, 0 :+ d] : sram {t}[d:1]
    store %u, %y[%i, 0 :+ d]
    %k = map %i : i64[]
    store %k, %r[%i]
  }}
  return %y, %r
}}
"""


def scale(t: str) -> tirx.PrimFunc:
    """The function: (x, a, z, n, y, r, scratch, begin, end)."""
    with IRBuilder() as ib, T.prim_func(s_tir=True):
        T.func_name("scale")
        T.func_attr({"tirx.noalias": True, "global_symbol": "scale"})
        xh, a = T.arg("x", T.handle()), T.arg("a", T.float32())
        zh, k = T.arg("z", T.handle()), T.arg("n", T.int32())
        yh, rh, sh = (T.arg(n, T.handle()) for n in ("y", "r", "s"))
        begin, end = T.arg("begin", T.int64()), T.arg("end", T.int64())
        n, d = tirx.Var("N", "int64"), tirx.Var("D", "int64")
        one = tirx.const(1, "int64")

        def matrix(handle, name, stride):
            strides = [tirx.Var(stride, "int64"), one]
            return T.match_buffer(handle, (n, d), t, strides=strides, align=dtype(t).bytes)

        x, z, y = matrix(xh, "x", "xs"), matrix(zh, "z", "zs"), matrix(yh, "y", "ys")
        r = T.match_buffer(rh, (n,), "int64", strides=[one], align=8)
        s = T.match_buffer(sh, (1000,), "float32", align=64)
        with T.serial(0, end - begin) as i:
            row = begin + i
            T.buffer_store(s, tirx.Cast("float32", row), [k])
            T.buffer_store(r, tirx.Cast("int64", s[k]), [row])
            with T.serial(0, d) as j:
                v = tirx.Cast("float32", x[row, j]) * a + tirx.Cast("float32", z[row, j])
                T.buffer_store(y, tirx.Cast(t, v), [row, j])
    return ib.get()


class Handmade(Compiler):
    """A compiler whose code generator is the function above."""

    def lower(self, compiled):
        func = compiled.run.func
        x, a, z, n = func.params
        y, r = func.returns
        scratch = (ScratchBuffer("s", 1000, F32),)
        args = (x, a, z, n, y, r)
        t = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
        entry = KernelEntry("scale", scale(t[x.type.dtype.name]), args, (Extent("N"),), (), scratch)
        return Program((entry,))


def handmade(t: str = "f32", threads: int | None = None, target: str = "cpu") -> Kernel:
    """The kernel y, rank = scale(x, a, z, n): y = x * a + z."""
    return Kernel(Handmade(parse_ir(TEXT.format(t=t)), resolve(target), None), {}, threads, None)

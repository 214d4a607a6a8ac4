"""Reductions: over a thread's registers, then over lanes by shuffles, then over warps."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from tilecc.codegen.cuda.elements import At, local
from tilecc.codegen.cuda.layout import Layout, register_at
from tilecc.codegen.cuda.mathlib import Prim, register_type
from tilecc.codegen.cuda.scalars import constant
from tilecc.codegen.cuda.steps import Registers
from tilecc.ir.core import Op
from tilecc.ir.dtypes import DType

if TYPE_CHECKING:
    from tilecc.codegen.cuda.emit import Emitter

_LANE = {"g": 4, "t": 1}
"""What a step of a source is in the number of a lane."""


def identity(kind: str, t: DType) -> Prim:
    """What a reduction starts from."""
    if t.kind == "float":
        value = {"sum": 0.0, "prod": 1.0, "max": -float("inf"), "min": float("inf")}[kind]
        return constant(value, t)
    bits = 64 if register_type(t) == "int64" else 32
    ends = {"max": -(1 << (bits - 1)), "min": (1 << (bits - 1)) - 1}
    return constant({"sum": 0, "prod": 1, **ends}[kind], t)


class _Reduction:
    def __init__(self, em: Emitter, op: Op) -> None:
        self.em, self.op = em, op
        self.kind, self.dtype = op.attrs["kind"], op.result.type.dtype
        v = op.operands[0]
        home = em.plan.homes[v]
        self.source = home.layout if isinstance(home, Registers) else em.plan.roles.layout(v.type)
        self.layout = self.source.without(*op.over)

    def combine(self, a: Prim, b: Prim) -> Prim:
        """Two elements to one."""
        loose = self.op.attrs.get("nan") is not None and register_type(self.dtype) == "float32"
        match self.kind:
            case "sum":
                return a + b
            case "prod":
                return a * b
            case "max" | "min" if loose:
                return tirx.call_pure_extern("float32", f"f{self.kind}f", a, b)
        return self.em.math.lower(f"{self.kind}imum", [a, b], self.dtype)

    def emit(self) -> None:
        """The whole reduction, into the result's registers or cell."""
        em, out = self.em, self.op.result
        if out.type.axes:
            em.place(out)
            acc = em.buffers[out]
        else:
            acc = local(1, register_type(self.dtype))
        self.fill(acc)
        self.registers(acc)
        digits = [d for a in self.op.over for d in self.source.digits(a) if d.in_thread]
        for d in digits:
            if d.source in _LANE:
                step = 1
                while step < d.extent:
                    self.shuffle(acc, _LANE[d.source] * d.div * step)
                    step *= 2
        warps = [d for d in digits if d.source == "w"]
        if warps:
            self.warps(acc, warps)
        if not out.type.axes:
            em.cell(out, acc[0])

    def fill(self, acc: Any) -> None:
        with T.unroll(0, self.layout.count) as n:
            T.buffer_store(acc, identity(self.kind, self.dtype), [n])

    def registers(self, acc: Any) -> None:
        """Over the registers of a thread; rows innermost, so that their chains interleave."""
        em, (v,) = self.em, self.op.operands
        kept = {d.source for _, digits in self.layout.axes for d in digits}
        order = sorted(self.source.registers, key=lambda r: r[0] in kept)
        with em.elements(Layout(self.source.axes, tuple(order))) as env:
            at = At(self.source, env)
            x = em.math.cast(em.read(v, at), v.type.dtype, self.dtype)
            for a in v.type.axes:
                if a.name in self.op.over and self.source.covers(a.name) > a.size:
                    inside = at.coordinate(a.name) < a.size
                    x = tirx.Select(inside, x, identity(self.kind, self.dtype))
            index = register_at(self.layout, self.source, env)
            T.buffer_store(acc, self.combine(acc[index], x), [index])

    def shuffle(self, acc: Any, mask: int) -> None:
        """Over two lanes whose numbers differ in a bit."""
        t = register_type(self.dtype)
        name = f"shuffle_{t[0]}{t[-2:]}"
        # In a variable: written into a comparison, lanes would exchange only where they need it.
        other = local(1, t)
        with T.unroll(0, self.layout.count) as n:
            T.buffer_store(other, self.em.call(name, acc[n], tirx.const(mask, "int32")), [0])
            T.buffer_store(acc, self.combine(acc[n], other[0]), [n])

    def warps(self, acc: Any, digits: list[Any]) -> None:
        """Over warps, through shared memory."""
        em, out = self.em, self.op.result
        tile = em.plan.scratch[self.op]
        view = em.view(tile)

        def index(warp: Prim, env: Any) -> Prim:
            at = At(self.layout, env)
            where = {a.name: at.coordinate(a.name) for a in out.type.axes}
            return tile.offset // tile.dtype.bytes + tile.index({**where, "w": warp})

        lanes = [
            tirx.EQ(em.sources[source] // div % n, 0)
            for source, div, n in self.layout.free({"g": 8, "t": 4})
        ]
        with em.elements(self.layout) as env, em.when(lanes):
            x = em.math.to_memory(acc[self.layout.register(env)], self.dtype)
            T.buffer_store(view, x, [index(em.sources["w"], env)])
        em.barrier()
        self.fill(acc)
        with em.elements(self.layout) as env:
            warp, count = em.sources["w"], prod(d.extent for d in digits)
            n = self.layout.register(env)
            with T.unroll(0, count) as k:
                there, div = warp, 1
                for d in digits:
                    mine = warp // d.div % d.extent
                    there = there + (k // div % d.extent - mine) * d.div
                    div *= d.extent
                x = em.math.from_memory(view[index(there, env)], self.dtype)
                T.buffer_store(acc, self.combine(acc[n], x), [n])


def reduce(em: Emitter, op: Op) -> None:
    """A `reduce`."""
    _Reduction(em, op).emit()

"""Kernels run the hard way: arrays end at unmapped pages, scratch is NaN, tasks come in pieces."""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilecc.compiler import Compiler
from tilecc.ir.core import Func
from tilecc.ir.expr import Env, evaluate
from tilecc.ir.interp import bind_shapes, interpret
from tilecc.ir.parser import parse_ir
from tilecc.runtime.arguments import tensor
from tilecc.target import Target, resolve

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

# What rounding may do, by the narrowest float in a program: relative to max(1, |expected|).
TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 4e-3, "bf16": 3e-2, "f8e4m3": 0.2, "f8e5m2": 0.4}


def x86_64() -> Target:
    """Any 64-bit x86: SSE2 alone."""
    return replace(
        resolve("x86-64-v3"),
        name="x86-64",
        arch="x86-64",
        features=frozenset(),
        vector_bits=128,
    )


def guarded(size: int, at_end: bool = True) -> np.ndarray:
    """`size` bytes with a page that may not be touched right behind (or right before) them."""
    pages = -(-size // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    raw = np.frombuffer(memory, np.uint8)
    address = raw.ctypes.data
    for page in (address, address + (pages + 1) * PAGE):
        assert _libc.mprotect(page, PAGE, 0) == 0, ctypes.get_errno()
    start = PAGE + (pages * PAGE - size if at_end else 0)
    return raw[start : start + size]


def place(x: np.ndarray, how: str = "end") -> np.ndarray:
    """`x` in guarded memory.

    `end`, `start`: contiguous. `padded`: rows are further apart than they are long. `permuted`: the
    outer axes lie in memory in opposite order. `broadcast`: the first axis has stride 0, with the
    values of its first element. `reversed`: the first axis has a negative stride.
    """
    x = np.asarray(x)
    if how in ("end", "start") or x.ndim < 2 or x.size == 0:
        out = guarded(x.nbytes, how != "start").view(x.dtype)[: x.size].reshape(x.shape)
        out[...] = x
        return out
    if how == "broadcast":
        return np.broadcast_to(place(x[0], "end"), x.shape)
    if how == "reversed":
        return place(x[::-1], "end")[::-1]
    if how == "permuted":
        outer = tuple(reversed(range(x.ndim - 1)))
        return place(x.transpose(*outer, x.ndim - 1), "end").transpose(*outer, x.ndim - 1)
    assert how == "padded", how
    strides, step = [1], 1
    for n in reversed(x.shape[1:]):
        step = step * n + 3
        strides.insert(0, step)
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
    base = guarded(span * x.itemsize).view(x.dtype)
    base.view(np.uint8)[...] = 255
    out = np.lib.stride_tricks.as_strided(base, x.shape, [s * x.itemsize for s in strides])
    out[...] = x
    return out


class Built:
    """A program compiled for a target, whose kernels are called one by one."""

    def __init__(
        self,
        program: Any,
        tile: Any = None,
        static: Mapping[str, int] | None = None,
        dtype: str = "float32",
        target: str | Target = "cpu",
        build: bool = True,
    ) -> None:
        if isinstance(program, str):
            program = parse_ir(program)
        func = program if isinstance(program, Func) else program.trace(dtype)
        self.source = func
        self.static = dict(static or {})
        self.compiler = Compiler(func, resolve(target), tile)
        self.compiled = self.compiler.passes(self.static)
        self.func = self.compiled.run.func
        self.program = self.compiler.lower(self.compiled)
        if build:
            self.library = self.compiler.build(self.compiled)

    def asm(self) -> str:
        return self.library.text("asm")

    def run(
        self,
        inputs: Sequence[np.ndarray],
        extents: Mapping[str, int],
        pieces: Sequence[tuple[int, int]] | None = None,
        threads: int = 1,
    ) -> list[np.ndarray]:
        """The outputs. `pieces` of [0, 1000) in thousandths of all tasks, each a call."""
        env = Env(extent={**self.static, **extents}.__getitem__)
        values: dict[Any, Any] = dict(zip(self.func.params, inputs, strict=True))
        for op in self.func.body.ops:
            if op.name == "alloc":
                t = op.result.type
                out = place(np.zeros([int(evaluate(a.extent, env)) for a in t.axes], t.dtype.numpy))
                out.reshape(-1).view(np.uint8)[...] = 255
                values[op.result] = out
        for k in self.program.kernels:
            owners = [
                tensor(np.asarray(values[v]), v.type.dtype, v.type.names)
                if v.type.axes or v.owner is not None
                else np.asarray(values[v]).item()
                for v in k.args
            ]
            held = [getattr(x, "tensor", x) for x in owners]
            reads = [np.asarray(values[v]).item() for v in k.grid_reads]
            grid = Env(extent=env.extent, arg=reads.__getitem__)
            tasks = math.prod(max(0, int(evaluate(e, grid))) for e in k.grid)
            self._launch(k, held, tasks, pieces or [(0, 1000)], threads)
        return [np.asarray(values[v]) for v in self.func.returns]

    def _launch(self, k: Any, held: list[Any], tasks: int, pieces: Any, threads: int) -> None:
        function = self.library.functions[k.name]
        todo = [(tasks * a // 1000, tasks * b // 1000) for a, b in pieces]
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    if not todo:
                        return
                    begin, end = todo.pop()
                scratch = []
                for s in k.scratch:
                    size = s.size * s.dtype.bytes
                    raw = guarded(-(-size // 64) * 64)[:size]
                    raw[...] = 255
                    scratch.append(tensor(raw.view(s.dtype.numpy), s.dtype, ("x",)).tensor)
                function(*held, *scratch, begin, end)

        if threads == 1:
            work()
            return
        team = [threading.Thread(target=work) for _ in range(threads)]
        for t in team:
            t.start()
        for t in team:
            t.join()

    def check(
        self,
        inputs: Sequence[np.ndarray],
        want: Sequence[np.ndarray] | None = None,
        tolerance: float | None = None,
        how: str = "end",
        extents: Mapping[str, int] | None = None,
    ) -> list[np.ndarray]:
        """Run, compare with `want` (default: the interpreter's exact outputs), give the outputs."""
        inputs = [place(x, how) if np.ndim(x) else x for x in map(np.asarray, inputs)]
        shapes = [np.shape(x) for x in inputs]
        extents = bind_shapes(self.source, shapes, {**self.static, **(extents or {})})
        got = self.run(inputs, extents)
        if want is None:
            want = interpret(self.source, inputs, exact=True, extents=extents)
        if tolerance is None:
            values = [v for op in self.func.walk() for v in [*op.operands, *op.results]]
            floats = {v.type.dtype for v in values if v.type.dtype.kind == "float"}
            tolerance = max((TOLERANCE[t.name] for t in floats), default=0.0)
        for n, (g, w) in enumerate(zip(got, want, strict=True)):
            compare(g, w, tolerance, f"output {n}")
        return got


def compare(got: np.ndarray, want: np.ndarray, tolerance: float, what: str = "") -> None:
    """Same shape, same NaN and infinities, and numbers within the tolerance."""
    assert got.shape == np.shape(want), (what, got.shape, np.shape(want))
    g, w = got.astype("f8"), np.asarray(want).astype("f8")
    with np.errstate(all="ignore"):
        error = np.abs(g - w) / np.maximum(1.0, np.abs(w))
    error = np.where((g == w) | (np.isnan(g) & np.isnan(w)), 0.0, error)
    bad = ~(error <= tolerance)
    if bad.any():
        place = tuple(int(n) for n in np.argwhere(bad)[0])
        raise AssertionError(
            f"{what}: {bad.sum()} of {bad.size} are wrong (largest error {error[bad].max():.3g}, "
            f"tolerance {tolerance:.1g}), first {place}: {g[place]} for {w[place]}"
        )


def arrays(func: Func, extents: Mapping[str, int], seed: int = 0, **given: Any) -> list[np.ndarray]:
    """Random inputs of a program; those in `given` by name. Integers are 0 or 1."""
    rng = np.random.default_rng(seed)
    out = []
    for p in func.params:
        env = Env(extent=extents.__getitem__)
        shape = [int(evaluate(a.extent, env)) for a in p.type.axes]
        if p.name in given:
            x = np.asarray(given[p.name]).astype(p.type.dtype.numpy)
        elif p.type.dtype.kind == "float":
            x = rng.standard_normal(shape).astype(p.type.dtype.numpy)
        else:
            x = rng.integers(0, 2, shape).astype(p.type.dtype.numpy)
        out.append(x)
    return out

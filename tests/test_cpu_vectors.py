"""Sums across lanes and bf16 dot products on explicit vectors."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tilecc.codegen.cpu.isa import isa_for
from tilecc.ir.dtypes import DTYPES
from tilecc.target import resolve

tvm = pytest.importorskip("tvm")

from tvm import tirx  # noqa: E402
from tvm.script.ir_builder import IRBuilder  # noqa: E402
from tvm.tirx.script.builder import ir as T  # noqa: E402

from tilecc.codegen.cpu import turn, vectors  # noqa: E402

HOST = resolve("cpu")
# Where AMX is, the dot product is not used; it is there, and can be tested.
HOST = replace(HOST, features=HOST.features - {"amx-bf16"})
CPUS = {HOST.arch: isa_for(HOST)}
if "avx2" in HOST.features:
    CPUS["x86-64-v3"] = isa_for("x86-64-v3")
    CPUS["x86-64"] = isa_for("x86-64")
RNG = np.random.default_rng(0)
needs_bf16 = pytest.mark.skipif(not CPUS[HOST.arch].has_bf16_dot, reason="needs AVX512-BF16")


def call(body, arrays, out, cpu=HOST.arch):
    """`body(buffers, out)` as a kernel over one-dimensional arrays."""
    arrays = [*arrays, out]
    with IRBuilder() as ib, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        handles = [T.arg(f"x{n}", T.handle()) for n in range(len(arrays))]
        buffers = [
            T.match_buffer(h, a.shape, str(a.dtype), align=a.itemsize)
            for h, a in zip(handles, arrays, strict=True)
        ]
        with vectors.imported(CPUS[cpu]):
            body(buffers[:-1], buffers[-1])
    features = [f"+{f}" for f in sorted(HOST.features)] if cpu == HOST.arch else []
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mattr": features})
    module = tvm.tirx.build(ib.get(), target=target)
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    module["main"](*tensors)
    return tensors[-1].numpy()


def lanes(buffer, start, n=16):
    return tirx.BufferLoad(buffer, [tirx.Ramp(start, 1, n)])


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("n", vectors.SUM_COUNTS)
def test_horizontal_sums(n, cpu):
    isa = CPUS[cpu]
    width = isa.lanes32
    if n > width:
        with pytest.raises(ValueError, match="cannot sum"):
            vectors.horizontal_sums([None] * n, isa)
        return
    x = RNG.standard_normal(n * width).astype(np.float32)

    def body(inputs, out):
        rows = [lanes(inputs[0], k * width, width) for k in range(n)]
        sums = vectors.horizontal_sums(rows, isa)
        T.buffer_store(out, sums, [0 if n == 1 else tirx.Ramp(0, 1, n)])

    got = call(body, [x], np.zeros(n, np.float32), cpu)
    np.testing.assert_allclose(got, x.reshape(n, width).astype(float).sum(1), atol=3e-6)


def pairs(even, odd):
    """Two arrays of bf16 as one of int32."""
    return np.stack([even, odd], 1).view(np.int32).ravel()


@needs_bf16
def test_bf16_dot():
    a, b, c, d = RNG.standard_normal((4, 64)).astype(ml_dtypes.bfloat16)
    acc = RNG.standard_normal(64).astype(np.float32)

    def body(inputs, out):
        with T.serial(0, 4) as n:
            x, y, z = (lanes(v, n * 16) for v in inputs)
            T.buffer_store(out, vectors.dot2(z, x, y), [tirx.Ramp(n * 16, 1, 16)])

    got = call(body, [pairs(a, b), pairs(c, d), acc], np.zeros(64, np.float32))
    a, b, c, d = (x.astype(float) for x in (a, b, c, d))
    np.testing.assert_allclose(got, acc + a * c + b * d, atol=2e-6)


@needs_bf16
def test_packing_rounds_to_nearest_even():
    tie = np.float32([1 + 2**-8, 1 + 3 * 2**-8, np.inf, -np.inf, -0.0, 3.4e38, 0.3, -0.7])
    even = np.concatenate([tie, RNG.standard_normal(24).astype(np.float32)])
    odd = np.roll(even, 5)

    def body(inputs, out):
        with T.serial(0, 2) as n:
            x, y = (lanes(v, n * 16) for v in inputs)
            T.buffer_store(out, vectors.pack2(x, y), [tirx.Ramp(n * 16, 1, 16)])

    got = call(body, [even, odd], np.zeros(32, np.int32))
    want = pairs(even.astype(ml_dtypes.bfloat16), odd.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(got, want)


@needs_bf16
def test_zip():
    even, odd = RNG.integers(0, 2**16, (2, 32)).astype(np.uint16)

    def body(inputs, out):
        with T.serial(0, 2) as n:
            x, y = (lanes(v, n * 16) for v in inputs)
            T.buffer_store(out, vectors.zip2(x, y), [tirx.Ramp(n * 16, 1, 16)])

    got = call(body, [even, odd], np.zeros(32, np.int32))
    np.testing.assert_array_equal(got, pairs(even, odd))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ["raw2", "f32", "bool", "i8", "u8", "bf16", "i64"])
def test_a_block_is_turned(name, cpu):
    """Rows and columns may be further apart than they are long; nothing else is written."""
    isa = CPUS[cpu]
    n, row, column = isa.lanes32, isa.lanes32 + 3, isa.lanes32 + 1
    bits = RNG.integers(0, 2**16, (n, row))
    read = {"raw2": "uint16", "f32": "float32", "bool": "bool", "bf16": "uint16"}.get(
        name, DTYPES.get(name) and DTYPES[name].numpy.name
    )
    source = (bits > 2**15 if name == "bool" else bits).astype(read)
    made = {"raw2": "uint16", "f32": "float32", "bool": "bool", "i64": "int64", "bf16": "float32"}
    out = np.ones(n * column, made.get(name, "int32"))
    want = out.copy().reshape(n, column)
    block = source[:, :n]
    if name == "bf16":
        block = block.view(ml_dtypes.bfloat16).astype(np.float32)
    want[:, :n] = block.T

    def body(buffers, out):
        T.evaluate(tirx.const(0, "int32"))
        ends = (T.address_of(buffers[0][0]), row, T.address_of(out[0]), column)
        turn.turn(name, n, *ends)

    np.testing.assert_array_equal(call(body, [source.ravel()], out, cpu), want.ravel())

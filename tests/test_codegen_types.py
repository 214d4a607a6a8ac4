"""Tile IR over all types: carried truth values, bounds and coordinates from memory, f64, f8."""

import numpy as np
import pytest
from kernels import Built, arrays
from test_codegen_tiles import ROW, S, X, Y, out, program

import tilecc as tc

CASES = {
    "bool carried": (
        X + "%z = map index(i) > 3 : reg bool[i:16]\n"
        "%r = for %k in 0 .. 3 carry(%c = %z) {\n"
        "  %c1 = map where(%c, index(i) == %k, index(i) < 9) : reg bool[i:16]\n"
        "  yield %c1\n"
        "}\n" + out("%r"),
        "bool[i:N]",
    ),
    "bool from if": (
        X + "%r = if %a == 0 {\n"
        "  %z = map index(i) > 3 : reg bool[i:16]\n"
        "  yield %z\n"
        "} else {\n"
        "  %y2 = map index(i) < 2 : reg bool[i:16]\n"
        "  yield %y2\n"
        "}\n"
        "%q = map where(%r, 1.0, 2.0) : reg f32[i:16]\n" + out("%q"),
        ROW,
    ),
    "float condition": (
        X + "%f = load %x[%a*16, 0] : f32\n"
        "%q = if %f > 0.0 {\n"
        "  %z = map 1.0 : reg f32[i:16]\n"
        "  yield %z\n"
        "} else {\n"
        "  %z2 = map 2.0 : reg f32[i:16]\n"
        "  yield %z2\n"
        "}\n" + out("%q"),
        ROW,
    ),
    "loop bounds loaded": (
        X + "%f = load %t[%a] : i32\n"
        "%o = map 0.0 : reg f32[i:16]\n"
        "%q = for %k in 0 .. %f carry(%c = %o) {\n"
        "  %c1 = map %c + 1.0 : reg f32[i:16]\n"
        "  yield %c1\n"
        "}\n" + out("%q"),
        ROW,
    ),
    "bounds of reduced": (
        "%v = load %t[0 :+ j] pad j : sram i32[j:24]\n%f = reduce max %v over j : i32\n"
        + X
        + "%o = map 0.0 : reg f32[i:16]\n"
        "%q = for %k in 0 .. %f carry(%c = %o) {\n"
        "  %c1 = map %c + 1.0 : reg f32[i:16]\n"
        "  yield %c1\n"
        "}\n" + out("%q"),
        ROW,
    ),
    "index of reduced": (
        "%v = load %t[0 :+ j] pad j : sram i32[j:24]\n"
        "%f = reduce max %v over j : i32\n"
        "%w = load %y[%f, 0 :+ d] : sram f32[d:D]\n"
        "%q = map %w * 2.0 : reg f32[d:D]\n"
        "store %q, %o0[%a, 0 :+ d]\n",
        "f32[a:(ceildiv(N, 16)), d:D]",
    ),
    "index by computed tile": (
        X + "%e = map cast(abs(%u), i64) : reg i64[i:16, d:D]\n"
        "%w = load %y[%e, 0] : sram f32[i:16, d:D]\n"
        "%q = map %w * 0.0 : reg f32[i:16, d:D]\n" + out("%q", more=", 0 :+ d"),
        "f32[i:N, d:D]",
    ),
    "f64 product": (
        X + Y + "%p = map cast(%u, f64) : reg f64[i:16, d:D]\n"
        "%s = contract %p, %w over d : reg f64[i:16, j:24]\n"
        "%m = reduce max %s over j : reg f64[i:16]\n" + out("%m"),
        "f64[i:N]",
    ),
    "f64 and f32 sum, f16 store": (
        X + Y + S + "%p = map cast(%s, f16) : reg f16[i:16, j:24]\n"
        "%m = reduce sum %p over j : reg f32[i:16]\n" + out("%m", 0) + out("%p", 1, ", 0 :+ j"),
        "f32[i:N]; f16[i:N, j:24]",
    ),
    "int contraction": (
        "%v = load %t[0 :+ j] pad j : sram i32[j:24]\n"
        "%f = contract %v, %v over j : i64\n"
        "store %f, %o0[%a]\n",
        "i64[a:(ceildiv(N, 16))]",
    ),
    "max nan elsewhere": (
        X + "%m = reduce max[nan=elsewhere] %u over d : reg f32[i:16]\n" + out("%m"),
        ROW,
    ),
    "f8": (
        X + "%p = map cast(%u, f8e4m3) : reg f8e4m3[i:16, d:D]\n"
        "%q = map %p * 2.0 : reg f32[i:16, d:D]\n" + out("%q", more=", 0 :+ d"),
        "f32[i:N, d:D]",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_types(case):
    built = Built(program(*CASES[case], 5))
    tolerance = {"f8": 0.1, "f64 and f32 sum, f16 store": 2e-2}.get(case, 1e-4)
    for n in (33, 16):
        ins = arrays(built.source, {"N": n, "M": 24, "D": 5}, n, n=np.asarray(3))
        ins[2] = np.random.default_rng(n).integers(0, 7, 24).astype("i4")
        built.check(ins, tolerance=tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("rows", [16, 40])
def test_narrow_results_that_lie_across_the_lanes(dtype, rows):
    """Whole tiles of them are turned, by their bytes; what is left over is stored by elements."""

    @tc.spec
    def spec(
        a: tc.Tensor["i:M d", "float32"], b: tc.Tensor["j:N d", "float32"]
    ) -> tc.Tensor["i j", dtype]:
        return tc.cast(tc.dot(a, b, over="d"), dtype)

    rng = np.random.default_rng(rows)
    a, b = (rng.integers(-2, 3, (n, 8)).astype(np.float32) for n in (rows, 32))
    kernel = tc.compile(spec, "cpu", static={"D": 8, "N": 32}, tile={"i": 16})
    got = kernel(a, b)
    np.testing.assert_array_equal(got.view(np.int8), (a @ b.T).astype(got.dtype).view(np.int8))

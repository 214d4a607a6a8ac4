"""Elementary functions, casts and arithmetic of the CPU back end against float64 numpy."""

import ml_dtypes
import numpy as np
import pytest

from tilecc.codegen.cpu.isa import ISAS, isa_for
from tilecc.ir.dtypes import BOOL, DTYPES, F32, F64, I32, I64, dtype
from tilecc.ir.expr import FUNCTIONS
from tilecc.target import resolve

tvm = pytest.importorskip("tvm")

from tvm import tirx  # noqa: E402
from tvm.script.ir_builder import IRBuilder  # noqa: E402
from tvm.tirx.script.builder import ir as T  # noqa: E402

from tilecc.codegen.cpu import mathlib  # noqa: E402
from tilecc.codegen.cpu.casts import register_name  # noqa: E402

HOST = resolve("cpu")
# The widest code this machine runs, and narrower code of the same family.
CPUS = {HOST.arch: isa_for(HOST)}
if "avx2" in HOST.features:
    CPUS["x86-64-v3"] = isa_for("x86-64-v3")
    CPUS["x86-64"] = isa_for("x86-64")
MEMORY = {t.name: str(np.dtype(t.numpy).name) for t in DTYPES.values()}
LANES = 16
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def compiled(function, sources, result, cpu):
    """`function` of register values, over arrays of the element types `sources`."""
    with IRBuilder() as ib, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        handles = [T.arg(f"x{n}", T.handle()) for n in range(len(sources))]
        out = T.arg("out", T.handle())
        size = tirx.Var("n", "int64")
        xs = [
            T.match_buffer(h, (size,), MEMORY[t.name], align=t.bytes)
            for h, t in zip(handles, sources, strict=True)
        ]
        y = T.match_buffer(out, (size,), MEMORY[result.name], align=result.bytes)
        with T.serial(0, size // LANES) as i, T.vectorized(0, LANES) as v:
            at = i * LANES + v
            values = [mathlib.from_memory(x[at], t) for x, t in zip(xs, sources, strict=True)]
            T.buffer_store(y, mathlib.to_memory(function(*values), result), [at])
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    return tvm.tirx.build(ib.get(), target=target)


def run(function, *arrays, result, cpu):
    arrays = np.broadcast_arrays(*arrays)
    count = arrays[0].size
    padded = [np.resize(a, -(-count // LANES) * LANES) for a in arrays]
    out = np.zeros(padded[0].size, result.numpy)
    module = compiled(function, [dtype(a.dtype) for a in padded], result, cpu)
    tensors = [tvm.runtime.tensor(a) for a in (*padded, out)]
    module["main"](*tensors)
    return tensors[-1].numpy()[:count]


def apply(name, *arrays, t=F32, result=None, cpu=HOST.arch):
    return run(
        lambda *xs: mathlib.lower(name, xs, t, CPUS[cpu]), *arrays, result=result or t, cpu=cpu
    )


RNG = np.random.default_rng(0)


def uniform(low, high, n=100_000):
    return RNG.uniform(low, high, n).astype(np.float32)


def magnitudes(low, high, n=100_000):
    return (RNG.choice([-1, 1], n) * 10.0 ** RNG.uniform(low, high, n)).astype(np.float32)


# fmt: off
SPECIAL = np.array([
    0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-40, -1e-40, 1e-45, 126, 127.6, 127.99999, 128, 129,
    -126, -126.5, -127, -130, -149, -150, -200, 1e30, -1e30, 3.4e38, -3.4e38, 88.7, 88.72, 88.73,
    89, -87.3, -87.4, -88, -103, -104, 0.5, 2, 1.4142135, 0.70710677, 0.70710683, 1.0000001,
    0.99999994,
], np.float32)
# fmt: on
ACCURACY = {
    "exp2": (2.0e-7, uniform(-126, 128)),
    "exp": (2.5e-7, uniform(-87, 88.7)),
    "log": (1.5e-7, np.concatenate([np.abs(magnitudes(-44, 38)), uniform(0.5, 2)])),
    "log2": (2.0e-7, np.concatenate([np.abs(magnitudes(-44, 38)), uniform(0.5, 2)])),
    "tanh": (5e-7, np.concatenate([uniform(-10, 10), magnitudes(-37, 5)])),
    "sigmoid": (4e-7, uniform(-87, 87)),
    "sin": (1.2e-7, np.concatenate([uniform(-1e5, 1e5), uniform(-7, 7), magnitudes(-37, 0)])),
    "cos": (1.2e-7, np.concatenate([uniform(-1e5, 1e5), uniform(-7, 7), magnitudes(-37, 0)])),
    "sqrt": (6e-8, np.abs(magnitudes(-37, 38))),
    "rsqrt": (1.3e-7, np.abs(magnitudes(-37, 38))),
    "floor": (0, magnitudes(-3, 20)),
}


def reference(name, *arrays):
    if name == "sigmoid":
        return 1 / (1 + np.exp(-arrays[0].astype(float)))
    return FUNCTIONS[name].numpy(*(a.astype(float) for a in arrays))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ACCURACY)
def test_accuracy_in_f32(name, cpu):
    bound, x = ACCURACY[name]
    want = reference(name, x)
    got = apply(name, x, cpu=cpu).astype(float)
    normal = np.abs(want) >= 2.0**-126
    scale = np.ones(want.shape) if name in ("sin", "cos") else np.abs(want)
    error = np.abs(got - want)[normal] / scale[normal]
    assert error.max(initial=0) <= bound
    assert np.all(np.abs(got[~normal]) <= 2.0**-125)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ACCURACY)
def test_special_values_in_f32(name, cpu):
    x = SPECIAL
    if name in ("sin", "cos"):
        x = x[~(np.abs(x) > 1e9) | ~np.isfinite(x)]
    want = reference(name, x).astype(np.float32)
    got = apply(name, x, cpu=cpu)
    np.testing.assert_allclose(got, want, rtol=6e-7, atol=2.0**-125)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_exponentials_are_exact_where_softmax_needs_it(name, cpu):
    x = np.float32([0, -0.0, -np.inf, np.inf, -1e30, 1e30, np.nan])
    want = np.float32([1, 1, 0, np.inf, 0, np.inf, np.nan])
    got = apply(name, x, cpu=cpu)
    np.testing.assert_array_equal(got, want)
    assert not np.signbit(got[2])
    if name == "exp":
        assert apply(name, np.float32([-104, -120, -1e5]), cpu=cpu).max() == 0


@pytest.mark.skipif(not CPUS[HOST.arch].has_scalef, reason="needs AVX-512")
@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_exponentials_of_explicit_vectors(name):
    x = np.concatenate([ACCURACY[name][1][:1600], np.resize(SPECIAL, 48)])
    with IRBuilder() as ib, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
        source, out = T.arg("x", T.handle()), T.arg("out", T.handle())
        a = T.match_buffer(source, x.shape, "float32", align=4)
        b = T.match_buffer(out, x.shape, "float32", align=4)
        with T.serial(0, x.size // 16) as i:
            at = tirx.Ramp(i * 16, 1, 16)
            value = mathlib.lower(name, [tirx.BufferLoad(a, [at])], F32, CPUS[HOST.arch])
            T.buffer_store(b, value, [at])
    module = tvm.tirx.build(ib.get(), tvm.target.Target({"kind": "llvm", "mcpu": HOST.arch}))
    tensors = [tvm.runtime.tensor(v) for v in (x, np.zeros_like(x))]
    module["main"](*tensors)
    want = reference(name, x).astype(np.float32)
    np.testing.assert_allclose(tensors[1].numpy(), want, rtol=2.5e-7, atol=2.0**-125)
    assert "vscalefps" in module.inspect_source("asm")


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "sin", "cos"])
def test_bounded_functions_stay_within_one(name):
    x = np.concatenate([magnitudes(-5, 38), uniform(-20, 20)])
    assert np.abs(apply(name, x)).max() <= 1 + (2**-22 if name in ("sin", "cos") else 0)


@pytest.mark.parametrize("name", [*ACCURACY, "pow"])
def test_f64(name):
    x = np.concatenate([RNG.uniform(0.01, 20, 1000), 10.0 ** RNG.uniform(-12, 0, 1000)])
    args = (x, np.resize([0.3, -1.7, 2, 0.5], x.size)) if name == "pow" else (x,)
    np.testing.assert_allclose(apply(name, *args, t=F64), reference(name, *args), rtol=1e-14)


PAIRS = np.array(
    [(a, b) for a in SPECIAL for b in np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1, -2.5])]
).T.copy()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ["maximum", "minimum", "add", "sub", "mul", "div"])
def test_arithmetic_with_special_values(name, cpu):
    want = FUNCTIONS[name].numpy(*PAIRS)
    np.testing.assert_array_equal(apply(name, *PAIRS, cpu=cpu), want)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_with_special_values(name, cpu):
    want = FUNCTIONS[name].numpy(*PAIRS)
    np.testing.assert_array_equal(apply(name, *PAIRS, result=BOOL, cpu=cpu), want)
    isa = CPUS[cpu]
    negated = run(
        lambda a, b: mathlib.lower("not", [mathlib.lower(name, [a, b], F32, isa)], BOOL, isa),
        *PAIRS,
        result=BOOL,
        cpu=cpu,
    )
    np.testing.assert_array_equal(negated, ~want)


@pytest.mark.parametrize("name", ["eq", "ne", "le", "ge", "lt", "gt", "sub"])
def test_a_value_and_itself(name):
    result = F32 if name == "sub" else BOOL
    isa = CPUS[HOST.arch]
    got = run(
        lambda a: mathlib.lower(name, [a, a], F32, isa), SPECIAL, result=result, cpu=HOST.arch
    )
    np.testing.assert_array_equal(got, FUNCTIONS[name].numpy(SPECIAL, SPECIAL))


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("name", ["mul", "div"])
@pytest.mark.parametrize("left", [True, False])
def test_constant_zero_does_not_hide_nan(name, zero, left):
    isa = CPUS[HOST.arch]

    def function(x):
        c = tirx.const(zero, "float32")
        return mathlib.lower(name, [c, x] if left else [x, c], F32, isa)

    c = np.float32(zero)
    want = FUNCTIONS[name].numpy(*((c, SPECIAL) if left else (SPECIAL, c)))
    got = run(function, SPECIAL, result=F32, cpu=HOST.arch)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0, 2.5, -3.0, 0.0])
def test_pow_with_a_constant_exponent(exponent):
    x = np.concatenate([uniform(0.01, 100, 1000), np.float32([0, np.inf, np.nan, 1e-20])])
    isa = CPUS[HOST.arch]
    got = run(
        lambda a: mathlib.lower("pow", [a, tirx.const(exponent, "float32")], F32, isa),
        x,
        result=F32,
        cpu=HOST.arch,
    )
    np.testing.assert_allclose(got, np.power(x, np.float32(exponent)), rtol=4e-7)


def test_pow():
    x, y = uniform(-3, 3), np.round(uniform(-5, 5))
    want = np.power(x.astype(float), y)
    np.testing.assert_allclose(apply("pow", x, y), want, rtol=4e-7)


@pytest.mark.parametrize("t", [I32, I64], ids=str)
@pytest.mark.parametrize("name", ["floordiv", "mod", "ceildiv", "maximum", "minimum", "mul", "sub"])
def test_integers(name, t):
    low = np.iinfo(t.numpy).min
    values = np.array(
        [0, 1, -1, 2, -2, 3, -3, 7, -7, 16, 100, -100, low, low + 1, -low - 1], t.numpy
    )
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    if name == "ceildiv":
        a, b = a[a != low], b[a != low]
    want = FUNCTIONS[name].numpy(a, b)
    np.testing.assert_array_equal(apply(name, a, b, t=t), want)


@pytest.mark.parametrize("t", [I32, I64], ids=str)
@pytest.mark.parametrize("divisor", [1, -1, 2, -2, 3, -3, 7, 16, 64, 100, 0])
@pytest.mark.parametrize("name", ["floordiv", "mod", "ceildiv"])
def test_integer_division_by_a_constant(name, divisor, t):
    a = np.concatenate([np.arange(-300, 300), [2**30, -(2**30)]]).astype(t.numpy)
    isa = CPUS[HOST.arch]
    got = run(
        lambda x: mathlib.lower(name, [x, tirx.const(divisor, register_name(t))], t, isa),
        a,
        result=t,
        cpu=HOST.arch,
    )
    np.testing.assert_array_equal(got, FUNCTIONS[name].numpy(a, t.numpy.type(divisor)))


@pytest.mark.parametrize("name", ["neg", "abs"])
@pytest.mark.parametrize("t", [I32, I64, F32, F64], ids=str)
def test_signs(name, t):
    a = np.array([0, 1, -1, 5, -100], t.numpy)
    np.testing.assert_array_equal(apply(name, a, t=t), FUNCTIONS[name].numpy(a))


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_logic(name):
    a, b = (x.ravel() for x in np.meshgrid([False, True], [False, True]))
    got = apply(name, a, b, t=BOOL)
    np.testing.assert_array_equal(got, FUNCTIONS[name].numpy(a, b))


def test_where():
    c = RNG.integers(0, 2, 100).astype(bool)
    got = apply("where", c, np.resize(SPECIAL, 100), np.float32(7), t=F32)
    np.testing.assert_array_equal(got, np.where(c, np.resize(SPECIAL, 100), np.float32(7)))


def test_every_function_of_the_table_is_lowered():
    isa = CPUS[HOST.arch]
    for name, fn in FUNCTIONS.items():
        logic = name in ("and", "or", "xor", "not")
        t = I64 if fn.kind == "int" else BOOL if logic else F32
        args = [tirx.Var(f"x{n}", register_name(t)) for n in range(fn.arity)]
        if name == "where":
            args[0] = tirx.Var("c", "bool")
        mathlib.lower(name, args, t, isa)


def all_halves(t):
    return np.arange(2**t.bits, dtype=f"u{t.bytes}").view(t.numpy)


SMALL = [DTYPES[n] for n in ("bf16", "f16", "f8e4m3", "f8e5m2")]


def convert(x, source, to, cpu):
    return run(lambda v: mathlib.cast(v, source, to), x, result=to, cpu=cpu)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("t", SMALL, ids=str)
def test_small_floats_load_and_store_exactly(t, cpu):
    x = all_halves(t)
    np.testing.assert_array_equal(convert(x, t, F32, cpu), x.astype(np.float32))
    back = run(lambda v: v, x, result=t, cpu=cpu)
    np.testing.assert_array_equal(back.astype(np.float32), x.astype(np.float32))
    assert np.array_equal(np.signbit(back), np.signbit(x))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("t", SMALL, ids=str)
def test_rounding_to_small_floats(t, cpu):
    exact = all_halves(t).astype(np.float32)
    finite = np.sort(exact[np.isfinite(exact)])
    middle = (finite[1:] + finite[:-1]) / 2  # ties, and their neighbours on both sides
    sides = np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)
    nans = np.array([0x7FFFFFFF, 0x7F800001, -1], np.int32).view(np.float32)
    large = np.float32([464, 464.1, 61440, 65520])
    parts = (exact, middle, *sides, magnitudes(-45, 38), magnitudes(-9, 6), SPECIAL, large, nans)
    x = np.concatenate(parts).astype(np.float32)
    want = x.astype(t.numpy)
    got = convert(x, F32, t, cpu)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    again = run(lambda v: mathlib.cast(mathlib.cast(v, F32, t), t, F32), x, result=F32, cpu=cpu)
    np.testing.assert_array_equal(again, want.astype(np.float32))


CASTS = [(a, b) for a in DTYPES.values() for b in DTYPES.values() if a is not b]


@pytest.mark.parametrize(("source", "to"), CASTS, ids=lambda t: t.name)
def test_casts_between_all_types(source, to):
    values = [0, 1, 2, 3, 7, 100, 0.5, 1.75] + ([-1, -2, -100, -1.5] if to.name != "u8" else [])
    x = np.array(values, np.float64)
    if source.name == "u8":
        x = np.abs(x)
    x = x.astype(np.float32).astype(source.numpy)
    if source.kind == "int" and to.kind == "int":
        x = np.concatenate([x, np.array([127, 128, 255]).astype(source.numpy)])
    want = x.astype(np.float32).astype(to.numpy) if source.bits < 32 else x.astype(to.numpy)
    if source.kind == "int" and to.kind == "int":
        want = x.astype(to.numpy)
    got = convert(x, source, to, HOST.arch)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def test_isa_needs_all_its_features():
    names = ("cpu", "x86-64-v3", "x86-64-v4", "aarch64")
    for target in map(resolve, names):
        assert isa_for(target).requires <= target.features
    assert isa_for("x86-64-v3").name == "avx2"
    assert isa_for("x86-64-v4").name == "avx512"
    assert not isa_for("x86-64-v4").has_bf16_dot
    assert isa_for("x86-64-v4", ["+avx512bf16"]).has_bf16_dot
    assert not isa_for("x86-64-v4", ["+avx512bf16", "+amx-bf16"]).has_bf16_dot
    assert not isa_for("graniterapids").has_bf16_dot
    assert isa_for("znver4").has_bf16_dot
    assert isa_for("pentium").name == "generic"


@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
def test_a_register_tile_fits_the_registers(isa):
    assert isa.mr * isa.nr + isa.nr + 1 <= isa.registers


assert ml_dtypes  # registers bfloat16 and 8-bit floats with numpy

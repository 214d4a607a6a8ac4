"""The cost model against the seed's tables, and against loads and stores counted as they happen."""

import json
from pathlib import Path

import numpy as np
import pytest
import sympy

import tilecc as tc
from tilecc.cost import choose_tile, report
from tilecc.cost.footprint import footprint
from tilecc.cost.nest import kernels
from tilecc.cost.visits import computed, leading
from tilecc.dsl.load import load_spec
from tilecc.errors import CompileError
from tilecc.ir import interp, interp_tile
from tilecc.ir.core import bind_extents
from tilecc.ir.dtypes import F16, F32
from tilecc.ir.interp_graph import run_contract
from tilecc.ir.parser import parse_ir
from tilecc.passes.base import Remarks
from tilecc.passes.fuse import Fuse
from tilecc.passes.mask_tiles import MaskTiles
from tilecc.passes.online_softmax import OnlineSoftmax
from tilecc.passes.simplify import Simplify
from tilecc.passes.tile import Tile
from tilecc.target import resolve

EXAMPLES = Path(__file__).parent.parent / "examples"
CANVAS = resolve("canvas")


def loop_level(graph, static=None):
    func = bind_extents(graph, static or {})
    for p in (Simplify(), Fuse(), OnlineSoftmax(), MaskTiles()):
        func = p.apply(func, Remarks())
    return func


def tiled(loop, **sizes):
    return Tile(tuple(sizes.items())).apply(loop, Remarks())


def example(name, dtype=F16, static=None, **sizes):
    """The three levels of one of the examples."""
    graph = load_spec(str(EXAMPLES / f"{name}.py")).trace(dtype)
    loop = loop_level(graph, static or {"D": 4})
    return graph, loop, tiled(loop, **sizes)


def attention(d, b, target=CANVAS, name="attention", **extents):
    levels = example(name, static={"D": d}, i=b, j=b)
    return report(*levels, target, {"B": 1, "H": 1, **extents})


def symbols(*names):
    return sympy.symbols(names, integer=True, positive=True)


def at(formula, **values):
    """A formula's value."""
    named = {s: values[s.name] for s in formula.free_symbols}
    return formula.subs(named).doit()


# The seed's tables


@pytest.mark.parametrize(
    ("n", "d", "b", "naive", "fused"),
    [
        (8, 4, 4, 768, 384),
        (8, 4, 2, 768, 640),
        (1024, 64, 128, 8.5 * 2**20, 2.25 * 2**20),
        (4096, 64, 128, 130 * 2**20, 33 * 2**20),
        (16384, 64, 128, 2056 * 2**20, 516 * 2**20),
    ],
)
def test_bytes_of_the_seed(n, d, b, naive, fused):
    r = attention(d, b, N=n)
    assert (r.unfused.bytes, r.fused.bytes) == (naive, fused)
    assert r.unfused.numbers * 2 == r.unfused.bytes  # 2 bytes each


def test_kernels_of_the_seed():
    r = attention(4, 4, N=8)
    reads = {name: io.numbers for name, io in r.unfused.reads.items()}
    writes = {name: io.numbers for name, io in r.unfused.writes.items()}
    assert reads == {"q": 32, "k": 32, "s": 64, "p": 64, "v": 32}
    assert writes == {"s": 64, "p": 64, "o": 32}


def test_formulas_of_the_seed():
    B, H, N, D, B_i, B_j, T = symbols("B", "H", "N", "D", "B_i", "B_j", "T")
    r = attention(4, 4)
    reads = sum(io.expression() for io in r.unfused.reads.values())
    writes = sum(io.expression() for io in r.unfused.writes.values())
    assert sympy.expand(reads - B * H * (2 * N**2 + 3 * N * D)) == 0
    assert sympy.expand(writes - B * H * (2 * N**2 + N * D)) == 0
    even = B * H * (2 * N * D + 2 * N**2 * D / 4)
    assert sympy.expand(r.fused.expression() - even) == 0
    assert sympy.expand(r.fused.expression("tiles") - even.subs(4, B_i)) == sympy.expand(
        B * H * (2 * N * D + 2 * N**2 * D / B_i) - even.subs(4, B_i)
    )
    assert r.fused.exact == str(2 * B * D * H * N * sympy.ceiling(N / 4) + 2 * B * D * H * N)
    held = sympy.sympify(r.footprint_formula(), {s.name: s for s in (D, B_i, B_j)})
    assert sympy.expand(held - (2 * B_i * D + 2 * B_j * D + B_i * B_j + 2 * B_i)) == 0
    assert sympy.expand(held.subs({B_i: T, B_j: T}) - (4 * T * D + T**2 + 2 * T)) == 0


def test_tiles_of_the_seed():
    _, loop, _ = example("attention", i=4, j=4)
    choice = choose_tile(loop, CANVAS, {"B": 1, "H": 1, "N": 8})
    assert choice.tile == {"i": 4, "j": 4}
    assert choice.unit == "number"
    found = [(c.tile["i"], c.fits, c.needs, c.limit, c.bytes) for c in choice.candidates]
    assert found == [(2, True, 40, 96, 640), (4, True, 88, 96, 384), (8, False, 208, 96, 256)]
    assert choice.candidates[2].reason == "needs 208 of 96 numbers"


def test_traffic_for_a_memory_of_m_numbers():
    """With B about M/4d the traffic is about N^2 d^2 / M: the ratio tends to a constant."""
    B, H, N, D, B_i, M = symbols("B", "H", "N", "D", "B_i", "M")
    r = attention(4, 4)
    traffic = r.fused.expression("tiles").subs({B: 1, H: 1})

    def ratio(tile):
        return sympy.simplify(traffic.subs(B_i, tile) * M / (N**2 * D**2))

    assert sympy.limit(ratio(M / (4 * D)), N, sympy.oo) == 8
    # The largest B that fits, of 4 B d + B^2 + 2 B = M, is that where d is large against B.
    T, eps = sympy.symbols("T eps", positive=True)
    held = sympy.sympify(r.footprint_formula(square=True), {"B": T, "D": D})
    largest = next(x for x in sympy.solve(sympy.Eq(held, M), T) if x.subs({M: 96, D: 4}) > 0)
    assert 4 < largest.subs({M: 96, D: 4}) < 8

    def far(e):
        return sympy.limit(sympy.limit(e.subs(M, eps * D**2), D, sympy.oo), eps, 0)

    assert far(largest / (M / (4 * D))) == 1
    assert far(sympy.limit(ratio(largest), N, sympy.oo)) == 8


# Loads and stores as they happen


def executed(func, inputs, monkeypatch):
    """Elements that running `func` reads and writes inside its tensors, and operations."""
    counts, flops = {}, [0]

    def watch(name, operand, tile, loose, handler):
        def run(state, op):
            v = tile(op)
            access = interp_tile._Access.of(op, v.type.names)
            tensor = state.values[op.operands[operand]]
            _, valid = interp_tile._places(
                state, op, access, tensor, v, tuple(op.attrs.get(loose, ()))
            )
            key = (op.operands[operand].name, name)
            counts[key] = counts.get(key, 0) + int(valid.sum())
            handler(state, op)

        return run

    def contract(state, op):
        sizes = {a.name: a.static for v in op.operands for a in v.type.axes}
        flops[0] += 2 * int(np.prod(list(sizes.values())))
        run_contract(state, op)

    load = watch("read", 0, lambda op: op.result, "pad", interp_tile.run_load)
    store = watch("write", 1, lambda op: op.operands[0], "clip", interp_tile.run_store)
    monkeypatch.setitem(interp.HANDLERS, "load", load)
    monkeypatch.setitem(interp.HANDLERS, "store", store)
    monkeypatch.setitem(interp.HANDLERS, "contract", contract)
    interp.interpret(func, inputs)
    return counts, flops[0]


def decided(func, inputs):
    """The tensors that decide which tiles are visited."""
    known = dict(zip(func.params, inputs, strict=True))
    program = leading(func)
    if program is not None:
        known |= zip(computed(func), interp.interpret(program, inputs, complete=False), strict=True)
    return known


SIZES = {"B": 2, "H": 2, "G": 1, "D": 4, "E": 4}
SCALARS = {"w": 5, "cap": 3.0, "bias": 0.5}
SPECS = sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem != "minilm")


def random_inputs(func, extents, rng):
    found = []
    for p in func.params:
        shape = [extents.get(getattr(a.extent, "name", ""), a.static) for a in p.type.axes]
        if not p.type.axes:
            found.append(SCALARS.get(p.name, 1))
        elif p.type.dtype.kind == "float":
            found.append(rng.standard_normal(shape).astype(p.type.dtype.numpy))
        else:
            found.append(rng.integers(0, 2, shape).astype(p.type.dtype.numpy))
    return found


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("sizes", [(4, 4), (2, 3), (8, 2)])
def test_counts_are_what_runs(name, sizes, monkeypatch):
    graph = load_spec(str(EXAMPLES / f"{name}.py")).trace(F32)
    loop = loop_level(graph, {"D": 4, "E": 4})
    streams = [op.attrs["axis"] for op in loop.walk() if op.name == "stream"]
    rows = {a for op in loop.body.ops if op.name == "kernel" for a in op.attrs["over"]}
    tile = {"i": sizes[0], "j": sizes[1]}
    func = tiled(loop, **{a: n for a, n in tile.items() if a in rows or a in streams})
    rng = np.random.default_rng(0)
    for n in (1, 7, 12):
        extents = {**SIZES, "N": n, "Nq": n, "Nk": n + 2, "V": n + 3, "B": 1}
        inputs = random_inputs(func, extents, rng)
        counts, flops = executed(func, inputs, monkeypatch)
        monkeypatch.undo()
        r = report(graph, loop, func, CANVAS, extents, SCALARS, arrays=decided(func, inputs))
        assert {t: io.numbers for t, io in r.fused.reads.items() if io.numbers} == {
            t: n for (t, kind), n in counts.items() if kind == "read" and n
        }
        written = sorted(n for (_, kind), n in counts.items() if kind == "write")
        assert sorted(io.numbers for io in r.fused.writes.values()) == written
        assert r.arithmetic.flops <= flops  # what is computed in padding is not counted
        if n % sizes[0] == n % sizes[1] == 0 and name == "causal":
            assert r.arithmetic.flops == flops


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (12, 8)])
def test_formulas_are_the_counts(name, sizes):
    """`even` where tiles divide extents, `exact` everywhere."""
    static = {"D": 4, "E": 4}
    graph = load_spec(str(EXAMPLES / f"{name}.py")).trace(F32)
    loop = loop_level(graph, static)
    axes = {op.attrs["axis"] for op in loop.walk() if op.name == "stream"}
    axes |= {a for op in loop.body.ops if op.name == "kernel" for a in op.attrs["over"]}
    func = tiled(loop, **{a: n for a, n in zip("ij", sizes, strict=True) if a in axes})
    for n, forms in ((48, ("even", "exact")), (31, ("exact",))):
        values = {**SIZES, **SCALARS, "N": n, "Nq": n, "Nk": 72, "V": 24, "w": 20}
        values |= {"full_tiles": 7, "partial_tiles": 3}  # of a mask that is data
        r = report(graph, loop, func, CANVAS, values, values)
        for form in forms:
            if form == "exact" and name == "padding_mask":
                assert r.fused.exact == ""  # the last tile is as full as the data has it
                continue
            assert at(r.fused.expression(form), **values) == r.fused.numbers
        if name in ("causal", "softcap", "alibi", "gqa"):
            assert not r.fused.expression().has(sympy.Sum, sympy.Min, sympy.Max)


LIVE = "(index(j) < 4) | (index(i) - index(j) < %w) & (index(j) <= index(i))"
UNION = """func @union(%q: f32[i:N, d:4], %k: f32[j:N, d], %v: f32[j, e:4], %w: i64) {
  %o = kernel over i {
    %a = stream j where LIVE {
      %s = contract %q, %k over d : f32[i, j]
      %p = map where(LIVE, %s, 0.0) : f32[i, j]
      %pv = contract %p, %v over j : f32[i, e]
      %a_1 = update sum %pv : f32[i, e]
      yield %a_1
    }
    yield %a
  }
  return %o
}
""".replace("LIVE", LIVE)


def test_tiles_told_one_by_one(monkeypatch):
    """A mask of two intervals: one loop over their hull, with conditions."""
    loop = parse_ir(UNION)
    func = tiled(loop, i=4, j=2)
    assert any(op.name == "if" for op in func.walk())
    rng = np.random.default_rng(1)
    for n in (5, 24, 33):
        inputs = [*(rng.standard_normal((n, 4)).astype(np.float32) for _ in range(3)), 6]
        counts, _ = executed(func, inputs, monkeypatch)
        monkeypatch.undo()
        r = report(None, loop, func, CANVAS, {"N": n}, {"w": 6})
        assert {t: io.numbers for t, io in r.fused.reads.items()} == {
            t: n for (t, kind), n in counts.items() if kind == "read"
        }
    held = footprint(kernels(func)[0].op)
    assert held.numbers() == 2 * 4 * 4 + 2 * 2 * 4 + 4 * 2  # q, o; k, v; s
    big = report(None, loop, tiled(loop, i=64, j=64), CANVAS, {"N": 16384}, {"w": 1000})
    assert big.fused.numbers < 16384**2


GATHER = """func @gather(%q: f32[h:H, d:4], %k: f32[page:P, slot:2, d], %table: i64[n:M]) {
  %o = kernel over h {
    %a = stream j {
      %k1 = at %k[page = %table, slot = index(j) % 2] : f32[j:M, d]
      %s = contract %q, %k1 over d : f32[h, j]
      %r = reduce max %s over j : f32[h]
      %a_1 = update max %r : f32[h]
      yield %a_1
    }
    yield %a
  }
  return %o
}
""".replace("n:M", "j:M")


def test_reads_through_a_table(monkeypatch):
    loop = parse_ir(GATHER)
    func = tiled(loop, h=2, j=4)
    rng = np.random.default_rng(2)
    inputs = [
        rng.standard_normal((3, 4)).astype(np.float32),
        rng.standard_normal((5, 2, 4)).astype(np.float32),
        rng.integers(0, 5, 8),
    ]
    counts, _ = executed(func, inputs, monkeypatch)
    r = report(None, loop, func, CANVAS, {"H": 3, "P": 5, "M": 8})
    assert {t: io.numbers for t, io in r.fused.reads.items()} == {
        t: n for (t, kind), n in counts.items() if kind == "read"
    }
    # Beyond the end of a table there is nothing to read: 7 of 8 entries, for each of 2 programs.
    r = report(None, loop, func, CANVAS, {"H": 3, "P": 5, "M": 7})
    assert r.fused.reads["table"].numbers == 2 * 7
    assert r.fused.reads["k"].numbers == 2 * 7 * 4


COMPUTED = GATHER.replace("page = %table", "page = index(j) // 2").replace(
    "%r = reduce max %s over j : f32[h]",
    "%t = map %s + cast(%table, f32) : f32[h, j]\n      %r = reduce max %t over j : f32[h]",
)


def test_reads_at_computed_places(monkeypatch):
    loop = parse_ir(COMPUTED)
    func = tiled(loop, h=2, j=4)
    inputs = [np.ones((3, 4), np.float32), np.ones((4, 2, 4), np.float32), np.arange(7)]
    counts, _ = executed(func, inputs, monkeypatch)
    r = report(None, loop, func, CANVAS, {"H": 3, "P": 4, "M": 7})
    assert r.fused.reads["table"].numbers == counts["table", "read"]
    assert r.fused.reads["k"].numbers == 2 * 7 * 4


def test_empty_tensors():
    r = attention(4, 4, N=0)
    assert r.fused.bytes == r.unfused.bytes == 0
    assert r.arithmetic.flops == 0
    json.dumps(r.to_json())


def test_causal_halves_what_is_read():
    N, D, B, H = symbols("N", "D", "B", "H")
    r = attention(64, 64, name="causal")
    k = r.fused.reads["k"].expression()
    assert sympy.expand(k - B * H * D * N * (N + 64) / 128) == 0


def test_a_run_time_scalar_is_a_symbol_and_must_be_given():
    levels = example("sliding_window", i=4, j=4)
    r = report(*levels, CANVAS)
    assert "w" in {s.name for s in r.fused.expression().free_symbols}
    assert r.fused.bytes is None
    with pytest.raises(CompileError, match=r"sliding_window\.py:\d+: .*%w") as e:
        report(*levels, CANVAS, {"B": 1, "H": 1, "N": 64})
    assert "--scalar w=" in str(e.value)


def test_static_extents_keep_their_names():
    levels = example("attention", static={"D": 4, "N": 8}, i=4, j=4)
    r = report(*levels, CANVAS, {"B": 1, "H": 1})
    assert r.fused.bytes == 384
    assert r.fused.formula == attention(4, 4).fused.formula


# Footprints


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("causal", lambda b: 0),
        ("sliding_window", lambda b: 0),
        ("softcap", lambda b: 0),
        ("alibi", lambda b: 1),  # the slope of a head
        ("padding_mask", lambda b: b + 3),  # the mask's tile; what it says of this one, and where
        ("gqa", lambda b: 0),
        ("with_lse", lambda b: 0),
        ("sigmoid_attention", lambda b: -2 * b),  # neither m nor l
    ],
)
def test_footprints_of_variants(name, more):
    for b in (2, 4, 8):
        _, _, func = example(name, i=b, j=b)
        assert footprint(kernels(func)[-1].op).numbers() == 16 * b + b * b + 2 * b + more(b)


def test_a_second_use_of_the_scores_needs_room():
    """exp(s) and s itself both go into a contraction: one cannot be made in place of the other."""

    def body(second):
        return parse_ir(f"""func @two(%q: f32[i:N, d:4], %k: f32[j:N, d], %v: f32[j, e:4]) {{
  %o = kernel over i {{
    %a, %b = stream j {{
      %s = contract %q, %k over d : f32[i, j]
      %p = map exp(%s) : f32[i, j]
      %pv = contract %p, %v over j : f32[i, e]
      %sv = contract {second}, %v over j : f32[i, e]
      %a_1 = update sum %pv : f32[i, e]
      %b_1 = update sum %sv : f32[i, e]
      yield %a_1, %b_1
    }}
    %z = map %a + %b : f32[i, e]
    yield %z
  }}
  return %o
}}
""")

    one, two = (footprint(kernels(tiled(body(x), i=4, j=4))[0].op).numbers() for x in ("%p", "%s"))
    assert two - one == 16


# What runs as a kernel of its own before fusion


def unfused(spec, **extents):
    graph = spec.trace(F16)
    return report(graph, None, parse_ir(EMPTY), CANVAS, extents).unfused


EMPTY = """func @empty() {
  return
}
"""


def test_a_mask_is_one_more_round_trip():
    dense, causal = (attention(4, 4, N=8, name=n).unfused for n in ("attention", "causal"))
    assert causal.numbers - dense.numbers == 2 * 64


def test_a_scale_that_is_no_constant_is_a_kernel():
    @tc.spec
    def scaled(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"], c: tc.Scalar("float32")):
        return tc.dot(q, k, over="d") * c

    @tc.spec
    def constant(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"]):
        return tc.dot(q, k, over="d") * 0.5

    @tc.spec
    def used_twice(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"]):
        s = tc.dot(q, k, over="d")
        return s * 0.5, s

    sizes = {"N": 8, "D": 4}
    product = 2 * 32 + 64
    assert unfused(constant, **sizes).numbers == product
    assert unfused(scaled, **sizes).numbers == product + 2 * 64
    assert unfused(used_twice, **sizes).numbers == product + 2 * 64

    @tc.spec
    def cast_used_twice(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"]):
        s = tc.cast(tc.dot(q, k, over="d"), "float16")
        return s * 0.5, s

    assert unfused(cast_used_twice, **sizes).numbers == product + 2 * 64


def test_fused_before_tiling_reads_once_a_pass():
    r = attention(4, 4, N=8)
    assert r.ideal.numbers == 4 * 32
    assert attention(4, 8, N=8).fused.numbers == r.ideal.numbers  # one tile: nothing is read again


# The choice of tiles


CPUS = ("x86-64-v3", "x86-64-v4", "aarch64")


@pytest.mark.parametrize("target", ["cpu", *CPUS, "a100", "h100", "canvas", "rtx4090"])
@pytest.mark.parametrize("name", ["attention", "causal", "sliding_window", "gqa"])
def test_choices_fit(name, target):
    d = 4 if target == "canvas" else 64
    _, loop, _ = example(name, F32, {"D": d}, i=4, j=4)
    machine = resolve(target)
    choice = choose_tile(loop, machine)
    assert [c.tile for c in choice.candidates if c.reason == "chosen"] == [choice.tile]
    for c in choice.candidates:
        assert c.fits == (c.limit is None or c.needs <= c.limit)
        assert c.fits or f"needs {c.needs} of {c.limit}" in c.reason
        # What is predicted for this tile is what tiling with it needs and moves.
    extents = {"B": 8, "H": 8, "G": 8, "N": 4096}
    if name == "attention":
        r = report(None, loop, tiled(loop, **choice.tile), machine, extents, choice=choice)
        chosen = next(c for c in choice.candidates if c.tile == choice.tile)
        assert (r.need.needs, r.fused.bytes) == (chosen.needs, chosen.bytes)


def test_the_cpu_takes_tiles_of_64():
    for d in (64, 128):
        _, loop, _ = example("attention", F32, {"D": d}, i=4, j=4)
        assert choose_tile(loop, resolve("x86-64-v4")).tile["i"] == 64


def test_few_rows_are_one_tile():
    _, loop, _ = example("cross_attention", F32, {"D": 64, "Nq": 40}, i=4, j=4)
    assert choose_tile(loop, resolve("x86-64-v4")).tile["i"] == 40


def test_heads_that_read_the_same_keys_are_one_tile():
    @tc.spec
    def decode(q: tc.Tensor["b h d"], k: tc.Tensor["b g j:N d"], v: tc.Tensor["b g j:N e:D"]):
        group = tc.index("h") // 4
        s = tc.dot(q, k.at(g=group), over="d") * tc.rsqrt(tc.extent("d"))
        return tc.dot(tc.softmax(s, over="j"), v.at(g=group), over="j")

    loop = loop_level(decode.trace(F32), {"D": 64})
    machine = resolve("x86-64-v4")
    choice = choose_tile(loop, machine)
    assert choice.tile["h"] == 4
    sizes = {"B": 1, "H": 32, "G": 8, "N": 512}
    r = report(None, loop, tiled(loop, **choice.tile), machine, sizes)
    assert r.fused.reads["k"].numbers == 8 * 512 * 64  # each key once, not once a head


def test_nothing_fits():
    _, loop, _ = example("attention", static={"D": 64}, i=4, j=4)
    with pytest.raises(CompileError, match="needs 520 of 96 numbers"):
        choose_tile(loop, CANVAS)


def test_a_cache_is_no_hard_limit():
    _, loop, _ = example("attention", F32, {"D": 4096}, i=4, j=4)
    choice = choose_tile(loop, resolve("x86-64-v3"))
    assert choice.tile == min(choice.candidates, key=lambda c: c.needs).tile
    assert not any(c.fits for c in choice.candidates)
    with pytest.raises(CompileError, match="bytes"):
        choose_tile(loop, resolve("h100"))


def test_no_sympy_for_a_choice():
    import subprocess
    import sys

    code = f"""
import sys
from tilecc.dsl.load import load_spec
from tilecc.ir.core import bind_extents
from tilecc.ir.dtypes import F32
from tilecc.ir.parser import parse_ir
from tilecc.cost import choose_tile, report
from tilecc.passes.tile import Tile
from tilecc.passes.base import Remarks
from tilecc.target import resolve
loop = parse_ir({UNION!r})
choice = choose_tile(loop, resolve("x86-64-v4"))
func = Tile(tuple(choice.tile.items())).apply(loop, Remarks())
assert report(None, loop, func, resolve("canvas"), {{"N": 64}}, {{"w": 8}}).fused.bytes
assert "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# Reports


def test_json():
    r = attention(4, 4, N=8)
    data = json.loads(json.dumps(r.to_json()))
    assert data["unfused"]["bytes"] == 768 and data["fused"]["bytes"] == 384
    assert data["tile"] == {"i": 4, "j": 4}
    assert [c["fits"] for c in data["candidates"]] == [True, True, False]
    assert {"tile", "fits", "needs", "limit", "reason"} <= set(data["candidates"][2])
    assert data["footprint"]["needs"] == 88 and data["footprint"]["limit"] == 96
    assert data["flops"] == 4 * 8 * 8 * 4
    assert data["intensity"] == 1024 / 384
    head, rows = r.table()
    assert all(len(row) == len(head) for row in rows)


def test_candidates_are_compared_with_the_tile_at_hand():
    r = attention(4, 2, N=8)
    assert attention(4, 8, N=8).candidates[2].reason == "needs 208 of 96 numbers"
    reasons = [c.reason for c in r.candidates]
    assert reasons[0] == "chosen"
    assert reasons[1] == "moves 384 bytes, the chosen one 640"
    assert reasons[2] == "needs 208 of 96 numbers"
    assert [c.bytes for c in attention(4, 4, N=8).candidates] == [640, 384, 256]


def test_roofline():
    machine = resolve("a100")
    levels = example("attention", static={"D": 64}, i=128, j=64)
    r = report(*levels, machine, {"B": 1, "H": 16, "N": 4096})
    assert r.seconds == max(r.fused.bytes / machine.bandwidth, r.arithmetic.flops / 312e12)
    assert r.roofline.bound == "memory"
    # All of q, k, v and o fit L2, which then serves the rest.
    assert r.roofline.seconds_cached < r.roofline.seconds


def test_sums_without_a_closed_form_have_names():
    """The table names them, once each; the formulas themselves can still be worked out."""
    kernel = tc.compile("examples/zoo/cache.py", target="x86-64-v3", static={"D": 8}, tile=16)
    report = kernel.cost(B=2, H=1, Nq=16, Nk=40, length=np.full(2, 40))
    cells = [row[-1] for row in report.table()[1]]
    assert not any("Sum" in c for c in cells)
    named = [n for n in report.sums if any(n in c for c in cells)]
    assert named == ["visited"] and "i_tile" in report.sums["visited"]
    assert "Sum" in report.fused.formula


def test_registers_that_spill_are_better_than_no_kernel():
    """Head dimensions whose rows no thread has registers for: the tile that needs least."""

    @tc.spec
    def wide(q: tc.Tensor["i:M d"], k: tc.Tensor["j:N d"]):
        return tc.dot(tc.softmax(tc.dot(q, k, over="d"), over="j"), k, over="j")

    kernel = tc.compile(wide, "sm_80", "float16", static={"D": 576})
    chosen = [c for c in kernel.tile.candidates if c.reason.startswith("chosen")]
    assert not any(c.fits for c in kernel.tile.candidates), "the case is to be one with no room"
    assert len(chosen) == 1 and "registers" in chosen[0].reason and chosen[0].runs
    assert chosen[0].needs == min(c.needs for c in kernel.tile.candidates if c.runs)

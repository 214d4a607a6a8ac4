"""Other instruction sets: right where they run here, and no instruction that a machine lacks."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernels import Built, arrays, compare, place, x86_64
from test_codegen import PLACES, biased, cross, gqa, paged
from test_codegen_tiles import CASES, program

import tilecc as tc
from tilecc.codegen.cpu.isa import isa_for
from tilecc.ir.parser import parse_ir
from tilecc.machines import GENERIC_CPUS
from tilecc.runtime import build
from tilecc.runtime.build import runs_here
from tilecc.target import resolve

CAUSAL = str(Path(__file__).parents[1] / "examples" / "causal.py")
# What an instruction set's assembly may not contain.
FOREIGN = {
    "x86-64-v4": r"dpbf16ps|cvtne2ps|cvtneps2bf16",
    "x86-64-v3": r"%zmm|%[xyz]mm(1[6-9]|2\d|3[01])\b|%k[0-7]\b|dpbf16ps|vreduceps|vscalef",
    "x86-64": r"%[yz]mm|\bv[a-z]\w*\s+[^\n]*%xmm|fmadd|\b(roundps|pmulld|blendvps|ptest)\b",
}
MACHINES = [resolve("x86-64-v4"), resolve("x86-64-v3"), x86_64()]
SPECS = {
    "cross": (cross, {"i": 24, "j": 20}, {"D": 20, "E": 12}),
    "pairs": (biased, {"i": 16, "j": 16}, {"D": 8, "E": 9}),
    "heads": (gqa, {"h": 4, "i": 1, "j": 20}, {"D": 32, "E": 32, "H": 8, "G": 2}),
}
EXTENTS = {"B": 2, "N": 37, "M": 41, "H": 3}


@pytest.mark.parametrize("name", ["cross", pytest.param("pairs", marks=pytest.mark.slow), "heads"])
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "machine", [pytest.param(MACHINES[0], marks=pytest.mark.slow), *MACHINES[1:]], ids=str
)
def test_machines(machine, dtype, name):
    if not runs_here(machine):
        pytest.skip("another machine")
    spec, tile, static = SPECS[name]
    built = Built(spec, tile, static, dtype, machine)
    found = re.search(FOREIGN[machine.name], built.asm())
    assert found is None, found
    for how in PLACES:
        built.check(arrays(built.source, {**EXTENTS, **static}), how=how)


def test_features_beyond_the_named_cpu():
    """A hypervisor may show a CPU that has more than its level of the instruction set."""
    level = resolve("x86-64-v4")
    machine = replace(level, name="hidden", features=level.features | {"avx512bf16"})
    spec, tile, static = SPECS["cross"]
    assert "dpbf16ps" in Built(spec, tile, static, "bfloat16", machine).asm()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SPECS)
def test_arm(dtype, name):
    spec, tile, static = SPECS[name]
    built = Built(spec, tile, static, dtype, "aarch64")
    text = built.asm()
    assert "fmla" in text and not re.search(r"\bz\d+\.|bfdot|bfmmla|%xmm", text)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("machine", MACHINES[1:], ids=str)
def test_tile_ir(machine, case):
    if not runs_here(machine):
        pytest.skip("another machine")
    built = Built(parse_ir(program(*CASES[case], d=7)), target=machine)
    ins = arrays(built.source, {"N": 33, "M": 24, "D": 7}, n=np.asarray(3))
    ins[2] = np.random.default_rng(0).integers(0, 24, 24).astype("i4")
    assert re.search(FOREIGN[machine.name], built.asm()) is None
    built.check(ins, tolerance=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", [gqa, paged])
def test_tasks_in_any_order_give_the_same_bits(spec, dtype):
    static = {"D": 16, "E": 16, "H": 4, "G": 2}
    names = {"gqa": ("D", "E", "H", "G"), "paged": ("D", "E", "H")}[spec.name]
    built = Built(spec, 16, {n: static[n] for n in names}, dtype)
    extents = {"B": 3, "N": 50, "M": 45, "P": 9, "T": 3, "S": 45, **static}
    given = {
        "table": np.arange(9).reshape(3, 3)[:, ::-1],
        "length": [45, 20, 1],
        "keys": np.zeros(45),
    }
    names = {p.name for p in built.source.params}
    ins = arrays(built.source, extents, 1, **{n: x for n, x in given.items() if n in names})
    ins = [place(x) for x in ins]
    whole = built.run(ins, extents)
    pieces = [(n, n + 40) for n in range(0, 1000, 40)]
    random.Random(0).shuffle(pieces)
    for threads in (1, 3):
        again = built.run(ins, extents, pieces, threads)
        for a, b in zip(whole, again, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("machine", ["cpu", "x86-64-v3"])
def test_numbers_that_are_not_ordinary(machine, dtype):
    """NaN and infinities come out where the definition has them; denormals are no trouble."""
    if not runs_here(resolve(machine)):
        pytest.skip("another machine")
    built = Built(cross, {"i": 16, "j": 16}, {"D": 16, "E": 16}, dtype, machine)
    extents = {"B": 1, "H": 1, "N": 20, "M": 37, "D": 16, "E": 16}
    for value, where in (
        (np.nan, "q"), (np.nan, "k"), (np.nan, "v"), (np.inf, "v"), (-np.inf, "v"), (1e-40, "q"),
        (1e-40, "v"), (1e4, "q"),
    ):  # fmt: skip
        ins = arrays(built.source, extents, 3)
        x = ins["qkv".index(where)]
        x[0, 0, 3, 2:5] = value
        out, lse = built.run([place(a) for a in ins], extents)
        q, k, v = (a.astype("f8")[0, 0] for a in ins)
        s = q @ k.T / 4
        p = np.exp(s - s.max(1, keepdims=True))
        want = p / p.sum(1, keepdims=True) @ v
        tolerance = 1e-5 if dtype == "float32" else 3e-2
        compare(out[0, 0], want, tolerance, f"{value} in {where}")
        compare(lse[0, 0], np.log(p.sum(1)) + s.max(1), tolerance)


def test_a_loop_is_not_copied_for_each_condition_that_does_not_change_in_it(monkeypatch):
    """LLVM may put some steps of a loop side by side; at its highest level there are twice as many
    copies, which are compiled as slowly as they are many."""

    def products():
        kernel = tc.compile(CAUSAL, target="x86-64-v3", static={"D": 64}, tile=64)
        return len(re.findall("vfn?madd", kernel.ir("asm")))

    built = products()
    monkeypatch.setattr(build, "LEVEL", 0)
    as_written = products()
    assert as_written <= built < 3 * as_written


def test_the_cost_model_knows_the_register_tile_that_code_generation_uses():
    for machine in GENERIC_CPUS:
        isa = isa_for(machine)
        assert machine.register_tile == (isa.mr, isa.nr), machine.name


def test_the_next_tile_is_asked_for_where_that_was_measured_to_pay():
    spec, tile, static = SPECS["cross"]
    text = {m.name: Built(spec, tile, static, "float32", m).asm() for m in MACHINES[:2]}
    assert "prefetcht1" in text["x86-64-v3"]
    assert "prefetch" not in text["x86-64-v4"]


def test_a_tile_takes_the_place_of_one_that_is_read_no_more():
    """Scores and weights of both loops lie in one place, queries and results in others."""
    built = Built(cross, {"i": 24, "j": 20}, {"D": 20, "E": 12}, "float32", MACHINES[1])
    (kernel,) = built.program.kernels
    tiles = [b.size for b in kernel.scratch if b.size >= 12 * 24]
    assert len(tiles) == 3, kernel.scratch  # of the queries, the weights, the result

"""Targets: the table of machines, how names resolve, and what is read from this machine."""

import subprocess
import sys

import pytest

from tilecc import host, machines
from tilecc.target import Fact, Memory, Peak, TargetError, available, resolve

MIB = 1024**2


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("canvas", "canvas"),
        ("a100", "a100"),
        ("A100", "a100"),
        ("rtx4090", "rtx4090"),
        ("RTX-4090", "rtx4090"),
        ("NVIDIA H200", "h200"),
        ("sm_80", "a100"),
        ("sm_89", "l4"),
        ("sm_90a", "h100"),
        ("sm_90", "h100"),
        ("sm_100a", "b200"),
        ("x86-64-v3", "x86-64-v3"),
        ("x86_64_v4", "x86-64-v4"),
        ("aarch64", "aarch64"),
        ("CPU", "cpu"),
    ],
)
def test_names_resolve(name, machine):
    assert resolve(name).name == machine


def test_a_target_passes_through():
    target = resolve("h100")
    assert resolve(target) is target


def test_every_name_of_every_machine_resolves():
    for target in available():
        assert resolve(target.name) == target
    assert len({t.name for t in available()}) == len(available())
    assert hash(available()) == hash(available())


def test_an_unknown_name_lists_near_matches_and_all_names():
    with pytest.raises(TargetError) as caught:
        resolve("h1000")
    first, second = str(caught.value).splitlines()
    assert first.startswith("unknown target 'h1000'; did you mean h100")
    for name in ("cpu", "canvas", "rtx4090", "sm_90a", "x86-64-v3"):
        assert name in second
    assert isinstance(caught.value, ValueError)


def test_a_name_near_nothing_gets_no_suggestion():
    with pytest.raises(TargetError, match=r"^unknown target 'qqqqqq'\n"):
        resolve("qqqqqq")


def test_canvas_is_counted_in_numbers():
    canvas = resolve("canvas")
    assert canvas.unit == "number"
    assert canvas.sram.size == 96
    assert canvas.tiles == (2, 4, 8)
    assert canvas.memory("hbm").size is None
    assert canvas.bandwidth is None
    assert canvas.peak("f16") is None


def test_every_fact_has_a_source():
    for target in available():
        facts: list[Fact | Memory | Peak] = [target.cores, *target.memories, *target.peaks]
        facts += [target.clock] if target.clock else []
        assert all(fact.source for fact in facts), target.name


@pytest.mark.parametrize("target", [m for m in machines.MACHINES if m.kind == "cuda"], ids=str)
def test_gpu_figures_agree_with_each_other(target):
    """Peaks against units x clock, memories against their order: a mistyped figure shows here."""
    smem = target.sram
    assert smem.per == "block" and smem.pool == smem.size + 1024
    sizes = [m.size for m in target.memories[:2]]
    assert sizes == sorted(sizes, reverse=True) and sizes[1] > 16 * MIB
    assert smem.bandwidth > 4 * target.bandwidth
    f32_units = 64 if target.arch == "sm_80" else 128
    f32 = 2 * f32_units * target.cores.value * target.clock.value
    assert target.peak("f32", "vector").flops == pytest.approx(f32, rel=0.09)
    rates = {"sm_80": 2048, "sm_89": 1024, "sm_90a": 4096, "sm_100a": 8192}
    f16 = rates[target.arch] * target.cores.value * target.clock.value
    if target.arch == "sm_89":  # GeForce halves the rate with f32 accumulation
        f16 /= 1 if target.name == "l4" else 2
    assert target.peak("f16", "tensor").flops == pytest.approx(f16, rel=0.1)
    tensor = {p.dtype: p.flops for p in target.peaks if p.unit == "tensor"}
    for name, rate in {"tf32": 0.5, "bf16": 1, "f8e4m3": 2, "f8e5m2": 2}.items():
        if name in tensor:  # by width; data sheets round to three digits
            assert tensor[name] == pytest.approx(rate * tensor["f16"], rel=5e-3)
    assert target.peak("float16") == target.peak("f16")
    assert target.has("mma.sync") and target.has("wgmma") == (target.arch == "sm_90a")


def test_narrow_types_without_arithmetic_take_the_peak_of_f32():
    cpu = resolve("x86-64-v3").measured({"f32": 1e11}, bandwidth=2e10)
    assert cpu.peak("f16").flops == 1e11
    assert cpu.peak("f64") is None
    assert cpu.bandwidth == 2e10 and not cpu.memory("hbm").estimate


def test_measured_replaces_only_what_was_measured():
    cpu = resolve("cpu")
    measured = cpu.measured({"float32": 123.0}, source="a benchmark")
    assert (measured.peak("f32").flops, measured.peak("f32").source) == (123.0, "a benchmark")
    assert not measured.peak("f32").estimate
    assert measured.peak("f64") == cpu.peak("f64")
    assert measured.memories == cpu.memories


@pytest.mark.parametrize(
    ("name", "bits", "lanes", "registers"),
    [("x86-64-v3", 256, 8, 16), ("x86-64-v4", 512, 16, 32), ("aarch64", 128, 4, 32)],
)
def test_generic_cpus(name, bits, lanes, registers):
    cpu = resolve(name)
    assert (cpu.vector_bits, cpu.lanes("f32"), cpu.registers) == (bits, lanes, registers)
    assert cpu.lanes("bf16") == 2 * lanes
    assert not cpu.peaks and cpu.sram.estimate and cpu.triple


def test_this_machine():
    cpu = resolve("cpu")
    assert cpu is resolve("cpu"), "read once"
    assert cpu.kind == "cpu" and cpu.vector_bits in (128, 256, 512)
    assert cpu.cores.value >= 1 and cpu.sram.size >= 128 * 1024
    assert all(peak.estimate for peak in cpu.peaks)
    assert not cpu.triple


ZEN4 = """vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
cpu MHz\t\t: 2500.000
flags\t\t: fpu abm avx avx2 bmi1 bmi2 f16c fma movbe sse4_1 {}

processor\t: 1
"""
AVX512 = "avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp sve bf16\n"


@pytest.mark.parametrize(
    ("text", "processor", "arch", "bits", "has"),
    [
        (ZEN4.format(AVX512), "x86_64", "znver4", 512, {"avx512bf16", "lzcnt", "sse4.1"}),
        # A hypervisor that hides AVX-512: znver4 would let LLVM use it, so the level stands.
        (ZEN4.format(""), "x86_64", "x86-64-v3", 256, {"avx2", "fma"}),
        (ZEN4.format("").replace("avx2", ""), "x86_64", "x86-64", 128, {"sse4.1"}),
        (ZEN4.format(AVX512).replace(": 17", ": 250"), "x86_64", "x86-64-v4", 512, {"avx512f"}),
        (ZEN4.format("").replace(": 17", ": 1"), "x86_64", "znver3", 256, {"fma"}),
        (ZEN4.format(AVX512).replace(": 25", ": 99"), "x86_64", "x86-64-v4", 512, {"avx512f"}),
        (ARM, "aarch64", "generic", 128, {"neon", "fullfp16", "dotprod", "sve", "bf16"}),
        ("", "x86_64", "x86-64", 128, set()),
    ],
)
def test_other_machines_are_read_right(monkeypatch, text, processor, arch, bits, has):
    monkeypatch.setattr(host, "_read", lambda path: text if str(path) == "/proc/cpuinfo" else "")
    monkeypatch.setattr(host.platform, "system", lambda: "Linux")
    monkeypatch.setattr(host.platform, "machine", lambda: processor)
    cpu = host.host.__wrapped__()
    assert (cpu.arch, cpu.vector_bits) == (arch, bits)
    assert has <= cpu.features
    assert cpu.sram.size


def test_detection_is_quick_and_loads_no_tvm():
    program = (
        "import sys, time, tilecc.target as t; start = time.perf_counter(); t.resolve('cpu');"
        "print(time.perf_counter() - start, 'tvm' in sys.modules, 'sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, tvm, sympy = done.stdout.split()
    assert float(seconds) > 0
    assert (tvm, sympy) == ("False", "False")

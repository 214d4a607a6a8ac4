"""The table of machines. Every number names its document; what was worked out says how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .target import Fact, Memory, Peak, Target

KIB, MIB, GB = 1024, 1024**2, 1_000_000_000

GUIDE = "CUDA C++ Programming Guide, technical specifications per compute capability"
SMEM_RATE = "128 bytes per clock and SM (NVIDIA A100 white paper) x SMs x boost clock"


@dataclass(frozen=True)
class SmLimits:
    """What a compute capability fixes, from GUIDE. Shared memory in KiB."""

    smem_per_sm: int
    smem_per_block: int
    warps: int
    blocks: int
    features: frozenset[str]


_AMPERE = frozenset({"cp.async", "ldmatrix", "mma.sync"})
_HOPPER = _AMPERE | {"tma", "mbarrier", "cluster", "stmatrix", "setmaxnreg", "fp8"}

SM_LIMITS: Mapping[str, SmLimits] = {
    "sm_80": SmLimits(164, 163, 64, 32, _AMPERE),
    "sm_89": SmLimits(100, 99, 48, 24, _AMPERE | {"fp8"}),
    "sm_90a": SmLimits(228, 227, 64, 32, _HOPPER | {"wgmma"}),
    "sm_100a": SmLimits(228, 227, 64, 32, _HOPPER | {"tcgen05", "tmem"}),
}

# A machine of the plain architecture is one of the "a" architecture too.
ARCH_ALIASES: Mapping[str, str] = {"sm_90": "sm_90a", "sm_100": "sm_100a"}


def _gpu(
    name: str,
    model: str,
    arch: str,
    *,
    sms: Fact,
    boost_mhz: Fact,
    dram: str,
    hbm_gb: int,
    hbm_gb_per_s: float,
    l2_mib: float,
    l2_source: str,
    vector: Mapping[str, float],
    tensor: Mapping[str, float],
    source: str,
    l2_gb_per_s: float | None = None,
) -> Target:
    """A CUDA machine. Peaks are in TFLOP/s, tensor ones dense; `source` covers them and the HBM."""
    limits = SM_LIMITS[arch]
    clock = Fact(boost_mhz.value * 1e6, boost_mhz.source)
    smem = Memory(
        "shared memory",
        "sram",
        limits.smem_per_block * KIB,
        "block",
        f"{GUIDE}; bandwidth: {SMEM_RATE}",
        bandwidth=128 * sms.value * clock.value,
        pool=limits.smem_per_sm * KIB,
    )
    l2_rate = l2_gb_per_s * GB if l2_gb_per_s else None
    return Target(
        name=name,
        kind="cuda",
        arch=arch,
        model=model,
        cores=sms,
        clock=clock,
        memories=(
            Memory(dram, "hbm", hbm_gb * GB, "device", source, bandwidth=hbm_gb_per_s * GB),
            Memory("L2", "cache", int(l2_mib * MIB), "device", l2_source, bandwidth=l2_rate),
            smem,
            Memory("registers", "reg", 256 * KIB, "core", GUIDE),
        ),
        peaks=(
            *(Peak(t, tflops * 1e12, "vector", source) for t, tflops in vector.items()),
            *(Peak(t, tflops * 1e12, "tensor", source) for t, tflops in tensor.items()),
        ),
        features=limits.features,
        registers=65536,
        thread_registers=255,
        warps=limits.warps,
        blocks=limits.blocks,
    )


_A100 = "NVIDIA A100 Tensor Core GPU datasheet, SXM4 80 GB"
_A100_PAPER = "NVIDIA A100 Tensor Core GPU Architecture white paper, table of V100 and A100"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet, SXM5; tensor figures halved: it quotes sparse ones"
_H100_PAPER = "NVIDIA H100 Tensor Core GPU Architecture white paper, table of A100 and H100 SXM5"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet, SXM; tensor figures halved: it quotes sparse ones"
_L4 = "NVIDIA L4 Tensor Core GPU datasheet; tensor figures halved: it quotes sparse ones"
_ADA = "NVIDIA Ada GPU Architecture white paper, appendix A: GeForce RTX 4090"
_B200 = "NVIDIA HGX B200 datasheet, one GPU of eight; tensor figures halved: it quotes sparse ones"
_B200_PROPERTIES = "CUDA device properties of a B200, published in pytorch/ao pull request 4002"

_HOPPER_VECTOR = {"f64": 33.5, "f32": 66.9}
_HOPPER_TENSOR = {
    "f64": 66.9,
    "tf32": 494.7,
    "f16": 989.4,
    "bf16": 989.4,
    "f8e4m3": 1978.9,
    "f8e5m2": 1978.9,
}

A100 = _gpu(
    "a100",
    "NVIDIA A100 SXM4 80 GB",
    "sm_80",
    sms=Fact(108, _A100_PAPER),
    boost_mhz=Fact(1410, _A100_PAPER),
    dram="HBM2e",
    hbm_gb=80,
    hbm_gb_per_s=2039,
    l2_mib=40,
    l2_source=f"{_A100_PAPER}; bandwidth: 5120 bytes per clock (same) x boost clock",
    l2_gb_per_s=5120 * 1.41,
    vector={"f64": 9.7, "f32": 19.5},
    tensor={"f64": 19.5, "tf32": 156, "f16": 312, "bf16": 312},
    source=_A100,
)
H100 = _gpu(
    "h100",
    "NVIDIA H100 SXM5 80 GB",
    "sm_90a",
    sms=Fact(132, _H100_PAPER),
    # The white paper's tensor peaks are at this clock; the card's highest is 1980 MHz.
    boost_mhz=Fact(1830, "worked out: 989.4 TFLOP/s / (132 SMs x 4096 per clock)"),
    dram="HBM3",
    hbm_gb=80,
    hbm_gb_per_s=3350,
    l2_mib=50,
    l2_source=_H100_PAPER,
    vector=_HOPPER_VECTOR,
    tensor=_HOPPER_TENSOR,
    source=f"{_H100}; further digits: {_H100_PAPER}",
)
H200 = _gpu(
    "h200",
    "NVIDIA H200 SXM 141 GB",
    "sm_90a",
    sms=Fact(132, "the GH100 die of the H100 SXM5; " + _H100_PAPER),
    boost_mhz=Fact(1830, "as the H100 SXM5, whose peaks it shares"),
    dram="HBM3e",
    hbm_gb=141,
    hbm_gb_per_s=4800,
    l2_mib=50,
    l2_source="the GH100 die of the H100 SXM5; " + _H100_PAPER,
    vector=_HOPPER_VECTOR,
    tensor=_HOPPER_TENSOR,
    source=f"{_H200}; further digits: {_H100_PAPER}",
)
L4 = _gpu(
    "l4",
    "NVIDIA L4 24 GB",
    "sm_89",
    sms=Fact(58, "worked out: 30.3 TFLOP/s f32 / (128 lanes x 2 x 2.04 GHz)"),
    boost_mhz=Fact(2040, "NVIDIA L4 product brief"),
    dram="GDDR6",
    hbm_gb=24,
    hbm_gb_per_s=300,
    l2_mib=48,
    l2_source="NVIDIA Ada GPU Architecture white paper, AD104",
    vector={"f64": 0.473, "f32": 30.3},
    tensor={"f16": 121, "bf16": 121, "f8e4m3": 242.5, "f8e5m2": 242.5},
    source=f"{_L4}; f64: 1/64 of f32, Ada white paper",
)
RTX4090 = _gpu(
    "rtx4090",
    "NVIDIA GeForce RTX 4090 24 GB",
    "sm_89",
    sms=Fact(128, _ADA),
    boost_mhz=Fact(2520, _ADA),
    dram="GDDR6X",
    hbm_gb=24,
    hbm_gb_per_s=1008,
    l2_mib=72,
    l2_source=_ADA,
    vector={"f64": 1.29, "f32": 82.6},
    tensor={"f16": 165.2, "bf16": 165.2, "f8e4m3": 330.3, "f8e5m2": 330.3},
    source=f"{_ADA}; f16 with f32 accumulation",
)
B200 = _gpu(
    "b200",
    "NVIDIA B200 SXM 180 GB",
    "sm_100a",
    sms=Fact(148, _B200_PROPERTIES),
    boost_mhz=Fact(1980, "worked out: 75 TFLOP/s f32 / (148 SMs x 128 lanes x 2)"),
    dram="HBM3e",
    hbm_gb=180,
    hbm_gb_per_s=7700,
    l2_mib=126.5,
    l2_source=_B200_PROPERTIES,
    vector={"f64": 37, "f32": 75},
    tensor={"f64": 37, "f16": 2250, "bf16": 2250, "f8e4m3": 4500, "f8e5m2": 4500},
    source=_B200,
)

_TAUGHT = "the teaching machine: made up"
CANVAS = Target(
    name="canvas",
    kind="abstract",
    arch="canvas",
    model="a teaching machine with room for 96 numbers",
    cores=Fact(1, _TAUGHT),
    memories=(
        Memory("main memory", "hbm", None, "device", _TAUGHT),
        Memory("SRAM", "sram", 96, "block", _TAUGHT),
    ),
    tiles=(2, 4, 8),
    unit="number",
)

# Cumulative levels of the x86-64 psABI, as LLVM spells their features.
X86_V3 = frozenset({"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"})
X86_V4 = X86_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def _generic(
    name: str,
    model: str,
    bits: int,
    registers: int,
    features: frozenset[str],
    *,
    arch: str = "",
    triple: str = "x86_64-unknown-linux-gnu",
) -> Target:
    """A CPU known by its instruction set alone: its caches are an assumption, its peaks unknown."""
    assumed = "assumed: the smallest common in CPUs of this instruction set"
    return Target(
        name=name,
        kind="cpu",
        arch=arch or name,
        model=model,
        cores=Fact(1, "assumed: one core", estimate=True),
        memories=(
            Memory("DRAM", "hbm", None, "device", "unknown"),
            Memory("L2", "sram", 256 * KIB, "core", assumed, estimate=True),
            Memory("L1", "cache", 32 * KIB, "core", assumed, estimate=True),
            Memory("registers", "reg", registers * bits // 8, "core", "instruction set manual"),
        ),
        features=features,
        vector_bits=bits,
        registers=registers,
        triple=triple,
    )


GENERIC_CPUS = (
    _generic("x86-64-v3", "any x86-64 with AVX2", 256, 16, X86_V3),
    _generic("x86-64-v4", "any x86-64 with AVX-512", 512, 32, X86_V4),
    _generic(
        "aarch64",
        "any 64-bit Arm with NEON",
        128,
        32,
        frozenset({"neon"}),
        arch="generic",
        triple="aarch64-unknown-linux-gnu",
    ),
)

MACHINES: tuple[Target, ...] = (CANVAS, A100, H100, H200, L4, RTX4090, B200, *GENERIC_CPUS)

"""The machine that this process runs on, read from the operating system without TVM.

Linux tells through /proc and /sys, macOS through sysctl; elsewhere the instruction set's baseline
is assumed. Peaks here are estimates (operations per clock x clock x cores): `Target.measured` puts
real ones in their place.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .machines import KIB, MIB, X86_V3, X86_V4
from .target import Fact, Memory, Peak, Space, Target

# Flags of /proc/cpuinfo that LLVM spells in another way; for all others it drops the underscores.
_LLVM_NAMES: Mapping[str, str] = {
    "abm": "lzcnt",
    "bmi1": "bmi",
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "asimd": "neon",
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
}
# What code generation may ask for; the rest of the flags is about virtualisation, timers and so on.
_FEATURES = (
    X86_V4
    | {"sse3", "ssse3", "sse4.1", "sse4.2", "avxvnni", "amx-tile", "amx-bf16", "amx-int8"}
    | {"avx512bf16", "avx512fp16", "avx512vnni", "avx512vbmi", "avx512vbmi2", "avx512ifma"}
    | {"neon", "fullfp16", "dotprod", "bf16", "i8mm", "sve", "sve2"}
)
_VNNI = X86_V4 | {"avx512vnni"}
_BF16 = _VNNI | {"avx512bf16"}


@dataclass(frozen=True)
class _Microarchitecture:
    """One of LLVM's CPU names: whose CPUID it fits, what it implies, what a core does a clock."""

    name: str
    vendor: str
    family: int
    models: range
    implies: frozenset[str]
    f32_per_clock: int
    bf16_per_clock: int = 0
    """Multiply-adds count as two; 0: no bf16 dot product."""


_INTEL, _AMD = "GenuineIntel", "AuthenticAMD"
_PORT_SOURCE = "FMA pipes x lanes x 2 (vendor's optimisation guide)"

# Families and models as in LLVM's TargetParser/Host.cpp. A hypervisor may hide features, so a name
# counts only where all that it implies is there.
MICROARCHITECTURES: tuple[_Microarchitecture, ...] = (
    _Microarchitecture("znver1", _AMD, 0x17, range(0x00, 0x30), X86_V3, 16),
    _Microarchitecture("znver2", _AMD, 0x17, range(0x30, 0x100), X86_V3, 32),
    _Microarchitecture("znver4", _AMD, 0x19, range(0x10, 0x20), _BF16, 32, 64),
    _Microarchitecture("znver4", _AMD, 0x19, range(0x60, 0x80), _BF16, 32, 64),
    _Microarchitecture("znver4", _AMD, 0x19, range(0xA0, 0xB0), _BF16, 32, 64),
    _Microarchitecture("znver3", _AMD, 0x19, range(0x00, 0x10), X86_V3, 32),
    _Microarchitecture("znver3", _AMD, 0x19, range(0x20, 0x60), X86_V3, 32),
    _Microarchitecture("znver5", _AMD, 0x1A, range(0x00, 0x80), _BF16, 64, 128),
    _Microarchitecture("haswell", _INTEL, 6, range(0x3F, 0x40), X86_V3, 32),
    _Microarchitecture("broadwell", _INTEL, 6, range(0x4F, 0x50), X86_V3, 32),
    _Microarchitecture("skylake-avx512", _INTEL, 6, range(0x55, 0x56), X86_V4, 64),
    _Microarchitecture("icelake-server", _INTEL, 6, range(0x6A, 0x6D, 2), _VNNI, 64),
    _Microarchitecture("sapphirerapids", _INTEL, 6, range(0x8F, 0x90), _BF16, 64, 64),
    _Microarchitecture("emeraldrapids", _INTEL, 6, range(0xCF, 0xD0), _BF16, 64, 64),
    _Microarchitecture("graniterapids", _INTEL, 6, range(0xAD, 0xAE), _BF16, 64, 64),
)

# A core's own caches: level, space, and the size assumed where the operating system tells none.
_PRIVATE_CACHES: tuple[tuple[str, Space, int], ...] = (
    ("L2", "sram", 256 * KIB),
    ("L1", "cache", 32 * KIB),
)


@functools.cache
def cpu_features() -> frozenset[str]:
    """Everything that the operating system says this machine's CPU has, in LLVM's names."""
    names = frozenset(_cpuinfo().get("features", "").split())
    return names | {"neon"} if architecture() == "aarch64" else names


def architecture() -> str:
    """The architecture of this process, as LLVM's triples spell it."""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


@functools.cache
def host() -> Target:
    """This machine, as a target named `cpu`."""
    info = _cpuinfo()
    features = frozenset(info.get("features", "").split()) & _FEATURES
    bits = 512 if features >= X86_V4 else 256 if features >= X86_V3 else 128
    micro = _microarchitecture(info, features)
    if platform.machine().lower() in ("arm64", "aarch64"):
        arch, registers, f32 = "generic", 32, 16
        features |= {"neon"}
    else:
        level = {512: "x86-64-v4", 256: "x86-64-v3", 128: "x86-64"}[bits]
        arch, registers = (micro.name if micro else level), 32 if bits == 512 else 16
        f32 = micro.f32_per_clock if micro else min(32, bits // 8)
    cores = Fact(_physical_cores(), "processors this process may use, one per core")
    clock = _clock(info)
    return Target(
        name="cpu",
        kind="cpu",
        arch=arch,
        model=info.get("model name", platform.processor() or platform.machine()),
        cores=cores,
        clock=clock,
        memories=_memories(info, int(cores.value), registers * bits // 8),
        peaks=_peaks(f32, micro.bf16_per_clock if micro else 0, clock, cores, features),
        features=features,
        vector_bits=bits,
        registers=registers,
    )


def _microarchitecture(
    info: Mapping[str, str], features: frozenset[str]
) -> _Microarchitecture | None:
    try:
        family, model = int(info["cpu family"]), int(info["model"])
    except (KeyError, ValueError):
        return None
    for micro in MICROARCHITECTURES:
        if (
            (micro.vendor, micro.family) == (info.get("vendor_id"), family)
            and model in micro.models
            and micro.implies <= features
        ):
            return micro
    return None


def _peaks(
    f32: int, bf16: int, clock: Fact | None, cores: Fact, features: frozenset[str]
) -> tuple[Peak, ...]:
    """Estimates; none where the clock is unknown."""
    if clock is None:
        return ()
    rates = {"f32": f32, "f64": f32 // 2}
    if "avx512bf16" in features and bf16:
        rates["bf16"] = bf16
    source = f"estimate: {{}} a clock ({_PORT_SOURCE}) x {clock.source} x cores"
    return tuple(
        Peak(t, n * clock.value * cores.value, "vector", source.format(n), estimate=True)
        for t, n in rates.items()
    )


def _cpuinfo() -> dict[str, str]:
    """Facts by the keys of /proc/cpuinfo; `features` holds LLVM's names."""
    text = _read("/proc/cpuinfo").split("\n\n", 1)[0]
    info = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}
    flags = info.get("flags") or info.get("Features") or ""
    names = (_LLVM_NAMES.get(flag, flag.replace("_", "")) for flag in flags.split())
    info["features"] = " ".join(names)
    if platform.system() == "Darwin":
        info |= _sysctl()
    return info


def _sysctl() -> dict[str, str]:
    """The same facts on macOS, and cache sizes under `L1`, `L2`, `L3`."""
    try:
        done = subprocess.run(["sysctl", "hw", "machdep.cpu"], capture_output=True, text=True)
    except OSError:
        return {}
    raw = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    flags = f"{raw.get('machdep.cpu.features', '')} {raw.get('machdep.cpu.leaf7_features', '')}"
    names = flags.lower().replace("avx1.0", "avx").replace("bmi1", "bmi")
    arm = {
        "neon": "AdvSIMD",
        "fullfp16": "FEAT_FP16",
        "dotprod": "FEAT_DotProd",
        "bf16": "FEAT_BF16",
    }
    names += "".join(f" {n}" for n, k in arm.items() if raw.get(f"hw.optional.arm.{k}") == "1")
    sizes = {"L1": "hw.l1dcachesize", "L2": "hw.perflevel0.l2cachesize", "L3": "hw.l3cachesize"}
    facts = {"model name": raw.get("machdep.cpu.brand_string", ""), "features": names}
    return facts | {level: raw[key] for level, key in sizes.items() if key in raw}


def _memories(info: Mapping[str, str], cores: int, registers: int) -> tuple[Memory, ...]:
    try:
        dram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        dram = None
    # Nothing in software tells how many memory channels there are.
    assumed = "assumed: 25 GB/s a core, 400 GB/s at most"
    bandwidth = min(25e9 * cores, 400e9)
    caches = _caches() | {k: int(v) for k, v in info.items() if k in ("L1", "L2", "L3") and int(v)}
    found = "cache sizes of the operating system"
    guess = "assumed: the operating system does not tell"
    memories = [Memory("DRAM", "hbm", dram, "device", assumed, bandwidth, estimate=True)]
    if "L3" in caches:
        memories.append(Memory("L3", "cache", caches["L3"], "device", found))
    for level, space, small in _PRIVATE_CACHES:
        source = found if level in caches else guess
        memories.append(Memory(level, space, caches.get(level, small), "core", source))
    memories.append(Memory("registers", "reg", registers, "core", "instruction set manual"))
    return tuple(memories)


def _caches() -> dict[str, int]:
    """Data cache sizes in bytes by level, of the first processor (Linux)."""
    units = {"K": KIB, "M": MIB}
    sizes = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        size = _read(index / "size").strip()
        if size and _read(index / "type").strip() != "Instruction":
            value = int(size[:-1]) * units[size[-1]] if size[-1] in units else int(size)
            sizes["L" + _read(index / "level").strip()] = value
    return sizes


def _physical_cores() -> int:
    """Cores that this process may run on, hyperthreads of one core counted once."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:
        return os.cpu_count() or 1
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return len({_read(topology.format(cpu)).strip() or str(cpu) for cpu in allowed})


def _clock(info: Mapping[str, str]) -> Fact | None:
    """Hertz: the highest that the driver allows, or the nominal one, which boost exceeds."""
    highest = _read("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    if highest:
        return Fact(int(highest) * 1e3, "highest clock of cpufreq", estimate=True)
    if "cpu MHz" in info:
        return Fact(float(info["cpu MHz"]) * 1e6, "nominal clock, boost unknown", estimate=True)
    return None


def _read(path: str | Path) -> str:
    """A small file of the kernel's, empty where there is none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""

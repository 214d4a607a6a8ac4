"""What the CPU code generator may assume of an instruction set: vectors, registers, features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilecc.machines import X86_V3, X86_V4
from tilecc.target import Target


@dataclass(frozen=True)
class Isa:
    """An instruction set as code generation sees it.

    `lanes32` are f32 elements in a vector, `registers` vector registers. A register tile is `mr`
    rows of `nr` vectors: mr x nr accumulators, nr vectors of one operand and a broadcast of the
    other must fit. The `has_` fields name instructions that may be emitted; one that a machine
    lacks stops the process.
    """

    name: str
    lanes32: int
    registers: int
    mr: int
    nr: int
    requires: frozenset[str] = frozenset()
    """LLVM's names of the features that all of the above stands on."""
    has_fma: bool = True
    has_scalef: bool = False
    """vscalefps: p * 2**floor(x), right at infinities, overflow and underflow."""
    has_bf16_dot: bool = False
    """vdpbf16ps: adds the dot product of two bf16 pairs to each f32 lane."""
    chunk: int = 16 * 1024
    """Bytes of a streamed factor between two blocks: a part of the smallest first cache."""
    ahead: int = 2048
    """Bytes by which memory is asked for before it is read: what is under way at any time."""
    has_f16c: bool = False
    """Conversions between f16 and f32; without them each one is a call to the C library."""
    prefetch: bool = False
    """Ask for the next tile of a stream while one is at work. Measured on Zen 3, where tiles that
    come from the third cache take 5 to 15 % of the time without; elsewhere not measured."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector register."""
        return 4 * self.lanes32


# From the widest to the narrowest; the first whose features a machine has is its.
ISAS: tuple[Isa, ...] = (
    # Intel's cores with AMX have the dot product for compatibility: one in two clocks, half of what
    # multiply-adds do in f32 (measured on Granite Rapids: 108 of 215 GFLOP/s a core), and what it
    # saves of conversions is less. A kernel for them converts and multiplies in f32.
    Isa(
        "avx512amx",
        lanes32=16,
        registers=32,
        mr=4,
        nr=4,
        requires=X86_V4 | {"avx512bf16", "amx-bf16"},
        has_scalef=True,
        has_f16c=True,
    ),
    Isa(
        "avx512bf16",
        lanes32=16,
        registers=32,
        mr=4,
        nr=4,
        requires=X86_V4 | {"avx512bf16"},
        has_scalef=True,
        has_bf16_dot=True,
        has_f16c=True,
    ),
    Isa(
        "avx512",
        lanes32=16,
        registers=32,
        mr=4,
        nr=4,
        requires=X86_V4,
        has_scalef=True,
        has_f16c=True,
    ),
    Isa(
        "avx2",
        lanes32=8,
        registers=16,
        mr=6,
        nr=2,
        requires=X86_V3,
        has_f16c=True,
        prefetch=True,
    ),
    Isa(
        "neon",
        lanes32=4,
        registers=32,
        mr=4,
        nr=4,
        requires=frozenset({"neon"}),
        has_f16c=True,
    ),
    Isa("generic", lanes32=4, registers=16, mr=4, nr=2, has_fma=False),
)

# LLVM's CPU names that are known without asking LLVM what they imply.
CPU_FEATURES: dict[str, frozenset[str]] = {
    **dict.fromkeys(("x86-64-v3", "haswell", "broadwell", "skylake", "alderlake"), X86_V3),
    **dict.fromkeys(("znver1", "znver2", "znver3"), X86_V3),
    **dict.fromkeys(("x86-64-v4", "skylake-avx512", "cascadelake", "icelake-server"), X86_V4),
    **dict.fromkeys(
        ("sapphirerapids", "emeraldrapids", "graniterapids"),
        X86_V4 | {"avx512bf16", "amx-bf16"},
    ),
    **dict.fromkeys(("cooperlake", "znver4", "znver5"), X86_V4 | {"avx512bf16"}),
}


def isa_for(target: Target | str, features: Iterable[str] = ()) -> Isa:
    """The widest instruction set that a machine has all features of.

    Args:
        target: a machine (its `features` count, and nothing that its name implies: a hypervisor
            may hide some), or one of LLVM's CPU names.
        features: LLVM's names of further features, with or without a leading `+`.
    """
    have = target.features if isinstance(target, Target) else CPU_FEATURES.get(target, frozenset())
    have |= {name.removeprefix("+") for name in features}
    return next(isa for isa in ISAS if isa.requires <= have)

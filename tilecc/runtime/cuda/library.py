"""A program's CUDA kernels as binaries, compiled when they are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilecc.codegen.program import DeviceKernel, DeviceProgram
from tilecc.runtime.cuda.images import Image
from tilecc.target import Target
from tilecc.toolchain import Binary, Resources, compile_cuda, listing, resources

TEXTS = ("cuda", "ptx", "sass")
"""What a library can be read as."""


@dataclass
class DeviceLibrary:
    """The kernels of `program` for one machine; `seconds` is the time spent in NVRTC."""

    program: DeviceProgram
    target: Target
    seconds: float = field(default=0.0)

    def binary(self, kernel: DeviceKernel, arch: str | None = None) -> Binary:
        """A kernel compiled for `arch` (else the machine's).

        Raises:
            CompileError: NVRTC is not installed, or refuses.
        """
        start = time.perf_counter()
        try:
            return compile_cuda(kernel.source, arch or self.target.arch, kernel.name)
        finally:
            self.seconds += time.perf_counter() - start

    def images(self, kernel: DeviceKernel) -> list[Image]:
        """A kernel's machine code, and its PTX for GPUs that come later."""
        b = self.binary(kernel)
        ptx = b.ptx.encode()
        return [Image(b.arch, "cubin", b.version, b.cubin), Image(b.arch, "ptx", b.version, ptx)]

    def text(self, kind: str) -> str:
        """The kernels' "cuda", "ptx" or "sass", one behind another."""
        kernels = self.program.kernels
        if kind == "cuda":
            return "\n".join(k.source for k in kernels)
        binaries = [self.binary(k) for k in kernels]
        return "\n".join(b.ptx if kind == "ptx" else listing(b.cubin) for b in binaries)

    def cubins(self) -> list[bytes]:
        """Machine code of each kernel."""
        return [self.binary(k).cubin for k in self.program.kernels]

    def resources(self) -> tuple[Resources, ...]:
        """What each kernel takes."""
        return tuple(
            resources(self.binary(k), self.target, k.name, k.threads, k.shared)
            for k in self.program.kernels
        )


def stand_ins(kernel: DeviceKernel) -> Iterator[DeviceKernel]:
    """A kernel, then what is launched in its place where arrays are not aligned."""
    found: DeviceKernel | None = kernel
    while found is not None:
        yield found
        found = found.relaxed

"""Which of a kernel's binaries a GPU can run, and whether it has room for the kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tilecc.codegen.program import DeviceKernel
from tilecc.errors import CompileError, Diagnostic
from tilecc.runtime.cuda.driver import Driver

_ARCH = re.compile(r"sm_(\d+)(\d)(a?)")
Version = tuple[int, int]


@dataclass(frozen=True)
class Image:
    """A kernel as machine code ("cubin") or as PTX, from a CUDA compiler of some version."""

    arch: str
    kind: Literal["cubin", "ptx"]
    version: Version
    data: bytes

    def runs_on(self, capability: Version) -> bool:
        """Whether GPUs of a compute capability run it: machine code those of its major version,
        PTX all later ones, and what is for "a" architectures those alone."""
        found = _ARCH.fullmatch(self.arch)
        if found is None:
            return False
        own = int(found[1]), int(found[2])
        if found[3]:
            return own == capability
        return own <= capability and (self.kind == "ptx" or own[0] == capability[0])

    def loads_with(self, driver: Version) -> bool:
        """Whether a driver that supports CUDA up to `driver` loads it."""
        return self.version <= driver if self.kind == "ptx" else self.version[0] <= driver[0]


def choose(images: Sequence[Image], name: str, device: int, driver: Driver) -> Image:
    """The best binary for a device: machine code before PTX, then the newest architecture.

    Raises:
        CompileError: there is none; the message says what is needed and what there is.
    """
    capability, version = driver.capability(device), driver.version()
    fitting = [i for i in images if i.runs_on(capability)]
    where = f"{driver.name(device)} (device {device}, sm_{capability[0]}{capability[1]})"
    if not fitting:
        there = ", ".join(dict.fromkeys(i.arch for i in images))
        message = f"kernel {name} is compiled for {there}, and {where} does not run that"
        hint = f'compile with target="sm_{capability[0]}{capability[1]}", or save with archs=[...]'
        raise CompileError(Diagnostic(message, None, hint))
    loading = [i for i in fitting if i.loads_with(version)]
    if not loading:
        needs = min(i.version for i in fitting)
        message = f"kernel {name} needs a driver for CUDA {_text(needs)} or later, and this one is"
        raise CompileError(
            Diagnostic(f"{message} for {_text(version)}", None, "upgrade the driver")
        )
    return max(loading, key=lambda i: (i.kind == "cubin", _number(i.arch)))


def check_room(kernel: DeviceKernel, device: int, driver: Driver) -> None:
    """See that a device can hold one block of a kernel.

    Raises:
        CompileError: it cannot.
    """
    shared, threads, _ = driver.limits(device)
    for what, needs, limit in (
        ("bytes of shared memory", kernel.shared, shared),
        ("threads in a block", kernel.threads, threads),
    ):
        if needs > limit:
            message = f"kernel {kernel.name} needs {needs} {what}, and {driver.name(device)} has"
            hint = "compile for that machine, or with smaller tiles"
            raise CompileError(Diagnostic(f"{message} {limit}", None, hint))


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def _number(arch: str) -> tuple[int, str]:
    return int("".join(c for c in arch if c.isdigit())), arch

"""NVRTC through its C interface: CUDA C++ to PTX and cubin, in this process.

NVRTC and not nvcc: it needs no host compiler, and gives PTX, cubin and ptxas's report in one run of
under a second. Its C interface is six calls, so Python bindings (109 MB) would buy nothing.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilecc.errors import CompileError
from tilecc.toolchain.packages import find, include_folders

FLAGS: tuple[tuple[str, str], ...] = (
    ("--std=c++17", "what TVM's headers and ours are written in"),
    ("--generate-line-info", "PTX and SASS name the line of the CUDA source; costs no instruction"),
    ("--ptxas-options=--verbose", "registers, spills and shared memory of each kernel, in the log"),
    ("--fmad=true", "a product and a sum may be one fused operation, as on the CPU"),
    ("--ftz=false", "f32 keeps subnormals, as the IR's f32 does"),
    ("--prec-div=true", "IEEE division: the fast one gives 0 for divisors above 2^126"),
    ("--prec-sqrt=true", "IEEE square root"),
)
"""How all kernels are compiled, and why. TVM would pass `--use_fast_math`, whose division and
flushing change results at the ends of the range. Where a fast instruction is right (ex2.approx,
whose value at -inf is 0 and at NaN NaN), code generation asks for it by name."""


@dataclass(frozen=True)
class Binary:
    """One source compiled for one architecture. `log` holds ptxas's report and any warnings."""

    arch: str
    ptx: str
    cubin: bytes
    log: str
    version: tuple[int, int]
    """The CUDA version, which a driver must support to load the cubin."""


@functools.lru_cache(maxsize=64)
def compile_cuda(source: str, arch: str, name: str = "kernel") -> Binary:
    """Compile CUDA C++ for an architecture such as "sm_80".

    `name` is what line tables call the source. Kernels are to be `extern "C"`.

    Raises:
        CompileError: NVRTC is not installed, does not know the architecture, or refuses the source.
    """
    lib = _library()
    if arch not in supported(lib):
        known = ", ".join(supported(lib))
        raise CompileError(
            f"NVRTC {_text(version())} does not compile for {arch}; it knows {known}"
        )
    program = ctypes.c_void_p()
    # A path that starts with a slash stays as it is; another one gets the working directory before.
    path = f"/tilecc/{name}.cu".encode()
    _check(lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), path, 0, None, None), lib)
    try:
        options = [f"--gpu-architecture={arch}", *(flag for flag, _ in FLAGS)]
        options += [f"--include-path={folder}" for folder in include_folders()]
        failed = lib.nvrtcCompileProgram(program, len(options), _strings(options))
        log = _bytes(lib, program, "ProgramLog").decode(errors="replace").strip("\0\n")
        if failed:
            raise CompileError(f"NVRTC refuses the source of {name} for {arch}:\n{log}")
        ptx = _bytes(lib, program, "PTX").decode().rstrip("\0")
        return Binary(arch, ptx, _bytes(lib, program, "CUBIN"), log, version())
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def version() -> tuple[int, int]:
    """NVRTC's CUDA version.

    Raises:
        CompileError: NVRTC is not installed.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    lib = _library()
    _check(lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), lib)
    return major.value, minor.value


@functools.cache
def supported(lib: Any) -> tuple[str, ...]:
    """The architectures that NVRTC compiles for, with the specific ones ("a") of the newer."""
    n = ctypes.c_int()
    _check(lib.nvrtcGetNumSupportedArchs(ctypes.byref(n)), lib)
    numbers = (ctypes.c_int * n.value)()
    _check(lib.nvrtcGetSupportedArchs(numbers), lib)
    return tuple(f"sm_{k}{a}" for k in numbers for a in (("", "a") if k >= 90 else ("",)))


@functools.cache
def _library() -> Any:
    # NVRTC opens its builtins by their bare name, which finds them where they are loaded already.
    ctypes.CDLL(str(find("NVRTC's builtins")))
    lib = ctypes.CDLL(str(find("NVRTC")))
    lib.nvrtcGetErrorString.restype = ctypes.c_char_p
    return lib


def _bytes(lib: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), lib)
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(lib, f"nvrtcGet{what}")(program, buffer), lib)
    return buffer.raw


def _strings(items: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(items))(*(s.encode() for s in items))


def _check(result: int, lib: Any) -> None:
    if result:
        raise CompileError(f"NVRTC fails: {lib.nvrtcGetErrorString(result).decode()}")


def _text(v: tuple[int, int]) -> str:
    return ".".join(map(str, v))

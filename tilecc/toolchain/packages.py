"""Where pip has put NVIDIA's compiler, headers and disassembler."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from tilecc.errors import CompileError, Diagnostic

INSTALL = "pip install 'tilecc[cuda]'"
# CUDA 13's packages share one folder of the namespace package `nvidia`.
_FOLDER = "cu13"

FILES = {
    "NVRTC": "lib/libnvrtc.so.13",
    "NVRTC's builtins": "lib/libnvrtc-builtins.so.13.0",
    "CUDA's headers": "include/cuda_fp16.h",
    "the headers that those include": "include/crt/host_defines.h",
    "libcu++'s headers": "include/cccl/cuda/std/cstdint",
    "nvdisasm": "bin/nvdisasm",
}
"""What is used, below the folder; in order: nvidia-cuda-nvrtc (two), -runtime, -crt, -cccl,
-nvdisasm."""


@functools.cache
def find(what: str) -> Path:
    """The path of one of `FILES`.

    Raises:
        CompileError: it is not installed.
    """
    for folder in _folders():
        path = folder / FILES[what]
        if path.exists():
            return path
    message = f"{what} is not installed ({_FOLDER}/{FILES[what]} of the package nvidia)"
    raise CompileError(Diagnostic(message, None, INSTALL))


def include_folders() -> list[Path]:
    """Where CUDA's headers are.

    Raises:
        CompileError: some of them are missing.
    """
    find("the headers that those include")
    return [find("CUDA's headers").parent, find("libcu++'s headers").parents[2]]


def _folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return [Path(p) / _FOLDER for p in places or ()]

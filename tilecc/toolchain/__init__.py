"""CUDA C++ to PTX, cubin and SASS with NVIDIA's packages from PyPI, and what ptxas says of it.

No GPU, driver or system CUDA is needed: `pip install 'tilecc[cuda]'`.
"""

from __future__ import annotations

from tilecc.toolchain.nvrtc import Binary, compile_cuda
from tilecc.toolchain.resources import Resources, resources
from tilecc.toolchain.sass import disassemble, listing

__all__ = ["Binary", "Resources", "compile_cuda", "disassemble", "listing", "resources"]

"""Object files as functions, linked in memory by apache-tvm-ffi-orcjit: no compiler, no linker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilecc.errors import Diagnostic, LoadError

# orcjit asks a C++ compiler where its libraries are, if there is one; code of ours needs none.
_NO_COMPILER = "tilecc-uses-no-compiler"
# How TVM calls its own runtime: through pointers that are null unless that runtime sets them.
_TVM = b"__TVMBackend"


def load_object(data: bytes, names: Sequence[str]) -> dict[str, Any]:
    """The functions of an object file by name. They run without the GIL.

    Raises:
        LoadError: apache-tvm-ffi-orcjit is not installed, or cannot link the file.
    """
    try:
        import tvm_ffi_orcjit
    except ImportError as e:
        hint = "pip install apache-tvm-ffi-orcjit"
        raise LoadError(Diagnostic(f"a saved CPU kernel cannot be loaded: {e}", None, hint)) from e
    if _TVM in data:
        raise LoadError("the kernel's object file needs TVM's runtime, which is not loaded for it")
    try:
        session = tvm_ffi_orcjit.default_session()
        module = session.load_module(data, cxx=_NO_COMPILER)
        found = {name: module.get_function(name) for name in names}
    except (AttributeError, RuntimeError, ValueError) as e:
        raise LoadError(f"the kernel's object file cannot be linked: {e}") from e
    for f in found.values():
        f.release_gil = True
    return found

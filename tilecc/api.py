"""`tc.compile`: a kernel of a spec, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilecc.compiler import Compiler
from tilecc.given import (
    Splitting,
    Tiles,
    check_split,
    check_static,
    check_tensor,
    check_tile,
    load,
)
from tilecc.kernel import Kernel

if TYPE_CHECKING:
    from tilecc.dsl.specification import Spec
    from tilecc.ir.core import Func
    from tilecc.target import Target


def compile(
    spec: Spec | Func | str | os.PathLike[str],
    target: str | Target = "cpu",
    dtype: Any = "float32",
    static: Mapping[str, int] | None = None,
    tile: Tiles = None,
    threads: int | None = None,
    options: Mapping[str, int] | None = None,
    split: Splitting = "auto",
    tensor: str | None = None,
) -> Kernel:
    """Compile a spec for a machine.

    Args:
        spec: a `@tc.spec` function; IR of any level (a `Func`), which is compiled from that level
            on; or a file that holds either ("causal.py", "specs.py:causal", "causal.tcir").
        target: "cpu" for this machine, the name of one in the table, or a `Target`.
        dtype: element type of all tensors whose annotation gives none.
        static: extents to compile for, by name. Where some that must be numbers (such as head
            dimensions) are missing, the kernel is specialised when it is called.
        tile: tile sizes by axis, or one for all tiled axes; without it the cost model chooses.
        threads: how many threads a call uses if it does not say (TILECC_NUM_THREADS, else all).
        options: of the code generator, such as the register tile (docs/tuning.md). Without tile and
            options, what `tc.tune` found for this program on this machine is used.
        split: whether programs share out the streamed axis (the keys) and merge what they find.
            "auto": in parts of a fixed length, where there are few query rows. A number: into so
            many parts. "fill": into as many as keep the threads busy; a row's rounding then depends
            on the batch, as it does for no other choice. None: not at all.
        tensor: "tf32" lets a GPU's tensor cores multiply f32, rounded to 10 bits of fraction
            (docs/cuda.md); sums stay in f32. None: f32 is multiplied as it is.

    Raises:
        SpecError: the program is wrong.
        CompileError: it is right, and cannot be compiled.
        TargetError: there is no such target.
    """
    from tilecc.runtime.pool import check_threads
    from tilecc.target import resolve

    func, found = load(spec, dtype)
    static = check_static(func, static or {})
    count = check_threads(threads)
    compiler = Compiler(func, resolve(target), check_tile(tile), check_split(split), count)
    compiler.tensor = check_tensor(tensor, compiler.target)
    if options:
        from tilecc.codegen.space import check_options

        compiler.options = check_options(options, compiler.target)
    elif tile is None and split == "auto" and tensor is None:
        from tilecc.tuning.paths import remembered

        compiler.remembered = remembered(compiler.target)
    return Kernel(compiler, static, count, found)

"""Example programs and what the pipeline makes of them, computed once for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tilecc.dsl.load import load_spec
from tilecc.ir.core import Func, bind_extents
from tilecc.pipeline import DEFAULT_PIPELINE, Compilation, PassManager

EXAMPLES = Path(__file__).parent.parent / "examples"


@cache
def compiled(
    name: str, dtype: str = "float32", pipeline: str = DEFAULT_PIPELINE, static: int | None = 64
) -> Compilation:
    """The example `name` through `pipeline`, with heads of `static` elements (if it is given)."""
    func: Func = load_spec(str(EXAMPLES / f"{name}.py")).trace(dtype)
    if static is not None:
        func = bind_extents(func, {"D": static})
    return PassManager(pipeline).run(func)

"""What is given to compile: programs, read from where they are, and options, checked."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Func
from tilecc.ir.expr import Extent, extents

if TYPE_CHECKING:
    from tilecc.dsl.specification import Spec
    from tilecc.target import Target

Tiles = Mapping[str, int] | int | None
Splitting = int | str | None


def load(source: Spec | Func | str | os.PathLike[str], dtype: Any) -> tuple[Func, Spec | None]:
    """The program in `source`, and the spec if it is one.

    Raises:
        SpecError, IRError: it cannot be read.
        CompileError: it is nothing that can be compiled.
    """
    from tilecc.dsl.load import load_spec
    from tilecc.dsl.specification import Spec

    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        if path.endswith(".tcir"):
            return load_ir(path), None
        source = load_spec(path)
    if isinstance(source, Spec):
        return source.trace(dtype), source
    if isinstance(source, Func):
        return source, None
    hint = "put @tc.spec over a function"
    raise CompileError(Diagnostic(f"{source!r} is neither a spec, nor IR, nor a file", None, hint))


def load_ir(path: str) -> Func:
    """The IR in a text file.

    Raises:
        CompileError: the file cannot be read.
        IRError: its text is not IR.
    """
    from tilecc.ir.parser import parse_ir

    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except (OSError, UnicodeDecodeError) as e:
        raise CompileError(f"{path}: {e.strerror if isinstance(e, OSError) else e}") from e
    return parse_ir(text, path)


def extent_names(func: Func) -> tuple[str, ...]:
    """The extents that a program is over, in order of first appearance."""
    axes = (a for p in func.params for a in p.type.axes)
    return tuple(dict.fromkeys(n for a in axes for n in sorted(extents(a.extent))))


# A kernel of so many operations takes minutes to compile: to fuse, and LLVM to allocate registers.
MOST_OPERATIONS = 5000


def refuse_too_long(func: Func) -> None:
    """Refuse a program that would not be compiled in reasonable time.

    Raises:
        CompileError: it has more than MOST_OPERATIONS operations; with the line of the first of
            those that are too many.
    """
    ops = list(func.walk())
    if len(ops) > MOST_OPERATIONS:
        message = f"{func.name} has {len(ops):,} operations, and {MOST_OPERATIONS:,} are the most"
        hint = "a Python loop is written out turn by turn: let it take fewer turns, or reduce over"
        loc = ops[MOST_OPERATIONS].loc
        raise CompileError(Diagnostic(message, loc, f"{hint} an axis of the turns (over=)"))


def check_static(func: Func, static: Mapping[str, int]) -> dict[str, int]:
    """`static` if it is extents of `func` with sizes.

    Raises:
        CompileError: it is not.
    """
    names = extent_names(func)
    if not isinstance(static, Mapping):
        hint = f"write static={{{', '.join(f'{n!r}: ...' for n in names[-1:])}}}"
        message = f"static= takes extents by name, not {static!r}"
        raise CompileError(Diagnostic(message, None, hint.replace("'", '"')))
    axes = {a.name: a.extent for p in func.params for a in p.type.axes}
    problems = []
    for name, value in static.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            own = axes.get(name)
            near = [own.name] if isinstance(own, Extent) else near
            hint = f"did you mean {near[0]}? " if near else ""
            hint += f"extents are {', '.join(names)}" if names else "it has no named extents"
            problems.append(Diagnostic(f"{func.name} has no extent {name!r}", None, hint))
        elif isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
            problems.append(Diagnostic(f"static extent {name} is {value!r}, not a whole number"))
    if problems:
        raise CompileError(problems)
    return {name: int(value) for name, value in static.items()}


def check_tile(tile: Tiles) -> Tiles:
    """`tile` if it holds tile sizes.

    Raises:
        CompileError: it does not.
    """
    sizes = {"tile": tile} if not isinstance(tile, Mapping) else tile
    for name, n in sizes.items():
        if n is not None and (isinstance(n, bool) or not hasattr(n, "__index__") or n < 1):
            raise CompileError(f"the tile size of {name} is {n!r}, not a positive number")
    return dict(tile) if isinstance(tile, Mapping) else tile


def check_split(split: Splitting) -> Splitting:
    """`split` if it says how to split.

    Raises:
        CompileError: it does not.
    """
    number = hasattr(split, "__index__") and not isinstance(split, bool)
    if split in (None, "auto", "fill") or (number and int(split) > 0):
        return split
    hint = 'give a number of parts, "auto", "fill" or None'
    raise CompileError(Diagnostic(f"split={split!r} is no way to split", None, hint))


def check_tensor(tensor: str | None, target: Target) -> str | None:
    """`tensor` if it names what a target's tensor cores can round f32 to.

    Raises:
        CompileError: it does not.
    """
    from tilecc.passes.tensor import FACTORS

    if tensor is None:
        return None
    if tensor not in FACTORS:
        hint = f"there is {', '.join(map(repr, FACTORS))}; leave it out for products in f32"
        raise CompileError(Diagnostic(f"tensor={tensor!r} is nothing to multiply", None, hint))
    if not target.has("mma.sync"):
        message = f"tensor={tensor!r} needs tensor cores (mma.sync), and {target.model} has none"
        raise CompileError(Diagnostic(message, None, "leave it out, or compile for sm_80 or later"))
    return tensor

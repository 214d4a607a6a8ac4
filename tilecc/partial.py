"""Partial results, and what makes a whole of them: cascades, rings, caches in pieces.

What attention over a part of the keys gives is `o`, normalised, and `lse`, the logarithm of what it
was divided by. To the whole such a part is one key, whose score is `lse` and whose value is `o`: so
merging is a spec like any other, and that it can be done in one walk, in any order, with parts that
saw nothing, is derived for it as it is for attention.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

from tilecc.api import compile
from tilecc.dsl import Tensor, dot, inf, logsumexp, softmax, spec, where
from tilecc.errors import ArgumentError, Diagnostic
from tilecc.kernel import Kernel


@spec
def merged(
    o: Annotated[Tensor, "p r e"], lse: Annotated[Tensor, "p r", "float32"]
) -> tuple[Annotated[Tensor, "r e"], Annotated[Tensor, "r", "float32"]]:
    """The whole of parts p, for rows r; what a part without a live key holds is not read."""
    seen = where(lse == -inf, 0.0, o)
    return dot(softmax(lse, over="p"), seen, over="p"), logsumexp(lse, over="p")


_lock = threading.Lock()


@cache
def _kernel(dtype: str) -> Kernel:
    return compile(merged, "cpu", dtype)


def merge(*parts: tuple[Any, Any], threads: int | None = None) -> tuple[Any, Any]:
    """The result of attention over all keys, from results over parts of them.

    Args:
        parts: pairs (o, lse): o [..., e], the normalised outputs of one part, in any float type;
            lse [...], float32, the logarithm (to base e) of the sum of its exponentials. A part
            that saw no key has lse = -inf (`tc.logsumexp` gives that), and any o. Arrays of one
            kind: numpy, torch.
        threads: how many threads to use.

    Returns:
        (o, lse) of the whole, which is a part of something larger, if need be: merging is
        associative and commutative but for rounding. Where no part saw a key, 0 and -inf.

    Raises:
        ArgumentError: there are no parts, or their shapes or types do not fit.
    """
    first, rows = _check(parts)
    space = _namespace(first)
    stacked = [space.stack(list(xs)) for xs in zip(*parts, strict=True)]
    n, lead, e = len(parts), first.shape[:-1], first.shape[-1]
    with _lock:
        kernel = _kernel(str(first.dtype).removeprefix("torch."))
    o, lse = kernel(
        stacked[0].reshape((n, rows, e)), stacked[1].reshape((n, rows)), threads=threads
    )
    return o.reshape(first.shape), lse.reshape(lead)


def _check(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, int]:
    """The first part's outputs, and how many rows there are."""
    if not parts:
        raise ArgumentError(Diagnostic("merge has no parts", None, "pass pairs (o, lse)"))
    problems = []
    for n, part in enumerate(parts):
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise ArgumentError(f"part {n} is not a pair (o, lse)")
    first = parts[0][0]
    for n, (o, lse) in enumerate(parts):
        shape, have = tuple(first.shape), tuple(o.shape)
        if have != shape or not shape:
            problems.append(Diagnostic(f"o of part {n} has shape {have}, that of part 0 {shape}"))
        elif tuple(lse.shape) != shape[:-1]:
            seen = tuple(lse.shape)
            problems.append(Diagnostic(f"lse of part {n} has shape {seen}, and o has {shape}"))
        if o.dtype != first.dtype:
            problems.append(Diagnostic(f"o of part {n} is {o.dtype}, that of part 0 {first.dtype}"))
        if str(lse.dtype).removeprefix("torch.") != "float32":
            problems.append(Diagnostic(f"lse of part {n} is {lse.dtype}, not float32"))
    if problems:
        raise ArgumentError(problems)
    return first, math.prod(first.shape[:-1])


def _namespace(x: Any) -> Any:
    """The module that an array belongs to."""
    return sys.modules[type(x).__module__.partition(".")[0]]

"""Walking and replacing the leaves of scalar expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilecc.ir.expr import Expr, rebuild


def leaves_of(e: Expr) -> Iterator[Expr]:
    """The leaves of `e`, from left to right."""
    kids = e.children()
    if not kids:
        yield e
    for k in kids:
        yield from leaves_of(k)


def replace_leaves(e: Expr, f: Callable[[Expr], Expr | None]) -> Expr:
    """`e` with leaves replaced by `f`, once: what is put in is not looked at again."""
    kids = e.children()
    if not kids:
        out = f(e)
        return e if out is None else out
    return rebuild(e, tuple(replace_leaves(k, f) for k in kids))


def replace(e: Expr, old: Expr, new: Expr) -> Expr:
    """`e` with its parts that equal `old` replaced by `new`, outermost first."""
    if e == old:
        return new
    kids = e.children()
    return rebuild(e, tuple(replace(k, old, new) for k in kids)) if kids else e

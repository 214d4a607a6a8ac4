"""What each axis does in a kernel: parallel, streamed or inner.

- A **streamed** axis is reduced last: no reduction over another axis consumes what was reduced over
  it for each element of that axis, so no walk is inside of another. Its extent stays symbolic and
  the kernel walks it tile by tile.
- A **parallel** axis is in every output, nothing is reduced over it, and every contraction of the
  kernel has it: kernels over different tiles of it repeat no arithmetic. A mere reduction may lack
  it, and is repeated. So is a contraction that makes what is streamed (a bias of features of the
  positions) where the axis only numbers independent streams, as a batch does: what is streamed
  would otherwise be written to memory whole.
- Every other axis is **inner**: a tile holds the whole of it, so its extent must become static.
  That is what a head dimension is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilecc.errors import Loc
from tilecc.ir.core import Axis, Func, Op, Value
from tilecc.ir.expr import Const, extents


@dataclass(frozen=True)
class Roles:
    """The roles of a kernel's axes, each in order of first appearance."""

    parallel: tuple[str, ...]
    streamed: tuple[str, ...]
    inner: tuple[str, ...]
    static: frozenset[str]  # extents that must be bound, being those of inner axes


@dataclass(frozen=True)
class Refusal:
    """Why a set of operations is not one kernel, and the line where that shows."""

    reason: str
    loc: Loc | None = None
    hint: str = ""


def reductions(ops: Iterable[Op]) -> list[Op]:
    """The operations that sum over an axis."""
    return [op for op in ops if op.name in ("reduce", "contract")]


def assign_roles(
    ops: Sequence[Op], outputs: Sequence[Value], *, binding: bool = False
) -> Roles | Refusal:
    """Roles of the axes of a kernel made of `ops` (in program order) with these outputs.

    `binding`: an extent may become a number though axes that are walked have it, too: each length
    is then compiled for.
    """
    axes: dict[str, Axis] = {}
    for op in ops:
        for v in [*op.operands, *op.results]:
            for axis in v.type.axes:
                axes.setdefault(axis.name, axis)
    streamed = _streamed(ops, axes)
    if isinstance(streamed, Refusal):
        return streamed
    for op in ops:
        seen = [*op.operands, *op.results]
        both = [a for a in streamed if any(v.type.has(a) for v in seen)]
        if len(both) > 1:
            what = f"a tile would be over two streamed axes ({' and '.join(both)})"
            return Refusal(what, op.loc, "reduce over one axis at a time, the one that is walked")
    reduced = {a for op in reductions(ops) for a in op.over}
    common = [
        a for a in _in_order(outputs) if a not in reduced and all(o.type.has(a) for o in outputs)
    ]
    parallel = tuple(a for a in common if _divides(a, ops, streamed))
    inner = tuple(a for a in axes if a not in parallel and a not in streamed)
    static = frozenset(e for a in inner for e in extents(axes[a].extent))
    walked = {a: extents(axes[a].extent) for a in (*parallel, *streamed)}
    for a in inner:
        for other, names in walked.items():
            shared = extents(axes[a].extent) & names
            if shared and not binding:
                return Refusal(
                    f"axis {a} would have to be whole in a tile, but its extent "
                    f"{', '.join(sorted(shared))} is also that of {other}, which is tiled",
                    ops[-1].loc,
                    f"make the extent a number: static={{{min(shared)!r}: 64}}, or {a}:64",
                )
    return Roles(parallel, tuple(streamed), inner, static)


def _divides(axis: str, ops: Sequence[Op], streamed: Sequence[str]) -> bool:
    """Whether tiles of `axis` share no contraction, or only such as are worth repeating."""
    contractions = [op for op in ops if op.name == "contract"]
    walks = [op for op in contractions if not set(streamed).isdisjoint(op.over)]
    numbers_streams = bool(walks) and all(v.type.has(axis) for op in walks for v in op.operands)
    return all(
        any(v.type.has(axis) for v in op.operands)
        or (numbers_streams and any(map(op.result.type.has, streamed)))
        for op in contractions
    )


def _in_order(values: Iterable[Value]) -> list[str]:
    return list(dict.fromkeys(a for v in values for a in v.type.names))


def _streamed(ops: Sequence[Op], axes: dict[str, Axis]) -> list[str] | Refusal:
    """Reduced axes that no reduction over another axis consumes; of one reduction the last axis.

    What is reduced to a value without that other axis is complete before its walk begins.
    """
    above: dict[Value, dict[str, frozenset[str]]] = {}  # reduced axes upstream -> axes left then
    consumed: set[str] = set()
    candidates: dict[str, Op] = {}
    for op in ops:
        upstream: dict[str, frozenset[str]] = {}
        for v in op.operands:
            for a, left in above.get(v, {}).items():
                upstream[a] = upstream.get(a, frozenset()) | left
        if op.name in ("reduce", "contract"):
            over = frozenset(op.over)
            consumed |= {a for a, left in upstream.items() if left & over} - over
            candidates[_outermost(op.over, axes)] = op
            consumed |= over - {_outermost(op.over, axes)}
            left = frozenset(op.result.type.names)
            upstream |= {a: upstream.get(a, frozenset()) | left for a in over}
        for r in op.results:
            above[r] = upstream
    return [a for a in candidates if a not in consumed]


def _outermost(over: Sequence[str], axes: dict[str, Axis]) -> str:
    """Of several axes reduced at once the one to stream: symbolic before static, first of those."""
    symbolic = [a for a in over if not isinstance(axes[a].extent, Const)]
    return (symbolic or list(over))[0]


def static_extents(func: Func) -> frozenset[str]:
    """Extents that must be numbers before `tile` can run on this loop-level program."""
    need: set[str] = set()
    for kernel in func.body.ops:
        if kernel.name != "kernel":
            continue
        walked = {*kernel.attrs["over"]}
        walked |= {op.attrs["axis"] for op in kernel.body.walk() if op.name == "stream"}
        for op in kernel.body.walk():
            # What an access map reads is reached by coordinates, never held whole.
            for v in [*(() if op.name == "at" else op.operands), *op.results]:
                for a in v.type.axes:
                    if a.name not in walked:
                        need |= extents(a.extent)
    return frozenset(need)

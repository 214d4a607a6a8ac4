"""How much a kernel computes: a multiply-add counts as two operations, exponentials apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilecc.cost.count import Counter
from tilecc.cost.nest import Kernel, Span, Work
from tilecc.ir.core import Op
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Arg, Call, Expr, Old, walk

# What takes a polynomial rather than an instruction.
ELEMENTARY = frozenset(("exp", "exp2", "log", "log2", "tanh", "sigmoid", "sin", "cos", "pow"))


@dataclass(frozen=True)
class Arithmetic:
    """Operations on elements inside their tensors (what masks void in a visited tile included).

    `flops` of contractions, `elementwise` of maps and reductions, `exps` elementary functions.
    """

    flops: int = 0
    elementwise: int = 0
    exps: int = 0

    def __add__(self, other: Arithmetic) -> Arithmetic:
        return Arithmetic(
            self.flops + other.flops,
            self.elementwise + other.elementwise,
            self.exps + other.exps,
        )


def factors(ops: Iterable[Op], dtype: DType) -> str:
    """What contractions multiply, by name: `dtype`, or what f32 factors are rounded to."""
    found = [op.attrs.get("factors") for op in ops if op.name == "contract"]
    return found[0] if found and found[0] and len(set(found)) == 1 else dtype.name


def arithmetic(kernel: Kernel, counter: Counter) -> Arithmetic:
    """What a tile-level kernel computes for given extents."""
    total = Arithmetic()
    done: dict[object, int] = {}
    for w in kernel.work:
        one = per_element(w)
        if one == Arithmetic():
            continue
        spans, whole = _elements(w, kernel)
        key = (w.nest, tuple(spans), whole)
        if key not in done:
            done[key] = counter.points(w.nest, spans, w.op.loc) * whole
        n = done[key]
        total += Arithmetic(n * one.flops, n * one.elementwise, n * one.exps)
    return total


def per_element(w: Work) -> Arithmetic:
    """Operations for one element of the iteration space of a contraction, map or reduction."""
    op = w.op
    if op.name == "contract":
        return Arithmetic(flops=2 * (len(op.operands) - int(op.attrs["acc"]) - 1))
    if op.name == "reduce":
        return Arithmetic(elementwise=1)
    if not op.result.type.axes:
        return Arithmetic()
    calls = [n for n in walk(op.expr) if isinstance(n, Call) and _reads(n)]
    exps = sum(n.fn in ELEMENTARY for n in calls)
    return Arithmetic(elementwise=len(calls) - exps, exps=exps)


def _reads(e: Expr) -> bool:
    return any(isinstance(n, Arg | Old) for n in walk(e))


def _elements(w: Work, kernel: Kernel) -> tuple[list[Span], int]:
    """The iteration space: where an axis is loaded or stored around it, as far as that reaches."""
    spans, whole = [], 1
    values = [*w.op.operands, *w.op.results]
    sizes = {a.name: a.static or 1 for v in values for a in v.type.axes}
    for axis, size in sizes.items():
        span = _span(axis, w, kernel) if axis in kernel.tile else None
        if span is None:
            whole *= size
        else:
            spans.append(span)
    return spans, whole


def _span(axis: str, w: Work, kernel: Kernel) -> Span | None:
    for a in kernel.accesses:
        if w.nest[: len(a.nest)] == a.nest:
            for s in a.spans:
                if s.axis == axis:
                    return s
    return None

"""Which nests are emitted on explicit vectors rather than in vectorised loops.

AVX-512 has instructions for the ends of an exponential (vreduceps, vscalefps) that TVM takes only
on vector-typed values: 7 instructions instead of 12. A nest qualifies if every value in it is one
whole vector from scratch or registers, or the same for all lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tilecc.ir.core import Op, Value
from tilecc.ir.dtypes import BF16, BOOL, F32, I32, I64
from tilecc.ir.expr import Call, Cast, walk

if TYPE_CHECKING:
    from tilecc.codegen.cpu.emit import Emitter

# Worth it for these ...
_GAIN = {"exp2", "exp", "sigmoid", "tanh"}
# ... and these work on vectors as they do on scalars.
_PLAIN = _GAIN | {
    *("add", "sub", "mul", "div", "neg", "maximum", "minimum", "abs", "sqrt", "rsqrt", "where"),
    *("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"),
}


def qualifies(em: Emitter, ops: Sequence[Op], axis: str | None, width: int) -> bool:
    """Whether a nest over vectors of `width` along `axis` can be emitted on explicit vectors."""
    if not em.isa.has_scalef or width != em.isa.lanes32 or axis is None:
        return False
    if any(op.name == "store" for op in ops):
        return False
    maps = [op for op in _with_inlined(em, ops) if op.name == "map"]
    calls = {n.fn for op in maps for n in walk(op.expr) if isinstance(n, Call)}
    if not calls & _GAIN or not calls <= _PLAIN:
        return False
    casts = {n.to for op in maps for n in walk(op.expr) if isinstance(n, Cast)}
    if not casts <= {F32, BF16}:
        return False
    return all(_is_vector(em, v, axis) for op in _with_inlined(em, ops) for v in _values(op))


def _values(op: Op) -> list[Value]:
    """The values that an operation reads or makes one element at a time."""
    return op.results if op.name == "contract" else [*op.operands, *op.results]


def _with_inlined(em: Emitter, ops: Sequence[Op]) -> Iterator[Op]:
    for op in ops:
        yield op
        if op.name != "contract":
            inlined = [v.owner for v in op.operands if v in em.planner.inline]
            yield from _with_inlined(em, [o for o in inlined if o is not None])


def _is_vector(em: Emitter, v: Value, axis: str) -> bool:
    if v.type.dtype not in (F32, BF16, BOOL, I64, I32):
        return False
    in_place = v.owner is not None and v.owner.name == "load" and v not in em.storage.slots
    return not (in_place and v.type.has(axis))

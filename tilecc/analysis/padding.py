"""What lies behind padding: positions of a streamed axis that no row of a tensor may be read at.

A masked position adds p * v with p = 0, which is nothing only while v is finite. Where the mask
depends on the streamed axis alone (a padding mask, a length), v there may be memory that nobody
wrote; such a tensor is read as zero behind the padding.
"""

from __future__ import annotations

from tilecc.analysis.forms import widened
from tilecc.analysis.neutral import Neutral
from tilecc.analysis.predicate import TRUE, Pred, conj, reads, to_expr, weaken
from tilecc.ir.core import Op, Value
from tilecc.ir.expr import Arg, Expr, arg_numbers, shift_args


def in_memory(v: Value) -> bool:
    """Whether a loop-level value is read from HBM, directly or through an access map."""
    return v.owner is None or v.owner.name in ("kernel", "at")


def padding(facts: Neutral, contraction: Op, v: Value) -> tuple[Expr, list[Value]] | None:
    """The positions of factor `v` that may count, as an expression and the values it reads.

    None where nothing is known to be padding. The expression is over axes of `v` alone.
    """
    axes = set(v.type.names)

    def readable(p: Pred) -> bool:
        coordinates, args = reads(p)
        values = [facts.values[k] for k in args]
        return coordinates <= axes and all(
            in_memory(x) and set(x.type.names) <= axes for x in values
        )

    others = [f for f in contraction.operands if f is not v and not in_memory(f)]
    live = conj(weaken(facts.differs(f, 0.0, chunk=False), readable) for f in others)
    if live == TRUE or not _on_sum(live, facts, contraction):
        return None
    e = widened(to_expr(live), facts.dtypes)
    numbers = sorted(arg_numbers(e))
    renumbered = shift_args(e, {k: Arg(n) for n, k in enumerate(numbers)})
    return renumbered, [facts.values[k] for k in numbers]


def _on_sum(p: Pred, facts: Neutral, contraction: Op) -> bool:
    """Whether a predicate says anything about the axes that are summed over."""
    coordinates, args = reads(p)
    touched = coordinates.union(*(facts.values[k].type.names for k in args))
    return bool(touched & set(contraction.over))

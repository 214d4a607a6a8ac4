"""Rules that take factors out of sums, and turn sums of products into contractions.

`sum_j(a_j * c) = c * sum_j(a_j)` for a `c` without the axis j. Over an empty axis the left side is
0 and the right side `c * 0`, which a `c` that is not finite makes NaN: `where` on the extent
keeps 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilecc.errors import Loc
from tilecc.ir.core import Axis
from tilecc.ir.dtypes import BF16, DType
from tilecc.passes.rewrite.engine import Rewriter, rule
from tilecc.passes.rewrite.facts import (
    MAX_PARTS,
    chain,
    finite_when_empty,
    normalises,
    positive,
    row_maximum,
    shrinks,
)
from tilecc.passes.rewrite.terms import Term, postorder


@dataclass(frozen=True)
class Step:
    """Something that commutes with a sum: mul, div or neg, or `where` with 0 on the other side."""

    kind: str
    factor: Term | None = None
    loc: Loc | None = None

    def apply(self, rw: Rewriter, x: Term) -> Term:
        """The step done to `x`."""
        rw.terms.loc = self.loc or rw.terms.loc
        if self.kind == "neg":
            return rw.terms.call("neg", x)
        assert self.factor is not None
        zero = rw.terms.const(0.0)
        if self.kind == "where":
            return rw.terms.call("where", self.factor, x, zero)
        if self.kind == "unless":
            return rw.terms.call("where", self.factor, zero, x)
        return rw.terms.call(self.kind, x, self.factor)


@dataclass
class Peeled:
    """A term as steps, outermost first, around a core; `casts` are those that steps moved past."""

    core: Term
    steps: list[Step]
    casts: list[Term]


def peel(rw: Rewriter, t: Term, over: tuple[str, ...]) -> Peeled:
    """Splits off what does not depend on the axes `over`."""
    key = (t, over)
    if key not in rw.cache:
        rw.cache[key] = _peel(rw, t, over)
    found = rw.cache[key]
    assert isinstance(found, Peeled)
    return found


def _peel(rw: Rewriter, t: Term, over: tuple[str, ...]) -> Peeled:

    def free(x: Term) -> bool:
        return not x.names & set(over)

    def outer(step: Step, x: Term) -> Peeled:
        inner = peel(rw, x, over)
        return Peeled(inner.core, [step, *inner.steps], inner.casts)

    if not t.is_float:
        return Peeled(t, [], [])
    if t.kind == "cast":
        return _peel_cast(rw, t, over)
    if t.is_call("neg"):
        return outer(Step("neg"), t.args[0])
    if t.is_call("mul"):
        for a, b in (t.args, t.args[::-1]):
            if free(b) and not free(a):
                return outer(Step("mul", b, t.loc), a)
    if t.is_call("div") and free(t.args[1]):
        return outer(Step("div", t.args[1], t.loc), t.args[0])
    if t.is_call("div") and free(t.args[0]) and not t.args[0].is_number(1):
        core = rw.terms.call("div", rw.terms.const(1.0), t.args[1])
        return Peeled(core, [Step("mul", t.args[0], t.loc)], [])
    if t.is_call("where") and free(t.args[0]):
        c, a, b = t.args
        if b.is_number(0) and not free(a):
            return outer(Step("where", c, t.loc), a)
        if a.is_number(0) and not free(b):
            return outer(Step("unless", c, t.loc), b)
    if t.is_call("where") and t.args[2].is_number(0):
        # Elements that a condition drops: 0 stays 0 times what is finite.
        inner = peel(rw, t.args[1], over)
        if inner.steps and not inner.casts and _shrink(rw, inner):
            core = rw.terms.call("where", t.args[0], inner.core, t.args[2])
            return Peeled(core, inner.steps, [])
    if t.is_call("mul", "div"):
        a, b = t.args
        left = peel(rw, a, over)
        right = peel(rw, b, over) if t.data == "mul" else Peeled(b, [], [])
        alone = not (_may_grow(rw, left) and _may_grow(rw, right))
        if alone and 0 < len(left.steps) + len(right.steps) <= MAX_PARTS:
            core = rw.terms.call(t.data, left.core, right.core)
            return Peeled(core, left.steps + right.steps, left.casts + right.casts)
    return Peeled(t, [], [])


def _peel_cast(rw: Rewriter, t: Term, over: tuple[str, ...]) -> Peeled:
    """cast(x * f, T) as cast(x, T) * f: where x needs no rounding, or where its rounding is as good
    as that of the product (T has the range of f32, or x is at most 1 and `f` is at most 1)."""
    inner = peel(rw, t.args[0], over)
    exact = inner.core.dtype is t.data
    harmless = t.data.bits >= 32 or t.data is BF16 or _shrink(rw, inner)
    constant = all(s.factor is None or s.factor.constant for s in inner.steps)
    if inner.steps and not constant and not (exact or harmless):
        rw.miss(
            f"a factor stays before the rounding to {t.data}: without it the value may be too large"
            f" for {t.data}, or too small",
            t.loc,
        )
    if not inner.steps or not (exact or (harmless and not constant)):
        return Peeled(t, [], [])
    return Peeled(rw.terms.cast(inner.core, t.data), inner.steps, [*inner.casts, t])


def _shrink(rw: Rewriter, p: Peeled) -> bool:
    """Whether the core is at most 1, and the steps make it smaller."""

    def step(s: Step) -> bool:
        if s.factor is None or s.kind in ("where", "unless"):
            return True
        if s.kind == "div":
            return normalises(rw, p.core, s.factor)
        return shrinks(rw, p.core, s.factor)

    return row_maximum(rw, p.core) is not None and all(map(step, p.steps))


def _may_grow(rw: Rewriter, p: Peeled) -> bool:
    """Whether the core, without its steps, may be far from where the program keeps it.

    One such factor of a product is a number that the program has computed itself. The product of
    two, as in a sum of squares of x / max|x|, is not: it overflows from 1.8e19 on, and is 0 below
    1e-23. Numbers that are stored in few bits are not so large, nor so small.
    """
    if all(s.factor is None or s.factor.constant for s in p.steps if s.kind in ("mul", "div")):
        return False
    t = p.core.dtype
    return not (t.kind != "float" or (t.bits < 32 and t is not BF16)) and not _shrink(rw, p)


def _put_back(
    rw: Rewriter, t: Term, base: Term, parts: list[Peeled], summed: tuple[Axis, ...]
) -> Term | None:
    """The steps of `parts` done to `base`, which is `t` without them."""
    loc = rw.terms.loc
    rw.inherit(base, t)
    out = base
    steps = [s for p in parts for s in p.steps]
    for s in reversed(steps):
        out = s.apply(rw, out)
    rw.terms.loc = loc
    for a in summed:
        zero = all(_stays_zero(steps, k, a) for k in range(len(steps)))
        if not zero and a.static in (None, 0):
            empty = rw.terms.call("eq", rw.terms.extent(a.extent), rw.terms.const(0))
            out = rw.terms.call("where", empty, rw.terms.const(0.0), out)
    if out.dtype is not t.dtype:
        return None
    for cast in (c for p in parts for c in p.casts):
        rw.remark(
            f"a factor moves from before the rounding to {cast.data} to after the contraction",
            cast.loc,
        )
    return out


def _stays_zero(steps: list[Step], k: int, axis: Axis) -> bool:
    """Whether step `k` maps 0 to 0 where `axis` is empty."""
    s = steps[k]
    if s.factor is None or s.kind in ("where", "unless"):
        return True
    # An outer step `unless l == 0` covers a division by l.
    covered = {
        o.factor.args[0]
        for o in steps[:k]
        if o.kind == "unless"
        and o.factor is not None
        and o.factor.is_call("eq")
        and o.factor.args[1].is_number(0)
    }
    if s.kind == "div":
        inverse = s.factor in covered or positive(s.factor)
        return inverse and finite_when_empty(s.factor, axis)
    return finite_when_empty(s.factor, axis, frozenset(covered))


def _summed(t: Term) -> tuple[Axis, ...]:
    axes = {a.name: a for x in t.args for a in x.axes}
    return tuple(axes[n] for n in t.over)


@rule("reduce")
def factor_out_of_sum(rw: Rewriter, t: Term) -> Term | None:
    """sum_j(a_j * c) --> sum_j(a_j) * c, and so for / c, negation, where(p, a_j, 0)"""
    if t.data[0] != "sum" or not t.is_float:
        return None
    part = peel(rw, t.args[0], t.over)
    if not part.steps or not set(t.over) <= part.core.names:
        return None
    return _put_back(rw, t, rw.terms.reduce("sum", part.core, t.over), [part], _summed(t))


@rule("contract")
def factor_out_of_contraction(rw: Rewriter, t: Term) -> Term | None:
    """contract_j(a_j * c, b_j) --> contract_j(a_j, b_j) * c, also through a cast of the operand"""
    if not t.is_float:
        return None
    parts = [peel(rw, a, t.over) for a in t.args]
    if sum(_may_grow(rw, p) for p in parts) > 1:
        kept = [Peeled(a, [], []) for a in t.args]
        parts = [k if _may_grow(rw, p) else p for k, p in zip(kept, parts, strict=True)]
    if not any(p.steps for p in parts):
        return None
    base = rw.terms.contract(tuple(p.core for p in parts), t.over)
    return _put_back(rw, t, base, parts, _summed(t))


@rule("contract")
def operand_without_the_axis(rw: Rewriter, t: Term) -> Term | None:
    """contract_j(a, b_j) --> a * sum_j(b_j) for an a without the axis j"""
    if not t.is_float or len(t.args) != 2:
        return None
    for a, b in (t.args, t.args[::-1]):
        if not a.names & set(t.over) and set(t.over) <= b.names:
            part = Peeled(b, [Step("mul", a, t.loc)], [])
            return _put_back(rw, t, rw.terms.reduce("sum", b, t.over), [part], _summed(t))
    return None


@rule("contract", "reduce", "add", "sub", "mul", "div", "maximum", "minimum")
def exact_widening(rw: Rewriter, t: Term) -> Term | None:
    """contract(cast(a, f32), b) --> contract(a, b), cast(a, f32) * b --> a * b: all arithmetic
    widens its operands to the result's type"""

    def narrow(x: Term) -> Term:
        wide = x.kind == "cast" and _holds(x.data, x.args[0].dtype) and not x.args[0].weak
        return x.args[0] if wide else x

    if not t.is_float or (t.kind == "reduce" and t.data[0] == "prod"):
        return None
    new = rw.terms.rebuild(t, tuple(narrow(a) for a in t.args))
    return new if new.dtype is t.dtype else None


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether each value of the storage type `narrow` is one of `wide`."""
    return wide.kind == narrow.kind == "float" and wide.bits >= 32 and narrow.bits <= wide.bits


def _depends_on_sum_over(t: Term, over: tuple[str, ...]) -> bool:
    return any(x.kind in ("reduce", "contract") and set(x.over) & set(over) for x in postorder([t]))


@rule("contract", "reduce")
def sum_of_normalised(rw: Rewriter, t: Term) -> Term | None:
    """contract_j(p_j / l + q_j / n, b_j) --> contract_j(p_j, b_j) / l + contract_j(q_j, b_j) / n,
    where l or n is itself a reduction over j: else j would be walked twice"""
    if not t.is_float or (t.kind == "reduce" and t.data[0] != "sum"):
        return None
    for k, x in enumerate(t.args):
        if not x.is_call("add", "sub") or not all(set(t.over) <= a.names for a in x.args):
            continue
        steps = [s for a in x.args for s in peel(rw, a, t.over).steps]
        if any(s.factor is not None and _depends_on_sum_over(s.factor, t.over) for s in steps):
            before, after = t.args[:k], t.args[k + 1 :]
            parts = (rw.terms.rebuild(t, (*before, a, *after)) for a in x.args)
            return rw.terms.call(x.data, *parts)
    return None


@rule("reduce")
def sum_of_product(rw: Rewriter, t: Term) -> Term | None:
    """sum_d(a_id * b_jd) --> contract_d(a, b), where each has an axis that the other lacks or one
    has all axes of the other and more (else it is a sum over an elementwise product)"""
    if t.data[0] != "sum" or not t.is_float or not t.args[0].is_call("mul"):
        return None
    factors = chain(t.args[0], "mul")
    groups: dict[frozenset[str], Term] = {}
    loose: list[Term] = []
    for f in factors:
        if any(x.kind in ("param", "reduce", "contract", "at") for x in postorder([f])):
            key = f.names
            groups[key] = rw.terms.call("mul", groups[key], f) if key in groups else f
        else:
            loose.append(f)
    _merge_smaller(rw, groups)
    if len(groups) != 2 or not all(k & set(t.over) for k in groups):
        return None
    for f in loose:
        host = next((k for k in groups if f.names <= k), None)
        if host is None:
            return None
        groups[host] = rw.terms.call("mul", groups[host], f)
    new = rw.terms.contract(tuple(groups.values()), t.over)
    return new if new.dtype is t.dtype else None


def _merge_smaller(rw: Rewriter, groups: dict[frozenset[str], Term]) -> None:
    """Multiplies factors into one that has all their axes until two are left."""
    for small in sorted(groups, key=len):
        host = next((k for k in groups if small < k), None)
        if len(groups) > 2 and host is not None:
            groups[host] = rw.terms.call("mul", groups[host], groups.pop(small))


RULES = [
    exact_widening,
    operand_without_the_axis,
    factor_out_of_sum,
    factor_out_of_contraction,
    sum_of_normalised,
    sum_of_product,
]

"""Rules of scalar algebra: literals, identities, `where`, reads of computed tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilecc.ir.expr import FUNCTIONS
from tilecc.passes.rewrite.engine import Rewriter, rule
from tilecc.passes.rewrite.terms import Term

# Python's own arithmetic where it is exact for integers of any size.
_EXACT: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
}
_ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@rule(*FUNCTIONS)
def fold_literals(rw: Rewriter, t: Term) -> Term | None:
    """f(1.0, 2.0) --> the number; not where it would overflow or be undefined"""
    if not t.args or not all(a.kind == "const" for a in t.args):
        return None
    values = [a.data.value for a in t.args]
    with np.errstate(all="ignore"):
        try:
            out = _EXACT.get(t.data, FUNCTIONS[t.data].numpy)(*values)
        except (ArithmeticError, TypeError, ValueError):
            return None
    out = out.item() if isinstance(out, np.ndarray | np.generic) else out
    if t.dtype.kind == "int":
        out = int(out)
    elif t.dtype.kind == "float":
        out = float(out)
        if not math.isfinite(out) and all(math.isfinite(v) for v in values):
            return None
    return rw.terms.const(out)


@rule(*_ARITHMETIC, *_COMPARISONS, "where")
def float_literals(rw: Rewriter, t: Term) -> Term | None:
    """x * 2 --> x * 2.0 for a float x"""
    args = t.args[1:] if t.data == "where" else t.args
    if not any(a.is_float and not a.weak for a in args):
        return None
    new = tuple(
        rw.terms.const(float(a.data.value)) if a.kind == "const" and a.dtype.kind == "int" else a
        for a in args
    )
    return rw.terms.rebuild(t, (*t.args[: len(t.args) - len(new)], *new))


# (function, literal, its position): the other argument is the value. x + 0.0 is not here: it
# turns -0 into 0; x - 0.0 does not.
_NEUTRAL: list[tuple[str, tuple[float, ...], int, str]] = [
    ("add", (0,), 0, "int"),
    ("add", (0,), 1, "int"),
    ("sub", (0,), 1, "int float"),
    ("mul", (1,), 0, "int float"),
    ("mul", (1,), 1, "int float"),
    ("div", (1,), 1, "float"),
    ("floordiv", (1,), 1, "int"),
    ("maximum", (-math.inf,), 0, "float"),
    ("maximum", (-math.inf,), 1, "float"),
    ("minimum", (math.inf,), 0, "float"),
    ("minimum", (math.inf,), 1, "float"),
]


@rule("add", "sub", "mul", "div", "floordiv", "maximum", "minimum")
def neutral_literal(rw: Rewriter, t: Term) -> Term | None:
    """x * 1 --> x, x / 1 --> x, x - 0 --> x, maximum(x, -inf) --> x; i + 0 --> i for integers"""
    for fn, values, k, kinds in _NEUTRAL:
        if t.data == fn and t.args[k].is_number(*values) and t.dtype.kind in kinds.split():
            x = t.args[1 - k]
            negative_zero = fn == "sub" and math.copysign(1, t.args[k].data.value) < 0
            return None if negative_zero else x
    return None


@rule("neg", "not", "abs")
def double_negation(rw: Rewriter, t: Term) -> Term | None:
    """-(-x) --> x, ~(~p) --> p, abs(-x) --> abs(x), abs(abs(x)) --> abs(x)"""
    (x,) = t.args
    if t.data == "abs":
        return rw.terms.call("abs", x.args[0]) if x.is_call("neg", "abs") else None
    return x.args[0] if x.is_call(t.data) else None


@rule("add", "sub")
def add_of_negation(rw: Rewriter, t: Term) -> Term | None:
    """x + (-y) --> x - y, (-x) + y --> y - x, x - (-y) --> x + y"""
    a, b = t.args
    if b.is_call("neg"):
        return rw.terms.call("sub" if t.data == "add" else "add", a, b.args[0])
    if a.is_call("neg") and t.data == "add":
        return rw.terms.call("sub", b, a.args[0])
    return None


@rule("mul", "div")
def product_of_negation(rw: Rewriter, t: Term) -> Term | None:
    """(-x) * y --> -(x * y), likewise for /; not where -x is read as a tensor anyway"""
    a, b = t.args
    if a.is_call("neg") and not a.constant and not rw.materialised(a):
        return rw.terms.call("neg", rw.terms.call(t.data, a.args[0], b))
    if b.is_call("neg") and not b.constant and not rw.materialised(b):
        return rw.terms.call("neg", rw.terms.call(t.data, a, b.args[0]))
    return None


@rule("maximum", "minimum", "and", "or")
def idempotent(rw: Rewriter, t: Term) -> Term | None:
    """maximum(x, x) --> x, p & p --> p"""
    return t.args[0] if t.args[0] is t.args[1] else None


@rule("and", "or")
def logic_literal(rw: Rewriter, t: Term) -> Term | None:
    """p & true --> p, p & false --> false, p | true --> true, p | false --> p"""
    for x, other in (t.args, t.args[::-1]):
        if x.kind == "const" and x.dtype.kind == "bool" and other.dtype.kind == "bool":
            return other if bool(x.data.value) == (t.data == "and") else x
    return None


@rule("where")
def where_literal(rw: Rewriter, t: Term) -> Term | None:
    """where(true, a, b) --> a, where(p, a, a) --> a"""
    c, a, b = t.args
    if c.kind == "const":
        return _whole(rw, a if c.data.value else b, t)
    return _whole(rw, a, t) if a is b else None


@rule("where")
def where_same_condition(rw: Rewriter, t: Term) -> Term | None:
    """where(p, where(p, a, b), c) --> where(p, a, c), likewise in the other branch"""
    c, a, b = t.args
    if a.is_call("where") and a.args[0] is c:
        return rw.terms.call("where", c, a.args[1], b)
    if b.is_call("where") and b.args[0] is c:
        return rw.terms.call("where", c, a, b.args[2])
    return None


@rule("where")
def where_nested(rw: Rewriter, t: Term) -> Term | None:
    """where(p, where(q, x, f), f) --> where(p & q, x, f) for a literal f"""
    c, a, f = t.args
    if f.kind == "const" and a.is_call("where") and a.args[2] is f:
        return rw.terms.call("where", rw.terms.call("and", c, a.args[0]), a.args[1], f)
    return None


@rule("where")
def where_of_negation(rw: Rewriter, t: Term) -> Term | None:
    """where(~p, a, b) --> where(p, b, a)"""
    c, a, b = t.args
    return rw.terms.call("where", c.args[0], b, a) if c.is_call("not") else None


@rule("cast")
def exact_cast(rw: Rewriter, t: Term) -> Term | None:
    """cast(x, T) --> x for an x of type T; a cast that rounds stays"""
    (x,) = t.args
    return x if x.dtype is t.data and not x.weak else None


@rule(*FUNCTIONS)
def needless_spread(rw: Rewriter, t: Term) -> Term | None:
    """f(spread(x), y) --> f(x, y) where y has the axes along which x is repeated"""
    for k, x in enumerate(t.args):
        others = {n for i, a in enumerate(t.args) if i != k for n in a.names}
        if x.kind == "spread" and {a.name for a in x.data} <= others:
            args = (*t.args[:k], x.args[0], *t.args[k + 1 :])
            return rw.terms.call(t.data, *args)
    return None


@rule("at")
def read_of_elementwise(rw: Rewriter, t: Term) -> Term | None:
    """f(x, y)[a = e] --> f(x[a = e], y[a = e]), index(a)[a = e] --> e"""
    tensor = t.args[0]
    if not tensor.elementwise or tensor.kind == "spread":
        return None
    coords = dict(zip(t.data, t.args[1:], strict=True))
    if tensor.kind == "index":
        return _whole(rw, coords.get(tensor.data.name, tensor), t)

    def read(x: Term) -> Term:
        here = {a: e for a, e in coords.items() if a in x.names}
        return rw.terms.at(x, here) if here else x

    return _whole(rw, rw.terms.rebuild(tensor, tuple(read(a) for a in tensor.args)), t)


def _whole(rw: Rewriter, x: Term, like: Term) -> Term:
    """`x` with all the axes of `like`."""
    return rw.terms.spread(x, like.axes)


RULES = [
    fold_literals,
    float_literals,
    neutral_literal,
    double_negation,
    add_of_negation,
    product_of_negation,
    idempotent,
    logic_literal,
    where_literal,
    where_same_condition,
    where_nested,
    where_of_negation,
    exact_cast,
    needless_spread,
    read_of_elementwise,
]

"""Contractions, reductions and the composites softmax and logsumexp."""

from __future__ import annotations

from tilecc.dsl.source import Site, user_site
from tilecc.dsl.tensor import Axes, Operand, Tensor, active
from tilecc.dsl.trace import Trace
from tilecc.ir.core import TensorType, Value
from tilecc.ir.dtypes import I64, DType, accumulator
from tilecc.ir.expr import Arg, Cast
from tilecc.ir.ops import contract_type, reduce_type


def dot(a: Operand, b: Operand, *more: Operand, over: Axes = None) -> Tensor:
    """Sum of products: the contraction of `a` and `b` over axes, `tc.dot(q, k, over="d")`.

    Axes that both have and that are not summed are batch axes. Accumulates in f32 (f64 if an
    operand is). A computed operand that meets a 16-bit one is rounded to 16 bits by a cast of its
    own, unless the program casts it to something else.
    """
    trace, site = active(), user_site()
    if more and not isinstance(more[0], Tensor):
        return trace.error("over= is given by name", f"write tc.dot(a, b, over={more[0]!r})")
    if more:
        hint = "contract two, then the result with the third: tc.dot(tc.dot(a, b, ...), c, ...)"
        return trace.error("dot takes two tensors", hint)
    tensors = [trace.coerce(a), trace.coerce(b)]
    if any(t.poisoned for t in tensors):
        return trace.poison(site)
    axes = trace.over(over, tensors, "dot")
    if axes is None:
        return trace.poison(site)
    x, y = (_counted(trace, trace.value(t), site) for t in tensors)
    x, y = _rounded(trace, x, y.type.dtype, site), _rounded(trace, y, x.type.dtype, site)
    type, name = contract_type([x, y], axes), site.variable or "o"
    return trace.wrap(trace.emit("contract", [x, y], type, site, name, over=axes, acc=False), site)


def _counted(trace: Trace, v: Value, site: Site) -> Value:
    """Predicates count as 0 and 1."""
    if v.type.dtype.kind != "bool":
        return v
    return trace.map(Cast(Arg(0), I64), [v], site, v.name)


def _rounded(trace: Trace, v: Value, other: DType, site: Site) -> Value:
    """`v` in the 16-bit type of the contraction's other operand, if it is computed in more bits."""
    wider = v.type.dtype.kind == "float" and v.type.dtype.bits == 32
    narrow = other.kind == "float" and other.bits == 16
    op = v.owner
    if not (wider and narrow) or op is None or op.name == "at":
        return v  # what is stored in f32 stays f32
    if op.name == "map" and isinstance(op.expr, Cast):
        return v  # the program's own cast decides
    return trace.map(Cast(Arg(0), other), [v], site, v.name)


def _reduce(kind: str, x: Operand, over: Axes) -> Tensor:
    trace, site = active(), user_site()
    t = trace.coerce(x)
    if t.poisoned:
        return t
    if isinstance(over, Tensor | int | float):
        wanted = {"max": "write tc.maximum(a, b)", "min": "write tc.minimum(a, b)"}
        hint = "write an expression with operators"
        if not isinstance(over, Tensor):
            hint = f'axes have names, not numbers: write over="{(t.axes or ("i",))[-1]}"'
        hint = wanted.get(kind, hint)
        return trace.error(f"{kind} reduces one tensor over axes given by name", hint)
    axes = trace.over(over, [t], kind)
    if axes is None:
        return trace.poison(site)
    v = _counted(trace, trace.value(t), site)
    type, name = reduce_type(v, axes, kind), site.variable or kind
    return trace.wrap(trace.emit("reduce", [v], type, site, name, kind=kind, over=axes), site)


def sum(x: Operand, over: Axes = None) -> Tensor:
    """Sum over axes; 0 where there is nothing. Accumulates in f32 (f64 for f64, i64 for ints)."""
    return _reduce("sum", x, over)


def max(x: Operand, over: Axes = None) -> Tensor:
    """Largest over axes; -inf where there is nothing, NaN where there is one."""
    return _reduce("max", x, over)


def min(x: Operand, over: Axes = None) -> Tensor:
    """Smallest over axes; inf where there is nothing, NaN where there is one."""
    return _reduce("min", x, over)


def prod(x: Operand, over: Axes = None) -> Tensor:
    """Product over axes; 1 where there is nothing."""
    return _reduce("prod", x, over)


def _composite(name: str, x: Operand, over: Axes) -> Tensor:
    trace, site = active(), user_site()
    t = trace.coerce(x)
    if t.poisoned:
        return t
    axes = trace.over(over, [t], name)
    if axes is None:
        return trace.poison(site)
    if t.dtype.kind != "float":
        hint = 'write tc.cast(x, "float32") first'
        return trace.error(f"{name} works on floats, and its operand is {t.dtype}", hint)
    v = trace.value(t)
    kept = v.type.axes if name == "softmax" else v.type.without(*axes).axes
    type = TensorType(accumulator(v.type.dtype), kept)
    short = site.variable or {"softmax": "p", "logsumexp": "lse"}[name]
    return trace.wrap(trace.emit(name, [v], type, site, short, over=axes), site)


def softmax(x: Operand, over: Axes = None) -> Tensor:
    """exp(x) / sum(exp(x)) over axes, stable; 0 where all of x is -inf."""
    return _composite("softmax", x, over)


def logsumexp(x: Operand, over: Axes = None) -> Tensor:
    """log(sum(exp(x))) over axes, stable; -inf where all of x is -inf."""
    return _composite("logsumexp", x, over)

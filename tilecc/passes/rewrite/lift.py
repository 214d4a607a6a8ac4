"""From graph IR to terms: every map is inlined."""

from __future__ import annotations

from tilecc.ir.core import Func, Op, TensorType, Value
from tilecc.ir.expr import Arg, Call, Cast, Const, Expr, Extent, Index
from tilecc.passes.rewrite.terms import Term, Terms


def lift(func: Func, terms: Terms) -> list[Term]:
    """The terms that `func` returns."""
    env: dict[Value, Term] = {p: terms.param(p) for p in func.params}
    for op in func.body.ops[:-1]:
        terms.loc = op.loc
        t = _lift_op(op, [env[v] for v in op.operands], terms)
        if not t.name and t.kind not in ("param", "const", "index", "extent"):
            t.name = op.result.name
        if t.order is None:
            t.order = op.result.type.axes
        env[op.result] = t
    return [env[v] for v in func.returns]


def _lift_op(op: Op, args: list[Term], terms: Terms) -> Term:
    match op.name:
        case "map":
            t = op.result.type
            x = lift_expr(op.expr, args, t, terms)
            declared = t.dtype
            if x.dtype is not declared or (x.weak and x.dtype.kind == "int"):
                x = terms.cast(x, declared)
            return terms.spread(x, t.axes)
        case "contract":
            return terms.contract(tuple(args), op.over)
        case "reduce":
            return terms.reduce(op.attrs["kind"], args[0], op.over)
        case "at":
            t = op.result.type
            coords = {a: lift_expr(e, args, t, terms) for a, e in op.attrs["coords"]}
            return terms.at(args[0], coords, t.axes)
        case "softmax" | "logsumexp":
            return terms.composite(op.name, args[0], op.over)
    raise TypeError(f"{op.name} is not an operation of graph IR")


def lift_expr(e: Expr, args: list[Term], t: TensorType, terms: Terms) -> Term:
    """The term of a scalar expression over `args`, whose coordinates run over the axes of `t`."""
    match e:
        case Const(value):
            return terms.const(value)
        case Arg(k):
            return args[k]
        case Index(name):
            return terms.index(t.axis(name))
        case Extent():
            return terms.extent(e)
        case Cast(arg, to):
            return terms.cast(lift_expr(arg, args, t, terms), to)
        case Call(fn, fargs):
            return terms.call(fn, *(lift_expr(a, args, t, terms) for a in fargs))
    raise TypeError(f"not an expression of graph IR: {e!r}")

"""Scalar expressions to sympy and back. Importing this module does not import sympy."""

from __future__ import annotations

import math
from collections.abc import Container
from fractions import Fraction
from typing import Any

from tilecc.ir.expr import Acc, Arg, Call, Cast, Const, Expr, Extent, Index, Old, call


def _positive(leaf: Arg | Old, positive: tuple[bool, ...] | Container[Expr]) -> bool:
    return positive[leaf.k] if isinstance(positive, tuple) else leaf in positive


def to_sympy(e: Expr, positive: tuple[bool, ...] | Container[Expr] = ()) -> Any:
    """`e` over the reals: casts between floats are exact, what sympy lacks is an opaque function.

    positive: which leaves are, by number (of Arg and Old alike) or as the leaves themselves.
    """
    import sympy as sp

    def leaf(name: str, **facts: bool) -> Any:
        return sp.Symbol(name, real=True, **facts)

    def known(n: Arg | Old) -> dict[str, bool]:
        return {"positive": True} if _positive(n, positive) else {}

    match e:
        case Const(value):
            return _number(value)
        case Arg(k):
            return leaf(f"a{k}", **known(Arg(k)))
        case Old(k):
            return leaf(f"old{k}", **known(Old(k)))
        case Acc():
            return leaf("acc")
        case Index(axis):
            return leaf(f"index_{axis}")
        case Extent(name):
            return leaf(f"extent_{name}", positive=True)
        case Cast(arg, to):
            inner = to_sympy(arg, positive)
            return inner if to.kind == "float" else sp.Function(f"cast_{to}")(inner)
        case Call(fn, args):
            values = [to_sympy(a, positive) for a in args]
            return _function(fn, values)
    raise TypeError(f"not an expression: {e!r}")


def _number(value: bool | int | float) -> Any:
    import sympy as sp

    if isinstance(value, bool):
        return sp.Integer(int(value))
    if isinstance(value, int) or value.is_integer():
        return sp.Integer(int(value))
    if value != value:
        return sp.nan
    if math.isinf(value):
        return sp.oo if value > 0 else -sp.oo
    # A float is a rounded real: 0.1, log2(e) / 8 and 1 / sqrt(128) are meant as such.
    for unit, name in ((1.0, 1), (1 / math.log(2), 1 / sp.log(2)), (math.log(2), sp.log(2))):
        for power in (1, 2):
            share = Fraction(abs(value / unit) ** power).limit_denominator(4096)
            near = float(share) ** (1 / power) * unit
            if share and abs(near - abs(value)) <= 4 * math.ulp(value):
                root = sp.Rational(share.numerator, share.denominator) ** sp.Rational(1, power)
                return (1 if value > 0 else -1) * root * name
    return sp.Rational(value)


def _function(fn: str, v: list[Any]) -> Any:
    import sympy as sp

    table: dict[str, Any] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "neg": lambda a: -a,
        "pow": lambda a, b: a**b,
        "abs": sp.Abs,
        "exp": sp.exp,
        "exp2": lambda a: sp.Integer(2) ** a,
        "log": sp.log,
        "log2": lambda a: sp.log(a) / sp.log(2),
        "sqrt": sp.sqrt,
        "rsqrt": lambda a: 1 / sp.sqrt(a),
        "tanh": sp.tanh,
        "sigmoid": lambda a: 1 / (1 + sp.exp(-a)),
        "sin": sp.sin,
        "cos": sp.cos,
    }
    if fn in table:
        return table[fn](*v)
    return sp.Function(fn, real=True)(*v)


def from_sympy(s: Any) -> Expr:
    """An expression for `s`, built of symbols that `to_sympy` made."""
    import sympy as sp

    if s is sp.zoo or s is sp.nan:
        return Const(math.nan)  # 1 / 0, whose sign nothing tells
    if s.is_number:
        return Const(float(s))
    if s.is_Symbol:
        return _leaf(str(s))
    if s.is_Add:
        return _sum(s)
    if isinstance(s, sp.exp):
        return call("exp", from_sympy(s.args[0]))
    if s.is_Pow:
        base, n = s.as_base_exp()
        if base == 2 and not n.is_number:
            return call("exp2", from_sympy(n))
        if not n.is_number:
            return call("pow", from_sympy(base), from_sympy(n))
    if s.is_Mul or s.is_Pow:
        return _product(s)
    name = {"Abs": "abs"}.get(type(s).__name__, type(s).__name__)
    return call(name, *(from_sympy(a) for a in s.args))


def _leaf(name: str) -> Expr:
    if name == "acc":
        return Acc()
    for prefix, make in (("index_", Index), ("extent_", Extent)):
        if name.startswith(prefix):
            return make(name.removeprefix(prefix))
    return Old(int(name[3:])) if name.startswith("old") else Arg(int(name[1:]))


def _sum(s: Any) -> Expr:
    # Positive terms first and old values before new ones: `old(m) - m`.
    terms = sorted(s.args, key=lambda t: (_negative(t), "old" not in str(t), str(t)))
    e = from_sympy(terms[0])
    for t in terms[1:]:
        negative = _negative(t)
        e = call("sub" if negative else "add", e, from_sympy(-t if negative else t))
    return e


def _negative(term: Any) -> bool:
    return bool(term.as_coeff_Mul()[0] < 0)


def _product(s: Any) -> Expr:
    above: list[Expr] = []
    below: list[Expr] = []
    coefficient, rest = s.as_coeff_Mul()
    import sympy as sp

    # Exponentials first, as one would write them.
    factors = sorted(sp.Mul.make_args(rest), key=lambda f: (not _exponential(f), str(f)))
    for factor in factors:
        base, n = factor.as_base_exp()
        if n.is_number and n.is_negative and not _exponential(factor):
            below.append(_power(base, -n))
        elif n.is_number and not _exponential(factor):
            above.append(_power(base, n))
        else:
            above.append(from_sympy(factor))
    if coefficient == -1:
        above[:1] = [call("neg", above[0])] if above else [Const(-1.0)]
    elif coefficient != 1:
        above.append(Const(float(coefficient)))
    e = above[0] if above else Const(1.0)
    for a in above[1:]:
        e = call("mul", e, a)
    for b in below:
        e = call("div", e, b)
    return e


def _exponential(f: Any) -> bool:
    import sympy as sp

    return isinstance(f, sp.exp) or bool(f.is_Pow and f.exp.free_symbols)


def _power(base: Any, n: Any) -> Expr:
    e = from_sympy(base)
    if n == 1:
        return e
    if n.is_Rational and n.q == 2 and n.p == 1:
        return call("sqrt", e)
    return call("pow", e, Const(float(n)))

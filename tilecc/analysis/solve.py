"""Predicates solved for one axis: its coordinate taken out of floor divisions, exactly."""

from __future__ import annotations

from tilecc.analysis.forms import Linear, axes_of
from tilecc.analysis.linear import floordiv, linear
from tilecc.analysis.predicate import Atom, Conj, Disj, Pred, atom, conj, disj
from tilecc.ir.expr import Call, Const, Index


def isolate(p: Pred, axis: str) -> Pred:
    """An equal predicate in which index(axis) stands alone wherever that can be had.

    i // 128 >= j // 128   -->   j <= (i // 128) * 128 + 127
    """
    match p:
        case Conj(parts):
            return conj(isolate(q, axis) for q in parts)
        case Disj(parts):
            return disj(isolate(q, axis) for q in parts)
        case Atom(form):
            solved = _out_of_division(form, axis)
            return p if solved is None else isolate(solved, axis)
    return p


def _out_of_division(form: Linear, axis: str) -> Pred | None:
    reading = [(s, c) for s, c in form.terms if axis in axes_of(s)]
    if len(reading) != 1 or reading[0][0] == Index(axis):
        return None
    (s, c), rest = reading[0], form.without(reading[0][0])
    match s:
        case Call("floordiv", (x, Const(d))) if int(d) > 0:
            d = int(d)
            if c > 0:  # x // d >= -(rest // c)
                return atom(linear(x) + floordiv(rest, c) * d)
            # x // d <= rest // -c
            return atom(floordiv(rest, -c) * d + (d - 1) - linear(x))
    return None

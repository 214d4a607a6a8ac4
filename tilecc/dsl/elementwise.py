"""Scalar functions: traced on tensors, coordinates and scalars, computed on plain numbers."""

from __future__ import annotations

import math
from typing import Any
from typing import cast as typed

import numpy as np

from tilecc.dsl.rules import fold
from tilecc.dsl.tensor import Operand, Tensor, active
from tilecc.ir.expr import Const

inf = math.inf


def _scalar(fn: str, *args: Operand) -> Tensor:
    """A traced operation, unless all operands are plain numbers."""
    if all(isinstance(a, bool | int | float | np.number | np.bool_) for a in args):
        numbers = [a.item() if isinstance(a, np.generic) else a for a in args]
        return typed(Tensor, fold(fn, [Const(n) for n in numbers]).value)
    return active().apply(fn, *args)


def where(condition: Operand, a: Operand, b: Operand) -> Tensor:
    """a where the condition holds, b elsewhere; the side not taken has no effect.

    The result has the axes of a and b, then those that only the condition has.
    """
    return _scalar("where", condition, a, b)


def cast(x: Operand, dtype: Any) -> Tensor:
    """x in another element type: `tc.cast(x, "float16")`; floats round to nearest even."""
    return active().cast(x, dtype)


def exp(x: Operand) -> Tensor:
    """e to the power x."""
    return _scalar("exp", x)


def exp2(x: Operand) -> Tensor:
    """2 to the power x."""
    return _scalar("exp2", x)


def log(x: Operand) -> Tensor:
    """Natural logarithm; -inf at 0."""
    return _scalar("log", x)


def log2(x: Operand) -> Tensor:
    """Logarithm in base 2; -inf at 0."""
    return _scalar("log2", x)


def sqrt(x: Operand) -> Tensor:
    """Square root."""
    return _scalar("sqrt", x)


def rsqrt(x: Operand) -> Tensor:
    """1 / sqrt(x)."""
    return _scalar("rsqrt", x)


def tanh(x: Operand) -> Tensor:
    """Hyperbolic tangent."""
    return _scalar("tanh", x)


def sigmoid(x: Operand) -> Tensor:
    """1 / (1 + exp(-x)), stable at both ends."""
    return _scalar("sigmoid", x)


def sin(x: Operand) -> Tensor:
    """Sine of x in radians."""
    return _scalar("sin", x)


def cos(x: Operand) -> Tensor:
    """Cosine of x in radians."""
    return _scalar("cos", x)


def floor(x: Operand) -> Tensor:
    """Largest whole number that is not above x, as a float for floats."""
    return _scalar("floor", x)


def abs(x: Operand) -> Tensor:
    """Magnitude."""
    return _scalar("abs", x)


def maximum(a: Operand, b: Operand) -> Tensor:
    """The larger of a and b; NaN if either is."""
    return _scalar("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Tensor:
    """The smaller of a and b; NaN if either is."""
    return _scalar("minimum", a, b)


def pow(a: Operand, b: Operand) -> Tensor:
    """a to the power b."""
    return _scalar("pow", a, b)

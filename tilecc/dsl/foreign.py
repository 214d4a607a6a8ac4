"""Functions of Python and of other libraries on traced values: refused, with what to write."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np

from tilecc.dsl.habits import instead_of
from tilecc.dsl.source import user_site
from tilecc.dsl.tensor import Tensor, active

# numpy scalars and arrays on an operator's left side arrive as ufuncs.
_OPERATORS = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.true_divide: "div",
    np.floor_divide: "floordiv",
    np.remainder: "mod",
    np.power: "pow",
    np.equal: "eq",
    np.not_equal: "ne",
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
    np.bitwise_and: "and",
    np.bitwise_or: "or",
    np.bitwise_xor: "xor",
}
_RENAMED = {"absolute": "abs", "astype": "cast"}
_SELECT = "write tc.where(condition, a, b)"
_TRUTH = [
    (r"(?<![\w.])(max|min)\(", r"Python's \1()", r"write tc.\1imum(a, b)"),
    (r"\bassert\b", "a Python `assert`", "check the numbers when the kernel is called"),
    (r"\bwhile\b", "a Python `while`", "a loop over an axis is a reduction: x.sum(over=...)"),
    (r"\bif\b", "a Python `if`", _SELECT),
    (r"\band\b", "`and`", "write (a) & (b)"),
    (r"\bor\b", "`or`", "write (a) | (b)"),
    (r"\bnot\b", "`not`", "write ~(a)"),
    (r"[<>]=?[^<>=]+[<>]=?|==[^=]+==", "a chain of comparisons", "write (a < b) & (b < c)"),
]


_NUMBER = [
    (r"\brange\(", "an axis is not looped over: operations work on whole tensors, sums take over="),
    (r"\bmath\.(\w+)\(", r"write tc.\1(x)"),
    (r"(?<![\w.])(int|float|round)\(", "write tc.cast(x, dtype), or tc.floor(x)"),
    (r"\w\[", "a list is not indexed by a traced value: pass it as a tensor and write x.at(n=...)"),
]


def number() -> NoReturn:
    """Refuse a traced tensor's number, naming what on the line asks for it."""
    line = user_site().text
    found = ((re.search(pattern, line), hint) for pattern, hint in _NUMBER)
    default = "write tc.exp for math.exp (and so on), tc.cast(x, dtype) for int() and float()"
    hint = next((m.expand(hint) for m, hint in found if m), default)
    active().fail("a traced value has no number while the spec is traced", hint)


def truth() -> NoReturn:
    """Refuse the truth value of a traced tensor, naming what on the line asks for it."""
    line = user_site().text
    for pattern, what, hint in _TRUTH:
        match = re.search(pattern, line)
        if match:
            what, hint = match.expand(what), match.expand(hint)
            break
    else:
        what = "Python (if, and, or, not, max, min, a < b < c)"
        hint = f"{_SELECT}, and & | ~ between predicates"
    active().fail(f"{what} asks for the truth of a traced value, not known while tracing", hint)


def numpy_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...]) -> Tensor:
    """An operator with a numpy number on its left; any other ufunc is refused."""
    if method == "__call__" and ufunc in _OPERATORS:
        return active().apply(_OPERATORS[ufunc], *inputs)
    return foreign_function("numpy", ufunc.__name__)


def foreign_function(library: str, name: str) -> Tensor:
    """Refuse another library's function `name`, naming tilecc's if there is one."""
    from tilecc import dsl  # an import cycle otherwise

    ours = _RENAMED.get(name, name)
    hint = f"write tc.{ours}" if ours in dsl.__all__ else instead_of(name)
    hint = hint or "write it with tilecc's functions and operators"
    return active().error(f"{library}'s {name} does not work on traced tensors", hint)

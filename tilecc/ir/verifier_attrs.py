"""Rules for what an operation carries: attributes, number of operands, leaves of expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tilecc.ir.core import Axis, Op, Range
from tilecc.ir.expr import (
    FUNCTIONS,
    Acc,
    Arg,
    Call,
    Expr,
    Old,
    arg_numbers,
    extents,
    indices,
    walk,
)
from tilecc.ir.ops import REDUCERS

# Attributes: for each operation their names, what they must be, and whether they may be missing.

Check = Callable[[Any], bool]


def _is_names(x: Any) -> bool:
    return isinstance(x, tuple) and all(isinstance(a, str) for a in x) and len(set(x)) == len(x)


def _is_expr(x: Any) -> bool:
    return isinstance(x, Expr) and all(
        n.fn in FUNCTIONS and len(n.args) == FUNCTIONS[n.fn].arity
        for n in walk(x)
        if isinstance(n, Call)
    )


def _is_coords(x: Any) -> bool:
    return isinstance(x, tuple) and all(_is_expr(c.base if isinstance(c, Range) else c) for c in x)


def _is_pairs(x: Any) -> bool:
    return isinstance(x, tuple) and all(
        isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) and _is_expr(p[1]) for p in x
    )


def _is_sizes(x: Any) -> bool:
    return isinstance(x, tuple) and all(
        isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) and type(p[1]) is int
        for p in x
    )


_NAMES: tuple[Check, str] = (_is_names, "a tuple of different axis names")
_OVER: tuple[Check, str] = (lambda x: _is_names(x) and bool(x), "one or more different axis names")
_EXPR: tuple[Check, str] = (_is_expr, "an expression")
_MAYBE: tuple[Check, str] = (lambda x: x is None or _is_expr(x), "an expression or None")
_KIND: tuple[Check, str] = (lambda x: x in REDUCERS, f"one of {', '.join(REDUCERS)}")
_COORDS: tuple[Check, str] = (_is_coords, "a tuple of ranges and expressions")
_COUNT: tuple[Check, str] = (lambda x: type(x) is int and x >= 0, "a number")

# A name with a question mark may be missing.
_ATTRS: dict[str, dict[str, tuple[Check, str]]] = {
    "contract": {
        "over": _OVER,
        "acc?": (lambda x: isinstance(x, bool), "a bool"),
        "factors?": (lambda x: x == "tf32", "tf32"),
    },
    "map": {"expr": _EXPR},
    "reduce": {"kind": _KIND, "over": _OVER},
    "softmax": {"over": _OVER},
    "logsumexp": {"over": _OVER},
    "at": {"coords": (_is_pairs, "a tuple of (axis, expression)")},
    "stream": {"axis": (lambda x: isinstance(x, str), "an axis name"), "where?": _MAYBE},
    "update": {"kind": _KIND, "repair?": _MAYBE},
    "load": {"coords": _COORDS, "pad?": _NAMES},
    "store": {"coords": _COORDS, "clip?": _NAMES},
    "for": {"lo": _EXPR, "hi": _EXPR, "n_carry": _COUNT},
    "if": {"cond": _EXPR},
}
_KERNEL_ATTRS: dict[str, dict[str, tuple[Check, str]]] = {
    "loop": {"over": _NAMES},
    "tile": {
        "grid": (lambda x: isinstance(x, tuple) and all(map(_is_expr, x)), "expressions"),
        "tile?": (_is_sizes, "a tuple of (axis, number)"),
    },
}

# How many operands there are: at least, and at most.
_OPERANDS: dict[str, tuple[int, int | None]] = {
    "contract": (1, None),
    "reduce": (1, 1),
    "softmax": (1, 1),
    "logsumexp": (1, 1),
    "at": (1, None),
    "update": (1, None),
    "alloc": (0, 0),
    "load": (1, None),
    "store": (2, None),
}


def check_attrs(op: Op) -> Iterable[str]:
    """Attributes that are missing or of the wrong kind, and the number of operands."""
    table = _ATTRS.get(op.name, {})
    if op.name == "kernel":
        table = _KERNEL_ATTRS["tile" if "grid" in op.attrs else "loop"]
    for name, (check, what) in table.items():
        key = name.rstrip("?")
        if key in op.attrs:
            if not check(op.attrs[key]):
                yield f"attribute {key} must be {what}, not {op.attrs[key]!r}"
        elif key == name:
            yield f"attribute {key} is missing"
    least, most = _OPERANDS.get(op.name, (0, None))
    least += bool(op.name == "contract" and op.attrs.get("acc"))
    n = len(op.operands)
    if n < least or (most is not None and n > most):
        yield f"has {n} operands, wanted {least}" + ("" if most == least else " or more")
    if op.name == "for" and isinstance(c := op.attrs.get("n_carry"), int) and c > n:
        yield f"has {n} operands, but carries {c} values"


# Expressions: what their leaves may be.


def _expressions(op: Op) -> Iterable[tuple[str, Expr, tuple[Axis, ...] | None]]:
    """(what it is, the expression, axes of an element of it; None: a scalar without index)."""
    a = op.attrs
    match op.name:
        case "map":
            yield "the expression", a["expr"], op.result.type.axes
        case "at":
            for name, e in a["coords"]:
                yield f"the coordinate of {name}", e, op.result.type.axes
        case "update" if a.get("repair") is not None:
            yield "the repair", a["repair"], op.result.type.axes
        case "load" | "store":
            tile = op.result if op.name == "load" else op.operands[0]
            for c in a["coords"]:
                yield "a coordinate", c.base if isinstance(c, Range) else c, tile.type.axes
        case "for":
            yield "the lower bound", a["lo"], None
            yield "the upper bound", a["hi"], None
        case "if":
            yield "the condition", a["cond"], None
        case "kernel":
            for e in a.get("grid", ()):
                yield "a grid size", e, None


def check_expressions(op: Op, known: set[str]) -> Iterable[str]:
    """Leaves of the operation's expressions that have no meaning where they stand."""
    where = op.attrs.get("where")
    extra = [("the predicate", where, ())] if where is not None else []
    for what, e, axes in [*_expressions(op), *extra]:
        bad = sorted(k for k in arg_numbers(e) if not 0 <= k < len(op.operands))
        if bad:
            yield f"{what} reads operand {bad[0]}, but there are {len(op.operands)}"
            continue
        for n in sorted(extents(e) - known):
            yield f"{what} reads extent {n}, which is in no parameter"
        if op.name != "update" and any(isinstance(n, Acc | Old) for n in walk(e)):
            yield f"{what} reads acc or old(), which only a repair may"
        if op.name == "stream":
            continue  # a predicate has an element for each combination of the indices it reads
        names = {x.name for x in axes or ()}
        for i in sorted(indices(e) - names):
            yield f"{what} reads index({i}), but {i} is no axis of its element"
        for k in sorted({n.k for n in walk(e) if isinstance(n, Arg | Old)}):
            lost = [x for x in op.operands[k].type.names if x not in names]
            if lost:
                yield f"{what} reads {op.operands[k]!r}, whose axis {lost[0]} it does not have"

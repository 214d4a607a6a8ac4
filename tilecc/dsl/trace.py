"""The trace in progress: the graph as it grows, the program's axes, and the errors found so far."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from tilecc.dsl.rules import Refused, Scalar, scalar_call
from tilecc.dsl.source import Site, user_site
from tilecc.dsl.tensor import Tensor, whole
from tilecc.errors import Diagnostic, Loc, SpecError
from tilecc.ir.core import Axis, Block, Builder, TensorType, Value, broadcast_axes
from tilecc.ir.dtypes import BOOL, F32, I64, DType, dtype
from tilecc.ir.expr import Arg, Cast, Const, Expr, Index, shift_args, walk
from tilecc.ir.ops import infer_dtype

# An expression of coordinates and scalars with more nodes than this becomes an operation of its
# own: expressions are trees, and a long chain that reuses its terms would grow without bound.
LARGEST = 256
_INT64 = range(-(2**63), 2**63)


class Trace:
    """State of one spec being traced. Errors are collected, and tracing goes on after them."""

    def __init__(self, name: str, default: DType, axes: dict[str, Axis], complete: bool) -> None:
        self.name = name
        self.default = default
        self.axes = axes
        self.complete = complete  # whether `axes` are all axes (every annotation could be read)
        self.block = Block()
        self.diagnostics: list[Diagnostic] = []

    # Errors.

    def error(self, message: str, hint: str = "", loc: Loc | None = None) -> Tensor:
        """Report an error at the user's line; the tensor returned causes no further ones."""
        site = user_site()
        self.diagnostics.append(Diagnostic(message, loc or site.loc, hint))
        return self.poison(site)

    def fail(self, message: str, hint: str = "") -> NoReturn:
        """Report an error after which tracing cannot go on, with all those found before."""
        self.error(message, hint)
        raise SpecError(list(dict.fromkeys(self.diagnostics)))

    def poison(self, site: Site) -> Tensor:
        """The result of an operation with an error."""
        return Tensor(self, Const(0), (), F32, site, nodes=0)

    # From the user's objects to tensors, from tensors to values of the graph.

    def coerce(self, x: Any) -> Tensor:
        """A tensor of this trace, or a number as a constant; anything else is an error."""
        if isinstance(x, Tensor):
            if x.trace is self:
                return x
            hint = "pass it as an argument, or compute it in this spec"
            return self.error("a traced tensor of another spec is used here", hint)
        if isinstance(x, np.ndarray) and x.ndim == 0:
            x = x[()]
        site = user_site()
        if isinstance(x, bool | np.bool_):
            return Tensor(self, Const(bool(x)), (), BOOL, site)
        if isinstance(x, int | np.integer) and int(x) in _INT64:
            return Tensor(self, Const(int(x)), (), I64, site)
        if isinstance(x, float | np.floating) or type(x).__module__ == "ml_dtypes":
            return Tensor(self, Const(float(x)), (), F32, site)
        kind = type(x).__name__
        if hasattr(x, "shape") or isinstance(x, list | tuple):
            hint = 'declare an argument, x: tc.Tensor["i j"], and pass the array when calling'
            return self.error(f"a spec does not close over arrays ({kind})", hint)
        if isinstance(x, int | np.integer):
            return self.error(f"{x} does not fit 64 bits", "write it as a float, or leave it out")
        hint = "operands are traced tensors and numbers"
        return self.error(f"{x!r} ({kind}) is no operand of a traced operation", hint)

    def value(self, t: Tensor) -> Value:
        """`t` as one value of the graph; an expression becomes a map with the axes it indexes."""
        value = whole(t)
        if value is None:
            t.reads = (self.map(t.expr, t.reads, t.site),)
            t.expr, t.nodes = Arg(0), 1
            value = t.reads[0]
        assert isinstance(value, Value)
        return value

    def wrap(self, value: Value, site: Site) -> Tensor:
        """A value of the graph as a tensor."""
        return Tensor(self, Arg(0), (value,), value.type.dtype, site)

    # Growing the graph.

    def emit(
        self,
        op: str,
        operands: Sequence[Value],
        type: TensorType,
        site: Site,
        name: str = "",
        **attrs: Any,
    ) -> Value:
        """Append an operation, called `name` or after the variable that its line assigns to."""
        b = Builder(self.block, site.loc)
        return b.op(op, operands, [type], names=[name or site.variable], **attrs).result

    def emit_return(self, values: Sequence[Value], site: Site) -> None:
        """Append the terminator."""
        Builder(self.block, site.loc).op("return", values)

    def map(self, e: Expr, reads: Sequence[Value], site: Site, name: str = "") -> Value:
        """Append a `map`."""
        name = name or site.variable or "x"
        dtype = infer_dtype(e, [v.type.dtype for v in reads])
        type = TensorType(dtype, self.result_axes(e, reads))
        return self.emit("map", reads, type, site, name, expr=e)

    def result_axes(self, e: Expr, reads: Iterable[Value]) -> tuple[Axis, ...]:
        """Axes of `map e`: those of the operands in order, then those that are only indexed."""
        indexed = [self.axes[n.axis] for n in walk(e) if isinstance(n, Index)]
        return broadcast_axes([*(v.type for v in reads), TensorType(F32, tuple(indexed))])

    def apply(self, fn: str, *args: Any) -> Tensor:
        """A scalar function of tensors and numbers, which broadcast by axis name."""
        site = user_site()
        tensors = [self.coerce(a) for a in args]
        if any(t.poisoned for t in tensors):
            return self.poison(site)
        # A mask's axes come after those of what it masks.
        order = [*tensors[1:], tensors[0]] if fn == "where" else tensors
        reads = tuple(dict.fromkeys(v for t in order for v in t.reads))
        scalars = [Scalar(relabel(t.expr, t.reads, reads), t.dtype) for t in tensors]
        try:
            e = scalar_call(fn, scalars, self.default)
        except Refused as r:
            return self.error(r.message, r.hint)
        for t, s in zip(tensors, scalars, strict=True):
            if e is s.expr:
                return t  # such as floor of an integer
        return self.expression(e, reads, site, 1 + sum(t.nodes for t in tensors))

    def expression(self, e: Expr, reads: tuple[Value, ...], site: Site, size: int) -> Tensor:
        """A tensor from an expression: an operation at once if it reads tensors that have axes."""
        if any(v.type.axes for v in reads) or size > LARGEST:
            return self.wrap(self.map(e, reads, site), site)
        dtype = infer_dtype(e, [v.type.dtype for v in reads])
        return Tensor(self, e, reads, dtype, site, size)

    def cast(self, x: Any, to: Any) -> Tensor:
        """`x` in another element type."""
        site = user_site()
        t = self.coerce(x)
        try:
            target = dtype(to)
        except (ValueError, TypeError) as e:
            return self.error(str(e), 'write tc.cast(x, "float32"), for example')
        if t.poisoned:
            return t
        if target is BOOL:
            return t if t.dtype is BOOL else self.apply("ne", t, 0)
        return self.expression(Cast(t.expr, target), t.reads, site, t.nodes + 1)

    # Axes by name.

    def axis(self, name: Any, what: str) -> Axis | None:
        """The program's axis `name`; None after reporting that there is none."""
        if isinstance(name, str) and name in self.axes:
            return self.axes[name]
        if not self.complete and isinstance(name, str) and name.isidentifier():
            return None  # an argument with a broken annotation may have had it
        owner = [a.name for a in self.axes.values() if str(getattr(a.extent, "name", "")) == name]
        hint = f"the axes are {', '.join(self.axes) or '(none)'}"
        close = difflib.get_close_matches(str(name), self.axes, 1, 0.5)
        if owner:
            hint = f'{name} is the extent of axis {owner[0]}: write tc.{what}("{owner[0]}")'
        elif close:
            hint += f'; did you mean "{close[0]}"?'
        self.error(f"{what}: no argument has an axis {name!r}", hint)
        return None

    def over(self, over: Any, operands: Sequence[Tensor], what: str) -> tuple[str, ...] | None:
        """The axes named by `over=`, each of which an operand must have; None after an error."""
        have = list(dict.fromkeys(a for t in operands for a in t.axes))
        choice = f"the operands' axes are {', '.join(have) or '(none)'}"
        if len(operands) == 1:
            choice = choice.replace("operands' axes", "operand's axes")
        if isinstance(over, str):
            over = over.replace(",", " ").split()
        if not isinstance(over, list | tuple) or not over:
            hint = f'write over="axis", or over="a b" for several; {choice}'
            message = f"{what} needs over=, the axes that it reduces"
            if over is not None and over != []:
                message = f"{what} over {over!r}: axes have names, not numbers"
            self.error(message, hint)
            return None
        missing = [a for a in over if a not in have]
        for a in missing:
            owner = [n for n in have if str(getattr(self.axes[n].extent, "name", "")) == a]
            hint = f'{a} is the extent of {owner[0]}: write over="{owner[0]}"; ' if owner else ""
            self.error(f"{what} over {a!r}, an axis that no operand has", hint + choice)
        return None if missing else tuple(dict.fromkeys(over))


def relabel(e: Expr, reads: Sequence[Value], new: Sequence[Value]) -> Expr:
    """`e` over `reads`, rewritten to refer to positions in `new`."""
    return shift_args(e, {k: Arg(new.index(v)) for k, v in enumerate(reads)})

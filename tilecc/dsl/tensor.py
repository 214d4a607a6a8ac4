"""The traced tensor: what a spec's arguments are while it is traced, with Python's operators.

A `Tensor` is a scalar expression over values of the graph. An operation on tensors with axes is put
into the graph at once; one on coordinates, extents and scalars alone stays an expression, which
becomes part of the operation that uses it (so a predicate is inside its `where`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import numpy as np

from tilecc.dsl.habits import instead_of
from tilecc.dsl.source import Site, user_site
from tilecc.errors import Diagnostic, SpecError
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Arg, Expr, indices

if TYPE_CHECKING:
    from tilecc.dsl.trace import Trace

Operand = Any  # a Tensor or a number; numpy's and Python's numbers have no common type
Axes = Any  # "j", "j e" or ("j", "e")

ACTIVE: ContextVar[Trace | None] = ContextVar("tilecc_trace", default=None)


def active() -> Trace:
    """The trace in progress.

    Raises:
        SpecError: no spec is being traced.
    """
    trace = ACTIVE.get()
    if trace is None:
        hint = "call it in a function under @tc.spec"
        message = "this works on traced tensors, and no spec is being traced"
        raise SpecError(Diagnostic(message, user_site().loc, hint))
    return trace


class Tensor:
    """A tensor with named axes: an annotation (`tc.Tensor["b h i:N d"]`), and a traced value."""

    __slots__ = ("dtype", "expr", "nodes", "reads", "site", "trace")
    __hash__ = object.__hash__

    def __init__(
        self,
        trace: Trace,
        expr: Expr,
        reads: tuple[Any, ...],
        dtype: DType,
        site: Site,
        nodes: int = 1,
    ) -> None:
        self.trace = trace
        self.expr = expr
        self.reads = reads  # the graph's values that expr's Arg(k) stand for
        self.dtype = dtype
        self.site = site
        self.nodes = nodes  # of expr; 0 marks the result of an operation with an error

    def __class_getitem__(cls, item: Any) -> Any:
        # Read when the spec is traced, so that all errors of a program come together.
        key = (cls, *item) if isinstance(item, tuple) else (cls, item)
        annotated: Any = Annotated
        return annotated[key]

    @property
    def poisoned(self) -> bool:
        """Whether an error was reported where this comes from, so that none should follow."""
        return self.nodes == 0

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in order."""
        names = dict.fromkeys(n for v in self.reads for n in v.type.names)
        return tuple(names) + tuple(sorted(indices(self.expr) - set(names)))

    def __repr__(self) -> str:
        return f"<traced {self.dtype}[{', '.join(self.axes)}]>"

    # Arithmetic.

    def __add__(self, other: Operand) -> Tensor:
        return active().apply("add", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return active().apply("add", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return active().apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return active().apply("sub", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return active().apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return active().apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return active().apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return active().apply("div", other, self)

    def __floordiv__(self, other: Operand) -> Tensor:
        return active().apply("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Tensor:
        return active().apply("floordiv", other, self)

    def __mod__(self, other: Operand) -> Tensor:
        return active().apply("mod", self, other)

    def __rmod__(self, other: Operand) -> Tensor:
        return active().apply("mod", other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return active().apply("pow", self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return active().apply("pow", other, self)

    def __neg__(self) -> Tensor:
        return active().apply("neg", self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return active().apply("abs", self)

    # Predicates.

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return active().apply("eq", self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return active().apply("ne", self, other)

    def __lt__(self, other: Operand) -> Tensor:
        return active().apply("lt", self, other)

    def __le__(self, other: Operand) -> Tensor:
        return active().apply("le", self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return active().apply("gt", self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return active().apply("ge", self, other)

    def __and__(self, other: Operand) -> Tensor:
        return active().apply("and", self, other)

    def __rand__(self, other: Operand) -> Tensor:
        return active().apply("and", other, self)

    def __or__(self, other: Operand) -> Tensor:
        return active().apply("or", self, other)

    def __ror__(self, other: Operand) -> Tensor:
        return active().apply("or", other, self)

    def __xor__(self, other: Operand) -> Tensor:
        return active().apply("xor", self, other)

    def __rxor__(self, other: Operand) -> Tensor:
        return active().apply("xor", other, self)

    def __invert__(self) -> Tensor:
        return active().apply("not", self)

    # Methods.

    def at(self, /, **coords: Operand) -> Tensor:
        """This tensor read at other coordinates: `k.at(hk=tc.index("h") // g)`.

        Each named axis is replaced by the axes of its coordinate, an integer expression.
        """
        from tilecc.dsl import indexing  # an import cycle otherwise

        return indexing.at(self, **coords)

    def sum(self, over: Axes = None) -> Tensor:
        """Sum over axes."""
        from tilecc.dsl import reductions  # an import cycle otherwise

        return reductions.sum(self, over)

    def max(self, over: Axes = None) -> Tensor:
        """Largest over axes; -inf where there is nothing, NaN where there is one."""
        from tilecc.dsl import reductions  # an import cycle otherwise

        return reductions.max(self, over)

    def min(self, over: Axes = None) -> Tensor:
        """Smallest over axes; inf where there is nothing, NaN where there is one."""
        from tilecc.dsl import reductions  # an import cycle otherwise

        return reductions.min(self, over)

    def prod(self, over: Axes = None) -> Tensor:
        """Product over axes."""
        from tilecc.dsl import reductions  # an import cycle otherwise

        return reductions.prod(self, over)

    def cast(self, dtype: Any) -> Tensor:
        """This tensor in another element type."""
        return active().cast(self, dtype)

    astype = cast

    # What a traced value cannot do. Those that Python lets return no tensor end the trace.

    def __matmul__(self, other: Operand) -> Tensor:
        message = "@ does not say which axes to sum over"
        return active().error(message, 'write tc.dot(a, b, over="d")')

    __rmatmul__ = __matmul__

    def __lshift__(self, other: Operand) -> Tensor:
        message = "shifts are not operations on traced values"
        return active().error(message, "write x * 2**n for x << n and x // 2**n for x >> n")

    __rshift__ = __rlshift__ = __rrshift__ = __lshift__

    def __getitem__(self, item: Any) -> Tensor:
        hint = 'write x.at(axis=...), for example x.at(hk=tc.index("h") // 4)'
        return active().error("a traced tensor is not indexed by position", hint)

    def __setitem__(self, item: Any, value: Operand) -> None:
        hint = "write x = tc.where(condition, value, x)"
        active().error("a traced tensor cannot be changed in place", hint)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> Tensor:
        from tilecc.dsl.foreign import numpy_ufunc  # an import cycle otherwise

        return numpy_ufunc(ufunc, method, inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Tensor:
        from tilecc.dsl.foreign import foreign_function  # an import cycle otherwise

        return foreign_function("numpy", func.__name__)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Tensor:
        from tilecc.dsl.foreign import foreign_function  # an import cycle otherwise

        return foreign_function("torch", getattr(func, "__name__", str(func)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        active().fail("a traced tensor cannot become an array", "use tilecc's functions, as tc.exp")

    def __bool__(self) -> NoReturn:
        from tilecc.dsl.foreign import truth  # an import cycle otherwise

        truth()

    def __len__(self) -> NoReturn:
        active().fail("a traced tensor has no len()", 'write tc.extent("i") for axis i')

    def __iter__(self) -> NoReturn:
        hint = 'write x.sum(over="j") instead of sum(x), x.max(over="j") instead of max(x)'
        active().fail("a traced tensor cannot be iterated over", hint)

    def __contains__(self, item: Any) -> NoReturn:
        active().fail("`in` has no meaning on a traced tensor", "write (x == value) with | between")

    def __format__(self, spec: str) -> str:
        if spec:
            active().fail("a traced value has no number to print", 'write f"{x}" to see its axes')
        return repr(self)

    def _number(self, *_: Any) -> NoReturn:
        from tilecc.dsl.foreign import number  # an import cycle otherwise

        number()

    __float__ = __int__ = __index__ = __complex__ = __round__ = __floor__ = __ceil__ = _number

    def __getattr__(self, name: str) -> NoReturn:
        from tilecc import dsl  # an import cycle otherwise

        if name.startswith("_"):
            raise AttributeError(name)
        hint = instead_of(name)
        if name in dsl.__all__:
            hint = f"write tc.{name}(x)"
        active().fail(f"a traced tensor has no attribute '{name}'", hint)


def whole(t: Tensor) -> Any:
    """The graph value that `t` is, or None if `t` is an expression."""
    return t.reads[0] if t.expr == Arg(0) and len(t.reads) == 1 else None

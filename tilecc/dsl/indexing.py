"""Coordinates: index, extent, axis, and reading a tensor through an index expression (`at`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilecc.dsl.names import axis_name_fault
from tilecc.dsl.rules import Refused
from tilecc.dsl.source import Site, make_site, user_site
from tilecc.dsl.tensor import Operand, Tensor, active
from tilecc.dsl.trace import Trace
from tilecc.ir.core import Axis, Op, TensorType, Value, broadcast_axes
from tilecc.ir.dtypes import F32, I64
from tilecc.ir.expr import (
    Arg,
    Call,
    Const,
    Expr,
    Extent,
    Index,
    arg_numbers,
    call,
    extents,
    indices,
    transform,
    walk,
)


def index(axis: str) -> Tensor:
    """The coordinate along an axis, an i64 from 0: `tc.index("j") <= tc.index("i")`."""
    trace, site = active(), user_site()
    found = trace.axis(axis, "index")
    return trace.poison(site) if found is None else Tensor(trace, Index(axis), (), I64, site)


def extent(axis: str) -> Tensor:
    """The extent of an axis, an i64: `tc.rsqrt(tc.extent("d"))`."""
    trace, site = active(), user_site()
    found = trace.axis(axis, "extent")
    return trace.poison(site) if found is None else Tensor(trace, found.extent, (), I64, site)


def axis(name: str, extent: Operand) -> Tensor:
    """Declare an axis that no argument has, and give its coordinate: an i64 from 0.

    `extent` is made of extents and whole numbers: the keys of a paged cache lie in pages, and are
    `tc.axis("j", tc.extent("n") * tc.extent("slot"))`. A negative extent is taken as 0.
    """
    trace, site = active(), user_site()
    size = trace.coerce(extent)
    if size.poisoned:
        return trace.poison(site)
    fault = _axis_fault(trace, name, size)
    if fault:
        return trace.error(*fault)
    trace.axes[name] = Axis(name, _not_negative(size.expr))
    return Tensor(trace, Index(name), (), I64, site)


def _axis_fault(trace: Trace, name: str, size: Tensor) -> tuple[str, str] | None:
    """What is wrong with a new axis (message and hint)."""
    example = 'write tc.axis("j", tc.extent("n") * 16), for example'
    names = {n for a in trace.axes.values() for n in extents(a.extent)}
    if name in trace.axes:
        return f"axis: there is an axis '{name}' already", "give the new axis another name"
    if (fault := axis_name_fault(name)) or name in names:
        return f"axis: {fault or f'{name} is the name of an extent'}", example
    if size.dtype.kind != "int" or size.reads or indices(size.expr):
        message = f"axis: the extent of '{name}' is not made of extents and whole numbers"
        return message, f"{example}; a number known at run time only can be a bound in a mask"
    return None


# Of operands that are not negative these are not negative.
_KEEP_SIGN = frozenset({"add", "mul", "floordiv", "ceildiv", "mod", "minimum", "maximum"})


def _not_negative(e: Expr) -> Expr:
    """`e`, or 0 where it is negative."""

    def plain(n: Expr) -> bool:
        if isinstance(n, Call):
            return n.fn in _KEEP_SIGN
        return isinstance(n, Extent) or (isinstance(n, Const) and n.value >= 0)

    return e if all(map(plain, walk(e))) else call("maximum", e, Const(0))


def at(x: Tensor, /, **coords: Operand) -> Tensor:
    """`x` read at other coordinates: `tc.at(k, hk=tc.index("h") // g)`, or `k.at(hk=...)`.

    Each named axis is replaced by the axes of its coordinate, an integer expression; the other axes
    stay. A tensor that is computed is computed at those coordinates (only arguments are read
    through them), so an axis that is reduced on the way cannot be replaced.
    """
    trace, site = active(), user_site()
    t = trace.coerce(x)
    if not coords:
        return trace.error("at needs coordinates", 'write x.at(hk=tc.index("h") // 4)')
    given = {axis: trace.coerce(c) for axis, c in coords.items()}
    if t.poisoned or any(c.poisoned for c in given.values()):
        return trace.poison(site)
    ok = [_check(trace, t, axis, c) for axis, c in given.items()]
    if not all(ok):
        return trace.poison(site)
    places = {axis: _Coordinate(c.expr, c.reads) for axis, c in given.items()}
    try:
        return trace.wrap(_Substitution(trace, places, site).value(trace.value(t)), site)
    except Refused as r:
        return trace.error(r.message, r.hint)


def _check(trace: Trace, t: Tensor, axis: str, c: Tensor) -> bool:
    """Whether `axis` of `t` can be read at `c`; what is wrong is reported."""
    if axis not in t.axes:
        hint = f"the tensor's axes are {', '.join(t.axes) or '(none)'}"
        trace.error(f"at: the tensor has no axis '{axis}'", hint)
    elif c.dtype.kind != "int":
        hint = 'write tc.cast(x, "int64"), or // instead of /'
        trace.error(f"at: the coordinate of axis '{axis}' is {c.dtype}, not an integer", hint)
    elif isinstance(c.expr, Const) and c.expr.value < 0:
        hint = f'write tc.extent("{axis}") - {-c.expr.value} to count from the end'
        trace.error(f"at: coordinate {c.expr.value} of axis '{axis}' does not wrap around", hint)
    else:
        return True
    return False


@dataclass(frozen=True)
class _Coordinate:
    expr: Expr
    reads: tuple[Value, ...]


class _Operands:
    """Operands of an operation under construction, each once."""

    def __init__(self, first: Sequence[Value] = ()) -> None:
        self.values = list(first)

    def add(self, v: Value) -> Arg:
        if v not in self.values:
            self.values.append(v)
        return Arg(self.values.index(v))


class _Substitution:
    """Rewrites what computes a value so that it is computed at other coordinates."""

    def __init__(self, trace: Trace, coords: Mapping[str, _Coordinate], site: Site) -> None:
        self.trace, self.coords, self.site = trace, coords, site
        self.done: dict[Value, Value] = {}

    def value(self, v: Value) -> Value:
        """`v` at the new coordinates."""
        if not any(n in self.coords for n in v.type.names):
            return v
        if v not in self.done:
            self.done[v] = self.argument(v) if v.owner is None else self.operation(v.owner)
        return self.done[v]

    def axes(self, t: TensorType) -> tuple[Axis, ...]:
        """Axes of a value of type `t` afterwards: a replaced one gives way to its coordinate's."""
        parts: list[TensorType] = []
        for a in t.axes:
            c = self.coords.get(a.name)
            axes = (a,) if c is None else self.trace.result_axes(c.expr, c.reads)
            parts.append(TensorType(F32, axes))
        return broadcast_axes(parts)

    def place(self, c: _Coordinate, operands: _Operands) -> Expr:
        """A coordinate as an expression over `operands`, which grow by what it reads."""
        return self.shift(c.expr, [operands.add(v) for v in c.reads])

    def bind(self, e: Expr, reads: Sequence[Value], operands: _Operands) -> Expr:
        """`e` over `reads` at the new coordinates, as an expression over `operands`."""
        args = [operands.add(self.value(v)) for v in reads]
        places = {n: self.place(c, operands) for n, c in self.coords.items() if _indexes(e, n)}
        return self.shift(e, args, places)

    @staticmethod
    def shift(e: Expr, args: Sequence[Expr], places: Mapping[str, Expr] | None = None) -> Expr:
        def f(n: Expr) -> Expr | None:
            if isinstance(n, Arg):
                return args[n.k]
            if isinstance(n, Index) and places:
                return places.get(n.axis)
            return None

        return transform(e, f)

    def argument(self, v: Value) -> Value:
        """An argument is read through `at`."""
        operands = _Operands([v])
        hit = [n for n in v.type.names if n in self.coords]
        pairs = [(n, self.place(self.coords[n], operands)) for n in hit]
        return self.read(v, pairs, operands, self.site)

    def read(
        self, v: Value, pairs: list[tuple[str, Expr]], operands: _Operands, site: Site
    ) -> Value:
        coords = dict(pairs)
        parts = []
        for a in operands.values[0].type.axes:
            axes: tuple[Axis, ...] = (a,)
            if a.name in coords:
                axes = self.trace.result_axes(coords[a.name], _used(coords[a.name], operands))
            parts.append(TensorType(F32, axes))
        type = TensorType(v.type.dtype, broadcast_axes(parts))
        name = operands.values[0].name
        return self.trace.emit("at", operands.values, type, site, name, coords=tuple(pairs))

    def operation(self, op: Op) -> Value:
        """The operation computed anew: coordinates replaced in it and in what it reads."""
        site = self.site if op.loc is None else _site(op, self.site)
        if op.name == "at":
            return self.composed(op, site)
        type = TensorType(op.result.type.dtype, self.axes(op.result.type))
        if op.name == "map":
            operands = _Operands()
            e = self.bind(op.expr, op.operands, operands)
            return self.trace.emit("map", operands.values, type, site, op.result.name, expr=e)
        self.check_reduction(op)
        reads = [self.value(v) for v in op.operands]
        return self.trace.emit(op.name, reads, type, site, op.result.name, **op.attrs)

    def composed(self, op: Op, site: Site) -> Value:
        """`at` of an `at`: coordinates inside coordinates."""
        source = op.operands[0]
        operands = _Operands([source])
        inner: dict[str, Expr] = dict(op.attrs["coords"])
        pairs = []
        for n in source.type.names:
            if n in inner:
                pairs.append((n, self.bind_in_at(inner[n], op, operands)))
            elif n in self.coords:
                pairs.append((n, self.place(self.coords[n], operands)))
        return self.read(op.result, pairs, operands, site)

    def bind_in_at(self, e: Expr, op: Op, operands: _Operands) -> Expr:
        """A coordinate of an `at`, whose Arg(0) is the tensor that is read."""
        reads = op.operands[1:]
        renumbered = self.shift(e, [Arg(0), *(Arg(k) for k in range(len(reads)))])
        return self.bind(renumbered, reads, operands)

    def check_reduction(self, op: Op) -> None:
        """Refuse a replaced axis that is reduced, and a coordinate in an axis that is."""
        hit = [n for n in op.result.type.names if n in self.coords]
        line = f" (line {op.loc.line})" if op.loc else ""
        for n in hit:
            if n in op.over:
                message = f"at: axis '{n}' is reduced by {op.name}{line} on the way to this tensor"
                raise Refused(message, f"apply at to the tensors that {op.name} reads")
            c = self.coords[n]
            for a in self.trace.result_axes(c.expr, c.reads):
                if a.name in op.over:
                    message = f"at: {op.name}{line} reduces '{a.name}', which the coordinate uses"
                    raise Refused(message, "rename one of the axes in the arguments")


def _indexes(e: Expr, axis: str) -> bool:
    return axis in indices(e)


def _used(e: Expr, operands: _Operands) -> list[Value]:
    return [operands.values[k] for k in sorted(arg_numbers(e))]


def _site(op: Op, site: Site) -> Site:
    """The place of `op`, which is computed anew at another line's wish."""
    assert op.loc is not None
    same = op.loc.file == site.loc.file
    return make_site(site.filename, op.loc.line) if same else Site("", op.loc)

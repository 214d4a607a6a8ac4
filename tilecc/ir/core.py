"""The IR's data structures: axes, types, values, operations, blocks, functions.

One representation serves three levels (graph, loop, tile). Operations form blocks in SSA form;
operations with regions (`kernel`, `stream`, `for`, `if`) may read values of the blocks around them.
Passes do not edit in place: they build a new function with a `Cloner` or a `Builder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilecc.errors import Loc
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Const, Expr, Extent, substitute_extents


@dataclass(frozen=True)
class Axis:
    """A named axis. `extent` is an integer expression over extent names and constants."""

    name: str
    extent: Expr

    @property
    def static(self) -> int | None:
        """The extent as a number, if it is one."""
        return int(self.extent.value) if isinstance(self.extent, Const) else None

    @property
    def size(self) -> int:
        """The extent of an axis of a tile, which is always a number."""
        assert self.static is not None, f"axis {self.name} has no size"
        return self.static


def axis(name: str, extent: Expr | int | str) -> Axis:
    """An Axis from a name and an extent given as number, name or expression."""
    if isinstance(extent, str):
        extent = Extent(extent)
    elif isinstance(extent, int):
        extent = Const(extent)
    return Axis(name, extent)


@dataclass(frozen=True)
class TensorType:
    """Element type, axes in memory order, and memory space ("" for HBM or not yet decided)."""

    dtype: DType
    axes: tuple[Axis, ...] = ()
    space: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The axes' names."""
        return tuple(a.name for a in self.axes)

    def has(self, name: str) -> bool:
        """Whether there is an axis called `name`."""
        return any(a.name == name for a in self.axes)

    def axis(self, name: str) -> Axis:
        """The axis called `name`."""
        return next(a for a in self.axes if a.name == name)

    def without(self, *names: str) -> TensorType:
        """The type less these axes."""
        return replace(self, axes=tuple(a for a in self.axes if a.name not in names))

    def with_dtype(self, dtype: DType) -> TensorType:
        """The type with other elements."""
        return replace(self, dtype=dtype)


class Value:
    """A tensor (or scalar, with no axes). `name` is a hint: the printer makes it unique."""

    __slots__ = ("name", "owner", "type")

    def __init__(self, type: TensorType, name: str = "") -> None:
        self.type = type
        self.name = name
        self.owner: Op | None = None  # None: a parameter or a block argument

    def __repr__(self) -> str:
        return f"%{self.name or '?'}"


class Op:
    """An operation. What operands, attributes and regions it may have is declared in `ops`."""

    __slots__ = ("attrs", "loc", "name", "operands", "regions", "results")

    def __init__(
        self,
        name: str,
        operands: Sequence[Value] = (),
        result_types: Sequence[TensorType] = (),
        attrs: dict[str, Any] | None = None,
        regions: Sequence[Block] = (),
        loc: Loc | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.operands = list(operands)
        self.attrs: dict[str, Any] = dict(attrs or {})
        self.regions = list(regions)
        self.loc = loc
        self.results: list[Value] = []
        for i, t in enumerate(result_types):
            v = Value(t, names[i] if i < len(names) else "")
            v.owner = self
            self.results.append(v)

    @property
    def result(self) -> Value:
        """The only result."""
        (v,) = self.results
        return v

    @property
    def expr(self) -> Expr:
        """The scalar expression of a `map`."""
        e = self.attrs["expr"]
        assert isinstance(e, Expr)
        return e

    @property
    def over(self) -> tuple[str, ...]:
        """The axes that a contraction or reduction sums over."""
        return tuple(self.attrs["over"])

    @property
    def body(self) -> Block:
        """The first region."""
        return self.regions[0]

    def __repr__(self) -> str:
        return f"<{self.name} {self.results} = {self.operands}>"


@dataclass(eq=False)
class Block:
    """A sequence of operations; the last is a terminator (`yield`, `return`) where one is due."""

    args: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    @property
    def terminator(self) -> Op:
        """The last operation."""
        return self.ops[-1]

    def walk(self) -> Iterator[Op]:
        """Every operation, those of nested regions after their parent."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


@dataclass(eq=False)
class Func:
    """A program: parameters, and a body that is the host's plan (kernels in order).

    `attrs` holds facts for all levels.
    """

    name: str
    params: list[Value]
    body: Block
    attrs: dict[str, Any] = field(default_factory=dict)
    loc: Loc | None = None

    @property
    def returns(self) -> list[Value]:
        """The outputs."""
        return self.body.terminator.operands

    def walk(self) -> Iterator[Op]:
        """Every operation, as `Block.walk`."""
        return self.body.walk()

    @property
    def level(self) -> str:
        """ "graph", "loop" or "tile", by the operations that occur."""
        names = {op.name for op in self.walk()}
        if names & {"load", "store", "alloc", "for"}:
            return "tile"
        return "loop" if "kernel" in names else "graph"


class Builder:
    """Appends operations to a block, giving them all the same default source line."""

    def __init__(self, block: Block, loc: Loc | None = None) -> None:
        self.block = block
        self.loc = loc

    def add(self, op: Op) -> Op:
        """Append `op`; without a line it gets the default."""
        if op.loc is None:
            op.loc = self.loc
        self.block.ops.append(op)
        return op

    def op(
        self,
        name: str,
        operands: Sequence[Value] = (),
        result_types: Sequence[TensorType] = (),
        *,
        regions: Sequence[Block] = (),
        loc: Loc | None = None,
        names: Sequence[str] = (),
        **attrs: Any,
    ) -> Op:
        """Make an operation and append it."""
        return self.add(Op(name, operands, result_types, attrs, regions, loc, names))


class Cloner:
    """Copies operations, replacing operands by `mapping` and recording the copies in it.

    `extents` binds named extents to numbers on the way, in types and expressions alike.
    """

    def __init__(
        self, mapping: dict[Value, Value] | None = None, extents: dict[str, int] | None = None
    ) -> None:
        self.mapping: dict[Value, Value] = mapping if mapping is not None else {}
        self.extents = extents or {}
        self.narrow: frozenset[int] = frozenset()  # operands of the op being copied: short integers

    def value(self, v: Value) -> Value:
        """The copy of `v`, or itself."""
        return self.mapping.get(v, v)

    def type(self, t: TensorType) -> TensorType:
        """`t` with its extents bound."""
        if not self.extents:
            return t
        axes = tuple(Axis(a.name, substitute_extents(a.extent, self.extents)) for a in t.axes)
        return replace(t, axes=axes)

    def attr(self, a: Any) -> Any:
        """An attribute with its extents bound."""
        if not self.extents:
            return a
        if isinstance(a, Expr):
            return substitute_extents(a, self.extents, self.narrow)
        if isinstance(a, TensorType):
            return self.type(a)
        if isinstance(a, Axis):
            return Axis(a.name, substitute_extents(a.extent, self.extents))
        if isinstance(a, Range):
            return Range(substitute_extents(a.base, self.extents, self.narrow), a.axis)
        if isinstance(a, tuple):
            return tuple(self.attr(x) for x in a)
        return a

    def fresh(self, v: Value) -> Value:
        """A copy of a parameter or block argument."""
        new = Value(self.type(v.type), v.name)
        self.mapping[v] = new
        return new

    def op(self, op: Op) -> Op:
        """A copy of `op` and of its regions."""
        types = [v.type.dtype for v in op.operands]
        self.narrow = frozenset(k for k, t in enumerate(types) if t.kind == "int" and t.bits < 64)
        new = Op(
            op.name,
            [self.value(v) for v in op.operands],
            [self.type(r.type) for r in op.results],
            {k: self.attr(a) for k, a in op.attrs.items()},
            [self.block(r) for r in op.regions],
            op.loc,
            [r.name for r in op.results],
        )
        self.mapping.update(zip(op.results, new.results, strict=True))
        return new

    def block(self, block: Block) -> Block:
        """A copy of a region."""
        return Block([self.fresh(a) for a in block.args], [self.op(op) for op in block.ops])

    def func(self, f: Func) -> Func:
        """A copy of a function."""
        params = [self.fresh(p) for p in f.params]
        return Func(f.name, params, self.block(f.body), dict(f.attrs), f.loc)


@dataclass(frozen=True)
class Range:
    """A coordinate of a load or store: `base + index(axis)`, `axis` being a tile axis."""

    base: Expr
    axis: str


def bind_extents(f: Func, values: dict[str, int]) -> Func:
    """A copy of `f` in which the named extents are numbers."""
    return Cloner(extents=values).func(f)


def uses(block: Block) -> dict[Value, list[Op]]:
    """For each value the operations that read it, nested regions included."""
    table: dict[Value, list[Op]] = {}
    for op in block.walk():
        for v in dict.fromkeys(op.operands):
            table.setdefault(v, []).append(op)
    return table


def broadcast_axes(types: Iterable[TensorType]) -> tuple[Axis, ...]:
    """Axes of an elementwise result: the union by name, in order of first appearance."""
    axes: dict[str, Axis] = {}
    for t in types:
        for a in t.axes:
            axes.setdefault(a.name, a)
    return tuple(axes.values())

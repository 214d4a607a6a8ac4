"""Traffic of programs over whole tensors: of a graph run as one kernel an operation, as eager
frameworks do, and of fused kernels before tiling, which read every input once a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from tilecc.cost.io import Io, Part
from tilecc.ir.core import Axis, Func, Op, TensorType, Value, uses
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Arg, Call, Cast, Const, Env, Expr, Extent, evaluate, walk

Shape = tuple[Expr, ...]


@dataclass(frozen=True)
class Transfer:
    """A tensor read or written once: as many elements as the smallest of `shapes` has."""

    tensor: str
    dtype: DType
    write: bool
    shapes: tuple[Shape, ...]

    def numbers(self, extents: Mapping[str, int]) -> int | None:
        """Elements; None if an extent is not in `extents`."""
        try:
            env = Env(extent=lambda n: extents[n])
            return min(prod(int(evaluate(e, env)) for e in s) for s in self.shapes)
        except KeyError:
            return None

    def expression(self) -> Any:
        """Elements as a formula."""
        import sympy

        from tilecc.cost.symbols import formula

        return sympy.Min(*(sympy.prod([formula(e) for e in s]) for s in self.shapes))

    def part(self, extents: Mapping[str, int]) -> Part:
        """With numbers for the extents."""
        return Part(
            self.tensor,
            self.write,
            self.dtype,
            self.numbers(extents),
            lambda form: self.expression(),
        )


def unfused(func: Func, extents: Mapping[str, int]) -> Io:
    """A graph with one kernel for each operation; see `Eager`."""
    return Io(tuple(t.part(extents) for t in Eager(func).transfers))


def ideal(func: Func, extents: Mapping[str, int], names: Mapping[str, Expr]) -> Io:
    """Fused kernels that read every input once in each pass over it: no tiling reads less.

    `names` gives the extents of axes by the names that the user gave them.
    """
    found: list[Transfer] = []
    naming = Names(func)
    for kernel in func.body.ops:
        if kernel.name == "kernel":
            found += _fused(kernel, names, naming)
    return Io(tuple(t.part(extents) for t in found))


class Eager:
    """A graph run by a framework without a compiler.

    Each operation reads its operands and writes its result; softmax and logsumexp are one each.
    Floats are stored in the type of the inputs. In no kernel of their own are: a constant factor
    of a product (the product applies it), casts between float types, access maps (views, read as
    far as they reach), and predicates and index arithmetic (computed where they are used).
    """

    def __init__(self, func: Func) -> None:
        self.uses = uses(func.body)
        self.storage = _storage(func)
        self.stored: dict[Value, tuple[str, DType]] = {}
        self.alias: dict[Value, Value] = {}
        self.names = Names(func)
        self.transfers: list[Transfer] = []
        for p in func.params:
            self.stored[p] = self.names.name(p), p.type.dtype
        for op in func.body.ops:
            if op.name != "return":
                self._op(op)
        self._copies(func.returns)

    def _op(self, op: Op) -> None:
        if op.name == "at" or self._is_computed(op):
            return
        if op.name == "map" and self._is_free(op):
            self.alias[op.result] = op.operands[0]
            return
        reads: dict[Value, None] = {}
        for v in op.operands:
            reads |= dict.fromkeys(self._reads(v))
        for v in reads:
            self._transfer(v, write=False)
        self.stored[op.result] = self.names.name(op.result), self._dtype(op.result.type.dtype)
        self._transfer(op.result, write=True)

    def _dtype(self, t: DType) -> DType:
        return self.storage if t.kind == "float" else t

    def _root(self, v: Value) -> Value:
        while v in self.alias:
            v = self.alias[v]
        return v

    def _reads(self, v: Value) -> list[Value]:
        """The stored tensors and views that reading `v` reads."""
        v = self._root(v)
        if v in self.stored:
            return [v] if v.type.axes else []
        op = v.owner
        assert op is not None
        if op.name == "at":
            return [v, *(r for table in op.operands[1:] for r in self._reads(table))]
        return [r for x in op.operands for r in self._reads(x)]

    def _transfer(self, v: Value, *, write: bool) -> None:
        source = v
        while source not in self.stored:  # the tensor behind a view of a view
            assert source.owner is not None
            source = self._root(source.owner.operands[0])
        name, dtype = self.stored[source]
        self.transfers.append(Transfer(name, dtype, write, (_shape(v.type.axes),)))

    def _is_computed(self, op: Op) -> bool:
        """A predicate, an index or a single number."""
        if op.name != "map":
            return False
        tensors = [v for v in op.operands if v.type.axes]
        return op.result.type.dtype.name == "bool" or not op.result.type.axes or not tensors

    def _is_free(self, op: Op) -> bool:
        if _is_float_cast(op):
            return True
        if not _is_scaling(op):
            return False
        v = op.operands[0]
        while v.owner is not None and len(self.uses[v]) == 1 and v.owner.name == "map":
            if not _is_float_cast(v.owner):
                return False
            v = v.owner.operands[0]
        return v.owner is not None and v.owner.name == "contract" and len(self.uses[v]) == 1

    def _copies(self, outputs: list[Value]) -> None:
        """An output that is an input, or a view of one, is copied."""
        for v in outputs:
            root = self._root(v)
            if root.owner is not None and root in self.stored:
                continue
            for r in self._reads(v):
                self._transfer(r, write=False)
            name = self.names.name(v)
            dtype = self._dtype(v.type.dtype)
            self.transfers.append(Transfer(name, dtype, True, (_shape(v.type.axes),)))


def _storage(func: Func) -> DType:
    """The type that intermediate results are stored in: that of the first input in floats."""
    floats = [p.type.dtype for p in func.params if p.type.axes and p.type.dtype.kind == "float"]
    outputs = [v.type.dtype for v in func.returns if v.type.dtype.kind == "float"]
    return next(iter([*floats, *outputs]), func.returns[0].type.dtype)


def _is_float_cast(op: Op) -> bool:
    floats = all(v.type.dtype.kind == "float" for v in [*op.operands, *op.results])
    return isinstance(op.expr, Cast) and isinstance(op.expr.arg, Arg) and floats


def _is_scaling(op: Op) -> bool:
    """Whether a map multiplies (or divides) one tensor by a constant."""
    match op.expr:
        case Call("mul", (Arg(), c)) | Call("mul", (c, Arg())) | Call("div", (Arg(), c)):
            return all(isinstance(n, Const | Extent | Call | Cast) for n in walk(c))
    return False


def _fused(kernel: Op, names: Mapping[str, Expr], naming: Names) -> list[Transfer]:
    """The inputs and outputs of a loop-level kernel."""
    found: dict[tuple[Value, int], Transfer] = {}

    def read(v: Value, where: int) -> None:
        if v.owner is not None and v.owner.name == "at":
            at = v.owner
            tensor = at.operands[0]
            shapes = (_named(v.type.axes, names), _named(tensor.type.axes, names))
            found[v, where] = Transfer(
                naming.name(_behind(tensor)), tensor.type.dtype, False, shapes
            )
            for table in at.operands[1:]:
                read(table, where)
        elif v.type.axes and (v.owner is None or v.owner.name == "kernel"):
            shape = _named(v.type.axes, names)
            found[v, where] = Transfer(naming.name(v), v.type.dtype, False, (shape,))

    for n, op in enumerate(kernel.body.ops):
        inside = list(op.body.ops) if op.regions else [op]
        for inner in inside:
            if inner.name == "at":
                continue
            streamed = op.attrs["axis"] if op.name == "stream" else ""
            for v in inner.operands:
                read(v, n if v.type.has(streamed) else -1)
    outputs = [
        Transfer(naming.name(r), r.type.dtype, True, (_named(r.type.axes, names),))
        for r in kernel.results
    ]
    return [*found.values(), *outputs]


def _behind(v: Value) -> Value:
    while v.owner is not None and v.owner.name == "at":
        v = v.owner.operands[0]
    return v


def _shape(axes: tuple[Axis, ...]) -> Shape:
    return tuple(a.extent for a in axes)


def _named(axes: tuple[Axis, ...], names: Mapping[str, Expr]) -> Shape:
    return tuple(names.get(a.name, a.extent) for a in axes)


class Names:
    """Names of tensors, one each; those of a program's parameters are as the user gave them."""

    def __init__(self, func: Func) -> None:
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        for p in func.params:
            self.name(p)

    def name(self, v: Value) -> str:
        """The name of `v`, which is like its own."""
        if v not in self.names:
            name, n = v.name or "x", 0
            while name in self.taken:
                n += 1
                name = f"{v.name or 'x'}_{n}"
            self.taken.add(name)
            self.names[v] = name
        return self.names[v]


def axis_names(func: Func) -> dict[str, Expr]:
    """The extent of every axis of a graph, by the name of the axis."""
    found: dict[str, Expr] = {}
    types: list[TensorType] = [p.type for p in func.params]
    types += [r.type for op in func.walk() for r in op.results]
    for t in types:
        for a in t.axes:
            found.setdefault(a.name, a.extent)
    return found

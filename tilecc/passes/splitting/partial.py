"""The kernel that computes the states of every part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tilecc.analysis.streams import free_values
from tilecc.ir.core import Block, Builder, Cloner, Op, TensorType, Value
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Arg, Cast, Expr, call
from tilecc.ir.ops import compute_dtype, identity, infer_dtype, make_map
from tilecc.passes.splitting.parts import Parts, states_of, streams_of


def needed(
    block: Block, values: list[Value], reads: Callable[[Op], Iterable[Value]] = free_values
) -> list[Op]:
    """The operations of `block` that `values` depend on, in order."""
    wanted, found = set(values), []
    for op in reversed(block.ops):
        if any(r in wanted for r in op.results):
            wanted.update(reads(op))
            found.append(op)
    return found[::-1]


def partial_kernel(kernel: Op, parts: Parts, cloner: Cloner) -> Op:
    """`kernel` up to its stream, with an axis of parts; it gives all states of each part.

    Operands outside of the kernel are replaced as `cloner` says.
    """
    (stream,) = streams_of(kernel)
    over = (*kernel.attrs["over"], parts.axis.name)
    body = Block()
    inner = Cloner(dict(cloner.mapping))
    before = needed(kernel.body, list(free_values(stream)))
    body.ops += [inner.op(op) for op in before]
    split = _Stream(parts, over, inner).stream(stream)
    body.ops += [split, Op("yield", split.results, loc=kernel.body.terminator.loc)]
    names = [r.name for r in split.results]
    types = [r.type for r in split.results]
    return Op("kernel", [], types, {**kernel.attrs, "over": over}, [body], kernel.loc, names)


@dataclass
class _Stream:
    """Copies a stream so that only the positions of a part count: every sum over it is masked."""

    parts: Parts
    over: tuple[str, ...]
    cloner: Cloner
    block: Block = field(default_factory=Block)
    masked: dict[tuple[Value, str], Value] = field(default_factory=dict)

    def stream(self, stream: Op) -> Op:
        """The copy."""
        for op in stream.body.ops[:-1]:
            self._op(op)
        states = [op.result for op in states_of(stream)]
        yields = [self.cloner.value(v) for v in states]
        self.block.ops.append(Op("yield", yields, loc=stream.body.terminator.loc))
        where = stream.attrs.get("where")  # None: all positions
        inside = self.parts.inside
        return Op(
            "stream",
            [self.cloner.value(v) for v in stream.operands],
            [y.type for y in yields],
            {**stream.attrs, "where": inside if where is None else call("and", inside, where)},
            [self.block],
            stream.loc,
            [v.name for v in states],
        )

    def _op(self, op: Op) -> None:
        operands = [self.cloner.value(v) for v in op.operands]
        if op.name in ("reduce", "contract") and self.parts.of in op.over:
            kind = op.attrs.get("kind", "sum")
            operands = [self._inside(v, kind, op) for v in operands]
        new = Op(
            op.name,
            operands,
            [self._type(r.type, operands) for r in op.results],
            {k: self.cloner.attr(a) for k, a in op.attrs.items()},
            loc=op.loc,
            names=[r.name for r in op.results],
        )
        self.block.ops.append(new)
        self.cloner.mapping.update(zip(op.results, new.results, strict=True))

    def _type(self, t: TensorType, operands: list[Value]) -> TensorType:
        """`t`, with the axis of parts after the parallel ones if an operand has it."""
        axis = self.parts.axis
        if not any(v.type.has(axis.name) for v in operands):
            return t
        ahead = tuple(a for a in t.axes if a.name in self.over)
        return replace(t, axes=(*ahead, axis, *(a for a in t.axes if a not in ahead)))

    def _inside(self, v: Value, kind: str, op: Op) -> Value:
        """`v` with the reducer's identity outside of the part."""
        if not v.type.has(self.parts.of):
            return v
        key = v, kind
        if key not in self.masked:
            t = v.type.dtype
            e = _typed(call("where", self.parts.inside, Arg(0), identity(kind, t)), t)
            axis = self.parts.axis
            type = v.type if v.type.has(axis.name) else self._with(v.type)
            builder = Builder(self.block, op.loc)
            self.masked[key] = make_map(builder, e, [v], type=type, name=v.name)
        return self.masked[key]

    def _with(self, t: TensorType) -> TensorType:
        marked: Any = Value(TensorType(t.dtype, (self.parts.axis,)))
        return self._type(t, [marked])


def _typed(e: Expr, t: DType) -> Expr:
    """`e`, both sides of which have type `t`, in that type: a cast that is exact."""
    return e if infer_dtype(e, [t]) is t or compute_dtype(t) is t else Cast(e, t)

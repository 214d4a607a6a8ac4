"""mask-tiles: a stream says which of its positions can matter; the others are not walked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tilecc.analysis.forms import widened
from tilecc.analysis.neutral import Neutral
from tilecc.analysis.padding import in_memory, padding
from tilecc.analysis.predicate import (
    TRUE,
    Atom,
    Opaque,
    Pred,
    disj,
    literals,
    reads,
    to_expr,
    weaken,
)
from tilecc.errors import Loc
from tilecc.ir.core import Block, Builder, Cloner, Func, Op, Value
from tilecc.ir.expr import (
    FUNCTIONS,
    Arg,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    arg_numbers,
    call,
    shift_args,
    walk,
)
from tilecc.ir.ops import compute_dtype, make_map
from tilecc.ir.printer import print_expr
from tilecc.passes.base import Remarks


@dataclass(frozen=True)
class MaskTiles:
    """Find for each stream the positions that leave every state as it is, and write them down.

    A position matters only where the predicate is true: outside, its contribution to each `update`
    is proved to be the reducer's identity, by following masked values through the body. Kept are
    conditions over coordinates, extents, scalars and what lies in memory (ids, lengths, masks),
    whose access maps move in front of the stream; a condition on computed values is left to the
    mask, which stays in the body. A condition on the streamed axis alone (padding) also guards what
    is read there: `%v` becomes `where(%mask != 0, %v, 0.0)`, so that nothing behind it leaks.

        %m, %l = stream j {
          %x = map where(index(j) <= index(i), %s, -inf)
          %r = reduce max %x over j
          %m = update max %r
          ...
            -->
        %m, %l = stream j where index(j) <= index(i) {
          (the same body)
    """

    name: ClassVar[str] = "mask-tiles"

    def apply(self, func: Func, remarks: Remarks) -> Func:
        """A copy of `func` whose streams carry predicates."""
        writer = _Writer()
        for kernel in (op for op in func.walk() if op.name == "kernel" and "over" in op.attrs):
            for stream in (op for op in kernel.body.walk() if op.name == "stream"):
                search = _Search(stream, frozenset(kernel.over), remarks)
                found = search.predicate()
                if found is not None:
                    writer.found[stream] = found
                writer.padded |= search.padded()
        return writer.func(func)


@dataclass
class _Writer(Cloner):
    """Copies a function, adding the predicates that were found."""

    found: dict[Op, tuple[Expr, list[Value]]] = field(default_factory=dict)
    moved: set[Op] = field(default_factory=set)
    padded: dict[tuple[Op, Value], tuple[Expr, list[Value]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def op(self, op: Op) -> Op:
        new = super().op(op)
        if op in self.found:
            pred, operands = self.found[op]
            new.attrs["where"] = pred
            new.operands = [self.value(v) for v in operands]
        return new

    def block(self, block: Block) -> Block:
        new = Block([self.fresh(a) for a in block.args])
        for op in block.ops:
            if op in self.moved:
                continue
            for view in self._views(op):
                self.moved.add(view)
                new.ops.append(self.op(view))
            copy = self.op(op)
            for n, v in enumerate(op.operands):
                if (op, v) in self.padded:
                    copy.operands[n] = self._guarded(new, op, v)
            new.ops.append(copy)
        return new

    def _views(self, stream: Op) -> list[Op]:
        """The access maps of a stream's body that its predicate reads, in order."""
        wanted = set(self.found[stream][1]) if stream in self.found else set()
        views: list[Op] = []
        for op in reversed(stream.body.ops if wanted else []):
            if op.name == "at" and op.result in wanted:
                views.insert(0, op)
                wanted |= set(op.operands)
        return views

    def _guarded(self, block: Block, op: Op, v: Value) -> Value:
        """`v`, zero where it is padding."""
        live, reads = self.padded[op, v]
        operands = [*dict.fromkeys([self.value(v), *map(self.value, reads)])]
        numbers: dict[int, Expr] = {
            k: Arg(operands.index(self.value(x))) for k, x in enumerate(reads)
        }
        e: Expr = call("where", shift_args(live, numbers), Arg(0), Const(0))
        if v.type.dtype.kind == "float":
            e = call("where", shift_args(live, numbers), Arg(0), Const(0.0))
        if compute_dtype(v.type.dtype) is not v.type.dtype:
            e = Cast(e, v.type.dtype)  # exact: both sides have that type
        return make_map(Builder(block, op.loc), e, operands, type=v.type, name=v.name)


class _Search:
    """The predicate of one stream."""

    def __init__(self, stream: Op, parallel: frozenset[str], remarks: Remarks) -> None:
        self.stream = stream
        self.axes = parallel | {stream.attrs["axis"]}
        self.rows = _rows(stream, parallel)
        self.inside = set(stream.body.walk())
        self.remarks = remarks
        self.facts = Neutral(stream)
        self.updates = [op for op in stream.body.ops if op.name == "update"]

    def predicate(self) -> tuple[Expr, list[Value]] | None:
        """The predicate and the values it reads, or None where every position may matter."""
        live = [self.facts.live(u) for u in self.updates]
        masks = [p for p in live if p != TRUE]
        if not (masks or self._is_masked()) or not self._may_skip(live):
            return None
        exact = disj(live)
        pred = weaken(exact, self._usable)
        self._explain(exact)
        if pred == TRUE:
            return None
        axis = self.stream.attrs["axis"]
        e = to_expr(pred, axis)
        e = widened(e, self.facts.dtypes)
        values = [self.facts.values[k] for k in sorted(arg_numbers(e))]
        numbers = {k: Arg(n) for n, k in enumerate(sorted(arg_numbers(e)))}
        return shift_args(e, dict(numbers)), values

    def padded(self) -> dict[tuple[Op, Value], tuple[Expr, list[Value]]]:
        """Factors of contractions that are read as zero behind padding, and where they are not."""
        out: dict[tuple[Op, Value], tuple[Expr, list[Value]]] = {}
        for op in self.stream.body.ops:
            if op.name != "contract" or self.stream.attrs["axis"] not in op.over:
                continue
            for v in op.operands:
                found = padding(self.facts, op, v) if in_memory(v) else None
                if found is not None:
                    out[op, v] = found
        return out

    def _is_masked(self) -> bool:
        """Whether the body has a condition on the position, whatever comes of it."""
        maps = [op.expr for op in self.inside if op.name == "map"]
        conditions = [n for e in maps for n in walk(e) if isinstance(n, Call)]
        position = Index(self.stream.attrs["axis"])
        return any(FUNCTIONS[n.fn].kind == "bool" and position in walk(n) for n in conditions)

    def _say(self, message: str, loc: Loc | None) -> None:
        # Two passes over an axis meet the same masks; once is enough.
        if not any(r.message == message and r.loc == loc for r in self.remarks.items):
            self.remarks.add(message, loc)

    def _may_skip(self, live: list[Pred]) -> bool:
        """Whether the states allow it; a remark says which does not."""
        axis, ok = self.stream.attrs["axis"], True
        states = {u.result for u in self.updates}
        for v in self.stream.body.terminator.operands:
            if v not in states:
                loc = v.owner.loc if v.owner else None
                self._say(f"all of {axis} is walked: {v!r} is written for each {axis}", loc)
                ok = False
        for u, p in zip(self.updates, live, strict=True):
            if p == TRUE:
                what = f"what masked positions add to {u.result!r} is not proved to be nothing"
                self._say(f"all of {axis} is walked: {what}", u.loc)
            elif not all(self._rests(v) for v in u.operands[1:]):
                what = f"the repair of {u.result!r} depends on the position"
                self._say(f"all of {axis} is walked: {what}", u.loc)
                p = TRUE
            ok = ok and p != TRUE
        return ok

    def _rests(self, v: Value) -> bool:
        """Whether `v` changes from chunk to chunk with the states alone."""
        op = v.owner
        if op is None or op not in self.inside or op.name == "update":
            return True
        axis = self.stream.attrs["axis"]
        exprs = [a for a in op.attrs.values() if isinstance(a, Expr)]
        exprs += [e for _, e in op.attrs.get("coords", ())]
        moves = v.type.has(axis) or axis in op.attrs.get("over", ())
        moves = moves or any(Index(axis) in set(walk(e)) for e in exprs)
        return not moves and all(self._rests(x) for x in op.operands)

    def _usable(self, p: Pred) -> bool:
        """Whether a literal is over coordinates of the kernel's axes and what is known outside."""
        axes, args = reads(p)
        values = [self.facts.values[k] for k in args]
        if axes - self.axes or not all(self._is_known(v) for v in values):
            return False
        if isinstance(p, Atom):
            return True
        assert isinstance(p, Opaque)
        data = any(v.type.axes for v in values)
        return isinstance(p.expr, Arg) or (data and all(map(_is_simple, walk(p.expr))))

    def _is_known(self, v: Value) -> bool:
        """Whether `v` is a scalar from outside, or lies in memory and is no larger than a mask."""
        if not v.type.axes and v.owner not in self.inside:
            return True
        moving = [a for a in v.type.names if a == self.stream.attrs["axis"] or a in self.rows]
        small = v.type.dtype.kind != "float" or len(moving) < 2
        return in_memory(v) and set(v.type.names) <= self.axes and small

    def _explain(self, p: Pred) -> None:
        """A remark for each condition of the program that the predicate leaves out."""
        names = [repr(v) for v in self.facts.values]
        said: set[Expr] = set()
        for x in literals(p):
            source, loc = self.facts.sources.get(x, (to_expr(x), None))
            if source not in said and not self._usable(x) and (reason := self._reason(x)):
                said.add(source)
                text = print_expr(source, names)
                self._say(f"no tile is skipped by the condition {text}: {reason}", loc)

    def _reason(self, p: Pred) -> str:
        axes, args = reads(p)
        values = [self.facts.values[k] for k in args]
        if any(v.owner is not None and v.owner.name != "at" for v in values):
            return ""  # a guard on a state or another computed value, not a mask
        data = [repr(v) for v in values if v.type.axes]
        if data:
            return f"it depends on data ({', '.join(data)})"
        if axes - self.axes:
            return f"it reads index({min(axes - self.axes)}), which is not an axis of the kernel"
        return "it is not integer arithmetic on coordinates"


def _rows(stream: Op, parallel: frozenset[str]) -> frozenset[str]:
    """Parallel axes that some factor of a contraction lacks: what a tile has many of."""
    factors = [op.operands for op in stream.body.ops if op.name == "contract"]
    return frozenset(a for a in parallel for f in factors if not all(v.type.has(a) for v in f))


def _is_simple(e: Expr) -> bool:
    """Whether a node costs no more than arithmetic."""
    return not isinstance(e, Call) or FUNCTIONS[e.fn].kind != "float"

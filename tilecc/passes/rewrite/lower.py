"""From terms back to graph IR: decides which elementwise terms become maps of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilecc.ir.core import Axis, Block, Builder, Func, Op, TensorType, Value, broadcast_axes
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import Arg, Call, Cast, Expr, Index
from tilecc.ir.ops import contract_type, infer_dtype, reduce_type
from tilecc.passes.rewrite.engine import tensor_operands
from tilecc.passes.rewrite.terms import Term, postorder

# Work of a scalar function, in additions; others cost 1.
WEIGHTS = {
    **dict.fromkeys(["exp", "exp2", "log", "log2", "pow", "sqrt", "rsqrt"], 8),
    **dict.fromkeys(["tanh", "sigmoid", "sin", "cos"], 8),
    **dict.fromkeys(["div", "floordiv", "mod", "ceildiv"], 4),
    "philox": 100,
}
EXPENSIVE = 8
# A term that several operations read is computed once if doing it again costs this much.
SHARED_WORK = 3
# An expression tree repeats what it shares: predicates, too, get a map of their own beyond this.
LARGE = 200
# Deeper expressions are cut: what walks them is recursive.
DEEP = 100


@dataclass
class Plan:
    """Which terms become operations, and what is known of each term."""

    order: list[Term]
    roots: list[Term]
    cost: dict[Term, int] = field(default_factory=dict)
    depth: dict[Term, int] = field(default_factory=dict)
    reads: dict[Term, bool] = field(default_factory=dict)  # depends on an operand
    maps: set[Term] = field(default_factory=set)


def plan(roots: list[Term]) -> Plan:
    """Chooses the maps: operands of other operations, shared work, and row-level work in a map
    that is walked along an axis (done per row, not per element)."""
    p = Plan(postorder(roots), roots)
    used: dict[Term, int] = {}
    for t in p.order:
        for a in t.args:
            used[a] = used.get(a, 0) + 1
    p.maps = {t for t in [*roots, *tensor_operands(p.order)] if t.elementwise}
    for t in p.order:
        _measure(p, t)
        if not t.elementwise or t.constant or t in p.maps:
            continue
        again = (used.get(t, 1) - 1) * p.cost[t]
        worth = (p.reads[t] and t.is_float) or p.cost[t] >= EXPENSIVE
        shared = worth and again >= SHARED_WORK and t.dtype.kind != "bool"
        if shared or again >= LARGE or p.depth[t] >= DEEP:
            p.maps.add(t)
            p.cost[t] = p.depth[t] = 0
    _cut_rows(p)
    return p


def _measure(p: Plan, t: Term) -> None:
    """The work of the expression tree of `t` within one map."""
    p.reads[t] = t.kind in ("param", "reduce", "contract", "at") or any(p.reads[a] for a in t.args)
    p.cost[t] = 0
    p.depth[t] = 1 + max((0 if a in p.maps else p.depth[a] for a in t.args), default=0)
    if not t.elementwise:
        p.depth[t] = 0
    if t.kind == "call" and not t.constant:
        inner = sum(0 if a in p.maps else p.cost[a] for a in t.args)
        p.cost[t] = WEIGHTS.get(t.data, 1) + inner


def _cut_rows(p: Plan) -> None:
    walked: dict[Term, set[str]] = {}  # the axes along which a consumer reduces a map
    for t in reversed(p.order):
        if t.kind in ("reduce", "contract"):
            for a in t.args:
                walked.setdefault(a, set()).update(a.names & set(t.over))
    for m in reversed(p.order):
        if m in p.maps:
            stack = list(m.args)
            while stack:
                t = stack.pop()
                if not t.elementwise or t.constant or t in p.maps:
                    walked.setdefault(t, set()).update(walked.get(m, set()) & t.names)
                elif t.dtype.kind == "bool":
                    continue  # predicates stay whole: their form decides what is skipped
                elif _is_row_work(p, t, m, walked.get(m, set())):
                    p.maps.add(t)
                else:
                    stack.extend(t.args)


def _is_row_work(p: Plan, t: Term, m: Term, walked: set[str]) -> bool:
    if not t.is_float or not t.names < m.names or t.names & walked:
        return False
    if walked:
        return p.cost[t] >= (1 if p.reads[t] else EXPENSIVE)
    return p.reads[t] and p.cost[t] >= EXPENSIVE


class _Lowering:
    def __init__(self, func: Func, p: Plan) -> None:
        self.plan = p
        self.values: dict[Term, Value] = {}
        self.block = Block()
        self.builder = Builder(self.block)
        self.params: list[Value] = []
        for old in func.params:
            self.params.append(Value(old.type, old.name))
        self.by_old = dict(zip(func.params, self.params, strict=True))

    def emit(self, t: Term) -> None:
        """Adds the operation of a term that has one."""
        if t.kind == "param":
            self.values[t] = self.by_old[t.data]
        elif t in self.plan.maps:
            self.values[t] = self.map(t)
        elif not t.elementwise:
            self.values[t] = self.tensor_op(t)

    def map(self, t: Term, type: TensorType | None = None) -> Value:
        """A map of `t`; with the given type (order of axes, dtype) if it is an output."""
        reads: list[Value] = []
        e = self.expr(t, reads, top=True)
        inferred = infer_dtype(e, [v.type.dtype for v in reads])
        wanted = type.dtype if type else t.dtype
        if inferred is not wanted:
            e = Cast(e, wanted)
        t_type = type or TensorType(wanted, self.axis_order(t, reads))
        return self.op("map", t, reads, t_type, expr=e)

    def axis_order(self, t: Term, reads: list[Value]) -> tuple[Axis, ...]:
        if t.order is not None and {a.name for a in t.order} == t.names:
            return t.order
        large_first = sorted((v.type for v in reads), key=lambda x: -len(x.axes))
        found = broadcast_axes([*large_first, TensorType(t.dtype, t.axes)])
        return tuple(a for a in found if a.name in t.names)

    def expr(self, t: Term, reads: list[Value], top: bool = False) -> Expr:
        """The expression of `t` over `reads`, to which it adds."""
        if t in self.values and not top:
            v = self.values[t]
            if v not in reads:
                reads.append(v)
            return Arg(reads.index(v))
        match t.kind:
            case "const" | "extent":
                e: Expr = t.data
                return e
            case "index":
                return Index(t.data.name)
            case "cast":
                return Cast(self.expr(t.args[0], reads), t.data)
            case "spread":
                return self.expr(t.args[0], reads)
            case "call":
                return Call(t.data, tuple(self.expr(a, reads) for a in t.args))
        raise AssertionError(f"{t.kind} is an operation of its own")

    def tensor_op(self, t: Term) -> Value:
        args = [self.values[a] for a in (t.args[:1] if t.kind == "at" else t.args)]
        if t.kind == "contract":
            return self.op("contract", t, args, contract_type(args, t.over), over=t.over, acc=False)
        if t.kind == "reduce":
            kind = t.data[0]
            return self.op(
                "reduce", t, args, reduce_type(args[0], t.over, kind), kind=kind, over=t.over
            )
        assert t.kind == "at"
        coords = tuple((a, self.expr(e, args)) for a, e in zip(t.data, t.args[1:], strict=True))
        order = t.order if t.order is not None and len(t.order) == len(t.axes) else t.axes
        return self.op("at", t, args, TensorType(t.dtype, order), coords=coords)

    def op(
        self, name: str, t: Term, reads: list[Value], type: TensorType, **attrs: object
    ) -> Value:
        """Adds an operation with the line and name of `t`."""
        op = Op(name, reads, [type], attrs, loc=t.loc, names=[t.name])
        return self.builder.add(op).result


def lower(func: Func, roots: list[Term]) -> Func:
    """A function like `func` that returns `roots` with the types that `func` returns."""
    p = plan(roots)
    low = _Lowering(func, p)
    for t in p.order:
        low.emit(t)
    outputs: dict[tuple[Term, tuple[str, ...], DType], Value] = {}
    returns = []
    for t, old in zip(roots, func.returns, strict=True):
        key = (t, old.type.names, old.type.dtype)
        if key not in outputs:
            outputs[key] = _output(low, t, old)
        returns.append(outputs[key])
    last = func.body.terminator
    low.block.ops.append(Op("return", returns, [], last.attrs, loc=last.loc))
    return Func(func.name, low.params, low.block, dict(func.attrs), func.loc)


def _output(low: _Lowering, t: Term, old: Value) -> Value:
    v = low.values[t]
    if v.owner is not None and v.type == old.type:
        return v
    if v.owner is not None and t in low.plan.maps and not _read(low, v):
        low.block.ops.remove(v.owner)
        return low.map(t, old.type)
    e: Expr = Arg(0) if v.type.dtype is old.type.dtype else Cast(Arg(0), old.type.dtype)
    return low.op("map", t, [v], old.type, expr=e)


def _read(low: _Lowering, v: Value) -> bool:
    return any(v in op.operands for op in low.block.ops)

"""IR to text. The text is complete: the parser gives back the same IR, so a stage can be edited."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilecc.ir.core import Block, Func, Op, Range, TensorType, Value
from tilecc.ir.expr import (
    FUNCTIONS,
    Acc,
    Arg,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    Index,
    Old,
)

_ATOM = 100
_COMPARISON = 4


def print_ir(func: Func, *, locs: bool = True) -> str:
    """The text of `func`, ending in a newline; `locs` adds each operation's source line."""
    return _Printer(locs).func(func)


def print_op(op: Op) -> str:
    """One operation (the first line of it, if it has regions) for messages."""
    return _Printer(locs=False).op_lines(op, 0)[0].strip()


def print_expr(e: Expr, operands: Sequence[str] = ()) -> str:
    """An expression; operand k is written `operands[k]`, or `%k` where there is none."""
    return _expr(e, lambda k: operands[k] if k < len(operands) else f"%{k}")[0]


def print_type(t: TensorType) -> str:
    """A type on its own, with every extent."""
    return _Printer(locs=False).type(t)


def _expr(e: Expr, name) -> tuple[str, int]:  # type: ignore[no-untyped-def]
    """Text and precedence."""
    match e:
        case Const(value):
            return _const(value), _ATOM
        case Arg(k):
            return name(k), _ATOM
        case Old(k):
            return f"old({name(k)})", _ATOM
        case Acc():
            return "acc", _ATOM
        case Index(axis):
            return f"index({axis})", _ATOM
        case Extent(ext):
            return ext, _ATOM
        case Cast(arg, to):
            return f"cast({_expr(arg, name)[0]}, {to})", _ATOM
        case Call(fn, args):
            return _call(FUNCTIONS[fn].infix, fn, args, name)
    raise TypeError(f"not an expression: {e!r}")


def _const(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(float(value) if isinstance(value, float) else value)  # numpy's print their type


def _call(infix: str, fn: str, args: tuple[Expr, ...], name) -> tuple[str, int]:  # type: ignore[no-untyped-def]
    if not infix:
        return f"{fn}({', '.join(_expr(a, name)[0] for a in args)})", _ATOM
    own = FUNCTIONS[fn].precedence
    if len(args) == 1:
        text, inner = _expr(args[0], name)
        # A minus sign before a digit is part of the literal, so a negated literal gets parentheses.
        bare = inner >= own and not isinstance(args[0], Const)
        return f"{infix}{text}" if bare else f"{infix}({text})", own
    (left, lp), (right, rp) = _expr(args[0], name), _expr(args[1], name)
    if lp < own or (own == _COMPARISON and lp == own):  # comparisons do not chain
        left = f"({left})"
    if rp <= own:
        right = f"({right})"
    return f"{left} {infix} {right}", own


class _Printer:
    def __init__(self, locs: bool) -> None:
        self.locs = locs
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.extents: dict[str, str] = {}

    # names and types

    def value(self, v: Value) -> str:
        if v not in self.names:
            hint = re.sub(r"\W", "_", v.name) or "x"
            name, base, n = hint, re.sub(r"_\d+$", "", hint) or hint, 0
            while name in self.taken:
                n += 1
                name = f"{base}_{n}"
            self.taken.add(name)
            self.names[v] = name
        return f"%{self.names[v]}"

    def values(self, vs: Sequence[Value]) -> str:
        return ", ".join(map(self.value, vs))

    def type(self, t: TensorType) -> str:
        space = f"{t.space} " if t.space else ""
        if not t.axes:
            return f"{space}{t.dtype}"
        axes = []
        for a in t.axes:
            text, precedence = _expr(a.extent, lambda k: f"%{k}")
            text = text if precedence == _ATOM else f"({text})"
            axes.append(a.name if self.extents.get(a.name) == text else f"{a.name}:{text}")
            self.extents[a.name] = text
        return f"{space}{t.dtype}[{', '.join(axes)}]"

    def expr(self, e: Expr, op: Op) -> str:
        text: str = _expr(e, lambda k: self.value(op.operands[k]))[0]
        return text

    # functions and operations

    def func(self, f: Func) -> str:
        params = ", ".join(f"{self.value(p)}: {self.type(p.type)}" for p in f.params)
        head = f"func @{f.name}({params}) {{{self.loc(f)}"
        return "\n".join([head, *self.block(f.body, 1), "}"]) + "\n"

    def loc(self, x: Op | Func) -> str:
        return f"  # {x.loc}" if self.locs and x.loc else ""

    def block(self, block: Block, depth: int) -> list[str]:
        return [line for op in block.ops for line in self.op_lines(op, depth)]

    def op_lines(self, op: Op, depth: int) -> list[str]:
        pad = "  " * depth
        text = getattr(self, f"_{op.name}")(op)
        # Results are named after the operands, which come first in the program.
        lines: list[str] = []
        if op.regions:
            results = f"{self.values(op.results)} = " if op.results else ""
            lines.append(f"{pad}{results}{text} {{{self.loc(op)}")
            lines += self.block(op.regions[0], depth + 1)
            for region in op.regions[1:]:
                lines.append(f"{pad}}} else {{")
                lines += self.block(region, depth + 1)
            return [*lines, f"{pad}}}"]
        results = f"{self.values(op.results)} = " if op.results else ""
        types = f" : {', '.join(self.type(r.type) for r in op.results)}" if op.results else ""
        return [f"{pad}{results}{text}{types}{self.loc(op)}"]

    def _contract(self, op: Op) -> str:
        inputs = op.operands[:-1] if op.attrs.get("acc") else op.operands
        acc = f" acc {self.value(op.operands[-1])}" if op.attrs.get("acc") else ""
        factors = f" in {op.attrs['factors']}" if op.attrs.get("factors") else ""
        return f"contract {self.values(inputs)} over {', '.join(op.over)}{factors}{acc}"

    def _map(self, op: Op) -> str:
        return f"map {self.expr(op.expr, op)}"

    def _reduce(self, op: Op) -> str:
        nan = f"[nan={op.attrs['nan']}]" if op.attrs.get("nan") else ""
        kind = op.attrs["kind"]
        return f"reduce {kind}{nan} {self.value(op.operands[0])} over {', '.join(op.over)}"

    def _softmax(self, op: Op) -> str:
        return f"softmax {self.value(op.operands[0])} over {', '.join(op.over)}"

    def _logsumexp(self, op: Op) -> str:
        return f"logsumexp {self.value(op.operands[0])} over {', '.join(op.over)}"

    def _at(self, op: Op) -> str:
        coords = ", ".join(f"{a} = {self.expr(e, op)}" for a, e in op.attrs["coords"])
        return f"at {self.value(op.operands[0])}[{coords}]"

    def _kernel(self, op: Op) -> str:
        if "grid" not in op.attrs:
            axes = ", ".join(op.attrs["over"])
            return f"kernel over {axes}" if axes else "kernel"
        pairs = zip(op.body.args, op.attrs["grid"], strict=True)
        grid = ", ".join(f"{self.value(v)}: {self.expr(e, op)}" for v, e in pairs)
        tile = ", ".join(f"{a}={n}" for a, n in op.attrs.get("tile", ()))
        return f"kernel grid({grid})" + (f" tile({tile})" if tile else "")

    def _stream(self, op: Op) -> str:
        where = op.attrs.get("where")
        return f"stream {op.attrs['axis']}" + (f" where {self.expr(where, op)}" if where else "")

    def _update(self, op: Op) -> str:
        repair = op.attrs.get("repair")
        tail = f" repair {self.expr(repair, op)}" if repair is not None else ""
        return f"update {op.attrs['kind']} {self.value(op.operands[0])}{tail}"

    def _alloc(self, op: Op) -> str:
        return "alloc"

    def _coords(self, op: Op) -> str:
        return ", ".join(
            f"{self.expr(c.base, op)} :+ {c.axis}" if isinstance(c, Range) else self.expr(c, op)
            for c in op.attrs["coords"]
        )

    def _load(self, op: Op) -> str:
        pad = f" pad {', '.join(op.attrs['pad'])}" if op.attrs.get("pad") else ""
        return f"load {self.value(op.operands[0])}[{self._coords(op)}]{pad}"

    def _store(self, op: Op) -> str:
        x, t = op.operands[:2]
        clip = f" clip {', '.join(op.attrs['clip'])}" if op.attrs.get("clip") else ""
        return f"store {self.value(x)}, {self.value(t)}[{self._coords(op)}]{clip}"

    def _for(self, op: Op) -> str:
        n = op.attrs["n_carry"]
        lo, hi = self.expr(op.attrs["lo"], op), self.expr(op.attrs["hi"], op)
        inits = [self.value(v) for v in op.operands[:n]]
        var = self.value(op.body.args[0])
        names = [self.value(v) for v in op.body.args[1:]]
        carry = ", ".join(f"{a} = {b}" for a, b in zip(names, inits, strict=True))
        return f"for {var} in {lo} .. {hi}" + (f" carry({carry})" if carry else "")

    def _if(self, op: Op) -> str:
        return f"if {self.expr(op.attrs['cond'], op)}"

    def _yield(self, op: Op) -> str:
        return f"yield {self.values(op.operands)}".rstrip()

    def _return(self, op: Op) -> str:
        return f"return {self.values(op.operands)}".rstrip()

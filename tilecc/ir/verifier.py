"""The rules of the IR: every pass takes and gives functions that hold to them.

This module checks structure (what is visible where, levels, terminators, what regions give);
`verifier_rules` checks each operation by itself (attributes, expressions, types).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilecc.errors import Diagnostic, IRError
from tilecc.ir import expr as ex
from tilecc.ir.core import Block, Func, Op, TensorType, Value
from tilecc.ir.dtypes import I64
from tilecc.ir.ops import OPS
from tilecc.ir.verifier_attrs import check_attrs, check_expressions
from tilecc.ir.verifier_rules import TYPE_RULES, Context

# The terminator that the body of an operation ends in; a region without results may leave it out.
_ENDS = {"kernel": "yield", "stream": "yield", "for": "yield", "if": "yield"}
_HOST_ONLY = {"kernel", "alloc"}
_IN_KERNEL = {"stream", "update", "load", "store", "for", "if"}


def verify(func: Func) -> None:
    """Check `func` against all rules.

    Raises:
        IRError: with one diagnostic for each rule that is broken, at the operation's line.
    """
    verifier = _Verifier(func)
    verifier.run()
    if verifier.found:
        raise IRError(verifier.found)


@dataclass
class _Verifier:
    func: Func
    found: list[Diagnostic] = field(default_factory=list)
    visible: set[Value] = field(default_factory=set)
    defined: set[Value] = field(default_factory=set)

    def run(self) -> None:
        self.known = {
            n for p in self.func.params for a in p.type.axes for n in ex.extents(a.extent)
        }
        self.level = self.func.level
        names = [p.name for p in self.func.params]
        for p in self.func.params:
            if names.count(p.name) > 1:
                self.func_error(f"parameter {p!r} is defined twice")
            for message in self.type_problems(p.type):
                self.func_error(f"parameter {p!r}: {message}")
            self.define(p, None)
        body = self.func.body
        if not body.ops or body.ops[-1].name != "return":
            self.func_error("the body must end in return")
        self.block(body, Context(level=self.level))

    def func_error(self, message: str) -> None:
        self.found.append(Diagnostic(f"func @{self.func.name}: {message}", self.func.loc))

    def error(self, op: Op, message: str) -> None:
        self.found.append(Diagnostic(f"{op.name}: {message}", op.loc, f"in: {_text(op)}"))

    def define(self, v: Value, op: Op | None) -> None:
        if v in self.defined:
            where = op or v.owner
            if where is not None:
                self.error(where, f"{v!r} is defined twice")
            else:
                self.func_error(f"{v!r} is defined twice")
        self.defined.add(v)
        self.visible.add(v)

    def block(self, block: Block, context: Context) -> None:
        """Check a block; what it defines is not visible after it."""
        outer = set(self.visible)
        for op in block.ops:
            self.op(op, context, last=op is block.ops[-1])
        self.visible = outer

    def op(self, op: Op, context: Context, last: bool) -> None:
        if op.name not in OPS:
            self.error(op, f"unknown operation {op.name!r}")
            return
        fits = self.placed(op, context, last)
        for v in dict.fromkeys(op.operands):
            if v not in self.visible:
                why = "is not visible here" if v in self.defined else "is used before it is defined"
                self.error(op, f"{v!r} {why}")
        problems = [*self.shape(op), *check_attrs(op)]
        if not problems and fits:
            problems = [*self.types(op), *check_expressions(op, self.known)]
        if not problems and fits and op.name in TYPE_RULES:
            problems = list(TYPE_RULES[op.name](op, context))
        for message in problems:
            self.error(op, message)
        if not problems:
            self.regions(op, context)
        for v in op.results:
            self.define(v, op)
            context.owner[v] = op

    def placed(self, op: Op, context: Context, last: bool) -> bool:
        """Whether the operation may stand at this level and place."""
        d = OPS[op.name]
        before = len(self.found)
        if self.level not in d.levels:
            self.error(op, f"may not stand in {self.level} IR, only in {_or(sorted(d.levels))}")
        elif d.terminator and not last:
            self.error(op, "must be the last operation of its block")
        elif op.name == "return" and context.parent is not None:
            self.error(op, "may only end the function's body")
        elif op.name in _HOST_ONLY and context.parent is not None:
            self.error(op, "may only stand in the function's body")
        elif op.name in _IN_KERNEL and context.parent is None:
            self.error(op, "may only stand inside a kernel")
        elif op.name == "update" and (context.parent is None or context.parent.name != "stream"):
            self.error(op, "may only stand directly in a stream")
        return len(self.found) == before

    def shape(self, op: Op) -> list[str]:
        """Numbers of results and regions."""
        d = OPS[op.name]
        out = []
        if d.results is not None and len(op.results) != d.results:
            out.append(f"has {len(op.results)} results, wanted {d.results}")
        if len(op.regions) != d.regions:
            out.append(f"has {len(op.regions)} regions, wanted {d.regions}")
        return out

    def types(self, op: Op) -> list[str]:
        return [f"{v!r}: {m}" for v in op.results for m in self.type_problems(v.type)]

    def type_problems(self, t: TensorType) -> list[str]:
        out = []
        if len(set(t.names)) < len(t.names):
            out.append(f"an axis is named twice in [{', '.join(t.names)}]")
        for n in sorted({n for a in t.axes for n in ex.extents(a.extent)} - self.known):
            out.append(f"extent {n} is in no parameter")
        return out

    # regions: arguments, terminators, and what they give

    def regions(self, op: Op, context: Context) -> None:
        for k, region in enumerate(op.regions):
            outer = set(self.visible)
            for message in _argument_problems(op, region):
                self.error(op, message)
            for v in region.args:
                self.define(v, op)
            self.block(region, context.inside(op))
            for message in self.yielded(op, region, k):
                self.error(op, message)
            self.visible = outer

    def yielded(self, op: Op, region: Block, k: int) -> list[str]:
        which = f"region {k + 1}" if len(op.regions) > 1 else "the region"
        ends = bool(region.ops) and region.ops[-1].name == _ENDS[op.name]
        if not ends:
            may_miss = not op.results and (op.name == "for" or "grid" in op.attrs)
            return [] if may_miss else [f"{which} must end in yield"]
        given = region.ops[-1].operands
        if len(given) != len(op.results):
            return [f"{which} yields {len(given)} values, but there are {len(op.results)} results"]
        out = [
            f"{which} yields {v!r} of another type than the result {r!r}"
            for v, r in zip(given, op.results, strict=True)
            if v.type != r.type
        ]
        if op.name == "stream":
            own = {o.result for o in region.ops if o.name == "update"}
            axis = op.attrs["axis"]
            out += [
                f"yields {v!r}, which is no state of this stream and has no axis {axis}"
                for v in given
                if v not in own and not v.type.has(axis)
            ]
        return out


def _argument_problems(op: Op, region: Block) -> list[str]:
    """Whether the block arguments are those that the operation gives values to."""
    scalar = TensorType(I64)
    wanted: Sequence[TensorType] = ()
    if op.name == "kernel":
        wanted = [scalar] * len(op.attrs.get("grid", ()))
    elif op.name == "for":
        wanted = [scalar, *(v.type for v in op.operands[: op.attrs["n_carry"]])]
        if [r.type for r in op.results] != list(wanted[1:]):
            return ["the results must have the types of the carried values"]
    if [a.type for a in region.args] == list(wanted):
        return []
    return [f"the region must have {len(wanted)} arguments: indices (i64) and carried values"]


def _text(op: Op) -> str:
    """The operation as text, or as much of it as can be printed."""
    from tilecc.ir.printer import print_op

    try:
        return print_op(op)
    except Exception:  # a broken operation: the message counts, not its picture
        return repr(op)


def _or(words: Sequence[Any]) -> str:
    return " or ".join(map(str, words))

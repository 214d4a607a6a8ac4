"""Text to IR, the inverse of the printer.

The grammar is one rule an operation (docs/ir.md). Errors name file, line and what was expected.
"""

from __future__ import annotations

from tilecc.ir.core import Axis, Block, Func, Op, Range, TensorType, Value
from tilecc.ir.dtypes import DTYPES, I64, DType
from tilecc.ir.expr import (
    BINARY,
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
    shift_args,
)
from tilecc.ir.ops import OPS, REDUCERS
from tilecc.ir.tokens import Token, Tokens

_SPACES = ("sram", "reg")
_DIGITS = 400  # more than any number of an element type has
_LITERALS = {"inf": float("inf"), "nan": float("nan"), "true": True, "false": False}


def parse_ir(text: str, filename: str = "<ir>") -> Func:
    """The function that `text` describes.

    Raises:
        IRError: the text is not IR; names `filename`, the line, and what was expected there.
    """
    parser = _Parser(text, filename)
    try:
        return parser.func()
    except RecursionError:
        parser.fail("nested too deeply")


class _Parser(Tokens):
    def __init__(self, text: str, filename: str) -> None:
        super().__init__(text, filename)
        self.values: dict[str, Value] = {}
        self.extents: dict[str, Expr] = {}
        self.reads: list[Value] = []

    # values and types

    def value(self) -> Value:
        token = self.peek
        if token.kind != "value":
            self.fail(f"expected a value such as %x, found {token.text!r}")
        if token.text not in self.values:
            self.fail(f"{token.text} is not defined here")
        self.next()
        return self.values[token.text]

    def value_list(self) -> list[Value]:
        out: list[Value] = []
        if self.peek.kind == "value":
            self.commas(lambda: out.append(self.value()))
        return out

    def define(self, token: Token, value: Value) -> Value:
        if token.kind != "value":
            self.fail(f"expected a value such as %x, found {token.text!r}", token.line)
        if token.text in self.values:
            self.fail(f"{token.text} is defined twice", token.line)
        value.name = token.text[1:]
        self.values[token.text] = value
        return value

    def dtype(self) -> DType:
        name = self.word("an element type")
        if name not in DTYPES:
            self.fail(f"unknown element type {name!r}; known are {', '.join(DTYPES)}", self.last)
        return DTYPES[name]

    def type(self) -> TensorType:
        space = self.next().text if self.peek.text in _SPACES else ""
        dtype = self.dtype()
        axes: list[Axis] = []
        if self.accept("["):
            self.commas(lambda: axes.append(self.axis()), "]")
        return TensorType(dtype, tuple(axes), space)

    def axis(self) -> Axis:
        name = self.word("an axis")
        if self.accept(":"):
            self.extents[name] = self.atom()
        elif name not in self.extents:
            message = f"axis {name} has no extent yet: write {name}:EXTENT at its first mention"
            self.fail(message, self.last)
        return Axis(name, self.extents[name])

    # expressions: precedence climbing over the table of infix functions

    def expr(self, least: int = 0) -> Expr:
        left = self.unary()
        while self.peek.kind == "op" and self.peek.text in BINARY:
            fn = BINARY[self.peek.text]
            if fn.precedence < least:
                break
            self.next()
            left = Call(fn.name, (left, self.expr(fn.precedence + 1)))
        return left

    def unary(self) -> Expr:
        if self.accept("~"):
            return Call("not", (self.unary(),))
        if self.accept("-"):
            if self.peek.kind == "number" or self.peek.text in ("inf", "nan"):
                literal = self.atom()
                assert isinstance(literal, Const)
                return Const(-literal.value)
            return Call("neg", (self.unary(),))
        return self.atom()

    def atom(self) -> Expr:
        token = self.peek
        if self.accept("("):
            e = self.expr()
            self.expect(")")
            return e
        if token.kind == "number":
            return Const(self.number())
        if token.kind == "value":
            return Arg(self.read(self.value()))
        name = self.word("an expression")
        if name in _LITERALS:
            return Const(_LITERALS[name])
        if name == "acc":
            return Acc()
        return self.application(name) if self.accept("(") else Extent(name)

    def number(self) -> int | float:
        text = self.peek.text
        if len(text) > _DIGITS:
            self.fail(f"a number of {len(text)} digits")
        self.next()
        return int(text) if text.isdigit() else float(text)

    def application(self, name: str) -> Expr:
        if name == "index":
            axis = self.word("an axis")
            self.expect(")")
            return Index(axis)
        if name == "old":
            k = self.read(self.value())
            self.expect(")")
            return Old(k)
        if name == "cast":
            arg = self.expr()
            self.expect(",")
            to = self.dtype()
            self.expect(")")
            return Cast(arg, to)
        if name not in FUNCTIONS:
            self.fail(f"unknown function {name!r}", self.last)
        args: list[Expr] = []
        self.commas(lambda: args.append(self.expr()), ")")
        if len(args) != FUNCTIONS[name].arity:
            wanted = FUNCTIONS[name].arity
            self.fail(f"{name} takes {wanted} arguments, not {len(args)}", self.last)
        return Call(name, tuple(args))

    def read(self, v: Value) -> int:
        """The operand number of `v` in the operation being parsed."""
        if v not in self.reads:
            self.reads.append(v)
        return self.reads.index(v)

    # functions and blocks

    def func(self) -> Func:
        line = self.peek.line
        self.expect("func")
        if self.peek.kind != "symbol":
            self.fail(f"expected a name such as @attention, found {self.peek.text!r}")
        name = self.next().text[1:]
        params: list[Value] = []
        self.expect("(")
        self.commas(lambda: params.append(self.parameter()), ")")
        body = self.block([])
        if self.peek.kind != "end":
            self.fail(f"expected the end of the text, found {self.peek.text!r}")
        return Func(name, params, body, loc=self.locs.get(line))

    def parameter(self) -> Value:
        token = self.next()
        self.expect(":")
        return self.define(token, Value(self.type()))

    def block(self, args: list[Value]) -> Block:
        self.expect("{")
        block = Block(args)
        outer = dict(self.values)
        while not self.accept("}"):
            block.ops.append(self.op())
        self.values = outer  # what a region defines is not visible outside
        return block

    def op(self) -> Op:
        line = self.peek.line
        results: list[Token] = []
        if self.peek.kind == "value":
            self.commas(lambda: results.append(self.next()))
            self.expect("=")
        name = self.word("an operation")
        if name not in OPS:
            self.fail(f"unknown operation {name!r}", line)
        self.reads = []
        op: Op = getattr(self, f"_{name}")()
        op.loc = self.locs.get(line)
        if len(results) != len(op.results):
            self.fail(f"{name} has {len(op.results)} results, not {len(results)}", line)
        for token, v in zip(results, op.results, strict=True):
            self.define(token, v)
        return op

    def typed(self, name: str, operands: list[Value], **attrs: object) -> Op:
        self.expect(":")
        return Op(name, operands, [self.type()], attrs)

    def _contract(self) -> Op:
        operands = self.value_list()
        self.expect("over")
        over = self.names()
        factors = {"factors": self.word("a type of factors")} if self.accept("in") else {}
        acc = self.accept("acc")
        if acc:
            operands.append(self.value())
        return self.typed("contract", operands, over=over, acc=acc, **factors)

    def _map(self) -> Op:
        e = self.expr()
        return self.typed("map", self.reads, expr=e)

    def reducer(self) -> str:
        kind = self.word("a reducer")
        if kind not in REDUCERS:
            self.fail(f"unknown reducer {kind!r}; known are {', '.join(REDUCERS)}", self.last)
        return kind

    def _reduce(self) -> Op:
        attrs: dict[str, object] = {"kind": self.reducer()}
        if self.accept("["):
            self.expect("nan")
            self.expect("=")
            attrs["nan"] = self.word()
            self.expect("]")
        x = self.value()
        self.expect("over")
        return self.typed("reduce", [x], **attrs, over=self.names())

    def _softmax(self) -> Op:
        return self.composite("softmax")

    def _logsumexp(self) -> Op:
        return self.composite("logsumexp")

    def composite(self, name: str) -> Op:
        x = self.value()
        self.expect("over")
        return self.typed(name, [x], over=self.names())

    def _at(self) -> Op:
        self.reads = [self.value()]
        coords: list[tuple[str, Expr]] = []

        def coordinate() -> None:
            axis = self.word("an axis")
            self.expect("=")
            coords.append((axis, self.expr()))

        self.expect("[")
        self.commas(coordinate, "]")
        return self.typed("at", self.reads, coords=tuple(coords))

    def _kernel(self) -> Op:
        if self.accept("grid"):
            return self.tiled_kernel()
        over = self.names() if self.accept("over") else ()
        body = self.block([])
        types = [v.type for v in self.yielded(body)]
        return Op("kernel", [], types, {"over": over}, [body])

    def tiled_kernel(self) -> Op:
        args: list[Value] = []
        sizes: list[Expr] = []
        tile: list[tuple[str, int]] = []

        def dimension() -> None:
            token = self.next()
            self.expect(":")
            sizes.append(self.expr())
            args.append(self.define(token, Value(TensorType(I64))))

        def bound() -> None:
            axis = self.word("an axis")
            self.expect("=")
            if not self.peek.text.isdigit():
                self.fail(f"the tile of {axis} must be a whole number, not {self.peek.text!r}")
            tile.append((axis, int(self.number())))

        outer = dict(self.values)
        self.expect("(")
        self.commas(dimension, ")")
        if self.accept("tile"):
            self.expect("(")
            self.commas(bound, ")")
        operands = self.reads
        attrs: dict[str, object] = {"grid": tuple(sizes)}
        if tile:
            attrs["tile"] = tuple(tile)
        body = self.block(args)
        self.values = outer
        return Op("kernel", operands, [], attrs, [body])

    def _stream(self) -> Op:
        attrs: dict[str, object] = {"axis": self.word("an axis")}
        if self.accept("where"):
            attrs["where"] = self.expr()
        operands = self.reads
        body = self.block([])
        return Op("stream", operands, [v.type for v in self.yielded(body)], attrs, [body])

    def yielded(self, body: Block) -> list[Value]:
        if not body.ops or body.terminator.name != "yield":
            self.fail("this region must end in yield", self.last)
        return body.terminator.operands

    def _update(self) -> Op:
        kind = self.reducer()
        self.reads = [self.value()]
        repair = self.expr() if self.accept("repair") else None
        return self.typed("update", self.reads, kind=kind, repair=repair)

    def _alloc(self) -> Op:
        return self.typed("alloc", [])

    def coordinates(self) -> tuple[Range | Expr, ...]:
        out: list[Range | Expr] = []

        def coordinate() -> None:
            e = self.expr()
            out.append(Range(e, self.word("a tile axis")) if self.accept(":+") else e)

        self.expect("[")
        self.commas(coordinate, "]")
        return tuple(out)

    def _load(self) -> Op:
        self.reads = [self.value()]
        coords = self.coordinates()
        pad = self.names() if self.accept("pad") else ()
        return self.typed("load", self.reads, coords=coords, pad=pad)

    def _store(self) -> Op:
        x = self.value()
        self.expect(",")
        self.reads = [x, self.value()]
        coords = self.coordinates()
        clip = self.names() if self.accept("clip") else ()
        return Op("store", self.reads, [], {"coords": coords, "clip": clip})

    def _for(self) -> Op:
        var = self.next()
        self.expect("in")
        lo = self.expr()
        self.expect("..")
        hi = self.expr()
        reads, inits, names = self.reads, list[Value](), list[Token]()

        def carried() -> None:
            names.append(self.next())
            self.expect("=")
            inits.append(self.value())

        if self.accept("carry"):
            self.expect("(")
            self.commas(carried, ")")
        outer = dict(self.values)
        args = [self.define(var, Value(TensorType(I64)))]
        args += [self.define(t, Value(v.type)) for t, v in zip(names, inits, strict=True)]
        body = self.block(args)
        self.values = outer
        n = len(inits)
        shift: dict[int, Expr] = {k: Arg(k + n) for k in range(len(reads))}
        attrs = {"lo": shift_args(lo, shift), "hi": shift_args(hi, shift), "n_carry": n}
        return Op("for", inits + reads, [v.type for v in inits], attrs, [body])

    def _if(self) -> Op:
        cond = self.expr()
        operands = self.reads
        then = self.block([])
        self.expect("else")
        other = self.block([])
        ends = bool(then.ops) and then.terminator.name == "yield"  # may be absent: no results
        types = [v.type for v in then.terminator.operands] if ends else []
        return Op("if", operands, types, {"cond": cond}, [then, other])

    def _yield(self) -> Op:
        return Op("yield", self.value_list())

    def _return(self) -> Op:
        return Op("return", self.value_list())

"""The parser behind `ptx.parse`: recursive descent over tokens, with register scopes."""

from __future__ import annotations

import re

from tilecc.emulator.operand_parser import OperandParser
from tilecc.emulator.operands import FloatImm, Imm, Vector
from tilecc.emulator.ptx import Function, Instruction, Module, SourceLine, Variable, type_named
from tilecc.emulator.tokens import END, Stream, Token

_LINE_DIRECTIVES = frozenset(
    [
        ".loc",
        ".file",
        ".version",
        ".target",
        ".address_size",
        ".maxntid",
        ".reqntid",
        ".minnctapersm",
        ".maxnreg",
    ]
)
_SPACES = frozenset([".shared", ".local", ".global", ".const", ".param"])
_LINKAGE = frozenset([".visible", ".extern", ".weak", ".common"])


class Parser:
    """One module's text and where the parser is in it."""

    def __init__(self, text: str) -> None:
        self._stream = Stream(text)
        self._operands = OperandParser(self._stream)
        self._files = {
            int(m[1]): m[2] for m in re.finditer(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M)
        }
        self._loc: SourceLine | None = None
        self._used: int | None = None
        self._inlined: dict[tuple[str, ...], list[str]] = {}
        self._scope_count = 0

    # -- module

    def module(self) -> Module:
        """The whole text."""
        module = Module({}, [], "", "")
        while self._stream.peek() is not END:
            token = self._stream.next()
            if token.text in (".version", ".target"):
                found = self._stream.rest_of_line()
                setattr(module, token.text[1:], found[0].text if found else "")
            elif token.text in _LINE_DIRECTIVES:
                self._stream.rest_of_line()
            elif token.text == ".section":
                self._stream.rest_of_line()
                self._stream.skip_braces()
            elif token.text in _LINKAGE or token.text == ";":
                continue
            elif token.text in (".entry", ".func"):
                f = self._function(token.text == ".entry")
                if f is not None:
                    module.functions[f.name] = f
            elif token.text in _SPACES:
                module.variables.append(self._variable(token.text))
            else:
                raise self._stream.error(token, "unknown directive")
        return module

    def _function(self, entry: bool) -> Function | None:
        if self._stream.peek().text == "(":
            self._parameters()  # what a function returns
        name = self._stream.next().text
        f = Function(name, entry, self._parameters() if self._stream.peek().text == "(" else [])
        while self._stream.peek().text not in ("{", ";"):
            token = self._stream.next()
            if token.text not in _LINE_DIRECTIVES:
                raise self._stream.error(token, "unknown directive of a function")
            self._stream.rest_of_line()
        if self._stream.take(";"):
            return None  # a declaration
        self._loc = None
        self._block(f)
        return f

    def _parameters(self) -> list[Variable]:
        self._stream.expect("(")
        found = []
        while not self._stream.take(")"):
            space = self._stream.next()
            if space.text not in (".param", ".reg"):
                raise self._stream.error(space, "expected .param")
            found.append(self._declaration(space.text))
            self._stream.take(",")
        return found

    def _variable(self, space: str) -> Variable:
        found = self._declaration(space)
        self._stream.expect(";")
        return found

    def _declaration(self, space: str) -> Variable:
        """`.align 16 .b8 name[4] = {...}`, without what ends it."""
        align = 0
        t = None
        while t is None:
            token = self._stream.next()
            if token.text == ".align":
                align = int(self._stream.next().text)
            elif token.text == ".ptr":
                while self._stream.peek().text in (".global", ".shared", ".const", ".local"):
                    self._stream.next()
            elif token.kind == "word" and token.text.startswith("."):
                t = type_named(token.text, token.line)
            else:
                raise self._stream.error(token, "expected a type")
        while self._stream.peek().text in (
            ".ptr",
            ".global",
            ".shared",
            ".const",
            ".local",
            ".align",
        ):
            if self._stream.next().text == ".align":  # facts about what a pointer points to
                self._stream.integer()
        name = self._stream.next()
        size: int | None = t.bytes
        while self._stream.take("["):
            if self._stream.take("]"):
                size = None
                continue
            assert size is not None
            size *= self._stream.integer()
            self._stream.expect("]")
        initial = self._initial(t.bytes, size, name) if self._stream.take("=") else b""
        return Variable(name.text, space[1:], t, size, align or t.bytes, initial)

    def _initial(self, width: int, size: int | None, name: Token) -> bytes:
        values = [self._operands.literal()]
        if isinstance(values[0], Vector):
            values = list(values[0].elements)
        found = b""
        for v in values:
            if not isinstance(v, Imm | FloatImm):
                raise self._stream.error(
                    name, "initial values that are no numbers are not supported"
                )
            bits = v.value if isinstance(v, Imm) else v.bits
            found += (bits % (1 << (8 * width))).to_bytes(width, "little")
        return found.ljust(size or 0, b"\0")

    # -- bodies

    def _block(self, f: Function) -> None:
        self._stream.expect("{")
        self._scope_count += 1
        self._operands.scopes.append({})
        while not self._stream.take("}"):
            self._statement(f)
        self._operands.scopes.pop()

    def _statement(self, f: Function) -> None:
        token = self._stream.peek()
        if token is END:
            raise self._stream.error(token, "'}' is missing")
        if token.text == "{":
            self._block(f)
        elif self._stream.take(";"):
            return
        elif token.text.startswith("."):
            self._stream.next()
            self._directive(f, token)
        elif token.kind == "word" and self._stream.peek(1).text == ":":
            self._stream.next()
            self._stream.next()
            f.labels[token.text] = len(f.body)
        else:
            f.body.append(self._instruction())

    def _directive(self, f: Function, token: Token) -> None:
        if token.text == ".loc":
            self._loc = self._location([t.text for t in self._stream.rest_of_line()])
        elif token.text == ".reg":
            self._registers(f)
        elif token.text == ".pragma":
            while not self._stream.take(";"):
                name, _, value = self._stream.next().text.strip('"').partition(" ")
                if name == "used_bytes_mask":
                    self._used = int(value, 0)
        elif token.text in _SPACES:
            f.variables.append(self._variable(token.text))
        else:
            raise self._stream.error(token, "unknown directive")

    def _location(self, facts: list[str]) -> SourceLine | None:
        """The line that a .loc names; for code that was inlined, of the outermost call."""
        place = facts[:3]
        if "inlined_at" in facts:
            at = facts.index("inlined_at") + 1
            outer = facts[at : at + 3]
            outer = self._inlined.get(tuple(outer), outer)
            self._inlined[tuple(place)] = place = outer
        file, line, column = (int(x) for x in place)
        return SourceLine(self._files.get(file, str(file)), line, column) if line else None

    def _registers(self, f: Function) -> None:
        t = self._stream.next()
        kind = type_named(t.text, t.line)
        while True:
            name = self._stream.next().text
            names = [name]
            if self._stream.take("<"):
                names = [f"{name}{i}" for i in range(self._stream.integer())]
                self._stream.expect(">")
            for n in names:
                unique = n if len(self._operands.scopes) == 1 else f"{n}@{self._scope_count}"
                self._operands.scopes[-1][n] = unique
                f.registers[unique] = kind
            if self._stream.take(";"):
                return
            self._stream.expect(",")

    def _instruction(self) -> Instruction:
        predicate = None
        first = self._stream.peek()
        if self._stream.take("@"):
            predicate = self._operands.register(self._stream.take("!"))
        word = self._stream.next()
        if word.kind != "word":
            raise self._stream.error(word, "expected an instruction")
        opcode, *modifiers = word.text.split(".")
        operands = []
        while not self._stream.take(";"):
            operands.append(self._operands.operand())
            if not self._stream.take(",") and self._stream.peek().text != ";":
                raise self._stream.error(self._stream.peek(), "expected ',' or ';'")
        text = self._stream.lines[first.line - 1].strip()
        mods = tuple(modifiers)
        used, self._used = self._used, None
        return Instruction(
            opcode, mods, tuple(operands), predicate, first.line, text, self._loc, used
        )

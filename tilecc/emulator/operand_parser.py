"""Operands of instructions from tokens, with the scopes of register names."""

from __future__ import annotations

import struct

from tilecc.emulator.operands import (
    Address,
    FloatImm,
    Group,
    Imm,
    Operand,
    Pair,
    Reg,
    Symbol,
    Vector,
)
from tilecc.emulator.tokens import Stream, Token


class OperandParser:
    """Operands; `scopes` map names that are declared to what they are called in the function."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.scopes: list[dict[str, str]] = []

    def operand(self) -> Operand:
        """An operand, d|p included."""
        first = self.literal()
        if self._stream.take("|"):
            return Pair(first, self.literal())
        return first

    def literal(self) -> Operand:
        """An operand that is no pair."""
        token = self._stream.next()
        if token.text == "{":
            return Vector(self._elements("}"))
        if token.text == "(":
            return Group(self._elements(")"))
        if token.text == "[":
            return self._address()
        if token.text == "!":
            return self.register(negated=True)
        if token.kind == "number" or token.text == "-":
            return self._number(token)
        if token.kind == "word":
            return self._named(token)
        raise self._stream.error(token, "unexpected operand")

    def _elements(self, end: str) -> tuple[Operand, ...]:
        found = []
        while not self._stream.take(end):
            found.append(self.literal())
            self._stream.take(",")
        return tuple(found)

    def _named(self, token: Token) -> Reg | Symbol:
        declared = self._declared(token.text)
        if declared or token.text == "_" or token.text.startswith("%"):
            return Reg(declared or token.text)
        if self._stream.peek().text == "+":
            self._stream.next()
            return Symbol(token.text, self._stream.integer())
        return Symbol(token.text)

    def _declared(self, name: str) -> str | None:
        """A register's unique name, if it is declared here."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def register(self, negated: bool = False) -> Reg:
        """A register by its name."""
        name = self._stream.next().text
        return Reg(self._declared(name) or name, negated)

    def _address(self) -> Address:
        token = self._stream.next()
        base: Reg | Symbol | Imm
        if token.kind == "number":
            base = Imm(int(token.text.rstrip("U"), 0))
        else:
            name = self._declared(token.text)
            register = name or token.text.startswith("%")
            base = Reg(name or token.text) if register else Symbol(token.text)
        offset = 0
        while not self._stream.take("]"):
            sign = self._stream.next()
            if sign.text not in "+-":
                raise self._stream.error(sign, "unexpected in an address")
            offset += self._stream.integer() * (1 if sign.text == "+" else -1)
        return Address(base, offset)

    def _number(self, token: Token) -> Imm | FloatImm:
        negative = token.text == "-"
        text = (self._stream.next() if negative else token).text
        if text[:2].lower() in ("0f", "0d"):
            width = 32 if text[1] in "fF" else 64
            bits = int(text[2:], 16) ^ (negative << (width - 1))
            return FloatImm(bits, width)
        if "." in text:
            value = -float(text) if negative else float(text)
            return FloatImm(int.from_bytes(struct.pack("<d", value), "little"), 64)
        return Imm(-int(text.rstrip("U"), 0) if negative else int(text.rstrip("U"), 0))

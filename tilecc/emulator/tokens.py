"""PTX text to tokens with their lines."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilecc.emulator.types import EmulatorError

_TOKEN = re.compile(
    r"""
    (?P<blank>\s+ | //[^\n]* | /\*.*?\*/)
  | (?P<string>"[^"\n]*")
  | (?P<number>0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b | 0[xX][0-9a-fA-F]+U?
      | \d+\.\d*(?:[eE][+-]?\d+)? | \d+U?)
  | (?P<word>[%$._A-Za-z](?:[\w$.] | ::(?=\w))*)
  | (?P<sign>[-+@!;:,|(){}\[\]<>=*/&~^])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text; `kind` is string, number, word or sign."""

    kind: str
    text: str
    line: int


END = Token("end", "", 0)


def tokens(text: str) -> list[Token]:
    """All tokens of a module.

    Raises:
        EmulatorError: a character that no PTX token starts with.
    """
    found = []
    at, line = 0, 1
    for m in _TOKEN.finditer(text):
        if m.start() != at:
            break
        at = m.end()
        kind, piece = m.lastgroup, m.group()
        if kind == "blank":
            line += piece.count("\n")
        else:
            found.append(Token(str(kind), piece, line))
    if at != len(text):
        raise EmulatorError(f"PTX line {line}: unexpected {text[at]!r}")
    return found


class Stream:
    """Tokens, and which comes next."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self._tokens = tokens(text)
        self._at = 0

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or one after it; END behind the last."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else END

    def next(self) -> Token:
        """The next token, taken."""
        token = self.peek()
        self._at += 1
        return token

    def take(self, text: str) -> bool:
        """Take the next token if it is this one."""
        if self.peek().text != text:
            return False
        self._at += 1
        return True

    def expect(self, text: str) -> None:
        """Take the next token, which must be this one."""
        token = self.next()
        if token.text != text:
            raise self.error(token, f"expected {text!r}")

    def error(self, token: Token, message: str) -> EmulatorError:
        """An error that names a token and its line."""
        text = self.lines[token.line - 1].strip() if token.line else "the end of the text"
        return EmulatorError(f"PTX line {token.line}: {message} at {token.text!r} in: {text}")

    def rest_of_line(self) -> list[Token]:
        """Take what stands on the line of the token that was taken last."""
        line = self.peek(-1).line
        found = []
        while self.peek().line == line and self.peek().text not in "{};":
            found.append(self.next())
        return found

    def skip_braces(self) -> None:
        """Take { ... }."""
        self.expect("{")
        depth = 1
        while depth:
            token = self.next()
            if token is END:
                raise self.error(token, "'}' is missing")
            depth += {"{": 1, "}": -1}.get(token.text, 0)

    def integer(self) -> int:
        """Take a literal with its sign."""
        sign = -1 if self.take("-") else 1
        token = self.next()
        if token.kind != "number":
            raise self.error(token, "expected a number")
        return sign * int(token.text.rstrip("U"), 0)

"""IR text as a stream of tokens, with the source lines that comments give."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from tilecc.errors import Diagnostic, IRError, Loc

_TOKEN = re.compile(
    r"(?P<number>\d+\.(?!\.)\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<value>%\w+)|(?P<symbol>@\w+)|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<op>:\+|\.\.|//|==|!=|<=|>=|[-+*/%<>&|^~()\[\]{},:=])"
)
_COMMENT = re.compile(r"#\s*(.*):(\d+)\s*$")


@dataclass(frozen=True)
class Token:
    """A piece of text, what kind it is, and its line."""

    kind: str
    text: str
    line: int


class Tokens:
    """Reads one token after the other; every refusal names the file and the line."""

    def __init__(self, text: str, filename: str) -> None:
        self.filename = filename
        self.lines = text.splitlines()
        self.locs: dict[int, Loc] = {}
        self.tokens: list[Token] = []
        self.pos = 0
        for number, line in enumerate(self.lines, 1):
            self._lex(number, line)
        self.tokens.append(Token("end", "the end of the text", max(len(self.lines), 1)))

    def _lex(self, number: int, line: str) -> None:
        code, hash_, comment = line.partition("#")
        match = _COMMENT.match(hash_ + comment)
        if match:
            self.locs[number] = Loc(match[1], int(match[2]))
        at = 0
        while at < len(code):
            if code[at].isspace():
                at += 1
                continue
            m = _TOKEN.match(code, at)
            if m is None:
                self.fail(f"unexpected character {code[at]!r}", number)
            self.tokens.append(Token(str(m.lastgroup), m[0], number))
            at = m.end()

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        """Refuse the text: `message` at `line`, or where reading has got to."""
        line = line or self.peek.line
        source = self.lines[line - 1].strip() if line <= len(self.lines) else ""
        raise IRError(Diagnostic(message, Loc(self.filename, line), f"in: {source}"))

    @property
    def last(self) -> int:
        """The line of what was read last: an error that it shows is there, not on the next line."""
        return self.tokens[max(self.pos - 1, 0)].line

    @property
    def peek(self) -> Token:
        """The next token, which stays."""
        return self.tokens[self.pos]

    def next(self) -> Token:
        """Take the next token; the end stays."""
        token = self.tokens[self.pos]
        self.pos += token.kind != "end"
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is `text`."""
        if self.peek.text == text and self.peek.kind != "end":
            self.pos += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Take `text`, or refuse what stands there."""
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {self.peek.text!r}")

    def word(self, what: str = "a name") -> str:
        """Take a word; `what` says what it should be."""
        if self.peek.kind != "word":
            self.fail(f"expected {what}, found {self.peek.text!r}")
        return self.next().text

    def commas(self, item: Callable[[], object], end: str | None = None) -> None:
        """item {, item}; with `end`, possibly none, and `end` is consumed."""
        if end is not None and self.accept(end):
            return
        item()
        while self.accept(","):
            item()
        if end is not None:
            self.expect(end)

    def names(self) -> tuple[str, ...]:
        """Axes, separated by commas."""
        out: list[str] = []
        self.commas(lambda: out.append(self.word("an axis")))
        return tuple(out)

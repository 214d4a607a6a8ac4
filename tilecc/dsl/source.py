"""Where in the user's program an operation comes from: file, line, and variable assigned to."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from tilecc.errors import Loc

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True)
class Site:
    """A line of a user's file; `filename` is the path as Python knows it, `loc` what is shown."""

    filename: str
    loc: Loc

    @property
    def text(self) -> str:
        """The source line, or "" where there is none (an interactive session)."""
        return linecache.getline(self.filename, self.loc.line).strip()

    @property
    def variable(self) -> str:
        """The variable that the statement at this line assigns to, or ""."""
        return _parsed(self.filename).targets.get(self.loc.line, "")


def make_site(filename: str, line: int) -> Site:
    """The Site for a line of a file, with the path shortened for show."""
    return Site(filename, Loc(shorten(filename), line))


def shorten(filename: str) -> str:
    """`filename` relative to the working directory if it lies below it, else absolute."""
    if filename.startswith("<"):  # <stdin>, <string>
        return filename
    path = os.path.abspath(filename)
    here = os.getcwd().rstrip(os.sep) + os.sep
    return path[len(here) :] if path.startswith(here) else path


def user_site() -> Site:
    """The innermost line on the stack that is not tilecc's own."""
    frame: FrameType | None = sys._getframe(1)
    last = frame
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        last, frame = frame, frame.f_back
    frame = frame or last
    assert frame is not None
    return make_site(frame.f_code.co_filename, frame.f_lineno)


def exception_site(exc: BaseException, filename: str | None = None) -> Site | None:
    """The innermost line of `exc`'s traceback outside tilecc (or in `filename`, if it occurs)."""
    tb: TracebackType | None = exc.__traceback__
    found: Site | None = None
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        wanted = not name.startswith((PACKAGE, "<frozen")) if filename is None else name == filename
        if wanted:
            found = make_site(name, tb.tb_lineno)
        tb = tb.tb_next
    return found


@dataclass
class FunctionSource:
    """Lines of a function: its `def`, each argument, and its `return` if it has just one."""

    definition: Site
    arguments: dict[str, Site] = field(default_factory=dict)
    returns: Site | None = None


def function_source(fn: Callable[..., Any]) -> FunctionSource:
    """Where the parts of `fn` are; without source, all of it is at its first line."""
    code = inspect.unwrap(fn).__code__
    linecache.checkcache(code.co_filename)
    for node in _parsed(code.co_filename).functions:
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if node.name == code.co_name and first <= code.co_firstlineno <= node.lineno:
            break
    else:
        return FunctionSource(make_site(code.co_filename, code.co_firstlineno))
    a = node.args
    args = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]
    returns = [n.lineno for n in ast.walk(node) if isinstance(n, ast.Return)]
    return FunctionSource(
        make_site(code.co_filename, node.lineno),
        {arg.arg: make_site(code.co_filename, arg.lineno) for arg in args},
        make_site(code.co_filename, returns[0]) if len(returns) == 1 else None,
    )


@dataclass
class _Parsed:
    lines: list[str]
    targets: dict[int, str] = field(default_factory=dict)
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=list)


_FILES: dict[str, _Parsed] = {}


def _parsed(filename: str) -> _Parsed:
    """The syntax tree's facts about a file, kept until linecache has other lines for it."""
    lines = linecache.getlines(filename)
    known = _FILES.get(filename)
    if known is not None and known.lines == lines:
        return known
    out = _Parsed(lines)
    _FILES[filename] = out
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return out
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            out.functions.append(node)
        target = _target(node)
        if target:
            assert isinstance(node, ast.stmt)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                out.targets.setdefault(line, target)
    return out


def _target(node: ast.AST) -> str:
    """The single variable that a statement assigns to, or ""."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        target = node.target
    else:
        return ""
    if isinstance(node.value, ast.Lambda):
        return ""  # its lines compute for whoever calls it
    return target.id if isinstance(target, ast.Name) else ""

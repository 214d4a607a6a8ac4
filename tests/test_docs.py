"""The documentation's code runs, its IR parses, and what it shows as output is output.

A comment before a block says where the block comes from:

    <!-- output: tilecc compile examples/causal.py --emit fuse -->      the block is what is printed
    <!-- excerpt: tilecc compile examples/causal.py --emit tir -->      parts of it, `...` between
    <!-- nests: examples/causal.py -->                  the loop nests of its kernel, tiles of 64
    <!-- prints -->                                     what the python block before prints

Python blocks of a file run in order in one namespace. Blocks marked `tcir` are IR: they parse,
verify, and print back to the letter. `python tests/test_docs.py` writes outputs anew.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from tilecc.cli import COMMANDS, main
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.ir.verifier import verify
from tilecc.pipeline import PASSES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(
    r"(?:<!-- (?P<kind>output|excerpt|nests|prints)(?:: (?P<source>.*?))? -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: where its text is in the page, and what its marker says."""

    page: Path
    span: tuple[int, int]
    line: int
    language: str
    text: str
    kind: str = ""
    source: str = ""

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            m.span("text"),
            text.count("\n", 0, m.start("text")) + 1,
            m["language"],
            m["text"],
            m["kind"] or "",
            m["source"] or "",
        )
        for m in _FENCE.finditer(text)
    ]


ALL = [b for page in PAGES for b in blocks(page)]


def choose(**wanted: str) -> pytest.MarkDecorator:
    """The blocks with these properties, as parameters."""
    found = [b for b in ALL if all(getattr(b, k) == v for k, v in wanted.items())]
    return pytest.mark.parametrize("block", found, ids=lambda b: b.id)


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")


def output(command: str) -> str:
    """What a tilecc command line prints on stdout."""
    program, *args = shlex.split(command)
    assert program == "tilecc"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    assert code == 0, err.getvalue()
    return trimmed(out.getvalue())


def trimmed(text: str) -> str:
    """`text` without blanks at the ends of lines and lines of nothing at its ends."""
    lines = [line.rstrip() for line in text.split("\n")]
    return "\n".join(lines).strip("\n") + "\n"


def printed(page: Path) -> Iterator[tuple[Block, str]]:
    """Run a page's python blocks; each `prints` block with what the one before it printed."""
    space: dict[str, object] = {"__name__": "docs"}
    said = ""
    for b in blocks(page):
        if b.language == "python":
            code = compile("\n" * (b.line - 1) + b.text, str(b.page), "exec")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, space)
            said = out.getvalue()
        elif b.kind == "prints":
            yield b, trimmed(said)


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if any(b.language == "python" for b in blocks(p))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_python_runs_and_prints_what_is_shown(page):
    for block, text in printed(page):
        assert block.text == text, block.id


@choose(language="tcir")
def test_ir_parses_and_prints_back(block):
    with_lines = bool(re.search(r"  # .*:\d+$", block.text, re.MULTILINE))
    parsed = parse_ir(block.text, block.id)
    verify(parsed)
    assert print_ir(parsed, locs=with_lines) == block.text


@choose(kind="output")
def test_output_is_what_the_command_prints(block):
    assert block.text == output(block.source)


def nests(path: str) -> str:
    """The items of the first kernel's blocks, as code generation for AVX-512 plans them."""
    import tilecc as tc
    from tilecc.codegen.cpu.isa import isa_for
    from tilecc.codegen.cpu.layout import choose_layout, kept_loads
    from tilecc.codegen.cpu.nests import Loop, Nest, Planner

    kernel = tc.compile(path, target="x86-64-v4", static={"D": 64}, tile=64)
    func = parse_ir(kernel.ir("tile"))
    op = next(op for op in func.body.ops if op.name == "kernel")
    isa = isa_for(kernel.target)
    lines: list[str] = []

    def show(plan, depth):
        for item in plan.items:
            pad = "  " * depth
            if isinstance(item, Loop):
                lines.append(f"{pad}loop %{item.op.body.args[0].name}")
                show(item.body, depth + 1)
            elif isinstance(item, Nest):
                ops = [f"{o.name} %{(o.results or o.operands)[0].name}" for o in item.ops]
                lines.append(f"{pad}nest over {', '.join(sorted(item.axes))}: {', '.join(ops)}")
            else:
                lines.append(f"{pad}{type(item).__name__.lower()} %{item.op.result.name}")

    layout = choose_layout(op, isa)
    show(Planner(op.body, kept_loads(op, layout, isa), layout).plan, 0)
    return "\n".join(lines) + "\n"


@choose(kind="nests")
def test_nests_are_what_code_generation_plans(block):
    assert block.text == nests(block.source)


def in_order(parts: list[str], whole: str) -> str | None:
    """The first part that does not stand in `whole` behind the ones before it; None: all do.

    Indentation does not count, and a line that ends in ` ...` may go on.
    """
    lines = [line.strip() for line in whole.splitlines()]

    def same(want: str, have: str) -> bool:
        # TIR numbers its buffers, and one temporary more moves all of them.
        want, have = (re.sub(r"\bbuffer_\d+", "buffer_N", x) for x in (want, have))
        return have.startswith(want[:-4]) if want.endswith(" ...") else want == have

    at = 0
    for part in parts:
        want = [line.strip() for line in part.splitlines()]
        found = (
            n
            for n in range(at, len(lines) - len(want) + 1)
            if all(map(same, want, lines[n : n + len(want)]))
        )
        start = next(found, None)
        if start is None:
            return part
        at = start + len(want)
    return None


@choose(kind="excerpt")
def test_excerpt_is_from_what_the_command_prints(block):
    parts = [p.strip("\n") for p in re.split(r"^\s*\.\.\.\n", block.text, flags=re.MULTILINE)]
    missing = in_order([p for p in parts if p], output(block.source))
    assert missing is None, f"not in the output, or not in this order:\n{missing}"


def test_an_excerpt_that_is_made_up_is_noticed():
    whole = "a\n  b = 1 + 2\nc\n"
    assert in_order(["a", "c"], whole) is None
    assert in_order(["b = 1 ..."], whole) is None
    assert in_order(["c", "a"], whole) == "a"
    assert in_order(["b = 2"], whole) == "b = 2"


# Commands


def commands() -> list[tuple[str, str]]:
    """(page, command line) of every use of the command line in a code block or a marker."""
    found: dict[tuple[str, str], None] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = re.findall(r"^(?:[ ]{4}|\$ |)(?:\S*/)?(tilecc [a-z].*)$", text, re.MULTILINE)
        lines += re.findall(r"&& \S*/(tilecc [a-z][^&\n]*)", text)
        lines += re.findall(r"`(tilecc [a-z]+ [^`]*)`", text)
        found |= dict.fromkeys((str(page.relative_to(ROOT)), line.strip()) for line in lines)
    return list(found)


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_exist_with_their_options(page, line):
    line = re.split(r" [|>] |  #", line)[0]
    _, name, *args = shlex.split(line)
    assert name in COMMANDS
    if any(a.isupper() or a.endswith(".tcir") for a in args):
        return  # a pattern, or a file that the reader makes
    group = main.__globals__["cli"]
    command = group.get_command(click.Context(group), name)
    assert command is not None
    command.make_context(name, args)  # raises if an option, its value or a file is not there


def test_readme_has_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^<!-- command: (\w+) -->\n```sh$", text, re.MULTILINE) == ["run", "test"]
    assert text.count("```sh") == 2
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in re.findall(r"\.\[([\w,]+)\]", text):
        for name in extra.split(","):
            assert re.search(rf"^{name} = \[", project, re.MULTILINE), name
    for path in re.findall(r"(?:-r |tilecc run )(\S+)", text):
        assert (ROOT / path).is_file(), path


# Links, cards, and the table of dependencies


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


def test_every_pass_has_a_card():
    cards = {p.stem for p in (ROOT / "docs" / "passes").glob("*.md")}
    assert cards == {name.replace("-", "_") for name in PASSES}


def dependencies() -> dict[str, set[str]]:
    """What each part of tilecc imports at run time, at any place, from the others."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tilecc").rglob("*.py"):
        part = path.relative_to(ROOT / "tilecc").with_suffix("").parts[0]
        for name in imports(ast.parse(path.read_text(encoding="utf-8"))):
            head, _, rest = name.partition(".")
            other = rest.split(".")[0] if head == "tilecc" else head
            if other and other != part:
                found.setdefault(part, set()).add(other)
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "tilecc" if node.level else node.module or ""
            yield from (f"{name}.{a.name}" for a in node.names) if name == "tilecc" else [name]
        yield from imports(node)


def test_modules_import_what_the_table_allows():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]*) \|([^|]*)\|$", text, re.MULTILINE)
    allowed: dict[str, set[str]] = {}
    for parts, _, may in rows:
        for part in re.findall(r"`(\w+)`", parts):
            allowed[part] = set(re.findall(r"`(\w+)`", may))
    third_party = {"click", "ml_dtypes", "networkx", "rich", "sympy", "tvm", "tvm_ffi"}
    known = {p.stem for p in (ROOT / "tilecc").iterdir() if p.suffix in ("", ".py")} | third_party
    for part, names in dependencies().items():
        if part.startswith("__"):
            continue
        assert part in allowed, f"{part} is not in the table"
        extra = (names & known) - allowed[part] - {"errors"}
        assert not extra, f"{part} imports {', '.join(sorted(extra))}"


# Writing outputs anew


def update(page: Path) -> None:
    """Put current output into the page's marked blocks."""
    text = page.read_text(encoding="utf-8")
    new = {b.span: s for b, s in printed(page)}
    new |= {b.span: output(b.source) for b in blocks(page) if b.kind == "output"}
    new |= {b.span: nests(b.source) for b in blocks(page) if b.kind == "nests"}
    for (start, end), said in sorted(new.items(), reverse=True):
        text = text[:start] + said + text[end:]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.chdir(ROOT)
    os.environ["COLUMNS"] = "80"
    for path in PAGES if len(sys.argv) == 1 else map(Path, sys.argv[1:]):
        update(path.resolve())

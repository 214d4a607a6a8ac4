"""Pipelines: text to passes and back, stages, verification, remarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from tilecc.errors import IRError
from tilecc.ir.core import Cloner
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.passes.tile import Tile
from tilecc.pipeline import (
    DEFAULT_PIPELINE,
    PASSES,
    PassManager,
    PipelineError,
    parse_pipeline,
    pass_class,
    print_pipeline,
)

GRAPH = """\
func @attention(%q: f32[i:N, d:8], %k: f32[j:N, d], %v: f32[j, e:8]) {
  %s = contract %q, %k over d : f32[i, j]  # spec.py:3
  %p = softmax %s over j : f32[i, j]  # spec.py:4
  %o = contract %p, %v over j : f32[i, e]  # spec.py:5
  return %o  # spec.py:6
}
"""


@dataclass(frozen=True)
class Options:
    """A pass with every kind of option."""

    name: ClassVar[str] = "options"
    count: int = 3
    fast: bool = False
    mode: str = "a"
    sizes: tuple[tuple[str, int], ...] = ()

    def apply(self, func, remarks):
        remarks.add(f"count is {self.count}", func.loc)
        return Cloner().func(func)


@dataclass(frozen=True)
class Broken:
    """A pass that makes invalid IR."""

    name: ClassVar[str] = "broken"

    def apply(self, func, remarks):
        out = Cloner().func(func)
        out.body.ops.pop(0)
        return out


@pytest.fixture(autouse=True)
def own_passes(monkeypatch):
    monkeypatch.setitem(PASSES, "options", (__name__, "Options"))
    monkeypatch.setitem(PASSES, "broken", (__name__, "Broken"))


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", ()),
        ("  ", ()),
        ("options", (Options(),)),
        ("options{}", (Options(),)),
        ("options{7}", (Options(7),)),
        ("options{count=7,fast=true,mode=b}", (Options(7, True, "b"),)),
        (
            " options { 7 , i=1 , j = 2 } , broken",
            (Options(7, sizes=(("i", 1), ("j", 2))), Broken()),
        ),
        ("tile", (Tile(),)),
        ("tile{i=16,j=32}", (Tile((("i", 16), ("j", 32))),)),
    ],
)
def test_text_to_passes_and_back(text, passes):
    parsed = parse_pipeline(text)
    assert parsed == passes
    assert parse_pipeline(print_pipeline(parsed)) == passes


def test_a_number_alone_is_the_default_tile():
    (tile,) = parse_pipeline("tile{16}")
    assert dict(tile.sizes) == {} and tile.default == 16
    assert print_pipeline([tile]) == "tile{default=16}"


def test_every_pass_of_the_table_exists_and_has_its_name():
    for name in PASSES:
        assert pass_class(name).name == name
    assert len(parse_pipeline(DEFAULT_PIPELINE)) == DEFAULT_PIPELINE.count(",") + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("simplfy", "unknown pass 'simplfy'; did you mean simplify?\n    passes are simplify"),
        ("online_softmax", "unknown pass 'online_softmax'; did you mean online-softmax?"),
        ("fuse,", "a pass is missing between commas"),
        ("tile{i=1", "unbalanced braces"),
        ("tile}i=1{", "unbalanced braces"),
        ("tile{i=1}x", "text after the options of 'tile'"),
        ("fuse{fast=1}", "pass fuse has no option 'fast'\n    it has no options"),
        ("fuse{7}", "pass fuse takes no value without a name"),
        ("options{count=many}", "pass options: option count takes a whole number, not 'many'"),
        ("options{fast=2}", "option fast takes true or false, not '2'"),
        ("options{count=1,count=2}", "option count is given twice"),
        ("tile{i=0}", "pass tile: the size of i is '0', not a positive number"),
        ("tile{i=64,i=32}", "pass tile: i is given twice"),
        ("tile{i=sixty}", "pass tile: the size of i is 'sixty', not a positive number"),
    ],
)
def test_errors(text, message):
    with pytest.raises(PipelineError) as e:
        parse_pipeline(text)
    assert message in str(e.value)


def test_stages_are_kept_and_the_input_is_not_changed():
    func = parse_ir(GRAPH)
    run = PassManager("simplify,fuse,tile{i=4,j=4}").run(func)
    assert [s.name for s in run.stages] == ["graph", "simplify", "fuse", "tile"]
    assert run.stage("graph").func is func and print_ir(func) == GRAPH
    assert "stream j" in run.stage("fuse").text()
    assert "kernel grid" in run.stages[-1].text() and run.func is run.stages[-1].func
    assert set(run.timings) == {"simplify", "fuse", "tile"}
    assert all(0 < s < 5 for s in run.timings.values())
    with pytest.raises(PipelineError, match="no stage 'tir'; stages are graph, simplify, fuse"):
        run.stage("tir")


def test_an_empty_pipeline_gives_what_it_got():
    run = PassManager("").run(parse_ir(GRAPH))
    assert [s.name for s in run.stages] == ["graph"]
    assert run.stages[0].text() == GRAPH


def test_a_pass_that_runs_twice_has_two_stages():
    run = PassManager("options,options").run(parse_ir(GRAPH))
    assert [s.name for s in run.stages] == ["graph", "options", "options.2"]


def test_remarks_carry_the_pass_and_the_line():
    run = PassManager([Options(5)]).run(parse_ir(GRAPH))
    assert [r.message for r in run.remarks] == ["count is 5"]
    assert run.remarks[0].pass_name == "options"


def test_invalid_input_is_refused_before_the_first_pass():
    func = Broken().apply(parse_ir(GRAPH), None)
    with pytest.raises(IRError, match=r"^the input is not valid IR:\n.*%s"):
        PassManager("fuse").run(func)


def test_the_pass_that_breaks_the_ir_is_named():
    with pytest.raises(IRError, match=r"^pass broken made invalid IR:\n.*%s"):
        PassManager("options,broken,fuse").run(parse_ir(GRAPH))

"""`tilecc explain`: what the passes decided, and why, as text and as JSON."""

import json
from pathlib import Path

import pytest

from tilecc.cli import main

EXAMPLES = Path(__file__).parent.parent / "examples"

TWO_PASSES = """
import tilecc as tc


@tc.spec
def two(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"], v: tc.Tensor["j:N e:D"]):
    s = tc.dot(q, k, over="d")
    m = tc.max(s, over="j")
    p = tc.tanh(s - m) * tc.sin(s * m)
    return tc.dot(p, v, over="j")
"""
BOTH_WAYS = """
import tilecc as tc


@tc.spec
def both(x: tc.Tensor["i:N d"], y: tc.Tensor["j:N d"]):
    p = tc.softmax(tc.dot(x, y, over="d"), over="j")
    return tc.dot(p, tc.softmax(p, over="i"), over="i")
"""


@pytest.fixture
def explain(capsys):
    def run(*args, as_json=True):
        assert main(["explain", *map(str, args), *(["--json"] if as_json else [])]) == 0
        out = capsys.readouterr().out
        return json.loads(out) if as_json else out

    return run


def line_of(path, text):
    return 1 + next(n for n, x in enumerate(path.read_text().splitlines()) if text in x)


def test_repairs_masks_and_fusion(explain):
    found = explain(EXAMPLES / "causal.py", "--target", "x86-64-v4")
    (kernel,) = found["kernels"]
    (stream,) = kernel["streams"]
    assert kernel["over"] == ["b", "h", "i"]
    assert (stream["axis"], stream["where"]) == ("j", "index(j) <= index(i)")
    states = {s["name"]: s for s in stream["states"]}
    assert {n: s["combine"] for n, s in states.items()} == {"m": "max", "o": "sum", "l": "sum"}
    assert states["m"]["repair"] is None
    assert states["o"]["repair"].startswith("acc * exp2(old(%m)")
    assert "%m == -inf" in states["o"]["with"]["%g"]
    assert states["o"]["line"] == line_of(EXAMPLES / "causal.py", "return")
    assert not found["obligations"]
    fused = [r["message"] for r in found["fusion"] if " is fused into " in r["message"]]
    assert fused and all("together they move" in m for m in fused)


def test_a_proof_that_fails(explain, tmp_path):
    file = tmp_path / "two.py"
    file.write_text(TWO_PASSES)
    found = explain(file, "--target", "x86-64-v4")
    assert [s["axis"] for s in found["kernels"][0]["streams"]] == ["j", "j"]
    (failed,) = found["obligations"]
    assert failed["line"] == line_of(file, "return")
    assert "f(x, r') is not a function of f(x, r), r, r' alone" in failed["message"]
    text = explain(file, "--target", "x86-64-v4", as_json=False)
    assert "proofs that fail" in text and "is not a function of" in " ".join(text.split())


def test_edges_that_are_not_fused(explain, tmp_path):
    file = tmp_path / "both.py"
    file.write_text(BOTH_WAYS)
    found = explain(file, "--target", "x86-64-v4")
    assert len(found["kernels"]) == 2
    edges = [r for r in found["fusion"] if "is not fused into" in r["message"]]
    assert edges and all("axis j would have to be whole in a tile" in r["message"] for r in edges)
    assert {r["line"] for r in edges} == {line_of(file, "p = ")}


def test_tiles(explain):
    tile = explain(EXAMPLES / "attention.py", "--target", "canvas", "--shape", "N=8,D=4")["tile"]
    assert tile["sizes"] == {"i": 4, "j": 4}
    refused = {c["tile"]["i"]: c["reason"] for c in tile["candidates"] if not c["fits"]}
    assert refused == {8: "needs 208 of 96 numbers"}
    given = explain(EXAMPLES / "attention.py", "--target", "x86-64-v4", "--tile", "32")["tile"]
    assert given["from"] == "given or measured" and not given["candidates"]


def test_text_fits_a_terminal(explain):
    text = explain(EXAMPLES / "sliding_window.py", "--target", "a100", as_json=False)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("fusion", "one pass over j", "visits only where", "repaired by", "tile"):
        assert word in text

"""`tilecc compile --emit` for a GPU: texts, machine code and the resource report."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

from tilecc.cli import main
from tilecc.toolchain import compile_cuda

CAUSAL = os.path.join(os.path.dirname(os.path.dirname(__file__)), "examples", "causal.py")
WHAT = ["compile", CAUSAL, "--dtype", "float16", "--target", "sm_80", "--tile", "64", "--emit"]


@pytest.fixture(scope="module")
def source():
    return output(*WHAT, "cuda")[1].decode()


def output(*args, code=0):
    """Exit code, stdout as bytes, stderr."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    try:
        given = main([str(a) for a in args])
        sys.stdout.flush()
        found = sys.stdout.buffer.getvalue(), sys.stderr.getvalue()
    finally:
        sys.stdout, sys.stderr = out, err
    assert given == code, found
    return given, *found


def test_texts(source):
    assert 'extern "C" __global__' in source
    _, ptx, _ = output(*WHAT, "ptx")
    assert b".target sm_80" in ptx and b".entry causal_0(" in ptx
    _, sass, _ = output(*WHAT, "sass")
    assert b"HMMA.16816.F32" in sass and b'"/tilecc/causal_0.cu", line' in sass


def test_machine_code_goes_to_files_and_to_what_is_no_terminal(source, tmp_path):
    wanted = compile_cuda(source.rstrip("\n"), "sm_80", "causal_0").cubin
    assert output(*WHAT, "cubin")[1] == wanted
    path = tmp_path / "causal.cubin"
    assert output(*WHAT, "cubin", "-o", path)[1] == b""
    assert path.read_bytes() == wanted


def test_a_terminal_gets_no_machine_code(monkeypatch):
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal(io.BytesIO(), "utf-8"))
    assert main([*WHAT, "cubin"]) == 2
    assert sys.stdout.buffer.getvalue() == b""


def test_the_resource_report(tmp_path):
    data = json.loads(output(*WHAT, "resources", "--json")[1])
    assert {"registers", "spills", "shared", "occupancy", "instructions"} <= set(data)
    (only,) = data["kernels"]
    assert only == {k: v for k, v in data.items() if k != "kernels"}
    assert data["instructions"]["mma"] * 2048 == data["multiply_adds"] > 0
    assert 0 < data["occupancy"] <= 1 and data["spills"] == 0
    path = tmp_path / "report.txt"
    output(*WHAT, "resources", "--output", path)
    assert f"registers     {data['registers']}\n" in path.read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([*WHAT, "cubin", "--json"], "a cubin cannot be JSON"),
        (["compile", CAUSAL, "-o", "x"], "--output is for what --emit gives"),
        ([*WHAT, "ptxx"], r"--emit ptxx; did you mean ptx? (stages are graph"),
        (["compile", CAUSAL, "--emit", "cubin"], "--emit cubin"),
    ],
)
def test_bad_usage(args, message):
    assert message in output(*args, code=2)[2]

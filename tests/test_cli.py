"""The command line: what is printed where, exit codes, no traceback for a user's mistake."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import pytest

from tilecc.cli import COMMANDS, main

HERE = os.path.dirname(__file__)
EXAMPLES = os.path.join(os.path.dirname(HERE), "examples")
ATTENTION = os.path.join(EXAMPLES, "attention.py")
CAUSAL = os.path.join(EXAMPLES, "causal.py")


@pytest.fixture
def tilecc(capsys):
    """Runs a command line in this process: exit code, stdout, stderr."""

    def run(*args, code=0):
        given = main([str(a) for a in args])
        out, err = capsys.readouterr()
        assert given == code, out + err
        assert "Traceback" not in err
        return out, err

    return run


@pytest.fixture
def causal(tilecc, tmp_path):
    """A file with the causal example's graph."""
    path = tmp_path / "causal.tcir"
    path.write_text(tilecc("compile", CAUSAL, "--emit", "graph", "--locs", "--tile", "64")[0])
    return path


def test_help_lists_the_commands(tilecc):
    out, _ = tilecc("--help")
    for name in COMMANDS:
        assert name in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_shows_an_example(tilecc, name):
    out, _ = tilecc(name, "--help")
    assert f"tilecc {name}" in out.split("Example")[1]


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys; from tilecc.cli import main; code = main(['--help'])\n"
        "assert not {'tvm', 'sympy', 'networkx', 'numpy'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_module_and_version():
    done = subprocess.run(
        [sys.executable, "-m", "tilecc", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.startswith("tilecc, version ")


def test_version_is_that_of_the_package(tilecc):
    metadata = pytest.importorskip("importlib.metadata")
    try:
        installed = metadata.version("tilecc")
    except metadata.PackageNotFoundError:
        pytest.skip("not installed")
    assert installed in tilecc("--version")[0]


# opt


def test_an_empty_pipeline_prints_what_was_parsed(tilecc, causal, monkeypatch):
    text = causal.read_text()
    assert tilecc("opt", causal)[0] == text
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert tilecc("opt", "-", "--passes", "")[0] == text


def test_passes_one_by_one_are_the_pipeline(tilecc, causal, tmp_path):
    passes = ["simplify", "fuse", "online-softmax", "mask-tiles", "exponents", "tile{i=64,j=64}"]
    whole = tilecc("opt", causal, "--passes", ",".join(passes))[0]
    for k, name in enumerate(passes):
        step = tmp_path / f"{k}.tcir"
        step.write_text(tilecc("opt", causal, "--passes", name)[0])
        causal = step
    # Reading a text makes the printer's numbers part of the names; all else is the same.
    names = re.compile(r"%\w+")
    assert names.sub("%", causal.read_text()) == names.sub("%", whole)
    assert "kernel grid" in whole


def test_remarks_and_timings_go_to_stderr(tilecc, causal):
    plain, nothing = tilecc("opt", causal, "--passes", "simplify,fuse")
    out, err = tilecc("opt", causal, "--passes", "simplify,fuse", "--remarks", "--timings")
    assert out == plain and nothing == ""
    assert "remark: " in err and "ms  simplify" in err


def test_no_locs(tilecc, causal):
    assert "causal.py:" in tilecc("opt", causal)[0]
    assert "causal.py:" not in tilecc("opt", causal, "--no-locs")[0]


# compile


def test_compile_tells_what_was_decided(tilecc):
    out, err = tilecc("compile", CAUSAL, "--tile", "32")
    assert "static  D=64 (default)" in out and "i=32, j=32 (given)" in out and err == ""
    out, _ = tilecc("compile", CAUSAL, "--tile", "i=32", "--shape", "D=16", "--json")
    found = json.loads(out)
    assert found["tile"] == {"i": 32, "j": 64} and found["static"] == {"D": 16}
    assert found["stages"][0] == "graph" and found["stages"][-1] == "asm"


def test_print_ir_after(tilecc):
    out, err = tilecc("compile", CAUSAL, "--tile", "32", "--print-ir-after", "fuse")
    assert out.startswith("# fuse\nfunc @causal(") and "D=64 by default" in err
    out, _ = tilecc("compile", CAUSAL, "--tile", "32", "--print-ir-after", "all")
    stages = [line for line in out.splitlines() if line.startswith("# ")]
    passes = ["# simplify", "# fuse", "# online-softmax", "# mask-tiles", "# exponents", "# tile"]
    assert stages == ["# graph", *passes]


@pytest.mark.parametrize(
    ("stage", "text"), [("tir", "prim_func"), ("llvm", "define"), ("asm", ".text")]
)
def test_emit_of_the_last_stages(tilecc, stage, text):
    assert (
        text in tilecc("compile", ATTENTION, "--tile", "16", "--shape", "D=16", "--emit", stage)[0]
    )


def test_emitted_ir_compiles(tilecc, tmp_path):
    path = tmp_path / "attention.tcir"
    args = ("--tile", "16", "--shape", "D=16")
    path.write_text(tilecc("compile", ATTENTION, *args, "--emit", "tile")[0])
    out, _ = tilecc("compile", path)
    assert "static  none" in out and "i=16, j=16" in out


def test_compile_for_a_machine_that_is_not_here(tilecc):
    out, _ = tilecc("compile", CAUSAL, "--target", "a100", "--tile", "64", "--emit", "tile")
    assert "kernel grid" in out


# cost

SEED = ("--shape", "N=8,D=4", "--dtype", "float16", "--target", "canvas")


def test_cost_of_the_smallest_case(tilecc):
    """The figures by hand: 2N^2 + 3Nd read and 2N^2 + Nd written, against 2Nd + 2N^2 d/B."""
    found = json.loads(tilecc("cost", ATTENTION, *SEED, "--tile", "4", "--json")[0])
    assert found["unfused"]["bytes"] == 768 and found["fused"]["bytes"] == 384
    assert found["tile"] == {"i": 4, "j": 4} and "N**2" in found["fused"]["formula"]
    by_tile = {c["tile"]["i"]: c for c in found["candidates"]}
    assert {k: (c["fits"], c["needs"], c["limit"]) for k, c in by_tile.items()} == {
        2: (True, 40, 96),
        4: (True, 88, 96),
        8: (False, 208, 96),
    }
    assert "208 of 96" in by_tile[8]["reason"]


def test_cost_as_text(tilecc):
    out, _ = tilecc("cost", ATTENTION, *SEED, "--tile", "2")
    assert "B=1, H=1, N=8, D=4 (B, H by default)" in " ".join(out.split())
    assert "768" in out and "640" in out and "needs 208 of 96 numbers" in out
    out, _ = tilecc("cost", ATTENTION, *SEED, "--tile", "8")
    assert "needs 208 of 96 numbers, DOES NOT FIT" in " ".join(out.split())
    out, _ = tilecc("cost", ATTENTION, "--shape", "N=65536", "--target", "a100")
    assert max(map(len, out.splitlines())) <= 80 and "\n           " in out
    out, _ = tilecc("cost", ATTENTION, "--shape", "N=1048576,H=1024", "--target", "a100")
    assert "4,504,149,383,184,384   B*D*H*N**2/64" in out, "whole, however long"


def test_cost_needs_no_machine(tilecc):
    args = ("--target", "h100", "--dtype", "bfloat16", "--shape", "N=4096,D=128", "--json")
    found = json.loads(tilecc("cost", CAUSAL, *args)[0])
    assert found["target"] == "h100" and found["seconds"] > 0


def test_cost_of_what_depends_on_a_number_given_at_run_time(tilecc):
    window = os.path.join(EXAMPLES, "sliding_window.py")
    args = ("--shape", "N=1024", "--tile", "64", "--json")
    narrow, wide = (
        json.loads(tilecc("cost", window, *args, "--scalar", f"w={w}")[0])["fused"]["bytes"]
        for w in (64, 512)
    )
    assert narrow < wide


# run


def test_run_shows_everything(tilecc):
    out, err = tilecc("run", ATTENTION, "--shape", "N=100", "--repeat", "1")
    for text in ("# before fusion", "softmax", "# after fusion", "stream j", "unfused", "fused"):
        assert text in out
    for text in (
        "tile ",
        "agrees with float64: largest error",
        "GFLOP/s",
        "% of the fp32 FMA peak",
    ):
        assert text in out
    assert "N=100" in out and err == ""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_run_as_json(tilecc, dtype):
    args = ("--shape", "N=70,D=32", "--tile", "32", "--repeat", "1", "--threads", "1", "--json")
    found = json.loads(tilecc("run", CAUSAL, *args, "--dtype", dtype)[0])
    assert found["ok"] and found["error"] <= found["tolerance"] < 0.05
    assert found["shape"] == {"B": 1, "H": 1, "N": 70, "D": 32} and found["threads"] == 1
    assert found["flops"] == 2 * 2 * 32 * 70 * 71 // 2
    assert found["gflops"] > 0 and 0 < found["fraction_of_peak"] < 1.5


@pytest.mark.parametrize("name", ["paged", "packed"])
def test_random_coordinates_are_inside(tilecc, name):
    """Pages and offsets by default sizes: as many keys as elsewhere, and tables that fit."""
    args = ("run", f"examples/zoo/{name}.py", "--shape", "D=8", "--repeat", "1", "--json")
    found = json.loads(tilecc(*args)[0])
    assert found["ok"]
    assert found["shape"].get("Tk", 0) + found["shape"]["S"] * found["shape"].get("N", 0) > 1000


def test_cost_where_data_bounds_the_keys(tilecc):
    """There is no way to give an array here: lengths are random, of the axis, and it says so."""
    out, _ = tilecc("cost", "examples/zoo/paged.py", "--shape", "B=3,D=8,Nq=64", "--tile", "64")
    assert "numbers are for random length" in out
    kept = re.search(r"computes +([\d,]+) operations in contractions", out)
    assert kept is not None
    assert int(kept[1].replace(",", "")) > 4 * 3 * 64 * 64 * 8  # more than a tile each


def test_a_row_axis_of_heads_is_short_by_default(tilecc):
    out, _ = tilecc("cost", "examples/zoo/mla.py", "--json")
    assert {n: json.loads(out)["extents"][n] for n in "HC"} == {"H": 1, "C": 64}


def test_tiles_that_positions_decide_are_counted(tilecc):
    """No closed form, and no array to give either: the map is made to count them."""
    found = json.loads(tilecc("cost", "examples/zoo/natten.py", "--json")[0])
    assert found["fused"]["bytes"] > found["ideal"]["bytes"]
    assert "full_tiles" in found["fused"]["formula"]


def test_run_of_tile_ir(tilecc, tmp_path):
    path = tmp_path / "attention.tcir"
    text = tilecc("compile", ATTENTION, "--tile", "32", "--emit", "tile")[0]
    path.write_text(text)
    assert json.loads(tilecc("run", path, "--json", "--repeat", "1")[0])["ok"]


def test_run_reports_a_difference(tilecc, monkeypatch):
    from tilecc import check

    monkeypatch.setattr(check, "FACTOR", 0)
    out, _ = tilecc("run", ATTENTION, "--shape", "N=50", "--repeat", "1", code=1)
    assert "DIFFERS FROM float64" in out


# targets


def test_targets_fit_a_terminal(tilecc, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out, _ = tilecc("targets")
    assert max(map(len, out.splitlines())) <= 80 and "…" not in out
    assert "2.25e+03" in out and "TFLOP/s" in out
    assert {"x86-64-v3", "x86-64-v4", "rtx4090", "sm_100a"} <= set(out.split())


def test_targets(tilecc):
    out, _ = tilecc("targets")
    for name in ("cpu", "canvas", "a100", "sm_90a"):
        assert name in out
    found = json.loads(tilecc("targets", "--json")[0])
    assert found[0]["name"] == "cpu" and {m["kind"] for m in found} >= {"cpu", "cuda"}
    out, _ = tilecc("targets", "a100")
    assert "19.5 TFLOP/s" in out and "NVIDIA A100" in out


# what goes wrong


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["frobnicate"], 2, "frobnicate"),
        (["compile", "none.py"], 2, "there is no file none.py"),
        (["opt", "none.tcir"], 2, "there is no file none.tcir"),
        (["compile", CAUSAL, "--target", "a101"], 2, "unknown target 'a101'; did you mean a100?"),
        (["compile", CAUSAL, "--shape", "N"], 2, "'N' is not NAME=NUMBER, as in N=4096,D=64"),
        (["compile", CAUSAL, "--shape", "N=x"], 2, "N=x is not a number"),
        (["compile", CAUSAL, "--shape", "N=-1"], 2, "N=-1 is negative"),
        (["compile", CAUSAL, "--shape", "N=1,N=2"], 2, "N is given twice"),
        (["compile", CAUSAL, "--shape", "M=1"], 2, "causal has no extent M (its extents are B, H"),
        (["compile", CAUSAL, "--tile", "0"], 2, "a tile has at least one element"),
        (["compile", CAUSAL, "--tile", "x=8"], 1, "axis x, which no kernel has"),
        (
            ["compile", CAUSAL, "--tile", "8", "--emit", "tail"],
            2,
            "--emit tail; did you mean tile?",
        ),
        (["compile", f"{CAUSAL}:other"], 1, "there is no spec 'other'"),
        (
            ["compile", CAUSAL, "--dtype", "flaot16"],
            2,
            "'flaot16' is no type of floats; did you mean",
        ),
        (
            ["run", CAUSAL, "--target", "canvas", "--shape", "D=4"],
            1,
            "does not run on this machine",
        ),
        (["run", CAUSAL, "--tile", "8", "--scalar", "w=1"], 2, "causal has no scalar w"),
        (["opt", CAUSAL], 1, "causal.py"),
        (["opt", "-", "--passes", "fusee"], 2, "unknown pass 'fusee'; did you mean fuse?"),
        (["targets", "a101"], 2, "did you mean a100?"),
    ],
)
def test_mistakes(tilecc, args, code, message):
    out, err = tilecc(*args, code=code)
    assert message in err and out == ""


def test_an_error_in_the_spec_names_its_line(tilecc, tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(
        "import tilecc as tc\n\n@tc.spec\ndef wrong(x: tc.Tensor['i:N d']):\n"
        "    return tc.sum(x, over='z')\n"
    )
    _, err = tilecc("compile", path, code=1)
    assert "wrong.py:5: " in err


def test_a_pass_that_cannot_do_its_work(tilecc, causal):
    _, err = tilecc("opt", causal, "--passes", "fuse", code=1)
    assert "causal.py:" in err and "run simplify first" in err


@pytest.mark.parametrize("stage", ["fuse", "tile"])
def test_a_pass_on_ir_of_another_level(tilecc, tmp_path, stage):
    path = tmp_path / "later.tcir"
    path.write_text(tilecc("compile", CAUSAL, "--emit", stage, "--tile", "64")[0])
    _, err = tilecc("opt", path, "--passes", "simplify,fuse", code=1)
    assert "simplify takes graph IR, and this is" in err

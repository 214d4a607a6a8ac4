"""`tilecc check` and what it is made of: good kernels pass, and each kind of bad one is told."""

import itertools
import json

import numpy as np
import pytest

import tilecc as tc
from tilecc.cli import main
from tilecc.ir.interp import interpret
from tilecc.numerics import Numerics

SIZES = {"B": 3, "H": 2, "N": 9, "D": 4}


@tc.spec
def padded(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    bias: tc.Tensor["j:N"],
    live: tc.Tensor["b j:N", "int32"],
):
    s = tc.dot(q, k, over="d") + bias
    s = tc.where(live != 0, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), k, over="j"), tc.logsumexp(s, over="j")


FUNC = padded.trace("float32")


def run(spoil=lambda outputs, inputs, calls: outputs):
    """A kernel: the interpreter in f32, then `spoil`."""
    calls = itertools.count()

    def kernel(threads=None, **inputs):
        with np.errstate(all="ignore"):
            outputs = [np.array(x) for x in interpret(FUNC, inputs)]
        return tuple(spoil(outputs, inputs, next(calls)))

    return {f.name: f for f in Numerics(FUNC, kernel, SIZES, {}).findings()}


def test_a_good_kernel_passes_all():
    found = run()
    assert list(found) == [
        "accuracy",
        "logits of 1e4",
        "-inf in bias",
        "live of 0",
        "the same in each run, for 1 to 3 threads",
        "a row of b alone is as in the batch",
        "a row of h alone is as in the batch",
    ]
    assert all(f.ok for f in found.values())
    masked = found["live of 0"].numbers
    assert (masked["rows_of_0"], masked["minus_infinities"]) == (54, 54)
    assert masked["max"] == 0 < found["accuracy"].numbers["rms"] < found["accuracy"].numbers["max"]


def off_by(error):
    def spoil(outputs, inputs, calls):
        if outputs[0].shape[:2] == (SIZES["B"], SIZES["H"]):
            outputs[0][2, 1, 3, 0] += error
        return outputs

    return spoil


def test_the_worst_element_is_found():
    found = run(off_by(0.5))["accuracy"]
    assert not found.ok
    assert found.numbers["worst"] == "output 0 at b=2, h=1, i=3, d=0"
    assert found.numbers["max"] == pytest.approx(0.5, rel=1e-3)
    assert found.numbers["got"] - found.numbers["wanted"] == pytest.approx(0.5, rel=1e-3)


def nan_for_masked(outputs, inputs, calls):
    return [np.where(inputs["live"].any(), x, np.nan) for x in outputs]


def drift(outputs, inputs, calls):
    outputs[0] *= np.float32(1 + calls * 1e-7)
    return outputs


def by_batch(outputs, inputs, calls):
    outputs[0] *= np.float32(1 + 2e-7 * (len(inputs["q"]) == 1))
    return outputs


@pytest.mark.parametrize(
    ("spoil", "failing"),
    [
        (nan_for_masked, "live of 0"),
        (drift, "the same in each run, for 1 to 3 threads"),
        (by_batch, "a row of b alone is as in the batch"),
    ],
)
def test_other_faults_are_told_apart(spoil, failing):
    found = run(spoil)
    assert not found[failing].ok and found["accuracy"].ok


def test_command_line(capsys):
    argv = ["check", "examples/with_lse.py", "--shape", "B=2,H=2,N=37,D=16"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "ok      accuracy" in text and "worst: output" in text and "RMS" in text
    assert main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] and result["shape"]["N"] == 37
    assert {"accuracy", "logits of 1e4"} <= {c["name"] for c in result["checks"]}


def test_a_failing_check_exits_with_1(capsys, monkeypatch):
    monkeypatch.setattr("tilecc.check.FACTOR", 0)
    assert main(["check", "examples/softmax_one.py", "--shape", "B=1,H=1,N=20,D=16"]) == 1
    assert "FAILED  accuracy" in capsys.readouterr().out


def test_too_large_a_shape_is_one_message(capsys, monkeypatch):
    def no_memory(*args):
        raise MemoryError("Unable to allocate 3.7 TiB")

    monkeypatch.setattr("tilecc.inputs.random_inputs", no_memory)
    assert main(["run", "examples/attention.py", "--shape", "N=100,D=16"]) == 1
    error = capsys.readouterr().err
    assert "error: not enough memory (Unable to allocate 3.7 TiB)" in error
    assert "give smaller sizes by --shape" in error and "Traceback" not in error

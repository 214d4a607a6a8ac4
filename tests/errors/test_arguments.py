"""What a wrong call is told: the argument, the axis, both values, and what to do."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from handmade import handmade

import tilecc as tc
from tilecc.errors import ArgumentError

X = np.zeros((5, 3), "f4")
R = np.zeros(5, "i8")
READ_ONLY = np.zeros((5, 3), "f4")
READ_ONLY.flags.writeable = False


@pytest.fixture(scope="module")
def kernel():
    return handmade()


class Gpu:
    """A tensor of a framework on a GPU."""

    shape, device = (5, 3), "cuda:0"

    def __dlpack__(self, **_):
        raise AssertionError("it is not to be touched")

    def __dlpack_device__(self):
        return (2, 0)


class Unwilling(Gpu):
    """A tensor that refuses to be exported, as torch's do that require a gradient."""

    def __dlpack__(self, **_):
        raise BufferError("requires grad: use x.detach()")

    def __dlpack_device__(self):
        return (1, 0)


class Nowhere(Gpu):
    """A tensor on a device that DLPack has no number for."""

    def __dlpack_device__(self):
        raise ValueError("unknown device type meta")


class Learned(Unwilling):
    """A tensor whose framework would record what is done to it."""

    requires_grad = True


CASES = {
    "too many": ((X, 1.0, X, 1, 2), {}, r"scale\(x, a, z, n\) takes 4 arguments, 5 were given"),
    "missing": ((X, 1.0), {"n": 1}, r"scale\(x, a, z, n\): argument z is missing"),
    "twice": ((X, 1.0, X), {"z": X, "n": 1}, "argument z is given twice"),
    "unknown": ((X, 1.0, X, 1), {"q": X}, "there is no argument q"),
    "not an array": (([1, 2], 1.0, X, 1), {}, "argument x is a list, which is not an array"),
    "dtype": (
        (X.astype("f8"), 1.0, X, 1),
        {},
        "argument x has dtype float64, where the kernel takes float32\n"
        '    convert it to float32, or compile with dtype="float64"',
    ),
    "bf16": ((X.astype(ml_dtypes.bfloat16), 1.0, X, 1), {}, "argument x has dtype bfloat16"),
    "integers": ((X.astype("i4"), 1.0, X, 1), {}, "has dtype int32, .*\n    convert it to float"),
    "byte order": ((X.astype(">f4"), 1.0, X, 1), {}, "has dtype float32 in foreign byte order"),
    "strings": ((np.array([["a"]]), 1.0, X, 1), {}, "argument x has dtype <U1"),
    "rank": ((X[0], 1.0, X, 1), {}, r'x has 1 axes, shape \(3,\), where 2 are wanted: "i:N d"'),
    "extents": (
        (X, 1.0, np.zeros((6, 3), "f4"), 1),
        {},
        "argument z has 6 along axis i, where argument x has 5 along axis i",
    ),
    "last stride": (
        (np.zeros((3, 5), "f4").T, 1.0, X, 1),
        {},
        "argument x has stride 5 along axis d, its last, which must be 1\n"
        r"    pass a copy, made by np.ascontiguousarray\(...\)",
    ),
    "backwards": ((X[:, ::-1], 1.0, X, 1), {}, "x has stride -1 along axis d"),
    "unaligned": (
        (np.zeros(61, np.uint8)[1:].view("f4").reshape(5, 3), 1.0, X, 1),
        {},
        "argument x is not aligned to its elements of 4 bytes",
    ),
    "masked array": ((np.ma.array(X), 1.0, X, 1), {}, "argument x is a masked array"),
    "gpu": ((Gpu(), 1.0, X, 1), {}, r"x is on cuda:0, and this kernel runs on the"),
    "meta": ((Nowhere(), 1.0, X, 1), {}, "x cannot be read through DLPack: unknown device"),
    "gradient": (
        (Learned(), 1.0, X, 1),
        {},
        "argument x requires a gradient, and a kernel gives none\n    pass x.detach\\(\\), or call",
    ),
    "unwilling": ((Unwilling(), 1.0, X, 1), {}, "x cannot be read through DLPack: requires grad"),
    "not a number": ((X, "1", X, 1), {}, "argument a is a str, where a number is wanted"),
    "an array for a number": ((X, X, X, 1), {}, r"a is an array of shape \(5, 3\), where a number"),
    "a float for an int": ((X, 1.0, X, 1.5), {}, "argument n is 1.5, where a number of type int32"),
    "range": ((X, 1.0, X, 2**31), {}, "argument n is 2147483648, which is outside of int32"),
    "threads": ((X, 1.0, X, 1), {"threads": 0}, "threads=0 is not a positive number"),
    "outs": ((X, 1.0, X, 1), {"out": X}, "out= holds 1 arrays, and there are 2 outputs"),
    "out shape": (
        (X, 1.0, X, 1),
        {"out": (np.zeros((4, 3), "f4"), R)},
        r"out\[0\] has 4 along axis i, where the output has 5",
    ),
    "out rank": ((X, 1.0, X, 1), {"out": (R.astype("f4"), R)}, r"out\[0\] has shape \(5,\)"),
    "out dtype": ((X, 1.0, X, 1), {"out": (X.copy(), X.copy())}, r"out\[1\] has dtype float32"),
    "out read-only": ((X, 1.0, X, 1), {"out": (READ_ONLY, R)}, r"out\[0\] is read-only"),
    "out overlaps": ((X, 1.0, X, 1), {"out": (X[::-1], R)}, r"out\[0\] overlaps argument x"),
    "out broadcast": (
        (X, 1.0, X, 1),
        {"out": (np.lib.stride_tricks.as_strided(np.zeros(3, "f4"), (5, 3), (0, 4)), R)},
        r"out\[0\] repeats elements",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message(kernel, name):
    args, kwargs, message = CASES[name]
    with pytest.raises(ArgumentError, match=message):
        kernel(*args, **kwargs)


def test_everything_that_is_wrong_is_reported_at_once(kernel):
    with pytest.raises(ArgumentError) as e:
        kernel(X.astype("f8"), "a", np.zeros((6, 4), "f4"), 2**40)
    text = str(e.value)
    for part in ("argument x has dtype", "argument a is", "z has 6 along axis i", "argument n is"):
        assert part in text
    assert "z has 4 along axis d, where argument x has 3 along axis d" in text


def test_outputs_may_not_overlap_each_other():
    memory = np.zeros(100, np.uint8)
    y, r = memory[:60].view("f4").reshape(5, 3), memory[56:96].view("i8")
    with pytest.raises(ArgumentError, match=r"out\[1\] overlaps out\[0\]"):
        handmade()(X, 1.0, X, 1, out=(y, r))


def test_bad_number_of_threads_in_the_environment(kernel, monkeypatch):
    monkeypatch.setenv("TILECC_NUM_THREADS", "many")
    with pytest.raises(ArgumentError, match="TILECC_NUM_THREADS='many' is not a positive number"):
        kernel(X, 1.0, X, 1)


def test_what_is_no_array_is_not_said_to_have_no_axes_too():
    with pytest.raises(tc.ArgumentError) as error:
        tc.compile("examples/attention.py", static={"D": 8})([[1.0]], None, "v")
    assert [d.message.split(" which")[0] for d in error.value.diagnostics] == [
        "argument q is a list,",
        "argument k is a NoneType,",
        "argument v is a str,",
    ]


@pytest.mark.parametrize("size", ["a", 2.5, None, -1])
def test_a_size_that_is_no_whole_number(size):
    kernel = tc.compile("examples/attention.py", static={"D": 8})
    with pytest.raises(tc.CompileError, match=r"extent N is .*, not a whole number"):
        kernel.cost(B=1, H=1, N=size)

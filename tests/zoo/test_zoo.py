"""Every row of the zoo: each level of the IR, and one kernel for all lengths, against float64."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from cases import LENGTHS, NAMES, STATIC, arguments, sizes, spec_of, static_of, widened
from formulas import FORMULAS
from levels import lower

import tilecc as tc
from tilecc.ir.interp import interpret

# |error| <= C * eps * max(1, largest |logit|), times the largest |value|.
C = 24
SIZES = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# What a row is divided by is a sum of both signs, which cancels.
LOOSE = {"retention": 4}


@cache
def wanted(name, rows, columns, dtype="float32"):
    n = sizes(name, rows, columns)
    inputs = arguments(name, n, dtype)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return n, inputs, FORMULAS[name](**widened(inputs))


@cache
def levels_of(name):
    return lower(spec_of(name).trace("float32"), STATIC, (16, 24))


@cache
def kernel_of(name, dtype):
    return tc.compile(spec_of(name), dtype=dtype, static=static_of(name))


def test_every_spec_has_a_formula():
    assert set(NAMES) == set(FORMULAS)


@pytest.mark.parametrize("name", NAMES)
def test_levels(name):
    levels = levels_of(name)
    assert levels.refused is None, levels.refused
    assert {"graph", "fuse", "online-softmax", "tile"} <= set(levels.stages)
    for rows, columns in LENGTHS[:2]:
        n, inputs, want = wanted(name, rows, columns)
        for level, func in levels.stages.items():
            got = interpret(func, inputs, exact=True, chunk=24, extents=n)
            for x, w in zip(got, want, strict=True):
                np.testing.assert_allclose(x, w, rtol=1e-8, atol=1e-9, err_msg=level)


def check(name, dtype, rows, columns):
    _, inputs, want = wanted(name, rows, columns, dtype)
    got = kernel_of(name, dtype)(**inputs)
    for x, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        x = np.asarray(x).astype("f8")
        assert x.shape == w.shape
        bound = C * LOOSE.get(name, 1) * SIZES[dtype] * max(1.0, np.abs(w).max(initial=0.0))
        np.testing.assert_allclose(x, w, rtol=0, atol=bound)


@pytest.mark.parametrize("name", NAMES)
def test_one_kernel_for_every_length(name):
    for rows, columns in LENGTHS:
        check(name, "float32", rows, columns)
    assert kernel_of(name, "float32").compilations == 1


QUICK = {("bfloat16", "causal"), ("bfloat16", "gqa"), ("bfloat16", "mla")}


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        x if x in QUICK else pytest.param(*x, marks=pytest.mark.slow)
        for x in ((dtype, name) for dtype in ("bfloat16", "float16") for name in NAMES)
    ],
)
def test_16_bits(dtype, name):
    for rows, columns in LENGTHS[:3]:
        check(name, dtype, rows, columns)
    assert kernel_of(name, dtype).compilations == 1


def test_the_latent_of_deepseek():
    """512 + 64, and values of 512."""
    n = {**sizes("mla", 7, 45), "C": 512, "R": 64, "B": 1, "H": 2}
    inputs = arguments("mla", n)
    kernel = tc.compile(spec_of("mla"), static={"C": 512, "R": 64})
    inputs["scale"] = 576**-0.5
    (want,) = FORMULAS["mla"](**widened(inputs))
    np.testing.assert_allclose(kernel(**inputs), want, rtol=0, atol=2e-5)


def test_layouts_are_read_where_they_lie():
    """Transposed heads and reversed batches are strides; a last axis with steps is refused."""
    _, inputs, (want,) = wanted("causal", 37, 61)
    kernel = kernel_of("causal", "float32")
    bnhd = {k: x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for k, x in inputs.items()}
    assert not bnhd["q"].flags.c_contiguous
    np.testing.assert_allclose(kernel(**bnhd), want, rtol=0, atol=1e-5)
    back = {k: x[::-1].copy()[::-1] for k, x in inputs.items()}
    np.testing.assert_allclose(kernel(**back), want, rtol=0, atol=1e-5)
    d_first = {k: np.moveaxis(np.moveaxis(x, -1, 0).copy(), 0, -1) for k, x in inputs.items()}
    with pytest.raises(tc.ArgumentError, match=r"along axis d, its last(?s:.)*ascontiguousarray"):
        kernel(**d_first)


def test_a_row_depends_on_no_other_sequence():
    """What else is in the batch, or packed beside it, changes no bit of a sequence's result."""
    _, inputs, _ = wanted("cache", 37, 61)
    kernel = kernel_of("cache", "float32")
    alone = kernel(**{k: x[:1] for k, x in inputs.items()})
    np.testing.assert_array_equal(kernel(**inputs)[:1], alone)

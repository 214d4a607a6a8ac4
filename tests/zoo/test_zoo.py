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
SIZES = {"float32": 2.0**-24, "bfloat16": 2.0**-8}
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

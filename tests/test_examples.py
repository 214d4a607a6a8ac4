"""Every example, at many lengths: each level of the IR and one kernel against float64 numpy."""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from levels import lower
from references import REFERENCES

import tilecc as tc
from tilecc.dsl.load import load_spec
from tilecc.ir import dtypes
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir

EXAMPLES = sorted(p.stem for p in (Path(__file__).parent.parent / "examples").glob("*.py"))
LENGTHS = (0, 1, 7, 63, 64, 65)
LONG = (1000, 1037)
CHUNK = 24
HEADS = {"B": 2, "H": 4, "G": 2, "D": 8}
# |error| <= C * eps * max(1, largest |logit|), times the largest |value|.
C = 16
SIZES = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# Arguments that are not standard normal.
SPECIAL = {
    "mask": lambda rng, shape: (rng.random(shape) < 0.6).astype(np.int32),
    "slope": lambda rng, shape: (rng.random(shape) + 0.1).astype(np.float32),
    "w": lambda rng, shape: 9,
    "cap": lambda rng, shape: 4.0,
    "bias": lambda rng, shape: -1.5,
    "logit": lambda rng, shape: rng.standard_normal(shape).astype(np.float32),
}


@cache
def spec_of(name):
    return load_spec(str(Path(__file__).parent.parent / "examples" / f"{name}.py"))


def extents_for(name, rows, columns):
    """All extents of a spec for these lengths; the lengths agree where the spec says so."""
    lengths = {"N": rows, "Nq": rows, "Nk": columns, "V": columns}
    e = 6 if name == "normalised_linear" else 0
    return {**HEADS, **lengths, **({"E": e} if e else {})}


def inputs_for(name, extents, dtype="float32", scale=1.0):
    spec, out = spec_of(name), {}
    for a in spec.signature.arguments:
        shape = tuple(extents.get(x.extent.name, 0) for x in a.axes)
        rng = np.random.default_rng(zlib.crc32(a.name.encode()))
        special = SPECIAL.get(a.name) if a.dtype is not None else None
        if special is not None:
            out[a.name] = special(rng, shape)
        else:
            x = rng.standard_normal(shape) * (scale if a.name in ("q", "k") else 1.0)
            out[a.name] = x.astype(dtypes.dtype(dtype).numpy)
    if "mask" in out and out["mask"].size:
        out["mask"][0] = 0  # a sequence of padding alone
    return out


def wanted(name, inputs):
    wide = {n: x.astype("f8") if hasattr(x, "astype") else x for n, x in inputs.items()}
    if "mask" in inputs:
        wide["mask"] = inputs["mask"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return REFERENCES[name](**wide)


@cache
def levels_of(name):
    """Every level, with tiles of 16 rows and 24 columns."""
    return lower(spec_of(name).trace("float32"), {**HEADS, "E": 6}, (1, 1, 16, 24)).stages


def test_every_example_has_a_reference():
    assert set(EXAMPLES) == set(REFERENCES)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_levels(name, length):
    extents = extents_for(name, length, max(length - 3, 0) if length != 7 else 65)
    extents |= {"B": 1 if "mask" not in inputs_for(name, extents) else 2}
    inputs = inputs_for(name, extents)
    want = wanted(name, inputs)
    assert list(levels_of(name)) == [
        *("graph", "simplify", "fuse", "online-softmax", "mask-tiles", "exponents", "tile")
    ]
    for level, func in levels_of(name).items():
        got = interpret(func, inputs, exact=True, chunk=CHUNK)
        for x, w in zip(got, want, strict=True):
            np.testing.assert_allclose(x, w, rtol=1e-9, atol=1e-11, err_msg=level)


@pytest.mark.parametrize("name", EXAMPLES)
def test_text_is_read_back(name):
    for level, func in levels_of(name).items():
        text = print_ir(func)
        assert print_ir(parse_ir(text)) == text, level


@cache
def kernel_of(name, dtype):
    names = {a.name for arg in spec_of(name).signature.arguments for a in arg.axes}
    static = {"D": HEADS["D"]} if "d" in names else {}
    return tc.compile(spec_of(name), dtype=dtype, static=static)


def check_kernel(name, dtype, rows, columns, scale=1.0):
    extents = extents_for(name, rows, columns)
    if rows * columns > 10_000:
        extents |= {"B": 2, "H": 2, "G": 1}
    inputs = inputs_for(name, extents, dtype, scale)
    got = kernel_of(name, dtype)(**inputs)
    want = wanted(name, inputs)
    logit = largest_logit(inputs)
    tolerance = C * 2.0**-24 * logit + (SIZES[dtype] if dtype != "float32" else 0)
    for x, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        x = np.asarray(x).astype("f8")
        assert x.shape == w.shape
        finite = np.isfinite(w)
        np.testing.assert_array_equal(x[~finite], w[~finite])
        size = np.abs(w[finite]).max(initial=1.0)
        np.testing.assert_allclose(x[finite], w[finite], rtol=0, atol=tolerance * size)


def largest_logit(inputs):
    """The largest |q k / sqrt(d)|, or what stands for it; at least 1."""
    a, b = [x.astype("f8") for x in inputs.values() if getattr(x, "ndim", 0) >= 2][:2]
    if not a.size or not b.size:
        return 1.0
    norms = [np.sqrt((x * x).sum(-1)).max() for x in (a, b)]
    return max(1.0, norms[0] * norms[1] / np.sqrt(a.shape[-1]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_kernel_for_every_length(name):
    for length in (*LENGTHS, *LONG):
        for other in {length, 65, 1037} if length in (7, 1000) else {length}:
            check_kernel(name, "float32", length, other)
    assert kernel_of(name, "float32").compilations == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_kernels_in_16_bits(name, dtype):
    for length in (0, 7, 65, 200):
        check_kernel(name, dtype, length, length)
    assert kernel_of(name, dtype).compilations == 1


# Logits of about 1e4, of both signs.
@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"normalised_linear"}))
def test_large_logits(name):
    for length in (1, 65, 200):
        check_kernel(name, "float32", length, length, scale=60.0)


@pytest.mark.parametrize("name", ["sliding_window", "with_lse", "padding_mask"])
def test_rows_that_see_nothing(name):
    """They give 0 (and -inf), also where what they do not see is very negative or not finite."""
    extents = extents_for(name, 65, 65)
    inputs = inputs_for(name, extents, scale=60.0)
    if "w" in inputs:
        inputs["w"] = 0
    elif "mask" in inputs:
        inputs["k"][0], inputs["v"][0] = np.nan, np.inf  # behind the padding
    got = kernel_of(name, "float32")(**inputs)
    if name == "with_lse":
        want = wanted(name, inputs)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-4)
    else:
        assert np.all((got if name == "sliding_window" else got[0]) == 0)
        assert np.isfinite(got).all()

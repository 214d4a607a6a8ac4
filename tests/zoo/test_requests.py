"""docs/requests.md names tests that exist, and the requests that no other test answers."""

from __future__ import annotations

import ast
import mmap
import re
from pathlib import Path

import numpy as np
import pytest
from cases import arguments, sizes, spec_of, widened
from formulas import FORMULAS

import tilecc as tc

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "requests.md"
EXAMPLES = ROOT / "examples"


def test_every_request_has_a_row_and_its_tests_exist():
    rows = re.findall(
        r"^\| (\d+) \| [^|]* \| ([^|]*) \| ([^|]*)\|$", PAGE.read_text(), re.MULTILINE
    )
    assert [int(n) for n, _, _ in rows] == list(range(1, 26))
    for n, answered, by in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", by)
        assert named or answered.startswith("no"), f"request {n} names no test"
        for file, name in named:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            found = {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}
            assert not name or name in found, f"request {n}: {file} has no {name}"


@pytest.fixture(scope="module")
def with_lse():
    return tc.compile(EXAMPLES / "with_lse.py", static={"D": 8})


def test_a_masked_row_is_0_and_its_lse_minus_infinity(with_lse):
    """Also beside rows that see something, and where what is not seen is not finite."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 90, 8)).astype("f4")
    k[..., 0, :], q = -np.inf, np.abs(q)
    o, lse = with_lse(q, k, v)
    assert np.all(o[..., 0, :] == 0) and np.all(lse[..., 0] == -np.inf)
    assert np.isfinite(o).all() and np.isfinite(lse[..., 1:]).all()


@pytest.mark.parametrize("level", [-1e30, -3e38])
def test_scores_below_any_sentinel(with_lse, level):
    """A row whose scores all are very negative attends as if they were not."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 90, 8)).astype("f4")
    q[..., 1:], k[..., 1:] = 0, 0
    q[..., 0], k[..., 0] = 1, level
    o, _ = with_lse(q, k, v)
    want = np.cumsum(v.astype("f8"), -2) / np.arange(1, 91)[:, None]
    np.testing.assert_allclose(o, want, rtol=0, atol=1e-5)


def test_offsets_beyond_32_bits():
    """Heads of keys that are more than 2^31 elements apart (memory that is hardly touched)."""
    n = {**sizes("kv_int8", 7, 61), "B": 1, "H": 3}
    inputs = arguments("kv_int8", n)
    (want,) = FORMULAS["kv_int8"](**widened(inputs))
    step = 2**31 + 64
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, 2 * step + 61 * 8, flags=flags)
    far = np.frombuffer(memory, "i1")
    for h in range(3):
        far[h * step : h * step + 61 * 8] = inputs["k"][0, h].reshape(-1)
    far = np.lib.stride_tricks.as_strided(far, (1, 3, 61, 8), (3 * step, step, 8, 1))
    got = tc.compile(spec_of("kv_int8"), static={"D": 8})(**{**inputs, "k": far})
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)

"""Biases of a difference of positions: read once for each diagonal of a tile."""

import re

import numpy as np
import pytest
from kernels import Built

import tilecc as tc
from tilecc.codegen.cpu.diagonals import diagonal
from tilecc.ir.parser import parse_ir


@tc.spec
def biased(
    q: tc.Tensor["h i:N d"],
    k: tc.Tensor["h j:M d"],
    v: tc.Tensor["h j:M e:D"],
    bias: tc.Tensor["h r", "float32"],
    sums: tc.Tensor["s", "int8"],
):
    """A clipped difference, a bucket of one that takes a logarithm, and a sum."""
    i, j = tc.index("i"), tc.index("j")
    near = tc.maximum(tc.minimum(i - j, 5), -5) + 5
    far = tc.cast(tc.log(tc.abs(j - i) + 1) * 2, "int64") + tc.where(j > i, 1, 0)
    s = tc.dot(q, k, over="d") + bias.at(r=near) + bias.at(r=tc.minimum(far, 11))
    s = s + sums.at(s=(i + j) % 4)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@pytest.mark.parametrize(
    "tile", [{"i": 16, "j": 24}, {"i": 32, "j": 8}, {"i": 1, "j": 16}], ids=str
)
def test_biases_of_differences_and_sums(tile):
    built = Built(biased, tile, {"D": 8})
    if tile["i"] > 1:
        loads = [op for op in built.func.walk() if op.name == "load" and diagonal(op)]
        assert {diagonal(op)[2] for op in loads} == {-1, 1}
        assert {op.operands[0].name for op in loads} == {"bias", "sums"}
    rng = np.random.default_rng(0)
    for n, m in ((1, 1), (37, 50)):
        q, k, v = (rng.standard_normal((2, x, 8), np.float32) for x in (n, m, m))
        bias = rng.standard_normal((2, 12), np.float32)
        sums = rng.integers(-3, 4, 4).astype(np.int8)
        i, j = np.arange(n)[:, None], np.arange(m)
        far = (np.log(np.float32(1) + abs(j - i)) * 2).astype(int) + (j > i)
        s = np.einsum("hid,hjd->hij", q, k, dtype="f8") + bias[:, np.clip(i - j, -5, 5) + 5]
        s = s + bias[:, np.minimum(far, 11)] + sums[(i + j) % 4]
        p = np.exp(s - s.max(-1, keepdims=True))
        want = np.einsum("hij,hje->hie", p / p.sum(-1, keepdims=True), v)
        built.check([q, k, v, bias, sums], [want])


def test_a_bucket_is_worked_out_once_for_each_diagonal():
    """The scratch of a bias is a row, and its logarithms are taken where that is filled."""
    built = Built(biased, {"i": 32, "j": 24}, {"D": 8}, build=False)
    (kernel,) = built.program.kernels
    rows = [s.size for s in kernel.scratch if re.match(r"(bias|sums)", s.name)]
    assert rows and all(32 + 24 - 1 <= n < 32 + 24 - 1 + 16 for n in rows)  # in whole vectors


LOAD = """
func @f(%b: f32[r:R], %n: i64, %u: i64[i:N]) {{
  %o = alloc : f32[r]
  kernel grid(%t: 1) tile(i=8, j=8) {{
    %c = load %u[0 :+ i] : sram i64[i:8]
    %x = load %b[{coordinate}] : sram f32[i:8, j:8]
    %m = reduce sum %x over i, j : f32
    store %m, %o[0]
  }}
  return %o
}}
"""


@pytest.mark.parametrize(
    "coordinate, found",
    [
        ("index(i) - index(j) + %n", ("i", "j", -1)),
        ("abs(%t * 8 + index(j) - (%n + index(i))) // 2", ("i", "j", -1)),
        ("where(index(i) <= index(j), 1, %n % 3)", ("i", "j", -1)),
        ("2 * index(i) + 3 + 2 * index(j)", ("i", "j", 1)),
        ("index(i) - 2 * index(j)", None),
        ("index(i) * index(j)", None),
        ("index(i) // 2 - index(j) // 2", None),
        ("index(i)", None),
        ("%c - index(j)", None),  # what lies in memory may be anything
    ],
)
def test_what_is_the_same_along_diagonals(coordinate, found):
    func = parse_ir(LOAD.format(coordinate=coordinate))
    (op,) = (op for op in func.walk() if op.results and op.result.name == "x")
    assert diagonal(op) == found

"""Rows that a table picks: contractions read them where they lie, looked up once a tile."""

import re

import numpy as np
import pytest
from kernels import Built

import tilecc as tc
from tilecc.codegen.cpu.rows import Runs, row_axis, runs_of
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir


@tc.spec
def picked(
    q: tc.Tensor["b h d"],
    k: tc.Tensor["r:R d"],
    v: tc.Tensor["r:R e:D"],
    row: tc.Tensor["b j:N", "int32"],
):
    """A row of its own for each key."""
    s = tc.dot(q, k.at(r=row), over="d")
    return tc.dot(tc.softmax(s, over="j"), v.at(r=row), over="j")


def blocks(size, offset):
    """Keys in blocks of `size`, which heads number from `offset` times their own on."""

    @tc.spec
    def spec(
        q: tc.Tensor["b h d"],
        k: tc.Tensor["p:P s g d"],
        v: tc.Tensor["p:P s g e:D"],
        table: tc.Tensor["b g n", "int32"],
        length: tc.Tensor["b", "int32"],
    ):
        j = tc.axis("j", tc.extent("n") * size)
        g = tc.index("h") // (tc.extent("h") // tc.extent("g"))
        page = table.at(n=j // size, g=g) + g * offset
        place = {"p": page, "s": j % size, "g": g}
        s = tc.where(j < length, tc.dot(q, k.at(**place), over="d"), -tc.inf)
        return tc.dot(tc.softmax(s, over="j"), v.at(**place), over="j")

    return spec


def reference(q, k, v, seen):
    """softmax(q k^T where seen) v, keys [b, h, j, d]."""
    s = np.where(seen, np.einsum("bhd,bhjd->bhj", q, k, dtype="f8"), -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhj,bhje->bhe", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("how", ["end", "start", "padded"])
def test_a_row_for_each_key(how):
    """The last rows of a table and of what it picks from lie at the end of memory."""
    built = Built(picked, {"j": 24}, {"D": 48, "H": 4})
    rng = np.random.default_rng(0)
    for n, rows in ((1, 1), (24, 5), (100, 60)):
        q, k, v = (rng.standard_normal(s, np.float32) for s in ((2, 4, 48), *2 * [(rows, 48)]))
        row = rng.integers(0, rows, (2, n)).astype(np.int32)
        row[:, -1] = rows - 1
        keys, values = (np.repeat(x[row][:, None], 4, 1) for x in (k, v))
        built.check([q, k, v, row], [reference(q, keys, values, True)], how=how)


@pytest.mark.parametrize("size, offset", [(16, 0), (16, 3), (5, 3)])
def test_blocks_that_heads_number_on_their_own(size, offset):
    built = Built(blocks(size, offset), {"h": 2, "j": 24}, {"D": 32, "H": 4, "G": 2})
    rng = np.random.default_rng(size)
    b, count, pages = 2, 7, 14 + offset
    q = rng.standard_normal((b, 4, 32), np.float32)
    k, v = rng.standard_normal((2, pages, size, 2, 32), np.float32)
    table = rng.integers(0, 14, (b, 2, count)).astype(np.int32)
    length = np.array([count * size, 3])
    table[1, :, 1:] = 2**30  # never needed
    g = np.arange(2)[:, None]
    page = np.minimum(table + g * offset, pages - 1)
    j = np.arange(count * size)
    keys, values = (np.repeat(x[page[:, :, j // size], j % size, g], 2, 1) for x in (k, v))
    want = reference(q, keys, values, j < length[:, None, None])
    built.check([q, k, v, table, length.astype(np.int32)], [want])


@pytest.fixture(scope="module")
def text():
    """The TIR of a kernel with a table, whose last tiles are masked and padded."""
    static = {"D": 128, "H": 4, "G": 2}
    made = tc.compile(blocks(16, 0), "cpu", "float32", static, tile={"j": 48}).ir("tir")
    return made.split("\ndef ")[1]  # the kernel in front of the one that merges parts


def test_a_table_is_read_once_for_each_row(text):
    """Not for each element of one: all its reads are where rows are looked up."""
    table = next(iter(re.findall(r'(\w+): T.Buffer\(\(B, T.int64\(2\), N\), "int32"', text)))
    reads = [line for line in text.splitlines() if f"{table}[" in line]
    assert reads and all(re.match(r" *(buffer_\d+)\[v_\d+[^=]*\] = ", line) for line in reads)
    assert not any("Ramp" in line or "float32" in line for line in reads)


def test_memory_is_asked_for_rows_to_come(text):
    """Also where they are picked, by the offsets that were looked up."""
    asked = [x for x in text.splitlines() if "tilecc.prefetch" in x]
    assert asked and all(re.search(r"buffer_\d+\[T.min\(", x) for x in asked)


LOAD = """
func @f(%k: f32[p:P, s:16, d:32], %t: i32[n:N], %u: i32[i:N]) {{
  %o = alloc : f32[i]
  kernel grid(%j_tile: 1) tile(j=48) {{
    %a = load %t[index(j) // 16] : sram i32[j:48]
    %c = load %u[0 :+ i] : sram i32[i:48]
    %x = load {coords}
    %m = reduce sum %x over {over} : reg f32
    store %m, %o[0]
  }}
  return %o
}}
"""


@pytest.mark.parametrize(
    "load, over, axis",
    [
        ("%k[%a, index(j) % 16, 0 :+ d] : sram f32[j, d:32]", "j, d", "j"),
        ("%k[3, index(j) % 16, 0 :+ d] : sram f32[j, d:32]", "j, d", "j"),
        ("%k[3, 5, 0 :+ d] : sram f32[d:32]", "d", None),  # one row
        ("%k[%c, index(j) % 16, 0 :+ d] : sram f32[i, j, d:32]", "i, j, d", None),
        ("%k[%a, 0 :+ s, %a] : sram f32[j, s:16]", "j, s", "j"),  # not in one piece
    ],
)
def test_what_rows_a_load_picks(load, over, axis):
    func = parse_ir(LOAD.format(coords=load, over=over))
    (op,) = (op for op in func.walk() if op.results and op.result.name == "x")
    assert row_axis(op) == axis


@pytest.mark.parametrize(
    "load, over, runs",
    [
        ("%k[%a, index(j) % 16, 0 :+ d] : sram f32[j, d:32]", "j, d", Runs(16, (0, 1, 0))),
        ("%k[3, index(j) % 16, 0 :+ d] : sram f32[j, d:32]", "j, d", Runs(16, (0, 1, 0))),
        ("%k[%a, index(j) % 12, 0 :+ d] : sram f32[j, d:32]", "j, d", Runs(4, (0, 1, 0))),
        # beyond the axis, a row would have to be kept inside on its own
        ("%k[%a, index(j) % 48, 0 :+ d] : sram f32[j, d:32]", "j, d", Runs(1, (0, 0, 0))),
        ("%k[index(j), 3, 0 :+ d] : sram f32[j, d:32]", "j, d", Runs(1, (0, 0, 0))),
        ("%k[%a, (index(j) + 1) % 16, 0 :+ d] : sram f32[j, d:32]", "j, d", Runs(1, (0, 0, 0))),
        ("%k[%a * 2, 15 - index(j) % 16, 0 :+ d] : sram f32[j, d]", "j, d", Runs(1, (0, 0, 0))),
    ],
)
def test_runs_of_rows_that_follow_each_other(load, over, runs):
    func = parse_ir(LOAD.format(coords=load, over=over))
    (op,) = (op for op in func.walk() if op.results and op.result.name == "x")
    assert runs_of(op, "j") == runs


def test_scales_in_pages():
    """Keys in int8, each with a scale that lies in a page of its own."""

    @tc.spec
    def spec(
        q: tc.Tensor["b h d"],
        k: tc.Tensor["p:P s:S g d", "int8"],
        scale: tc.Tensor["p:P s:S g", "float32"],
        v: tc.Tensor["p:P s:S g e:D", "int8"],
        table: tc.Tensor["b n", "int32"],
    ):
        size = tc.extent("s")
        j = tc.axis("j", tc.extent("n") * size)
        place = {"p": table.at(n=j // size), "s": j % size, "g": tc.index("h") // 2}
        s = tc.dot(q, k.at(**place) * scale.at(**place), over="d")
        return tc.dot(tc.softmax(s, over="j"), v.at(**place) * scale.at(**place), over="j")

    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 4, 32), np.float32)
    k, v = rng.integers(-127, 128, (2, 9, 16, 2, 32)).astype(np.int8)
    scale = rng.random((9, 16, 2), np.float32) / 127
    table = rng.integers(0, 9, (2, 5)).astype(np.int32)
    keys, values = (
        np.repeat((x * scale[..., None])[table].reshape(2, 80, 2, 32), 2, 2).swapaxes(1, 2)
        for x in (k, v)
    )
    static = {"D": 32, "H": 4, "G": 2, "S": 16}
    built = Built(spec, {"h": 2, "j": 48}, static)
    built.check([q, k, scale, v, table], [reference(q, keys, values, True)])
    # A group's values are dequantised once, not for each head.
    dequantised = re.findall(r"%v_\d+ \* %scale_\d+ : reg (f32\[.*?\])", print_ir(built.func))
    assert dequantised and not any("h" in t for t in dequantised)

"""Maps of tiles: what runs is what holds a live pair, and nothing else, counted pair by pair."""

import json
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilecc as tc
from tilecc.cost.visits import computed, leading, visited
from tilecc.errors import CompileError
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.ir.verifier import verify
from tilecc.passes.base import Remarks
from tilecc.passes.mask_tiles import MaskTiles
from tilecc.passes.tile import Tile

EMPTY, PARTIAL, FULL = 0, 1, 2

# A masked product with a row sum, in loop IR: PRED is the condition.
MASKED = """
func @f(%q: f32[h:H, i:M, d:4], %k: f32[h, j:N, d], %v: f32[h, j, e:4], %w: i64, %p: i64,
 %doc_i: i64[i], %doc_j: i64[j], %seen: bool[i, j], %glob_i: bool[i], %glob_j: bool[j],
 %start: i32[i], %stop: i32[i], %time_i: f32[i], %time_j: f32[j], %len: i64[h]) {
  %o, %n = kernel over h, i {
    %acc, %l = stream j {
      %s = contract %q, %k over d : f32[h, i, j]
      %x = map where(PRED, %s, 0.0) : f32[h, i, j]
      %pv = contract %x, %v over j : f32[h, i, e]
      %acc1 = update sum %pv : f32[h, i, e]
      %r = reduce sum %x over j : f32[h, i]
      %l1 = update sum %r : f32[h, i]
      yield %acc1, %l1
    }
    yield %acc, %l
  }
  return %o, %n
}
""".replace("\n %", " %")

# Conditions and the same in numpy, over i[:, None], j[None, :] and the arrays by name.
AFFINE = {
    "index(j) <= index(i)": lambda a: a["j"] <= a["i"],
    "index(j) <= index(i) + N - M": lambda a: a["j"] <= a["i"] + a["N"] - a["M"],
    "index(i) - index(j) < %w": lambda a: a["i"] - a["j"] < a["w"],
    "abs(index(i) - index(j)) <= 3": lambda a: abs(a["i"] - a["j"]) <= 3,
    "index(j) < %p": lambda a: a["j"] < a["p"],
    "index(i) < %p": lambda a: a["i"] < a["p"],
    "(index(i) - index(j)) % 5 == 2": lambda a: (a["i"] - a["j"]) % 5 == 2,
    "index(j) % 7 < 2": lambda a: a["j"] % 7 < 2,
    "index(i) // 6 >= index(j) // 6": lambda a: a["i"] // 6 >= a["j"] // 6,
    "index(i) // 9 == index(j) // 9": lambda a: a["i"] // 9 == a["j"] // 9,
    "abs(index(i) // 6 - index(j) // 6) <= 1": lambda a: abs(a["i"] // 6 - a["j"] // 6) <= 1,
    "abs(index(i) % 6 - index(j) % 6) <= 1": lambda a: abs(a["i"] % 6 - a["j"] % 6) <= 1,
    "index(j) * 2 <= index(i) + 5": lambda a: a["j"] * 2 <= a["i"] + 5,
    "index(j) < %len": lambda a: a["j"] < a["len"],
    "(index(i) - index(j)) % (index(h) + 2) == 0": (
        lambda a: (a["i"] - a["j"]) % (a["h"] + 2) == 0
    ),
    "(index(j) - %len) // 4 <= (index(i) - %len) // 4": (
        lambda a: (a["j"] - a["len"]) // 4 <= (a["i"] - a["len"]) // 4
    ),
    "(index(i) // 4 == index(j) // 4) == true": lambda a: a["i"] // 4 == a["j"] // 4,
    "(index(j) <= index(i)) != (index(j) % 7 < 2)": (
        lambda a: (a["j"] <= a["i"]) != (a["j"] % 7 < 2)
    ),
}
DATA = {
    "%doc_i == %doc_j": lambda a: a["doc_i"] == a["doc_j"],
    "%doc_i >= %doc_j": lambda a: a["doc_i"] >= a["doc_j"],
    "%seen": lambda a: a["seen"],
    "%glob_i": lambda a: a["glob_i"],
    "%glob_j": lambda a: a["glob_j"],
    "%glob_i == %glob_j": lambda a: a["glob_i"] == a["glob_j"],
    "index(j) >= %start": lambda a: a["j"] >= a["start"],
    "index(j) < %stop": lambda a: a["j"] < a["stop"],
    "%time_i >= %time_j": lambda a: a["time_i"] >= a["time_j"],
    "(index(i) + %doc_j) % 3 == 0": lambda a: (a["i"] + a["doc_j"]) % 3 == 0,
}
ATOMS = {**AFFINE, **DATA}
predicates = st.recursive(
    st.sampled_from(sorted(ATOMS)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("&|"), inner, inner), st.tuples(st.just("~"), inner)
    ),
    max_leaves=4,
)


def text(p):
    if isinstance(p, str):
        return f"({p})"
    return f"~{text(p[1])}" if p[0] == "~" else f"({text(p[1])} {p[0]} {text(p[2])})"


def truth(p, at):
    if isinstance(p, str):
        return ATOMS[p](at)
    parts = [truth(x, at) for x in p[1:]]
    return ~parts[0] if p[0] == "~" else parts[0] & parts[1] if p[0] == "&" else parts[0] | parts[1]


def tiled(predicate, bi, bj):
    func = parse_ir(MASKED.replace("PRED", predicate))
    verify(func)
    remarks = Remarks()
    loop = MaskTiles().apply(func, remarks)
    verify(loop)
    out = Tile((("i", bi), ("j", bj))).apply(loop, remarks)
    verify(out)
    assert print_ir(parse_ir(print_ir(out))) == print_ir(out)
    return func, out


def arrays(m, n, rng, sort):
    """Arguments by name; sorted ids half of the time."""
    doc = rng.integers(-1, 4, max(m, n))
    doc = np.sort(doc) if sort else doc
    start = rng.integers(-2, n + 2, m)
    return {
        "q": rng.standard_normal((2, m, 4)), "k": rng.standard_normal((2, n, 4)),
        "v": rng.standard_normal((2, n, 4)), "w": np.int64(rng.integers(-1, 12)),
        "p": np.int64(rng.integers(0, 12)), "doc_i": doc[:m], "doc_j": doc[:n],
        "seen": rng.random((m, n)) < rng.choice([0.02, 0.5, 1.0]),
        "glob_i": rng.random(m) < 0.1, "glob_j": rng.random(n) < 0.1,
        "start": start.astype(np.int32),
        "stop": (start + rng.integers(0, 9, m)).astype(np.int32),
        "time_i": rng.standard_normal(m).astype(np.float32),
        "time_j": rng.standard_normal(n).astype(np.float32),
        "len": rng.integers(0, n + 1, 2),
    }  # fmt: skip


ROWS, COLUMNS = ("doc_i", "glob_i", "start", "stop", "time_i"), ("doc_j", "glob_j", "time_j")


def pairs(p, given, m, n):
    """The predicate for each (head, row, column)."""
    at = {**given, "M": m, "N": n, "i": np.arange(m)[:, None], "j": np.arange(n)[None]}
    at |= {name: given[name][:, None] for name in ROWS}
    at |= {name: given[name][None] for name in COLUMNS}
    at |= {"len": given["len"][:, None, None], "h": np.arange(2)[:, None, None]}
    return np.broadcast_to(truth(p, at), (2, m, n))


def brute(live, bi, bj):
    """Codes by looking at every pair. A tile that reaches beyond the keys is not full."""
    heads, m, n = live.shape
    codes = np.zeros((heads, -(-m // bi), -(-n // bj)), np.int8)
    for h, i, j in np.ndindex(codes.shape):
        tile = live[h, i * bi : (i + 1) * bi, j * bj : (j + 1) * bj]
        whole = tile.all() and tile.shape[1] == bj
        codes[h, i, j] = (FULL if whole else PARTIAL) if tile.any() else EMPTY
    return codes


def map_of(func, extents, given):
    """The map of a tile-level program, (heads, rows, columns)."""
    known = {p: np.asarray(given[p.name]) for p in func.params if p.type.axes}
    program = leading(func)
    if program is not None:
        known |= zip(
            computed(func), interpret(program, given, extents=extents, complete=False), strict=True
        )
    scalars = {"w": given["w"], "p": given["p"]}
    tiles = visited(func, extents, scalars, known)
    codes = tiles.codes
    if "h" not in tiles.axes:
        codes = codes[None]
    return np.broadcast_to(codes, (2, *codes.shape[1:]))


def check(p, m, n, bi, bj, seed):
    rng = np.random.default_rng(seed)
    given = arrays(m, n, rng, seed % 2)
    before, func = tiled(text(p), bi, bj)
    want = brute(pairs(p, given, m, n), bi, bj)
    got = map_of(func, {"H": 2, "M": m, "N": n}, given)
    assert not ((want > EMPTY) & (got == EMPTY)).any()
    if m == n and given["w"] > 0:  # else a row may have an interval with nothing in it
        np.testing.assert_array_equal(got > EMPTY, want > EMPTY)
    assert not ((got == FULL) & (want != FULL)).any()
    one = interpret(before, given, exact=True)
    for a, b in zip(one, interpret(func, given, exact=True), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)
    return got, want


SHAPES = [(1, 1, 4, 4), (13, 13, 4, 4), (17, 30, 8, 4), (24, 16, 4, 8), (0, 5, 4, 4), (5, 0, 4, 4)]


@pytest.mark.parametrize("name", sorted(ATOMS))
def test_each_condition(name):
    for seed, shape in enumerate(SHAPES):
        got, want = check(name, *shape, seed)
        np.testing.assert_array_equal(got, want)


def test_a_summary_of_which_only_one_end_decides():
    check(("&", "%glob_j", "%seen"), 2, 2, 4, 4, 0)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    predicates,
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from([(4, 4), (8, 4), (4, 8), (16, 8)]),
    st.integers(0, 1000),
)
def test_random_conditions(p, m, n, tile, seed):
    check(p, m, n, *tile, seed)


@pytest.mark.parametrize("w", [-7, -2, -1, 1, 3, 8])
def test_a_sum_is_divided_part_by_part(w):
    """Remainders and quotients of both axes at once, by numbers of both signs."""
    rng = np.random.default_rng(0)
    given = arrays(19, 23, rng, True) | {"w": np.int64(w)}
    for p in (
        "(index(i) - index(j)) % %w == 0",
        "(index(i) - 2 * index(j) + %p) // %w <= 1",
        "(7 - index(j) + index(i)) % %w * 2 + (index(j) + index(i)) // %w > 2",
    ):
        func, out = tiled(p, 8, 4)
        assert re.search(r"(%|//) %w : reg i64\[j\b", print_ir(out))
        one = interpret(func, given, exact=True)
        for a, b in zip(one, interpret(out, given, exact=True), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)


# What kernels say of themselves, and that it is what they do


@tc.spec
def documents(
    q: tc.Tensor["h i:N d"],
    k: tc.Tensor["h j:N d"],
    v: tc.Tensor["h j:N e:D"],
    doc: tc.Tensor["n:N", "int32"],
):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    same = doc.at(n=tc.index("i")) == doc.at(n=tc.index("j"))
    s = tc.where(same & (tc.index("j") <= tc.index("i")), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def neighbourhood(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"], v: tc.Tensor["j:N e:D"]):
    """Of an image with rows of 20 pixels, those at most 2 away."""
    i, j = tc.index("i"), tc.index("j")
    s = tc.dot(q, k, over="d")
    near = (abs(i // 20 - j // 20) <= 2) & (abs(i % 20 - j % 20) <= 2)
    return tc.dot(tc.softmax(tc.where(near, s, -tc.inf), over="j"), v, over="j")


def by_tiles(mask, bi, bj):
    return brute(mask[None], bi, bj)[0]


def not_built(spec, **tile):
    return tc.compile(spec, target="aarch64", static={"D": 4}, tile=tile)


def test_causal_at_8192():
    tiles = not_built("examples/causal.py", i=64, j=64).tiles(N=8192)
    at = np.arange(128)
    np.testing.assert_array_equal(
        tiles.codes, np.select([at < at[:, None], at == at[:, None]], [FULL, PARTIAL], EMPTY)
    )
    assert (tiles.full, tiles.partial, tiles.empty) == (8128, 128, 8128)


@pytest.mark.parametrize(("n", "w"), [(1000, 100), (4096, 1024), (500, 1)])
def test_a_window(n, w):
    tiles = not_built("examples/sliding_window.py", i=64, j=32).tiles(N=n, w=w)
    d = np.arange(n)[:, None] - np.arange(n)
    np.testing.assert_array_equal(tiles.codes, by_tiles((d >= 0) & (d < w), 64, 32))


@pytest.mark.parametrize("n", [100, 400, 410])
def test_a_neighbourhood(n):
    kernel = not_built(neighbourhood, i=32, j=16)
    (y, x), (v, u) = (divmod(a, 20) for a in (np.arange(n)[:, None], np.arange(n)))
    near = (abs(y - v) <= 2) & (abs(x - u) <= 2)
    tiles = kernel.tiles(N=n)
    np.testing.assert_array_equal(tiles.codes, by_tiles(near, 32, 16))
    # Intervals alone would visit more.
    assert "%tiles" in kernel.ir("tile") and kernel.deciding == ()


def test_documents():
    kernel = not_built(documents, i=16, j=16)
    ids = np.repeat(np.arange(5, dtype=np.int32), [30, 1, 50, 19, 41])
    tiles = kernel.tiles(doc=ids)
    n = np.arange(len(ids))
    live = (ids[:, None] == ids) & (n <= n[:, None])
    np.testing.assert_array_equal(tiles.codes, by_tiles(live, 16, 16))
    assert tiles.axes == ("i", "j") and tiles.sizes == (16, 16) and tiles.extents == (141, 141)
    data = json.loads(json.dumps(tiles.to_json()))
    assert data["full"] == tiles.full and data["rows"][1] == "++......."
    assert str(tiles).splitlines()[:3] == [
        "i: 141 in tiles of 16, j: 141 in tiles of 16",
        f"{tiles.full} full (#), {tiles.partial} partial (+), {tiles.empty} empty (.)",
        "+........",
    ]


def test_cost_with_the_data_and_with_its_counts():
    kernel = not_built(documents, i=16, j=16)
    ids = np.repeat(np.arange(4, dtype=np.int32), 32)
    tiles = kernel.tiles(doc=ids)
    assert kernel.counts == ("full_tiles", "partial_tiles") and kernel.deciding == ("doc",)
    k = kernel.cost(H=3, doc=ids).fused.reads["k"]
    assert k.numbers == 3 * tiles.live * 16 * 4
    assert k.formula == "16*D*H*full_tiles + 16*D*H*partial_tiles"
    counts = {"full_tiles": tiles.full, "partial_tiles": tiles.partial}
    assert kernel.cost(H=3, N=128, **counts).fused.reads["k"].numbers == k.numbers
    assert kernel.cost(H=3, N=128).fused.numbers is None


def test_what_is_missing_is_named():
    kernel = not_built(documents, i=16, j=16)
    with pytest.raises(CompileError, match="which tiles are visited depends on doc"):
        kernel.tiles(N=64)
    with pytest.raises(CompileError, match="has no stream number 3: it has 1"):
        kernel.tiles(3, doc=np.zeros(5, np.int32))


def test_compiled_kernels_skip_what_they_say_and_agree():
    """NaN in keys of tiles that are empty is never read."""
    kernel = tc.compile(documents, static={"D": 16}, tile=16)
    rng = np.random.default_rng(0)
    for n, sort in ((0, True), (1, True), (15, False), (17, True), (100, False), (161, True)):
        ids = rng.integers(-1, 4, n).astype(np.int32)
        ids = np.sort(ids) if sort else ids
        q, k, v = (rng.standard_normal((2, n, 16)).astype(np.float32) for _ in range(3))
        live = (ids[:, None] == ids) & (np.arange(n) <= np.arange(n)[:, None])
        s = np.where(live, np.einsum("hid,hjd->hij", q, k) / 4.0, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
        want = np.einsum("hij,hje->hie", p / p.sum(-1, keepdims=True), v)
        np.testing.assert_allclose(kernel(q, k, v, ids), want, rtol=1e-4, atol=1e-5)
        if n:
            codes = kernel.tiles(doc=ids).codes
            np.testing.assert_array_equal(codes, by_tiles(live, 16, 16))
            dead = np.repeat(~(codes > EMPTY).any(0), 16)[:n]
            k[:, dead] = np.nan
            np.testing.assert_allclose(kernel(q, k, v, ids), want, rtol=1e-4, atol=1e-5)


@tc.spec
def tree(q: tc.Tensor["i:N d"], k: tc.Tensor["j:N d"], v: tc.Tensor["j:N e:D"],
         seen: tc.Tensor["i:N j:N", "bool"]):  # fmt: skip
    s = tc.where(seen, tc.dot(q, k, over="d"), -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def test_a_mask_with_dead_rows():
    kernel = tc.compile(tree, static={"D": 8}, tile=16)
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((50, 8)).astype(np.float32) for _ in range(3))
    seen = np.zeros((50, 50), bool)
    seen[3, 40] = seen[20, 20] = True
    seen[32:50, :16] = True
    out = kernel(q, k, v, seen)
    assert not out[~seen.any(1)].any()
    np.testing.assert_allclose(out[3], v[40], rtol=1e-5)
    tiles = kernel.tiles(seen=seen)
    np.testing.assert_array_equal(tiles.codes, by_tiles(seen, 16, 16))
    assert tiles.full == 2 and tiles.live == 4


def test_bytes_on_the_emulator_are_those_predicted_from_the_data():
    kernel = tc.compile(documents, target="sm_80", dtype="float16", static={"D": 16}, tile=16)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 40, 16)).astype(np.float16) for _ in range(3))
    report = tc.emulate(kernel, q, k, v, np.repeat(np.arange(2, dtype=np.int32), [25, 15]))
    assert report.predicted is not None and report.bytes_read == report.predicted.bytes_read
    assert report.bytes_written == report.predicted.bytes_written and not report.races


def test_what_is_missing_is_named_as_it_can_be_given():
    """Lengths are an array: the numbers that a kernel loads from it are no arguments."""
    kernel = tc.compile("examples/zoo/cache.py", static={"D": 8}, tile=16)
    sizes = {"B": 2, "H": 1, "Nq": 16, "Nk": 40}
    with pytest.raises(tc.CompileError, match=r"what is in %length\n.*give length= as an array"):
        kernel.cost(**sizes)
    few, many = (kernel.cost(**sizes, length=np.full(2, n)).fused.bytes for n in (16, 40))
    assert few < many


def test_an_axis_that_no_tensor_has():
    """Keys that are read from pages: positions are computed, and the mask of the last tile shows
    how many there are."""
    kernel = tc.compile("examples/zoo/paged.py", static={"D": 8}, tile=16)
    lengths = np.array([20, 41])
    found = kernel.tiles(B=2, H=1, G=1, Nq=20, P=9, S=5, N=9, length=lengths)
    assert found.axes[-1] == "j" and found.extents[-1] == 45
    i, j = np.arange(32), np.arange(48)
    live = (j[None, :] <= i[:, None] + lengths[:, None, None] - 20) & (i < 20)[:, None] & (j < 45)
    wanted = live.reshape(2, 2, 16, 3, 16).any(axis=(2, 4))
    np.testing.assert_array_equal(found.codes.reshape(wanted.shape) > 0, wanted)


def test_a_map_is_not_compiled_again(monkeypatch):
    """A kernel that has been built has its map's kernels, too."""
    from tilecc.runtime import build

    @tc.spec
    def documents(
        q: tc.Tensor["i:N d"],
        k: tc.Tensor["j:N d"],
        v: tc.Tensor["j:N e:D"],
        row: tc.Tensor["i:N", "int32"],
        doc: tc.Tensor["j:N", "int32"],
    ):
        s = tc.where(row == doc, tc.dot(q, k, over="d"), -tc.inf)
        return tc.dot(tc.softmax(s, over="j"), v, over="j")

    kernel = tc.compile(documents, "cpu", "float32", {"D": 8}, tile={"i": 16, "j": 16})
    ids = np.repeat(np.arange(4), 20).astype(np.int32)
    monkeypatch.setattr(build, "build", lambda *_: pytest.fail("compiled once more"))
    for row in (ids, np.ascontiguousarray(ids[::-1])):
        same = (row[:, None] == ids).reshape(5, 16, 5, 16).any((1, 3))
        assert kernel.tiles(row=row, doc=ids).live == same.sum()

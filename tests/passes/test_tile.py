"""tile: grids, loops and bounds, and that no size of anything changes the meaning."""

import re

import numpy as np
import pytest
from programs import compiled

import tilecc as tc
from tilecc.analysis.roles import static_extents
from tilecc.errors import CompileError
from tilecc.ir.core import bind_extents
from tilecc.ir.expr import Env, evaluate
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.ir.verifier import verify
from tilecc.passes.base import Remarks
from tilecc.passes.tile import Tile
from tilecc.passes.tiling.plan import tiled_axes
from tilecc.pipeline import PassManager

FRONT = "simplify,fuse,online-softmax,mask-tiles,exponents"


def front(spec, static):
    """A spec up to `tile`, with the extents of its inner axes bound (all of them if bound)."""
    func = bind_extents(spec.trace("float32"), static)
    return PassManager(FRONT).run(func).func


def tile(func, default=64, **sizes):
    before = print_ir(func)
    out = Tile(tuple(sizes.items()), default).apply(func, Remarks())
    assert print_ir(func) == before, "the input was edited"
    verify(out)
    assert print_ir(parse_ir(print_ir(out))) == print_ir(out)
    return out


def arrays(func, extents, **given):
    rng = np.random.default_rng(0)
    env = Env(extent=extents.__getitem__)
    out = []
    for p in func.params:
        shape = [int(evaluate(a.extent, env)) for a in p.type.axes]
        x = (
            rng.standard_normal(shape)
            if p.type.dtype.kind == "float"
            else rng.integers(0, 2, shape)
        )
        out.append(np.asarray(given.get(p.name, x)).astype(p.type.dtype.numpy))
    return out


def check(source, tiled, extents, **given):
    inputs = arrays(source, extents, **given)
    want = interpret(source, inputs, exact=True, extents=extents)
    got = interpret(tiled, inputs, exact=True, extents=extents)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-12, err_msg=str(extents))


def lines(func, pattern):
    return [s.strip() for s in print_ir(func, locs=False).splitlines() if re.search(pattern, s)]


def named(name):
    """An example up to `tile`, and the traced program."""
    run = compiled(name, pipeline=FRONT, static=4)
    return run.stages[0].func, run.func


# Meaning

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 13]


@pytest.mark.parametrize("sizes", [(1, 1), (4, 4), (2, 8), (8, 2), (3, 5), (64, 64)], ids=str)
@pytest.mark.parametrize(
    "name", ["attention", "causal", "with_lse", "sink", "padding_mask", "sigmoid_attention"]
)
def test_every_length_and_tile(name, sizes):
    source, func = named(name)
    tiled = tile(func, i=sizes[0], j=sizes[1])
    for n in LENGTHS:
        check(source, tiled, {"B": 1, "H": 2, "N": n, "D": 4})


@pytest.mark.parametrize("sizes", [(4, 4), (2, 8), (3, 5)], ids=str)
@pytest.mark.parametrize("w", [-1, 0, 1, 3, 4, 100])
def test_windows_of_every_width(w, sizes):
    source, func = named("sliding_window")
    tiled = tile(func, i=sizes[0], j=sizes[1])
    for n in LENGTHS:
        check(source, tiled, {"B": 1, "H": 1, "N": n, "D": 4}, w=w)


@pytest.mark.parametrize("sizes", [(4, 4), (3, 5)], ids=str)
def test_lengths_that_differ(sizes):
    source, func = named("cross_attention")
    tiled = tile(func, i=sizes[0], j=sizes[1])
    for n in (1, 4, 6):
        for m in (1, 5, 8):
            check(source, tiled, {"B": 1, "H": 1, "Nq": n, "Nk": m, "D": 4})


@pytest.mark.parametrize("n", [1, 6, 8])
@pytest.mark.parametrize("default", [1, 4, 64])
def test_programs_that_are_not_attention(n, default):
    @tc.spec
    def softmax(x: tc.Tensor["a i:N j:M"]):
        p = tc.softmax(x, over="j")
        return p, tc.max(p, over="j")

    @tc.spec
    def statistics(x: tc.Tensor["i:N j:M"]):
        return tc.min(x, over="i"), tc.prod(x, over="i"), tc.sum(x, over=("i", "j"))

    @tc.spec
    def product(x: tc.Tensor["i:N k:M"], y: tc.Tensor["k:M j:N2"]):
        return tc.dot(x, y, over="k") + 1.0

    @tc.spec
    def copies(x: tc.Tensor["i:N j:M"], s: tc.Scalar("float32")):
        return x, x * 2.0, s

    extents = {"A": 2, "N": n, "M": 5, "N2": 3}
    for spec in (softmax, statistics, product, copies):
        source = spec.trace("float32")
        needed = static_extents(PassManager("simplify,fuse").run(source).func)
        func = front(spec, {e: extents[e] for e in needed})
        check(source, tile(func, default), extents)


def test_empty_streams_and_grids():
    source, func = named("cross_attention")
    tiled = tile(func, i=4, j=4)
    check(source, tiled, {"B": 1, "H": 1, "Nq": 3, "Nk": 0, "D": 4})
    check(source, tiled, {"B": 0, "H": 1, "Nq": 3, "Nk": 2, "D": 4})


# Which positions a stream walks


@tc.spec
def holes(q: tc.Tensor["i:N d:4"], k: tc.Tensor["j:N d:4"], v: tc.Tensor["j:N e:4"]):
    """A window of 6 positions and the first 3: the live positions are not one interval."""
    i, j = tc.index("i"), tc.index("j")
    s = tc.where(((i - j < 6) | (j < 3)) & (j <= i), tc.dot(q, k, over="d"), -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def dilated(q: tc.Tensor["i:N d:4"], k: tc.Tensor["j:N d:4"], v: tc.Tensor["j:N e:4"]):
    i, j = tc.index("i"), tc.index("j")
    s = tc.where((i - j) % 3 == 0, tc.dot(q, k, over="d"), -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@pytest.mark.parametrize("spec", [holes, dilated], ids=lambda s: s.name)
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (4, 2), (3, 5), (64, 64)], ids=str)
def test_holes_in_what_is_live(spec, sizes):
    source = spec.trace("float32")
    tiled = tile(front(spec, {}), i=sizes[0], j=sizes[1])
    for n in (1, 2, 7, 16, 23):
        check(source, tiled, {"N": n})


def test_holes_are_one_loop_that_asks_of_each_tile():
    tiled = tile(front(holes, {}), i=2, j=2)
    assert len(lines(tiled, r" = for ")) == 1
    assert len(lines(tiled, r" = if ")) == 2  # live; full


@pytest.mark.parametrize(
    ("name", "loops"),
    [
        ("attention", ["start .. split", "split .. end"]),
        ("causal", ["start .. split", "split .. end"]),
        ("sliding_window", ["start .. full", "full .. split", "split .. end"]),
    ],
)
def test_the_loops_over_one_interval(name, loops):
    _, func = named(name)
    found = [re.search(r"in (.*) carry", s)[1] for s in lines(tile(func), " = for ")]
    assert [s.replace("%j_", "") for s in found] == loops


def test_bounds_are_short():
    tiled = tile(named("causal")[1])
    assert lines(tiled, "%j_end =") == ["%j_end = map minimum(%i_tile + 1, ceildiv(N, 64)) : i64"]
    assert lines(tiled, "%j_start =") == ["%j_start = map 0 : i64"]
    tiled = tile(named("attention")[1])
    assert lines(tiled, "%j_end =") == ["%j_end = map ceildiv(N, 64) : i64"]
    assert lines(tiled, "%j_split =") == ["%j_split = map N // 64 : i64"]


def test_the_mask_is_applied_where_it_cuts_only():
    """The tiles below the diagonal have neither the mask nor the end of the axis in them."""
    tiled = tile(named("causal")[1])
    text = print_ir(tiled, locs=False)
    _, full, masked = text.split(" = for ")
    assert "where(%j_tile" not in full and " pad j" not in full
    assert "<= %i_tile * 64 + index(i)" in masked and " pad j" in masked


def test_dead_tiles_are_not_visited():
    """With NaN in the future, which a mask alone would not keep out of 0 * v."""
    source, func = named("causal")
    tiled = tile(func, i=2, j=2)
    n = 8
    inputs = arrays(source, {"B": 1, "H": 1, "N": n, "D": 4})
    want = interpret(source, inputs, exact=True)
    inputs[1][..., 4:, :] = inputs[2][..., 4:, :] = np.nan
    got = interpret(tiled, inputs, exact=True)
    np.testing.assert_allclose(got[0][..., :4, :], want[0][..., :4, :], rtol=1e-9)


# Ends


def bound(n, **sizes):
    run = PassManager(FRONT).run(bind_extents(compiled("causal").stages[0].func, {"N": n}))
    return run.stages[0].func, tile(run.func, **sizes)


@pytest.mark.parametrize(
    ("n", "ragged"),
    [(128, set()), (100, {"i", "j"}), (96, {"j"}), (32, set()), (20, set())],
)
def test_pad_and_clip_where_tiles_may_reach_beyond_the_end(n, ragged):
    """i in tiles of 32, j in tiles of 64 (or the whole of a shorter axis)."""
    source, tiled = bound(n, i=32, j=64)
    text = print_ir(tiled, locs=False)
    found = re.findall(r" (?:pad|clip) (\w(?:, \w)*)", text)
    assert {a for axes in found for a in axes.split(", ")} == ragged
    assert ("clip i" in text) == ("i" in ragged)
    check(source, tiled, {"B": 1, "H": 1, "N": n, "D": 64})


def test_named_extents_are_ragged():
    text = print_ir(tile(named("causal")[1]), locs=False)
    assert "pad i" in text and "pad j" in text and "clip i" in text


def test_tiles_of_one_row_are_points():
    tiled = tile(named("causal")[1], i=1, j=4)
    assert lines(tiled, r"kernel grid") == ["kernel grid(%b: B, %h: H, %i: N) tile(j=4) {"]
    assert "pad i" not in print_ir(tiled) and "clip" not in print_ir(tiled)


def test_a_tile_is_not_larger_than_an_extent_that_is_a_number():
    _, tiled = bound(20, i=64, j=64)
    assert "tile(i=20, j=20)" in print_ir(tiled)


# Grouped heads


@pytest.mark.parametrize("sizes", [{}, {"h": 2}, {"h": 4}, {"h": 8}, {"h": 3}], ids=str)
def test_groups_of_heads(sizes):
    """Tiles of heads within a group, of a whole group, and of several groups."""
    run = compiled("gqa", static=4)
    func = bind_extents(run.stages[0].func, {"H": 8, "G": 2})
    tiled = tile(PassManager(FRONT).run(func).func, **{"i": 2, "j": 4, **sizes})
    for n in (1, 5, 8):
        check(func, tiled, {"B": 2, "N": n})
    if sizes.get("h") in (2, 4):
        # A tile lies in one group: a point of K, read once for all of its heads.
        loads = lines(tiled, r"load %k\[")
        assert loads and all("index(h)" not in s for s in loads)


def test_a_division_is_exact_only_from_multiples_of_the_tile():
    """(6 + d) // 8 for d in 0 .. 3 is not 6 // 8 throughout."""
    text = """
    func @f(%x: f32[i:N, d:4], %t: f32[g:2]) {
      %o = kernel over i {
        %u = at %t[g = (6 + index(d)) // 8] : f32[d:4]
        %y = map %x * %u : f32[i, d]
        yield %y
      }
      return %o
    }"""
    func = parse_ir(text)
    check(func, tile(func), {"N": 3})


def test_coordinates_that_tables_of_narrow_integers_give():
    @tc.spec
    def paged(x: tc.Tensor["p:3 d:4"], t: tc.Tensor["i:N", "int32"]):
        return x.at(p=t * 2 - t) * 1.0

    check(paged.trace("float32"), tile(front(paged, {})), {"N": 5})


# Errors


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"z": 8}, "tile size for axis z, which no kernel has\n    axes with tiles are b, h, i, j"),
        ({"d": 2}, "tile size for axis d, but a tile holds the whole of it\n    axes with tiles"),
        ({"i": 0}, "the tile size of i is 0, not a positive number"),
        ({"j": -4}, "the tile size of j is -4, not a positive number"),
        ({"default": 0}, "the default tile size is 0, not a positive number"),
    ],
)
def test_sizes_that_are_refused(sizes, message):
    with pytest.raises(CompileError) as info:
        tile(named("causal")[1], **sizes)
    assert message in str(info.value)


def test_an_inner_extent_must_be_a_number():
    run = compiled("causal", pipeline=FRONT, static=None)
    with pytest.raises(CompileError) as info:
        tile(run.func)
    text = str(info.value)
    assert re.search("a tile holds the whole of axis [de], so its extent D must be a number", text)
    assert 'static={"D": ...}' in text and "causal.py:" in text


def test_operations_outside_of_kernels_are_refused():
    with pytest.raises(CompileError, match="map is in no kernel: run fuse first"):
        tile(parse_ir("func @f(%x: f32[i:N]) {\n%y = map %x : f32[i]\nreturn %y\n}"))


def test_a_program_is_tiled_once():
    with pytest.raises(CompileError, match="alloc is in no kernel"):
        tile(tile(named("causal")[1]))


def test_a_batch_that_some_tensor_lacks_is_not_tiled():
    """A tile of queries shares the keys of both parts; one of sequences those of one part."""

    @tc.spec
    def two_parts(q: tc.Tensor["b i:M d:8"], k: tc.Tensor["j:N d:8"], own: tc.Tensor["b t:L d:8"]):
        s, r = tc.dot(q, k, over="d"), tc.dot(q, own, over="d")
        return tc.dot(tc.exp(s), k, over="j") + tc.dot(tc.exp(r), own, over="t")

    func = PassManager("simplify,fuse,online-softmax").run(two_parts.trace()).func
    (kernel,) = [op for op in func.body.ops if op.name == "kernel"]
    assert tiled_axes(kernel) == ("i", "j", "t")


def test_a_tensor_between_kernels_lies_as_it_is_read():
    """The reader has one head at a time: were heads innermost, it would read numbers far apart."""

    @tc.spec
    def mixed(
        s: tc.Tensor["g i:N j:M"], w: tc.Tensor["g h"], v: tc.Tensor["h j:M e:4"]
    ) -> tc.Tensor["h i e"]:
        return tc.dot(tc.softmax(tc.dot(s, w, over="g"), over="j"), v, over="j")

    source = front(mixed, {"H": 3})
    tiled = tile(source, default=4, h=1)
    (alloc,) = (op for op in tiled.body.ops if op.name == "alloc" and not _is_output(tiled, op))
    assert alloc.result.type.names == ("h", "i", "j")
    check(source, tiled, {"G": 2, "N": 6, "M": 9, "H": 3})


def _is_output(func, op):
    return op.result in func.body.terminator.operands

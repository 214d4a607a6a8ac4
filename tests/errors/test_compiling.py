"""What wrong arguments of `tc.compile` are told: what, both values, and what to do."""

import pytest

import tilecc as tc
from tilecc.errors import TileccError
from tilecc.given import MOST_OPERATIONS
from tilecc.ir.core import bind_extents
from tilecc.ir.printer import print_ir
from tilecc.pipeline import PassManager


@tc.spec
def attention(q: tc.Tensor["b h i:N d"], k: tc.Tensor["b h j:M d"], v: tc.Tensor["b h j:M e:D"]):
    s = tc.dot(q, k, over="d")
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


D64 = {"D": 64}
WRONG = [
    (
        {"static": ["D"]},
        r"static= takes extents by name, not \['D'\].*write static={\"M\": \.\.\.}",
    ),
    ({"static": 64}, "static= takes extents by name, not 64"),
    ({"static": {"d": 64}}, "no extent 'd'.*did you mean D.*extents are B, H, N, D, M"),
    ({"static": {"D": "64"}}, "static extent D is '64', not a whole number"),
    ({"target": None}, 'target=None is no machine.*default is "cpu"'),
    ({"target": "sm_1000"}, "unknown target 'sm_1000'.*did you mean sm_100"),
    ({"dtype": None}, "unknown dtype 'None'"),
    ({"dtype": "int32"}, "a float's type, not i32"),
    ({"tile": "64"}, "tile is '64', not a positive number"),
    ({"tile": {"d": 4}, "static": D64}, "axis d, but a tile holds the whole of it.*b, h, i, j"),
    ({"tile": {"x": 4}, "static": D64}, "axis x, which no kernel has"),
    ({"split": "yes", "static": D64}, "no way to split.*fill"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_message(options, message):
    with pytest.raises(TileccError, match=f"(?s){message}"):
        tc.compile(attention, **options)


# A tile, the static extents, the target, and what is said of it.
TOO_LARGE = [
    (8, {"D": 4}, "canvas", "tile .*i=8, j=8 does not fit .*: needs 208 of 96 numbers"),
    (1024, D64, "sm_80", r"does not fit NVIDIA A100.*: needs \d+ of 166912 bytes"),
    (4096, D64, "x86-64-v4", r"does not fit .*: needs \d+ of 1048576 bytes"),
    (10**9, D64, "cpu", r"needs \d+ of \d+ bytes.*smaller tiles need less"),
    (None, {"D": 10**9}, "cpu", r"needs \d+ of \d+ bytes.*smaller inner extents"),
]


@pytest.mark.parametrize(("tile", "static", "target", "message"), TOO_LARGE)
def test_tiles_that_cannot_run(tile, static, target, message):
    with pytest.raises(TileccError, match=f"(?s){message}"):
        tc.compile(attention, target=target, tile=tile, static=static)


@pytest.mark.parametrize(("size", "target", "message"), [(r[0], *r[2:]) for r in TOO_LARGE[1:3]])
def test_tile_ir_by_hand_that_cannot_run(tmp_path, size, target, message):
    """What a person wrote is held to the same limits."""
    func = bind_extents(attention.trace("float32"), D64)
    passes = f"simplify,fuse,online-softmax,mask-tiles,exponents,tile{{i={size},j={size}}}"
    file = tmp_path / "large.tcir"
    file.write_text(print_ir(PassManager(passes).run(func).func))
    with pytest.raises(TileccError, match=f"(?s){message}"):
        tc.compile(file, target=target)


def test_a_program_that_would_take_minutes():
    """Of a loop that is written out, the line is that of the first turn too many."""

    @tc.spec
    def long(x: tc.Tensor["i j"]):
        for _ in range(MOST_OPERATIONS):
            x = -x
        return tc.sum(x, over="j")

    with pytest.raises(TileccError, match=r"5,002 operations, and 5,000 are the most(?s:.*)turns"):
        tc.compile(long)


def test_tiles_that_run_slowly_are_compiled():
    """Registers that spill and an L2 that overflows are no errors: a person may want them."""
    tc.compile(attention, target="sm_80", tile={"i": 128, "j": 128}, static=D64, dtype="float16")
    tc.compile(attention, target="x86-64-v4", tile=256, static=D64)

"""pipeline: which loads move where, and that results stay."""

from pathlib import Path

import numpy as np
import pytest

import tilecc as tc
from tilecc.given import load
from tilecc.ir.core import Func, bind_extents
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.pipeline import PassManager

EXAMPLES = Path(__file__).parents[2] / "examples"
FRONT = "simplify,fuse,online-softmax,mask-tiles,tile{i=16,j=16}"


def tiled(name: str, dtype: str = "float32", **static: int) -> Func:
    func = bind_extents(load(EXAMPLES / f"{name}.py", dtype)[0], static)
    return PassManager(FRONT).run(func).func


def pipelined(func: Func) -> Func:
    return PassManager("pipeline").run(func).func


def loops(func: Func):
    return [op for op in func.walk() if op.name == "for"]


NAMES = ["attention", "causal", "gqa", "padding_mask", "with_lse", "logsumexp_of_product"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 50])
def test_results_stay_to_the_bit(name, n):
    before = tiled(name, D=8)
    after = pipelined(before)
    extents = {"B": 1, "H": 4, "G": 2, "N": n, "V": n, "D": 8}
    rng = np.random.default_rng(n)
    inputs = {}
    for p in before.params:
        shape = [
            a.static if a.static is not None else extents[str(a.extent.name)] for a in p.type.axes
        ]
        x = (
            rng.standard_normal(shape)
            if p.type.dtype.kind == "float"
            else rng.integers(0, 2, shape)
        )
        inputs[p.name] = x.astype(p.type.dtype.numpy)
    found = [interpret(f, dict(inputs), extents=extents) for f in (before, after)]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_keys_are_loaded_ahead_and_values_first():
    func = tiled("attention", D=8)
    for old, new in zip(loops(func), loops(pipelined(func)), strict=True):
        assert new.attrs["n_carry"] == old.attrs["n_carry"] + 1
        names = [op.name for op in new.body.ops]
        assert names[0] == "load" and names[1] == "contract"
        assert new.body.ops[0].operands[0].name == "v"
        (ahead,) = [op for op in new.body.ops if op.name == "if"]
        assert ahead.regions[0].ops[-2].operands[0].name == "k"


def test_a_copy_overlaps_with_what_follows_the_only_product():
    func = tiled("logsumexp_of_product", D=8)
    for old, new in zip(loops(func), loops(pipelined(func)), strict=True):
        assert new.attrs["n_carry"] == old.attrs["n_carry"] + 1
        names = [op.name for op in new.body.ops if op.name != "map"]
        assert names[:4] == ["contract", "if", "reduce", "reduce"]


def test_a_loop_that_ends_with_its_only_product_stays():
    @tc.spec
    def product(x: tc.Tensor["i:N k:K"], y: tc.Tensor["k j:M"]):
        return tc.dot(x, y, over="k")

    func = PassManager(FRONT.replace("i=16", "i=16,k=16")).run(product.trace("float32")).func
    assert loops(func) and print_ir(pipelined(func)) == print_ir(func)


def test_nothing_is_loaded_that_was_not():
    before = tiled("attention", D=8)
    after = pipelined(before)
    # Each of K's loads became two, of which one iteration does one: before the loop and in it.
    counts = [sum(op.name == "load" for op in f.walk()) for f in (before, after)]
    assert counts[1] == counts[0] + len(loops(before))


def test_a_table_of_several_tiles_is_loaded_once():
    """Keys and values at places that one table gives: loaded ahead, keys would read it again."""

    @tc.spec
    def gathered(
        q: tc.Tensor["i:N d"],
        k: tc.Tensor["p:P d"],
        v: tc.Tensor["p:P e:D"],
        at: tc.Tensor["j:M", "int32"],
    ):
        s = tc.dot(q, k.at(p=at), over="d")
        return tc.dot(tc.softmax(s, over="j"), v.at(p=at), over="j")

    before = bind_extents(gathered.trace("float32"), {"D": 8})
    before = PassManager(FRONT).run(before).func
    after = pipelined(before)
    loads = [[op.operands[0].name for op in f.walk() if op.name == "load"] for f in (before, after)]
    assert loads[0].count("at") == loads[1].count("at") == len(loops(before))


def test_the_text_is_read_back():
    after = pipelined(tiled("causal", "float16", D=8))
    text = print_ir(after)
    assert print_ir(parse_ir(text, "x.tcir")) == text


def test_a_second_run_loads_nothing_else_ahead():
    once = pipelined(tiled("causal", D=8))
    carried = [op.attrs["n_carry"] for op in loops(once)]
    assert [op.attrs["n_carry"] for op in loops(pipelined(once))] == carried

"""The space: declared as data, pruned with reasons, ranked by mechanisms of the machine."""

import functools

import pytest
from test_answers import attention, causal, of

import tilecc as tc
from tilecc.codegen.space import check_options, space_for
from tilecc.target import resolve
from tilecc.tuning.config import Config
from tilecc.tuning.points import points

V4 = "x86-64-v4"


@functools.cache
def space(spec=attention, dtype="float32", n=1024, target=V4, **static):
    what = of(spec, {"D": 64, **static}, dtype, target)
    return points(what.loop, what.target, {"B": 1, "H": 8, "N": n, "D": 64})


def seconds(found, **config):
    tile = {a: config.pop(a) for a in ("i", "j")}
    return next(p.seconds for p in found if p.config == Config.of(tile, config))


def test_all_points_differ_and_the_refused_come_last_with_numbers():
    found = space()
    assert len({p.config for p in found}) == len(found) > 200
    order = [bool(p.refused) for p in found]
    assert order == sorted(order)
    spill = next(p for p in found if p.config == Config.of({"i": 64, "j": 64}, {"mr": 8}))
    assert spill.refused == "8 x 4 sums need 37 of 32 vector registers"


def test_tiles_that_overflow_the_cache_are_refused():
    what = of(attention, {"D": 512}, target=V4)
    found = points(what.loop, what.target, {"B": 1, "H": 8, "N": 1024, "D": 512})
    assert any("bytes (half of L2)" in p.refused for p in found)
    assert not found[0].refused


def test_options_that_change_nothing_are_not_tried():
    found = space()
    narrow = [dict(p.config.options) for p in found if dict(p.config.tile)["i"] == 16]
    assert not any(o.get("nr", 2) > 2 for o in narrow)  # 16 rows are one vector
    few = [dict(p.config.options) for p in found if dict(p.config.tile)["i"] == 4]
    assert not any(o.keys() & {"nr", "lanes"} for o in few)


def test_what_the_model_knows_of_registers():
    found = space()
    assert seconds(found, i=64, j=64, mr=12) > 1.3 * seconds(found, i=64, j=64)  # spills
    latency = seconds(found, i=16, j=64, nr=2) / seconds(found, i=16, j=64, mr=12, nr=2)
    assert latency > 1.2
    assert seconds(found, i=64, j=64, lanes=1) > 1.1 * seconds(found, i=64, j=64)  # adding lanes


def test_rows_beyond_the_end_cost_time():
    found = space(n=16)
    assert seconds(found, i=16, j=32, mr=12, nr=2) < 0.5 * seconds(found, i=64, j=32)


def test_a_narrow_machine_has_its_own_space():
    rows = space_for(resolve("x86-64-v3")).rows
    assert rows != space_for(resolve(V4)).rows and 8 in rows
    found = space(target="x86-64-v3")
    assert any("of 16 vector registers" in p.refused for p in found)


def test_masks_count_with_their_tiles():
    found = space(causal)
    assert seconds(found, i=64, j=512) > 1.2 * seconds(found, i=64, j=64)


def test_where_there_is_nothing_to_choose():
    with pytest.raises(tc.CompileError, match="declares nothing to choose"):
        space_for(resolve("canvas"))
    assert check_options({}, resolve("canvas")) == {}

"""Keys, buckets, and what `tc.compile` makes of a database."""

import dataclasses
import json

import numpy as np
import pytest

import tilecc as tc
from tilecc.compiler import PREDICTED, Compiler
from tilecc.given import load
from tilecc.target import resolve
from tilecc.tuning.buckets import Bucket, high, low
from tilecc.tuning.config import Config
from tilecc.tuning.database import Chosen, Database
from tilecc.tuning.subject import subject


@tc.spec
def attention(q: tc.Tensor["b h i:N d:D"], k: tc.Tensor["b h j:N d"], v: tc.Tensor["b h j:N e:D"]):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def renamed(x: tc.Tensor["z g r:M c:F"], y: tc.Tensor["z g t:M c:F"], w: tc.Tensor["z g t:M u:F"]):
    # Other names, other lines, the same program.
    logits = tc.dot(x, y, over="c") * tc.rsqrt(tc.extent("c"))
    weights = tc.softmax(logits, over="t")
    return tc.dot(weights, w, over="t")


@tc.spec
def causal(q: tc.Tensor["b h i:N d:D"], k: tc.Tensor["b h j:N d"], v: tc.Tensor["b h j:N e:D"]):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def of(spec, static, dtype="float32", target="cpu"):
    func, _ = load(spec, dtype)
    return subject(Compiler(func, resolve(target), None), static)


def test_the_key_does_not_depend_on_names():
    one, other = of(attention, {"D": 32}), of(renamed, {"F": 32})
    assert one.key == other.key and one.form.text == other.form.text
    config = Config.of({"i": 32, "j": 64}, {"mr": 6})
    assert other.from_canonical(one.to_canonical(config)) == Config.of(
        {"r": 32, "t": 64}, {"mr": 6}
    )
    sizes = {"B": 1, "H": 2, "N": 100, "D": 32}
    assert one.bucket(sizes) == other.bucket({"Z": 1, "G": 2, "M": 100, "F": 32})
    assert one.lengths == {"N"} and other.lengths == {"M"}


def test_the_key_depends_on_what_decides():
    keys = [
        of(attention, {"D": 32}),
        of(causal, {"D": 32}),
        of(attention, {"D": 64}),
        of(attention, {"D": 32, "N": 64}),
        of(attention, {"D": 32}, "bfloat16"),
        of(attention, {"D": 32}, target="x86-64-v3"),
    ]
    assert len({k.key for k in keys}) == len(keys)


def test_buckets():
    assert Bucket.of({"N": 1000, "B": 2, "H": 4}, ["N"]) == Bucket((("*", 3), ("N", 10)))
    assert Bucket.of({"N": 0, "B": 0}, ["N"]) == Bucket((("*", 0), ("N", 0)))
    for c in range(1, 12):
        for n in (low(c), high(c)):
            assert Bucket.of({"N": n}, ["N"]).lengths == (("N", c),)
        assert high(c) + 1 == low(c + 1)
    b = Bucket.of({"N": 1000}, ["N"])
    assert Bucket.from_text(str(b)) == b and b.described({"N": "M"}) == "M 725..1448"
    for text in ("[]", '{"N": "1"}', "{"):
        with pytest.raises(ValueError):
            Bucket.from_text(text)


@pytest.fixture
def db(tmp_path, monkeypatch):
    path = tmp_path / "tuned.db"
    monkeypatch.setenv("TILECC_DB", str(path))
    return path


def remember(path, what, config, **sizes):
    sizes = {"B": 1, "H": 2, **what.static, **sizes}
    name = json.dumps(what.to_canonical(config).to_json(), sort_keys=True)
    with Database(path) as db:
        db.save(Chosen(what.key, str(what.bucket(sizes)), name, 0.001, 1, sizes))


def inputs(n):
    return np.random.default_rng(n).standard_normal((3, 1, 2, n, 32), dtype=np.float32)


def expected(q, k, v):
    s = np.einsum("bhid,bhjd->bhij", q.astype(np.float64), k) / np.sqrt(32)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", p / p.sum(-1, keepdims=True), v)


def test_compile_uses_what_is_known_and_says_so(db):
    what = of(attention, {"D": 32})
    remember(db, what, Config.of({"i": 32, "j": 32}, {"mr": 6}), N=64)
    kernel = tc.compile(renamed, static={"F": 32})
    assert dict(kernel.tile) == {"r": 32, "t": 32} and kernel.tile.options == {"mr": 6}
    assert str(kernel.tile).startswith("r=32, t=32, mr=6 (tuned for M 46..90: 1 ms measured for ")
    assert kernel.compilations == 1
    np.testing.assert_allclose(kernel(*inputs(64)), expected(*inputs(64)), atol=1e-5)
    assert kernel.compilations == 1
    # Another bucket: nothing is known, so tiles are predicted.
    np.testing.assert_allclose(kernel(*inputs(300)), expected(*inputs(300)), atol=1e-5)
    assert kernel.compilations == 2
    assert "predicted" in str(tc.compile(attention, static={"D": 64}).tile)
    given = tc.compile(attention, static={"D": 32}, tile=16)
    assert dict(given.tile) == {"i": 16, "j": 16} and "given" in str(given.tile)


def test_one_kernel_dispatches_over_buckets(db):
    what = of(attention, {"D": 32})
    small, large = Config.of({"i": 16, "j": 32}), Config.of({"i": 64, "j": 64}, {"nr": 2})
    for n, config in ((32, small), (64, large), (128, large)):
        remember(db, what, config, N=n)
    kernel = tc.compile(attention, static={"D": 32})
    assert dict(kernel.tile) == dict(large.tile)
    assert "16" in str(kernel.tile).splitlines()[1]
    for n in (30, 60, 100, 129, 33):
        np.testing.assert_allclose(kernel(*inputs(n)), expected(*inputs(n)), atol=1e-5)
    assert kernel.compilations == 2


def test_a_file_has_all_configurations(db, tmp_path):
    what = of(attention, {"D": 32})
    for n, size in ((32, 16), (64, 32), (128, 64)):
        remember(db, what, Config.of({"i": size, "j": 32}), N=n)
    kernel, path = tc.compile(attention, static={"D": 32}), tmp_path / "tuned.tcc"
    kernel.save(path)
    loaded = tc.load(path)
    assert loaded.tile == dict(kernel.tile)
    tiles = {}
    for n in (30, 46, 100, 129, 300):
        np.testing.assert_array_equal(loaded(*inputs(n)), kernel(*inputs(n)))
        tiles[n] = loaded.tile["i"]
    assert [tiles[n] for n in (30, 46, 100, 129)] == [16, 32, 64, 64]
    assert tiles[300] == kernel._compiler.passes({"D": 32}, PREDICTED).tile["i"]


def test_static_lengths_have_one_bucket(db):
    what = of(attention, {"D": 32, "N": 64})
    assert what.lengths == frozenset()
    remember(db, what, Config.of({"i": 32, "j": 64}), N=64)
    kernel = tc.compile(attention, static={"D": 32, "N": 64})
    assert "tuned for all sizes" in str(kernel.tile)
    np.testing.assert_allclose(kernel(*inputs(64)), expected(*inputs(64)), atol=1e-5)


def test_extents_that_are_known_at_the_call(db):
    remember(db, of(attention, {"D": 32}), Config.of({"i": 32, "j": 32}), N=64)
    kernel = tc.compile(attention)
    np.testing.assert_allclose(kernel(*inputs(64)), expected(*inputs(64)), atol=1e-5)
    assert "tuned" in str(kernel.tile)


@pytest.mark.parametrize(
    "config",
    [
        '{"tile": {"a0": 0}}',
        "[]",
        '{"tile": {"zz": 32}}',
        '{"tile": {"a2": 32}, "options": {"mr": 5}}',
        '{"tile": 3}',
    ],
)
def test_records_that_cannot_be_right_are_passed_over(db, config):
    what = of(attention, {"D": 32})
    sizes = {"B": 1, "H": 2, "N": 64, "D": 32}
    with Database(db) as file:
        file.save(Chosen(what.key, str(what.bucket(sizes)), config, 0.001, 1, sizes))
    kernel = tc.compile(attention, static={"D": 32})
    assert "tuned" not in str(kernel.tile)


def test_other_machines_and_versions_have_other_keys(monkeypatch):
    here = of(attention, {"D": 32})
    target = dataclasses.replace(resolve("cpu"), features=frozenset({"neon"}))
    func, _ = load(attention, "float32")
    assert subject(Compiler(func, target, None), {"D": 32}).key != here.key
    monkeypatch.setattr(tc, "__version__", "0.0.0")
    assert of(attention, {"D": 32}).key != here.key


def test_options_are_checked():
    kernel = tc.compile(attention, static={"D": 32}, tile=32, options={"mr": 6, "nr": 2})
    np.testing.assert_allclose(kernel(*inputs(50)), expected(*inputs(50)), atol=1e-5)
    assert "mr=6" in str(kernel.tile)
    with pytest.raises(tc.CompileError, match="no option 'warps'"):
        tc.compile(attention, static={"D": 32}, options={"warps": 4})
    with pytest.raises(tc.CompileError, match="mr is 5, not one of 4, 6"):
        tc.compile(attention, static={"D": 32}, options={"mr": 5})

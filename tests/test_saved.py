"""Kernels as files: what comes back runs and reads as what was saved; anything else is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tilecc as tc
from tilecc.ir.expr import Arg, Const, Extent, call, ceildiv
from tilecc.ir.interp import interpret
from tilecc.runtime.objects import load_object
from tilecc.saved import container
from tilecc.saved.encode import expr_data, expr_from, target_data, target_from
from tilecc.saved.load import LoadedKernel
from tilecc.saved.machine import Machine
from tilecc.target import resolve

ROOT = Path(__file__).resolve().parent.parent
ARCHS = ["x86-64-v3"] if resolve("cpu").vector_bits > 128 else []


@tc.spec
def windowed(
    q: tc.Tensor["h i:N d"],
    k: tc.Tensor["h j:N d"],
    v: tc.Tensor["h j:N e:D"],
    w: tc.Scalar("int64"),
):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("i") - tc.index("j") < w, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


def inputs(n: int, d: int = 16, h: int = 3) -> list:
    rng = np.random.default_rng(n)
    return [*rng.standard_normal((3, h, n, d), dtype=np.float32), 5]


@pytest.fixture(scope="module")
def kernel():
    return tc.compile(windowed, target="cpu", static={"D": 16}, tile=16)


@pytest.fixture(scope="module")
def file(kernel, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "windowed.tcc"
    kernel.save(path, archs=ARCHS)
    return path


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 100])
def test_a_loaded_kernel_computes_the_same(kernel, file, n):
    loaded = tc.load(file)
    q, k, v, w = inputs(n)
    np.testing.assert_array_equal(loaded(q, k, v, w), kernel(q, k, v, w))
    exact = interpret(windowed.trace("float32"), [q, k, v, w], exact=True)[0]
    np.testing.assert_allclose(loaded(q, k, v, w=w, threads=2), exact, atol=2e-5)
    out = np.empty_like(q)
    assert loaded(q, k, v, w, out=out) is out


def test_it_reads_as_the_kernel(kernel, file):
    loaded = tc.load(file)
    assert (loaded.name, loaded.signature) == (kernel.name, kernel.signature)
    assert loaded.target == kernel.target and loaded.static == kernel.static
    assert loaded.tile == dict(kernel.tile)
    assert loaded.stages == tuple(s for s in kernel.stages if s not in ("llvm", "asm"))
    for stage in loaded.stages:
        assert loaded.ir(stage) == kernel.ir(stage), stage
    assert loaded.ir("tile", locs=True) == kernel.ir("tile", locs=True)
    assert loaded.remarks == kernel.remarks
    assert repr(loaded).startswith("<loaded kernel windowed(")
    with pytest.raises(tc.CompileError, match=r"has no stage 'asm'; stages are graph, .*, tir"):
        loaded.ir("asm")


@pytest.mark.parametrize("sizes", [{}, {"H": 3, "N": 100, "w": 5}])
def test_costs_are_the_same(kernel, file, sizes):
    saved, live = tc.load(file).cost(**sizes), kernel.cost(**sizes)
    for way in ("fused", "ideal", "unfused"):
        a, b = getattr(saved, way), getattr(live, way)
        assert (a.formula, a.bytes_formula) == (b.formula, b.bytes_formula)
        assert (a.numbers, a.bytes) == (b.numbers, b.bytes)
    assert saved.fused.exact == live.fused.exact
    assert saved.fused.reads["k"].bytes == live.fused.reads["k"].bytes
    assert saved.fused.writes["o"].formula == live.fused.writes["o"].formula
    assert (saved.seconds, saved.tile) == (live.seconds, live.tile)
    json.dumps(saved.to_json())
    assert saved.fused.formula in str(saved)
    with pytest.raises(tc.CompileError, match="windowed has no extent 'M'"):
        tc.load(file).cost(M=3)


def test_wrong_arguments_are_refused_as_by_a_kernel(file):
    q, k, v, w = inputs(9)
    with pytest.raises(tc.ArgumentError, match="argument k has 8 along axis j, where argument q"):
        tc.load(file)(q, k[:, :8], v, w)
    with pytest.raises(tc.ArgumentError, match=r"argument q has 8 along axis d, .* D = 16"):
        tc.load(file)(q[..., :8].copy(), k, v, w)


def test_a_kernel_that_specialises_saves_what_it_has_compiled(tmp_path):
    kernel, path = tc.compile(windowed, target="cpu", tile=16), tmp_path / "k.tcc"
    with pytest.raises(
        tc.CompileError, match=r"nothing to save yet: D must be known\n.*call the k"
    ):
        kernel.save(path)
    assert list(tmp_path.iterdir()) == []
    wanted = {d: kernel(*inputs(20, d)) for d in (8, 24)}
    kernel.save(path)
    loaded = tc.load(path)
    for d, o in wanted.items():
        np.testing.assert_array_equal(loaded(*inputs(20, d)), o)
        assert loaded.ir("tile").count(f"d:{d}]") == kernel_tile(d)
    with pytest.raises(tc.ArgumentError, match=r"has code for D = 8 or D = 24, not D = 16\n.*call"):
        loaded(*inputs(20, 16))


def test_what_was_compiled_for_few_rows_is_saved_too(tmp_path):
    @tc.spec
    def cross(q: tc.Tensor["h i:M d"], k: tc.Tensor["h j:N d"]):
        s = tc.dot(q, k, over="d")
        return tc.dot(tc.softmax(s, over="j"), k, over="j")

    kernel, path = tc.compile(cross, target="cpu", static={"D": 16}), tmp_path / "k.tcc"
    rng = np.random.default_rng(3)
    k = rng.standard_normal((2, 90, 16), dtype=np.float32)
    q = {n: rng.standard_normal((2, n, 16), dtype=np.float32) for n in (1, 2, 9, 40)}
    wanted = {n: kernel(x, k) for n, x in q.items()}
    assert kernel._variants.few, "this kernel is to have variants for few rows"
    kernel.save(path)
    loaded = tc.load(path)
    for n, x in q.items():
        np.testing.assert_array_equal(loaded(x, k), wanted[n])
        assert loaded.ir("tile") == kernel.ir("tile")
    exact = [p.static["M"] for p in loaded._parts if "M" in p.static]
    assert set(exact) >= {1, 2} and len(loaded._parts) == len(kernel._variants.few) + 1
    x = rng.standard_normal((2, 3, 16), dtype=np.float32)
    np.testing.assert_allclose(loaded(x, k), kernel(x, k), atol=1e-5)


def kernel_tile(d: int) -> int:
    return tc.compile(windowed, target="cpu", static={"D": d}, tile=16).ir("tile").count(f"d:{d}]")


def test_files_do_not_depend_on_when_they_are_written(kernel, file, tmp_path):
    kernel.save(tmp_path / "again", archs=ARCHS)
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
    assert zipfile.is_zipfile(file)


def test_a_file_is_replaced_whole_or_not_at_all(kernel, file, tmp_path, monkeypatch):
    path = tmp_path / "k.tcc"
    path.write_bytes(b"old")
    monkeypatch.setattr(
        container.os, "replace", lambda a, b: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(tc.LoadError, match=r"cannot write .*k\.tcc: full"):
        kernel.save(path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    with pytest.raises(tc.LoadError, match=r"cannot write .*/no/k\.tcc: No such file"):
        kernel.save(tmp_path / "no" / "k.tcc")


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


BROKEN = {
    "empty": (lambda d: b"", "is no kernel that tilecc saved\n.*kernel.save"),
    "foreign": (lambda d: b"PK\x03\x04" + d, "is no kernel that tilecc saved"),
    "in the head": (lambda d: d[:30], "is damaged: its first line is cut off"),
    "head alone": (lambda d: d[: d.index(b"\n") + 1], r"is damaged: 0 of \d+ bytes follow"),
    "truncated": (lambda d: d[:-1], r"is damaged: \d+ of \d+ bytes follow its first line"),
    "longer": (lambda d: d + b"x", r"is damaged: \d+ of \d+ bytes"),
    "a bit in the middle": (lambda d: changed(d, len(d) // 2), "its checksum does not match"),
    "the last bit": (lambda d: changed(d, len(d) - 1), "its checksum does not match"),
    "a bit of the checksum": (lambda d: changed(d, d.index(b"\n") - 1), "is damaged: "),
    "newer": (
        lambda d: d.replace(b"format 1,", b"format 2,", 1),
        "has format 2, and this tilecc reads formats up to 1\n.*upgrade tilecc",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files(file, tmp_path, case):
    change, message = BROKEN[case]
    path = tmp_path / "k.tcc"
    path.write_bytes(change(file.read_bytes()))
    with pytest.raises(tc.LoadError, match=message) as found:
        tc.load(path)
    assert len(found.value.diagnostics) == 1


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(tc.LoadError, match=r"cannot read .*none\.tcc: No such file"):
        tc.load(tmp_path / "none.tcc")


EDITS = {
    "no name": lambda m: m.pop("name"),
    "no object": lambda m: m["compiled"][0]["cpu"][0].update(object="elsewhere.o"),
    "a value too many": lambda m: m["compiled"][0]["cpu"][0]["kernels"][0].update(args=[99]),
    "an unknown function": lambda m: m["compiled"][0]["cpu"][0]["kernels"][0].update(
        grid=[["exec", "N"]]
    ),
    "a stage that is none": lambda m: m["compiled"][0]["stages"].update(tile="program.tcir2"),
    "half a machine": lambda m: m.update(target={"name": "x"}),
    "nothing": lambda m: m.clear(),
}


@pytest.mark.parametrize("case", EDITS)
def test_contents_that_save_does_not_write(file, tmp_path, case):
    path = tmp_path / "k.tcc"
    manifest, members = container.read(file)
    EDITS[case](manifest)
    container.write(path, manifest, members)
    with pytest.raises(tc.LoadError, match=r"k\.tcc was not written by kernel\.save"):
        tc.load(path)


def test_code_for_other_cpus_is_refused_before_it_is_linked(file, monkeypatch):
    linked = []
    monkeypatch.setattr("tilecc.runtime.objects.load_object", lambda *a: linked.append(a))
    here = Machine.here()
    poor = Machine(here.platform, here.features - {"avx2", "fma", "neon"})
    with pytest.raises(
        tc.LoadError, match=r"(?s)no code that this machine can run: code for .* needs "
    ):
        LoadedKernel(str(file), machine=poor)
    other = Machine("sparc-linux", here.features)
    with pytest.raises(tc.LoadError, match=rf"is for {here.platform}.*\n.*\(sparc-linux\)"):
        LoadedKernel(str(file), machine=other)
    assert linked == []


@pytest.mark.skipif(resolve("cpu").vector_bits < 512, reason="needs two instruction sets")
def test_of_several_object_files_the_one_for_the_most_is_taken(file):
    here = Machine.here()
    manifest, members = container.read(file)
    own, v3 = manifest["compiled"][0]["cpu"]
    assert here.best("f", [v3, own]) is own
    old = Machine(here.platform, frozenset(v3["features"]))
    assert old.best("f", [own, v3]) is v3
    assert not any(f.startswith("avx512") for f in v3["features"])
    q, k, v, w = inputs(33)
    a, b = tc.load(file), LoadedKernel(str(file), machine=old)
    np.testing.assert_allclose(a(q, k, v, w), b(q, k, v, w), atol=1e-6)
    assert members[own["object"]] != members[v3["object"]]


@pytest.mark.parametrize(
    ("archs", "error", "message"),
    [
        ("x86-64-v3", tc.CompileError, r"is no list of machines\n.*archs=\[.x86-64-v3.\]"),
        (["sm_80"], tc.CompileError, "compiled for CPUs, and sm_80 is none"),
        (["x86-64-v9"], tc.TileccError, "unknown target 'x86-64-v9'"),
    ],
)
def test_machines_that_cannot_be_asked_for(kernel, tmp_path, archs, error, message):
    with pytest.raises(error, match=message):
        kernel.save(tmp_path / "k.tcc", archs=archs)
    assert list(tmp_path.iterdir()) == []


def test_objects_that_cannot_be_linked():
    with pytest.raises(tc.LoadError, match="object file cannot be linked"):
        load_object(b"no object file", ["f"])
    with pytest.raises(tc.LoadError, match="needs TVM's runtime"):
        load_object(b"...__TVMBackendAllocWorkspace...", ["f"])


def test_expressions_and_machines_come_back():
    e = call("maximum", ceildiv(Extent("N"), 64), call("sub", Arg(0), Const(3)))
    assert expr_from(json.loads(json.dumps(expr_data(e)))) == e
    for name in ("cpu", "sm_80", "canvas", "x86-64-v3"):
        t = resolve(name)
        assert target_from(json.loads(json.dumps(target_data(t)))) == t


SCRIPT = """
import sys, numpy as np
absent = ("tvm", "sympy", "networkx", "click", "rich")
sys.modules.update(dict.fromkeys(absent))  # importing them fails
import tilecc as tc
kernel = tc.load(sys.argv[1])
q, k, v, o = np.load(sys.argv[2])
for threads in (1, 2):
    assert np.array_equal(kernel(q, k, v, 5, threads=threads), o)
print(kernel.cost(H=3, N=100, w=5).fused.bytes, kernel.ir("tile").count("load"))
gpu = tc.load(sys.argv[3])
assert "__global__" in gpu.ir("cuda") and gpu.cost(H=3, N=100, w=5).fused.bytes > 0
half = [x.astype(np.float16) for x in (q, k, v)]
try:
    gpu(*half, 5)
    raise AssertionError("it ran")
except tc.TileccError as e:
    assert "tc.emulate" in str(e), e
"""


RUN = ("run.py", "file", "in.npy", "gpu.tcc")


def saved_with_result(kernel, file, tmp_path) -> list[str]:
    gpu = tc.compile(windowed, target="sm_80", dtype="float16", static={"D": 16}, tile=32)
    gpu.save(tmp_path / "gpu.tcc")
    q, k, v, w = inputs(100)
    np.save(tmp_path / "in.npy", np.stack([q, k, v, kernel(q, k, v, w)]))
    (tmp_path / "run.py").write_text(SCRIPT)
    return [str(tmp_path / x) if x != "file" else str(file) for x in RUN]


def test_loading_imports_no_compiler(kernel, file, tmp_path):
    script = saved_with_result(kernel, file, tmp_path)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run([sys.executable, *script], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) == kernel.cost(H=3, N=100, w=5).fused.bytes


@pytest.mark.slow
def test_a_machine_with_the_run_time_packages_alone(kernel, file, tmp_path):
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv/bin/python")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *extras["optional-dependencies"]["runtime"]], check=True)
    subprocess.run([*pip, "--no-deps", str(ROOT)], check=True)
    names = ("tvm", "sympy", "networkx")
    missing = f"import importlib.util as u; print([m for m in {names} if u.find_spec(m)])"
    done = subprocess.run([python, "-c", missing], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
    script = saved_with_result(kernel, file, tmp_path)
    done = subprocess.run([python, *script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr

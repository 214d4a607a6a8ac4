"""Instructions that are executed together: the same values, findings and counts as one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from matmul_ptx import SHARED, THREADS, module
from ptx_programs import kernel

from tilecc import emulator
from tilecc.emulator import flow

_FORMS = (
    "add.u32 {d}, {a}, {b};",
    "sub.u32 {d}, {a}, 7;",
    "mul.lo.u32 {d}, {a}, {b};",
    "xor.b32 {d}, {a}, {b};",
    "max.u32 {d}, {a}, {b};",
    "mov.u32 {d}, {n};",
    "mov.b32 {d}, {a};",
    "setp.lt.u32 {p}, {a}, {b};",
    "selp.b32 {d}, {a}, {b}, {p};",
    "@{p} add.u32 {d}, {a}, {n};",
    "@!{p} mov.b32 {d}, {a};",
    "cvt.u64.u32 %rd2, {a};",
    "cvt.u32.u64 {d}, %rd2;",
    "st.shared.u32 [%r40+{at}], {a};",
    "ld.shared.u32 {d}, [%r40+{at}];",
    "shfl.sync.bfly.b32 {d}, {a}, {lane}, 31, -1;",
)


def random_body(rng: random.Random, length: int, forms: tuple[str, ...]) -> str:
    lines = []
    for _ in range(length):
        d, a, b = (f"%r{rng.randrange(8)}" for _ in range(3))
        p, at, lane = f"%p{rng.randrange(3)}", 4 * rng.randrange(3), 1 << rng.randrange(5)
        n = rng.randrange(1000)
        lines.append(rng.choice(forms).format(d=d, a=a, b=b, p=p, at=at, lane=lane, n=n))
    return "\n".join(lines)


def program(seed: int) -> str:
    """A loop that warps and lanes leave at different times, before and after it a straight part."""
    rng = random.Random(seed)
    start = [f"mad.lo.u32 %r{i}, %r32, {2 * i + 1}, {i * i};" for i in range(8)]
    start += [f"setp.gt.u32 %p{i}, %r{i}, 20;" for i in range(3)]
    start += [f"st.shared.u32 [%r40+{4 * i}], %r{i};" for i in range(3)]
    end = "\n".join(f"st.global.u32 [%rd1+{4 * i}], %r{i};" for i in range(8))
    alone = tuple(f for f in _FORMS if "shfl" not in f)
    return kernel(
        f"""
        .shared .align 4 .b32 sh[384];
        mov.u32 %r32, %tid.x;
        mov.u32 %r41, sh;
        mad.lo.u32 %r40, %r32, 12, %r41;
        mul.wide.u32 %rd0, %r32, 32;
        add.s64 %rd1, %a, %rd0;
        cvt.u64.u32 %rd2, %r32;
        {" ".join(start)}
        {random_body(rng, 60, _FORMS)}
        mov.u32 %r33, 0;
        bfe.u32 %r34, %r32, 4, 3;
        and.b32 %r35, %r32, 1;
        add.u32 %r34, %r34, %r35;
        loop:
        {random_body(rng, 40, alone)}
        add.u32 %r33, %r33, 1;
        setp.le.u32 %p5, %r33, %r34;
        @%p5 bra loop;
        {random_body(rng, 30, alone)}
        {end}
        ret;"""
    )


def outcome(text: str, args: list, schedule: str | int, shared: int = 0):
    flow.analyse.cache_clear()
    result = emulator.run(text, None, args, 1, THREADS, shared, schedule=schedule)
    shared = {a.line: (a.requests, a.wavefronts, a.ideal) for a in result.shared_accesses}
    return sorted(map(str, result.findings)), shared, result.bytes_read, result.instructions


@pytest.fixture
def one_by_one(monkeypatch):
    """Run what the test gives as it is, and then with each instruction by itself."""

    def both(run):
        found = [run()]
        monkeypatch.setattr(flow, "groups", lambda body, *_: [[ins] for ins in body])
        found.append(run())
        flow.analyse.cache_clear()
        return found

    return both


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed, one_by_one):
    text = program(seed)

    def run():
        out = np.zeros(128 * 8, np.uint32)
        return outcome(text, [out], "lockstep" if seed % 2 else seed), out

    together, alone = one_by_one(run)
    assert together[0] == alone[0]
    assert not together[0][0]
    np.testing.assert_array_equal(together[1], alone[1])


def test_some_are_together():
    flow.analyse.cache_clear()
    blocks = flow.analyse(emulator.parse(program(0)).kernel()).blocks
    assert max(len(g) for b in blocks for g in b.groups) >= 4
    body = [ins.text for b in blocks for ins in b.instructions]
    assert sorted(body) == sorted(ins.text for b in blocks for g in b.groups for ins in g)


@pytest.mark.parametrize(
    "broken", ["", "cp.async.wait_group 1;", "cp.async.commit_group; // first"]
)
def test_products_of_matrices(broken, one_by_one):
    """ldmatrix and mma; where copies are not waited for, the same is found at the same lines."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((50, 128), (128, 64)))

    def run():
        c = np.zeros((50, 64), np.float32)
        return outcome(module().replace(broken, ""), [a, b, c, 50, 128], 0, SHARED), c

    together, alone = one_by_one(run)
    assert together[0] == alone[0]
    assert bool(together[0][0]) == bool(broken)
    np.testing.assert_allclose(together[1], alone[1], rtol=1e-5, atol=1e-5)

"""What maps of tiles cost beside their kernel, and pages beside one piece."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from cases import EXAMPLES, Array
from rounds import Contestant, interleave
from zoo_cases import D, ZooCase, zoo_cases

import tilecc as tc
from tilecc.runtime import executable

MAPPED = ("documents", "global_window")
"""Rows whose masks read arrays of one dimension."""
PAGE = 16


@contextlib.contextmanager
def core_seconds() -> Iterator[dict[str, list[float]]]:
    """CPU seconds of each compiled kernel that is run, by its name, call by call."""
    found: dict[str, list[float]] = {}
    run = executable._Kernel.run

    def timed(self: Any, values: Mapping[Any, Any], tasks: int, threads: int) -> None:
        start = time.process_time()
        run(self, values, tasks, threads)
        found.setdefault(self.entry.name, []).append(time.process_time() - start)

    executable._Kernel.run = timed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        executable._Kernel.run = run  # type: ignore[method-assign]


def maps_alone(n: int, rounds: int, patience: float, threads: int) -> list[dict[str, Any]]:
    """For each row with a map: its share of the kernel's CPU time, and its bytes."""
    return [_map_share(c, n, rounds, threads) for c in zoo_cases() if c.name in MAPPED]


def _map_share(case: ZooCase, n: int, rounds: int, threads: int) -> dict[str, Any]:
    arguments = case.arguments(n)
    kernel = tc.compile(
        str(EXAMPLES / "zoo" / f"{case.name}.py"), "cpu", "float32", {"D": D}, threads=threads
    )
    kernel(**arguments)
    with core_seconds() as found:
        for _ in range(max(3, rounds // 3)):
            kernel(**arguments)
    medians = {name: statistics.median(x) for name, x in found.items()}
    main = max(medians, key=lambda name: medians[name])
    maps = sum(x for name, x in medians.items() if name != main)
    return {
        "case": case.name,
        "n": n,
        "map_ms": 1e3 * maps,
        "main_ms": 1e3 * medians[main],
        "share": maps / medians[main],
        "bytes": _map_bytes(kernel, case.extents(n)),
    }


def _map_bytes(kernel: tc.Kernel, extents: Mapping[str, int]) -> int:
    """Bytes of what a kernel allocates beside its outputs."""
    from tilecc.ir.interp_expr import integer

    tiled = kernel._variants.latest.tiled  # type: ignore[union-attr]
    allocs = [op.result for op in tiled.body.ops if op.name == "alloc"]
    own = [v for v in allocs if v not in tiled.returns]
    return sum(
        v.type.dtype.bytes * int(np.prod([integer(a.extent, extents) for a in v.type.axes]))
        for v in own
    )


def pages(keys: int, rounds: int, patience: float, threads: int) -> dict[str, Any]:
    """One query of 32 heads on 8 heads of keys, in pages in any order and in one piece."""
    b, heads, groups, d = 1, 32, 8, 128
    rng = np.random.default_rng(0)
    count = keys // PAGE
    q = rng.standard_normal((b, heads, 1, d), np.float32)
    table = rng.permutation(count).astype(np.int32)[None]
    pool = [rng.standard_normal((count, PAGE, groups, d), np.float32) for _ in "kv"]
    length = np.array([keys], np.int32)
    one = [_in_one_piece(x, table[0]) for x in pool]
    static = {"D": d, "Nq": 1, "S": PAGE, "H": heads, "G": groups}
    paged = tc.compile(
        str(EXAMPLES / "zoo" / "paged.py"), "cpu", "float32", static, threads=threads
    )
    contiguous = tc.compile(
        contiguous_cache, "cpu", "float32", {k: static[k] for k in "DHG"} | {"Nq": 1},
        threads=threads,
    )  # fmt: skip
    a = Contestant("pages", lambda: paged(q, *pool, table, length))
    c = Contestant("one piece", lambda: contiguous(q, *one, length))
    quality = interleave([a, c], rounds, patience)
    np.testing.assert_allclose(a.run(), c.run(), rtol=0, atol=1e-5)
    return {
        "what": f"{keys} keys, {heads} heads on {groups}, d = {d}, pages of {PAGE}",
        "paged_ms": 1e3 * a.median,
        "contiguous_ms": 1e3 * c.median,
        "ratio": a.median / c.median,
        "core_ratio": a.core_median / c.core_median,
        "quality": str(quality),
    }


@tc.spec
def contiguous_cache(
    q: tc.Tensor["b h i:Nq d"],
    k: tc.Tensor["b j:Nk g d"],
    v: tc.Tensor["b j:Nk g e:D"],
    length: tc.Tensor["b", "int32"],  # noqa: UP037
):
    """What examples/zoo/paged.py computes, of keys that lie in one piece."""
    group = {"g": tc.index("h") // (tc.extent("h") // tc.extent("g"))}
    s = tc.dot(q, k.at(**group), over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i") + (length - tc.extent("i")), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v.at(**group), over="j")


def _in_one_piece(pool: Array, table: Array) -> Array:
    """The pages of a sequence one after the other: [batch, keys, heads, d]."""
    return np.ascontiguousarray(pool[table].reshape(1, -1, *pool.shape[2:]))

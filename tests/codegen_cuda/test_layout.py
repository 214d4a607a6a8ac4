"""Fragment layouts, by brute force: every element has a place, and what is said of it is so."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tilecc.codegen.cuda.layout import Layout, conforms, natural, register_at

CASES = [
    ([("i", 64)], [("j", 128)], 4),
    ([("i", 128)], [("j", 64)], 4),
    ([("i", 128)], [("e", 72)], 4),
    ([("i", 48)], [("j", 80)], 1),
    ([("i", 5)], [("j", 3)], 1),
    ([("i", 256)], [], 8),
    ([], [("j", 96)], 4),
    ([("i", 16), ("h", 4)], [("j", 32)], 4),
    ([("i", 2), ("h", 6)], [("j", 16)], 1),
    ([("i", 3), ("h", 5)], [("j", 16)], 2),
    ([("i", 32)], [("j", 32), ("p", 3)], 2),
    ([("i", 32)], [("j", 4), ("p", 6)], 2),
]


def places(layout: Layout, warps: int):
    """(thread's sources, register, coordinates) of everything that a layout has a place for."""
    names = [a for a, _ in layout.axes]
    ranges = [range(n) for _, n in layout.registers]
    for g, t, w in itertools.product(range(8), range(4), range(warps)):
        for values in itertools.product(*ranges):
            env = {"g": g, "t": t, "w": w}
            env |= dict(zip((s for s, _ in layout.registers), values, strict=True))
            yield env, tuple(layout.coordinate(a, env) for a in names)


@pytest.mark.parametrize(("rows", "columns", "warps"), CASES)
def test_every_element_has_one_place_in_each_replica(rows, columns, warps):
    layout = natural(rows, columns, warps)
    found = Counter(at for _, at in places(layout, warps))
    assert len(set(found.values())) == 1
    replicas = next(iter(found.values()))
    free = 1
    for _, _, n in layout.free({"g": 8, "t": 4, "w": warps}):
        free *= n
    assert replicas == free
    sizes = dict([*rows, *columns])
    wanted = itertools.product(*(range(sizes[a]) for a, _ in layout.axes))
    assert set(wanted) <= set(found)
    for a, _ in layout.axes:
        assert max(at[[x for x, _ in layout.axes].index(a)] for at in found) < layout.covers(a)


@pytest.mark.parametrize(("rows", "columns", "warps"), CASES)
def test_registers_are_numbered_without_gaps(rows, columns, warps):
    layout = natural(rows, columns, warps)
    numbers = {layout.register(env) for env, _ in places(layout, warps)}
    assert numbers == set(range(layout.count))


@pytest.mark.parametrize(("rows", "columns", "warps"), CASES)
@pytest.mark.parametrize("lost", range(3))
def test_a_value_without_an_axis_conforms(rows, columns, warps, lost):
    layout = natural(rows, columns, warps)
    axes = [a for a, _ in layout.axes]
    if lost >= len(axes):
        pytest.skip("it has no such axis")
    less = layout.without(axes[lost])
    assert conforms(less, layout)
    for env, at in places(layout, warps):
        mine = {s: 0 for s, _ in less.registers}
        number = register_at(less, layout, env)
        for s, n in reversed(less.registers):
            mine[s], number = number % n, number // n
        where = {a: less.coordinate(a, {**env, **mine}) for a, _ in less.axes}
        assert all(where[a] == x for a, x in zip(axes, at, strict=True) if a != axes[lost])


def test_other_rows_or_another_step_do_not_conform():
    layout = natural([("i", 64)], [("j", 64)], 4)
    assert not conforms(natural([("j", 64)], [], 4), layout)
    assert not conforms(natural([("i", 128)], [], 4), layout)
    assert conforms(natural([("i", 64)], [], 4), layout)
    assert conforms(natural([], [("j", 64)], 4), layout)


def test_an_accumulator_is_laid_out_as_m16n8():
    """PTX ISA, matrix fragments for mma.m16n8k16: row lane / 4 (+ 8), columns 2 (lane % 4) + c."""
    layout = natural([("i", 16)], [("j", 8)], 1)
    for lane, c in itertools.product(range(32), range(4)):
        env = {"g": lane // 4, "t": lane % 4, "w": 0, "m": 0, "n": 0, "r": c // 2, "c": c % 2}
        assert layout.register(env) == c
        assert layout.coordinate("i", env) == lane // 4 + 8 * (c // 2)
        assert layout.coordinate("j", env) == lane % 4 * 2 + c % 2

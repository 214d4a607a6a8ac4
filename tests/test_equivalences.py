"""Programs that mean the same compile to the same: softmax by hand, ways to say one causal mask."""

from __future__ import annotations

import re

import pytest
from levels import lower, spec_of

import tilecc as tc
from tilecc.ir.expr import Arg, Call, Const, Old
from tilecc.ir.printer import print_ir

HEAD = """@tc.spec
def program(
    q: tc.Tensor["b h i:N d:64"], k: tc.Tensor["b h j:N d:64"], v: tc.Tensor["b h j:N e:64"]
):
"""
COMPOSITE = """
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j")
"""
BY_HAND = {
    "division before the product": """
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    p = tc.exp(s - tc.max(s, over="j"))
    return tc.dot(p / tc.sum(p, over="j"), v, over="j")
""",
    "base 2": """
    s = tc.dot(q, k, over="d") * (tc.rsqrt(tc.extent("d")) * 1.4426950408889634)
    p = tc.exp2(s - tc.max(s, over="j"))
    return tc.dot(p / tc.sum(p, over="j"), v, over="j")
""",
    "division after the product": """
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    p = tc.exp(s - tc.max(s, over="j"))
    return tc.dot(p, v, over="j") / tc.sum(p, over="j")
""",
    "operands swapped": """
    s = tc.dot(k, q, over="d") * tc.rsqrt(tc.extent("d"))
    p = tc.exp(s - tc.max(s, over="j"))
    return tc.dot(v, p, over="j") / tc.sum(p, over="j")
""",
    "statements in another order": """
    x = tc.dot(q, k, over="d")
    scale = tc.rsqrt(tc.extent("d"))
    top = tc.max(x * scale, over="j")
    weights = tc.exp(x * scale - top)
    weighted = tc.dot(weights, v, over="j")
    total = tc.sum(weights, over="j")
    return weighted / total
""",
}
OTHER_AXIS = """@tc.spec
def program(
    q: tc.Tensor["b h j:N d:64"], k: tc.Tensor["b h i:N d:64"], v: tc.Tensor["b h i:N e:64"]
):
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    p = tc.exp(s - tc.max(s, over="i"))
    return tc.dot(p, v, over="i") / tc.sum(p, over="i")
"""
CAUSAL = (
    "j <= i",
    "i >= j",
    "~(j > i)",
    "i - j >= 0",
    "j < i + 1",
    "j - i < 1",
    "~(i < j)",
    "0 >= j - i",
    "(j < i) | (j == i)",
    "2 * j <= 2 * i",
)
ATTENTION = HEAD + COMPOSITE


def structure(source, rename=()):
    """The loop IR up to names, the order of statements and operands, and guards of an empty row.

    Division by hand keeps IEEE's rules, so where the composite says `where(l == 0, 0, 1 / l)` it
    has `1 / l`, and its reference may be written with or without a guard that the pass adds.
    """
    levels = lower(spec_of(source).trace("float32"), {}, (1, 1, 64, 64))
    return Structure(levels.stages["mask-tiles"], dict(rename)).lines()


class Structure:
    """A kernel's operations as expressions over its parameters."""

    def __init__(self, func, rename):
        (self.kernel,) = [op for op in func.body.ops if op.name == "kernel"]
        self.rename = rename
        self.known = {p: p.name for p in func.params}

    def lines(self):
        streams = [op for op in self.kernel.body.ops if op.name == "stream"]
        assert len(streams) == 1, "more than one pass"
        (stream,) = streams
        updates = [op for op in stream.body.ops if op.name == "update"]
        self.known |= {u.result: f"state{n}" for n, u in enumerate(self._sorted(updates))}
        self.known |= dict(
            zip(stream.results, map(self.known.get, stream.body.terminator.operands), strict=True)
        )
        states = [self._update(u) for u in updates]
        (end,) = self.kernel.body.terminator.operands
        axes = [self.rename.get(a, a) for a in self.kernel.attrs["over"]]
        return (
            axes,
            self.rename.get(stream.attrs["axis"], stream.attrs["axis"]),
            sorted(states),
            (self._text(end)),
        )

    def _sorted(self, updates):
        """Updates by what they are: the maximum, the sum of weights, the sum of values."""
        return sorted(updates, key=lambda u: (u.attrs["kind"], len(u.result.type.axes)))

    def _update(self, u):
        kind, new = u.attrs["kind"], self._text(u.operands[0])
        repair = "" if u.attrs["repair"] is None else self._expr(u.attrs["repair"], u.operands)
        return f"{self.known[u.result]} = {kind} {new} repair {repair}"

    def _text(self, v):
        if v in self.known:
            return self.known[v]
        op = v.owner
        args = [self._text(x) for x in op.operands]
        if op.name == "map":
            return self._expr(op.expr, op.operands)
        if op.name == "contract":
            args.sort()
        over = " ".join(self.rename.get(a, a) for a in op.over)
        return f"{op.name} {op.attrs.get('kind', '')}({', '.join(args)}) over {over}"

    def _expr(self, e, operands):
        if isinstance(e, Arg):
            return self._text(operands[e.k])
        if isinstance(e, Old):
            return f"old({self.known[operands[e.k]]})"
        if isinstance(e, Call):
            args = [self._expr(a, operands) for a in e.args]
            if e.fn == "where" and "== " in args[0] and args[1] == "0.0":
                return args[2]  # a guard
            if e.fn in ("mul", "add"):
                args.sort()
            if e.fn == "eq":
                return " == ".join(args)
            if e.fn == "div" and not args[0].startswith("1.0"):
                return f"mul({', '.join(sorted([args[0], f'div(1.0, {args[1]})']))})"
            return f"{e.fn}({', '.join(args)})"
        return repr(e.value) if isinstance(e, Const) else repr(e)


@pytest.mark.parametrize("how", BY_HAND)
def test_softmax_by_hand_is_the_composite(how):
    assert structure(HEAD + BY_HAND[how]) == structure(ATTENTION)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rsqrt", "sqrt"),
        ('tc.max(s, over="j")', 'tc.maximum(tc.max(s, over="j"), 0.0)'),
        ("tc.dot(p, v", "tc.dot(p * p, v"),
        ("/ tc.sum(p,", "/ tc.max(p,"),
    ],
)
def test_another_program_is_told_apart(old, new):
    source = HEAD + BY_HAND["division after the product"]
    assert old in source
    assert structure(source.replace(old, new)) != structure(ATTENTION)


def test_softmax_over_the_other_axis():
    assert structure(OTHER_AXIS, {"i": "j", "j": "i"}) == structure(ATTENTION)


@pytest.mark.parametrize("how", [*BY_HAND, "the other axis"])
def test_the_same_bytes(how):
    source = OTHER_AXIS if how == "the other axis" else HEAD + BY_HAND[how]
    tile = {"i": 64, "j": 64}
    sizes = {"B": 1, "H": 8, "N": 4096}
    wanted = tc.compile(spec_of(ATTENTION), target="h100", tile=tile).cost(**sizes)
    report = tc.compile(spec_of(source), target="h100", tile=tile).cost(**sizes)
    assert report.fused.bytes == wanted.fused.bytes > 0
    assert report.fused.formula == wanted.fused.formula


def bounds(predicate):
    """The loops over j in tile IR: their bounds, and the masks within."""
    mask = re.sub(r"\b([ij])\b", r'tc.index("\1")', predicate)
    body = COMPOSITE.replace("    return", f"    s = tc.where({mask}, s, -tc.inf)\n    return")
    levels = lower(spec_of(HEAD + body).trace("float32"), {}, (1, 1, 64, 32))
    lines = print_ir(levels.stages["tile"], locs=False).splitlines()
    limits = [x.strip() for x in lines if re.match(r"\s*%\w+ = map .*: i64\b", x)]
    loops = [re.sub(r".* = (for .*) carry.*", r"\1", x) for x in lines if " = for " in x]
    masked = [" where(" in x and "-inf" in x for x in lines]
    return limits, loops, sum(masked)


@pytest.mark.parametrize("predicate", CAUSAL)
def test_a_causal_mask_gives_the_same_loop_bounds(predicate):
    limits, loops, masked = bounds(predicate)
    assert (limits, loops, masked) == bounds(CAUSAL[0])
    assert len(loops) == 2, "tiles without a mask, then tiles with one"

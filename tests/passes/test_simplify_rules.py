"""The rules of simplify one by one, and on random graphs."""

from __future__ import annotations

import numpy as np
import pytest
from simplify_cases import arrays, same, simplify

from tilecc.ir.core import Func
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.passes.base import Remarks
from tilecc.passes.simplify import PHASES, Simplify


def ir(body: str, result: str = "f32[i]", params: str = "") -> Func:
    lines = "\n".join("  " + line.strip() for line in body.strip().splitlines())
    head = "func @f(%x: f32[i:N, j:M], %a: f32[i], %w: f32[j], %n: i64[i]" + params + ")"
    return parse_ir(f"{head} {{\n{lines}\n}}\n")


MAX = "%r = reduce max %y over j : f32[i]\nreturn %r"
SUM = "%r = reduce sum %y over j : f32[i]\nreturn %r"
RULES_BY_TEXT = [
    # (body, a text that the result has, a text that it has not)
    (f"%y = map where(%a > 0, %x * -2, -inf) : f32[i, j]\n{MAX}", "%x * -2.0, -inf)", None),
    (f"%y = map where(%a > 0, %x * 2, -inf) : f32[i, j]\n{MAX}", "%x, -inf)", "%x * 2"),
    (f"%y = map maximum(%x * -2, 0) : f32[i, j]\n{MAX}", "maximum(%x * -2.0", None),
    (f"%y = map maximum(%x * 2, %w * 2) : f32[i, j]\n{MAX}", "maximum(%x, %w)", None),
    (f"%y = map where(%x * -2 < 0, 1.0, 2.0) : f32[i, j]\n{MAX}", "%x * -2.0 < 0.0", None),
    (f"%y = map where(%x * 2 < 0, 1.0, 2.0) : f32[i, j]\n{MAX}", "%x < 0.0", None),
    (f"%y = map abs(%x * -2) : f32[i, j]\n{MAX}", "abs(%x * -2.0)", None),
    (f"%y = map abs(%x * 2) : f32[i, j]\n{MAX}", "abs(%x)", None),
    (f"%y = map where(%a > 0, 0.0, %x) : f32[i, j]\n{SUM}", "reduce sum %x", None),
    (f"%y = map where(%a > 0, %x, 0.0) : f32[i, j]\n{SUM}", "reduce sum %x", None),
    (f"%y = map where(%a > 0, %x, 1.0) : f32[i, j]\n{SUM}", "%x, 1.0)", "sum %x "),
    ("%y = map %a * 0.0 : f32[i]\nreturn %y", "%a * 0.0", None),
    ("%y = map %a + 0.0 : f32[i]\nreturn %y", "%a + 0.0", None),
    ("%y = map %a - 0.0 : f32[i]\nreturn %y", "map %a :", "-"),
    ("%y = map -(-%a) : f32[i]\nreturn %y", "map %a :", "-"),
    ("%y = map where(%a > 0, where(%a > 0, %a, 1.0), 2.0) : f32[i]\nreturn %y", "%a, 2.0)", "1.0"),
    ("%y = map where(1 < 2, %a, 1.0) : f32[i]\nreturn %y", "map %a :", "where"),
    ("%y = map %a * 2.0 * 3.0 / 4 : f32[i]\nreturn %y", "%a * 1.5", "/"),
    (f"%y = map %x * 2 : f32[i, j]\n{MAX}", "%x over", None),
    (f"%y = map %x * -2 : f32[i, j]\n{MAX}", "-2.0", "%x ov"),
    (f"%y = map %x * %w : f32[i, j]\n{SUM}", "contract", "*"),
    (f"%y = map %x * %a : f32[i, j]\n{SUM}", "%x over", None),
    (f"%y = map %x * %x : f32[i, j]\n{SUM}", "%x * %x", None),
    (f"%y = map %x / %a : f32[i, j]\n{SUM}", "== 0", None),
    ("%r = contract %a, %w over j : f32[i]\nreturn %r", "reduce sum %w", "contract"),
    ("%y = map %n * 1 + 0 : i64[i]\nreturn %y", "map %n :", "+"),
    ("%y = map %n // 3 % 2 - index(i) : i64[i]\nreturn %y", "%n // 3 % 2 - index(i)", None),
    ("%y = map maximum(%a * 2, %a * 2) : f32[i]\nreturn %y", "%a * 2.0", "maximum"),
    ("%y = map %a : f32[i]\n%z = map exp(%y) : f32[i]\nreturn %z", "exp2(%a * 1.44", "exp("),
    ("%y = map 1.0 : f32[i:N]\n%z = map %y + index(i) : f32[i]\nreturn %z", "index(i)", None),
    ("%y = map %a : f32[j:M, i]\n%z = reduce sum %y over j : f32[i]\nreturn %z", "over j", None),
]


@pytest.mark.parametrize("body,has,lacks", RULES_BY_TEXT)
def test_rules(body, has, lacks):
    f = ir(body)
    new = same(f)
    text = print_ir(new, locs=False).split("{\n", 1)[1]
    assert has in text, text
    assert lacks is None or lacks not in text, text


def test_reads_of_computed_tensors_become_reads_of_parameters():
    f = ir(
        """%y = map %x * %w : f32[i, j]
        %z = at %y[j = index(i) % 2] : f32[i]
        return %z"""
    )
    text = print_ir(same(f), locs=False)
    assert "at %x[j = index(i) % 2]" in text and "at %w[j = index(i) % 2]" in text


def test_outputs_keep_type_and_order():
    f = ir(
        """%y = map %x : f16[j, i]
        %s = reduce sum %x over j : f32[i]
        %t = reduce sum %x over j : f32[i]
        return %y, %s, %t, %y"""
    )
    new = same(f)
    assert [print_ir(new).count("reduce"), len(new.returns)] == [1, 4]
    assert [v.type for v in new.returns] == [v.type for v in f.returns]


def test_shared_work_does_not_grow_the_text():
    """Twenty squarings in a row: as a tree this has a million leaves."""
    body = "\n".join(f"%a{k + 1} = map %a{k} * %a{k} + 1.0 : f32[i]" for k in range(20))
    f = ir(f"%a0 = map tanh(%a) : f32[i]\n{body}\n%z = map %a20 * 0.5 : f32[i]\nreturn %z")
    assert len(print_ir(simplify(f))) < 4000


def test_shared_products_and_sums_are_bounded():
    square = "\n".join(f"%a{k + 1} = map %a{k} * %a{k} : f32[i, j]" for k in range(30))
    fib = "\n".join(f"%b{k + 2} = map %b{k} + %b{k + 1} : f32[i, j]" for k in range(40))
    f = ir(
        f"""%a0 = map %x * %a : f32[i, j]
        {square}
        %b0 = map %x * 0.001 : f32[i, j]
        %b1 = map sin(%x) : f32[i, j]
        {fib}
        %z = map exp(%b40 * 0.0) * %a30 * maximum(%b40, 0.0) : f32[i, j]
        %s = reduce sum %z over j : f32[i]
        %t = contract %z, %w over j : f32[i]
        return %s, %t"""
    )
    simplify(f)


def test_long_chains_do_not_overflow_the_stack():
    body = "\n".join(f"%a{k + 1} = map sin(%a{k}) + %a : f32[i]" for k in range(3000))
    f = ir(f"%a0 = map tanh(%a) : f32[i]\n{body}\nreturn %a3000")
    Simplify().apply(f, Remarks())


def test_every_rule_has_a_formula():
    for rules in PHASES:
        for r in rules:
            assert "-->" in (r.apply.__doc__ or ""), r.name


UNARY = ["exp", "neg", "abs", "tanh", "sigmoid", "scale", "shift", "mask", "halve", "rsqrt"]
BINARY = ["add", "sub", "mul", "maximum", "minimum", "div", "where"]


def random_graph(rng: np.random.Generator) -> Func:
    lines: list[str] = []
    kinds = {"x": "i, j", "a": "i", "w": "j", "y": "i, j"}

    def emit(text: str, axes: str) -> str:
        name = f"t{len(lines)}"
        lines.append(f"%{name} = {text} : f32" + (f"[{axes}]" if axes else ""))
        kinds[name] = axes
        return name

    def pick(want: str | None = None) -> str:
        names = [n for n, axes in kinds.items() if want is None or want in axes]
        weights = np.arange(1, len(names) + 1, dtype=float)
        return str(rng.choice(names, p=weights / weights.sum()))

    def join(*axes: str) -> str:
        return ", ".join(n for n in ("i", "j") if any(n in x for x in axes))

    def unary(fn: str, x: str) -> str:
        c = rng.choice([2.0, 0.5, -1.5, 3.0])
        text = {
            "scale": f"map %{x} * {c}",
            "shift": f"map %{x} - {c}",
            "halve": f"map %{x} / {c} * rsqrt(N)",
            "mask": f"map where(index(j) <= index(i), %{x}, {rng.choice(['-inf', '0.0', '1.0'])})",
            "rsqrt": f"map rsqrt(abs(%{x}) + 0.5)",
            "neg": f"map -%{x}",
        }.get(fn, f"map {fn}(%{x})")
        return emit(text, "i, j" if fn == "mask" else kinds[x])

    for _ in range(int(rng.integers(4, 14))):
        match rng.integers(0, 5):
            case 0 | 1:
                unary(str(rng.choice(UNARY)), pick())
            case 2:
                fn, a, b = str(rng.choice(BINARY)), pick(), pick()
                infix = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
                text = f"%{a} {infix[fn]} %{b}" if fn in infix else f"{fn}(%{a}, %{b})"
                if fn == "where":
                    text = f"where(%{a} > 0.25, %{b}, 0.0)"
                emit("map " + text, join(kinds[a], kinds[b]))
            case 3:
                x = pick("j")
                kind = rng.choice(["sum", "max", "min", "sum"])
                emit(f"reduce {kind} %{x} over j", kinds[x].replace(", j", "").replace("j", ""))
            case 4:
                a, b = pick("j"), pick("j")
                axes = join(kinds[a].replace("j", ""), kinds[b].replace("j", ""))
                emit(f"contract %{a}, %{b} over j", axes)
    names = [n for n in kinds if n.startswith("t")]
    outputs = ", ".join(f"%{n}" for n in names[-2:])
    return ir("\n".join([*lines, f"return {outputs}"]), params=", %y: f32[i, j]")


@pytest.mark.parametrize("block", range(10))
def test_random_graphs(block):
    compared = 0
    for seed in range(block * 40, block * 40 + 40):
        rng = np.random.default_rng(seed)
        f = random_graph(rng)
        new = simplify(f)
        sizes = {"N": int(rng.integers(1, 5)), "M": int(rng.integers(0, 5))}
        x = arrays(f, sizes, seed=seed)
        before = interpret(f, x, exact=True, extents=sizes)
        after = interpret(new, x, exact=True, extents=sizes)
        for a, b in zip(before, after, strict=True):
            known = ~np.isfinite(a) | (np.abs(a) < 1e12)
            message = f"{seed}\n{print_ir(f)}{print_ir(new)}"
            np.testing.assert_allclose(b[known], a[known], rtol=1e-7, atol=1e-7, err_msg=message)
            compared += known.any()
    assert compared > 30

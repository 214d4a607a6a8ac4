"""online-softmax: one pass where a repair is proved, remarks where not, the same results."""

import re

import numpy as np
import pytest

import tilecc as tc
from tilecc.ir.interp import interpret
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_ir
from tilecc.ir.verifier import verify
from tilecc.passes.base import Remarks
from tilecc.passes.online_softmax import OnlineSoftmax
from tilecc.pipeline import PassManager

HEAD = (
    "func @f(%q: f32[i:M, d:D], %k: f32[j:N, d], %v: f32[j, e:D], %b: f32[i, j], %sk: f32[i]) {\n"
)
SCORE = ["%s = contract %q, %k over d : f32[i:M, j:N]", "%x = map %s + %b : f32[i, j]"]


def stream(results, lines, yields):
    """A stream over j that computes its own scores %x."""
    body = "".join(f"      {line}\n" for line in [*SCORE, *lines, f"yield {yields}"])
    return f"    {results} = stream j {{\n{body}    }}\n"


def state(name, f, kind="sum"):
    """A stream with one state, over `f`."""
    lines = [
        f"%p = map {f} : f32[i, j]  # user.py:7",
        f"%r = reduce {kind} %p over j : f32[i]  # user.py:8",
        f"%u = update {kind} %r : f32[i]  # user.py:8",
    ]
    return stream(name, lines, "%u")


def pair(f, l="%l", acc="%acc"):
    """A stream with the sum of `f` and its product with %v."""
    lines = [
        f"%p = map {f} : f32[i, j]  # user.py:7",
        "%r = reduce sum %p over j : f32[i]  # user.py:8",
        "%l1 = update sum %r : f32[i]  # user.py:8",
        "%pv = contract %p, %v over j : f32[i, e]  # user.py:9",
        "%a1 = update sum %pv : f32[i, e]  # user.py:9",
    ]
    return stream(f"{l}, {acc}", lines, "%l1, %a1")


def row(line):
    return f"    {line}\n"


def program(*parts, outputs):
    """The function; values of the i-th stream get the suffix _i."""
    text, n = "", 0
    for part in parts:
        if "stream j" in part:
            n += 1
            head, _, body = part.partition("{\n")
            local = set(re.findall(r"^\s+(%\w+) = ", body, re.M))
            for name in local:
                body = re.sub(re.escape(name) + r"\b", f"{name}_{n}", body)
            part = f"{head}{{\n{body}"
        text += part
    names = ", ".join(f"%o{k}" for k in range(len(outputs)))
    tail = f"    yield {', '.join(outputs)}\n  }}\n  return {names}\n}}\n"
    func = parse_ir(f"{HEAD}  {names} = kernel over i {{\n{text}{tail}")
    verify(func)
    return func


MAX = stream(
    "%m", ["%r = reduce max %x over j : f32[i]  # user.py:6", "%u = update max %r : f32[i]"], "%u"
)
GUARD = row("%g = map where(%m == -inf, 0.0, %m) : f32[i]")
DIVIDE = row("%z = map %acc / %l : f32[i, e:D]")
SAFE = row("%z = map where(%l == 0.0, 0.0, %acc / %l) : f32[i, e:D]")
L = "%L = map %m + log(%l) : f32[i]"

# Programs that one pass computes.
ONE_PASS = {
    "guarded": program(MAX, GUARD, pair("exp(%x - %g)"), SAFE, row(L), outputs=["%z", "%L"]),
    "by hand": program(MAX, pair("exp(%x - %m)"), DIVIDE, outputs=["%z"]),
    "base 2": program(MAX, pair("exp2((%x - %m) * 1.4426950408889634)"), DIVIDE, outputs=["%z"]),
    "base 10": program(MAX, pair("pow(10.0, %x - %m)"), DIVIDE, outputs=["%z"]),
    "lse by hand": program(MAX, pair("exp(%x - %m)"), row(L), outputs=["%L", "%acc"]),
    "softmax-1": program(
        MAX,
        row("%g = map maximum(%m, 0.0) : f32[i]"),
        pair("exp(%x - %g)"),
        row("%z = map %acc / (%l + exp(-%g)) : f32[i, e:D]"),
        outputs=["%z", "%l"],
    ),
    "sink": program(
        MAX,
        row("%g = map maximum(%m, %sk) : f32[i]"),
        pair("exp(%x - %g)"),
        row("%z = map %acc / (%l + exp(%sk - %g)) : f32[i, e:D]"),
        outputs=["%z", "%l"],
    ),
    "divided inside": program(
        MAX,
        state("%l", "exp(%x - %m)"),
        pair("exp(%x - %m) / %l", "%one", "%acc"),
        outputs=["%acc", "%one"],
    ),
    "through lse": program(
        MAX,
        GUARD,
        state("%l", "exp(%x - %g)"),
        row(L),
        pair("exp(%x - %L)", "%one", "%acc"),
        outputs=["%acc", "%L"],
    ),
    "max of exp": program(MAX, state("%h", "exp(%x - %m)", "max"), outputs=["%h"]),
    "min of exp": program(MAX, GUARD, state("%h", "exp(%x - %g)", "min"), outputs=["%h"]),
    "max of difference": program(MAX, state("%h", "%x - %m", "max"), outputs=["%h"]),
    "squares": program(MAX, pair("exp(%x - %m) * exp(%x - %m)"), DIVIDE, outputs=["%z", "%l"]),
    "guard on each score": program(
        MAX, pair("where(%m == -inf, 0.0, exp(%x - %m))"), SAFE, outputs=["%z"]
    ),
    "masked after": program(
        MAX, pair("where(index(j) <= index(i), exp(%x - %m), 0.0)"), DIVIDE, outputs=["%z"]
    ),
    "bias after": program(MAX, pair("exp(%x - %m + index(j) * 0.125)"), DIVIDE, outputs=["%z"]),
    "softmin": program(MAX.replace("max", "min"), pair("exp(%m - %x)"), DIVIDE, outputs=["%z"]),
    "two softmaxes": program(
        MAX,
        state("%m2", "%x * 2.0", "max"),
        pair("exp(%x - %m)"),
        pair("exp(%x * 2.0 - %m2)", "%l2", "%acc2"),
        row("%z = map %acc / %l + %acc2 / %l2 : f32[i, e:D]"),
        outputs=["%z"],
    ),
    "rounded": program(MAX, pair("cast(cast(exp(%x - %m), f16), f32)"), DIVIDE, outputs=["%z"]),
}

# Programs that need more, with the obligation that fails and the lines that it names.
REFUSED = {
    "entropy": (
        program(MAX, GUARD, pair("exp(%x - %g) * (%x - %g)"), DIVIDE, outputs=["%z"]),
        "is not a function of f(x, r), r, r' alone",
        [8, 9],
    ),
    "variance": (
        program(
            state("%m", "%x + 0.0"),
            row("%g = map %m / N : f32[i]"),
            state("%h", "(%x - %g) * (%x - %g)"),
            outputs=["%h"],
        ),
        "f = (x - r)**2, f(x, r') / f(x, r) depends on x",
        [8],
    ),
    "hinge": (
        program(MAX, state("%h", "maximum(%x - %m + 1.0, 0.0)"), outputs=["%h"]),
        "is not a function of f(x, r), r, r' alone",
        [8],
    ),
    "divided by the maximum": (
        program(MAX, state("%h", "%x / %m"), outputs=["%h"]),
        "at the reducer's identity",
        [8],
    ),
    "softplus": (
        program(MAX, state("%h", "log(1.0 + exp(%x - %m))"), outputs=["%h"]),
        "repair does not commute with sum",
        [8],
    ),
    "not monotone": (
        program(state("%m", "%x * 1.0"), state("%h", "%x / %m", "max"), outputs=["%h"]),
        "repair does not commute with max",
        [8],
    ),
    "growing": (
        program(MAX, GUARD, state("%h", "exp(%x + %g)"), outputs=["%h"]),
        "the repair amplifies",
        [8],
    ),
    "overflowing early": (
        program(MAX, GUARD, state("%h", "exp(%x - 2.0 * %g)"), outputs=["%h"]),
        "may overflow under an early r",
        [8],
    ),
    "threshold that moves": (
        program(MAX, GUARD, state("%h", "where(%x > %m - 1.0, exp(%x - %g), 0.0)"), outputs=["%h"]),
        "a condition on x depends on r",
        [8],
    ),
    "softmax of softmax": (
        program(
            MAX,
            GUARD,
            state("%l", "exp(%x - %g)"),
            state("%m2", "exp(%x - %g) / %l", "max"),
            pair("exp(exp(%x - %g) / %l - %m2)", "%l2", "%acc"),
            outputs=["%acc", "%l2"],
        ),
        "",
        [8, 9],
    ),
    "probabilities written out": (
        program(
            MAX,
            pair("exp(%x - %m)"),
            stream("%P", ["%p = map exp(%x - %m) / %l : f32[i, j]  # user.py:7"], "%p"),
            outputs=["%acc", "%P"],
        ),
        "it is written out for each j and reads the final",
        [7],
    ),
    "through a contraction": (
        program(
            MAX,
            pair("exp(%x - %m)"),
            row("%w = contract %acc, %acc over e : f32[i]"),
            state("%h", "exp(%x - %w)"),
            outputs=["%h"],
        ),
        "an operation that is no map stands between it and %acc",
        [8],
    ),
}
ALL = {**ONE_PASS, **{name: case[0] for name, case in REFUSED.items()}}


def online(func):
    remarks = Remarks()
    before = print_ir(func)
    out = OnlineSoftmax().apply(func, remarks)
    assert print_ir(func) == before, "the input was edited"
    verify(out)
    assert print_ir(parse_ir(print_ir(out))) == print_ir(out)
    return out, remarks.items


def count(func, name):
    return sum(op.name == name for op in func.walk())


def inputs(kind, m, n, seed=0):
    """q, k, v, bias, sink; the bias masks row 0, the beginning of row 1 and the end of row 2."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(rows, 3)) for rows in (m, n, n))
    b, sk = rng.normal(size=(m, n)), rng.normal(size=m)
    if kind != "plain":
        b[rng.random((m, n)) < 0.4] = -np.inf
        b[0] = -np.inf
        b[1, : n * 2 // 3] = -np.inf
        b[2, n // 3 :] = -np.inf
    if kind == "300":
        b += rng.choice([-300, 0, 300], size=(m, n))
    if kind == "1e4":
        b += rng.choice([-1e4, 0, 1e4], size=(m, n))
        sk *= 1e3
    if kind == "no sink":
        sk[:] = -np.inf
    if kind in ("nan", "inf") and n:
        b[3, n // 2] = float(kind)
    return [q, k, v, b, sk]


@pytest.mark.parametrize("name", ONE_PASS)
def test_one_pass(name):
    out, remarks = online(ONE_PASS[name])
    assert count(out, "stream") == 1
    assert (
        count(out, "contract")
        == sum(op.name == "contract" and op.over == ("j",) for op in out.walk()) + 1
    ), "the scores are computed once"
    assert not remarks


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    func, obligation, lines = REFUSED[name]
    out, remarks = online(func)
    assert count(out, "stream") == 2
    assert [r.loc.line for r in remarks] == lines
    assert all(obligation in r.message and "a pass over j of its own" in r.message for r in remarks)


@pytest.mark.parametrize("name", ALL)
def test_same_results(name):
    """Before and after agree, for any chunk, in float64 and in float32."""
    func = ALL[name]
    out, _ = online(func)
    for kind in ("plain", "masked", "300", "1e4", "no sink", "nan", "inf"):
        for m, n in ((5, 0), (5, 1), (6, 17)):
            data = inputs(kind, m, n)
            for exact, tolerance in ((True, 1e-9), (False, 2e-3)):
                arrays = data if exact else [a.astype(np.float32) for a in data]
                want = interpret(func, arrays, chunk=64, exact=exact, extents={"D": 3})
                for chunk in (1, 5, 64):
                    got = interpret(out, arrays, chunk=chunk, exact=exact, extents={"D": 3})
                    for x, y in zip(got, want, strict=True):
                        np.testing.assert_allclose(
                            x, y, rtol=tolerance, atol=tolerance, err_msg=f"{kind} {n} {chunk}"
                        )


def test_attention_against_float64():
    """The joined form is softmax(x) v, and 0 for a row that is masked."""
    out, _ = online(ONE_PASS["guarded"])
    q, k, v, b, sk = inputs("masked", 6, 17)
    z, lse = interpret(out, [q, k, v, b, sk], chunk=4, exact=True)
    x = q @ k.T + b
    with np.errstate(invalid="ignore", divide="ignore"):
        p = np.exp(x - x.max(1, keepdims=True))
        want = p @ v / p.sum(1, keepdims=True)
        logs = x.max(1) + np.log(p.sum(1))
    want[0], logs[0] = 0, -np.inf
    np.testing.assert_allclose(z, want, atol=1e-12)
    np.testing.assert_allclose(lse, logs, atol=1e-12)


def test_text():
    out, _ = online(ONE_PASS["guarded"])
    text = print_ir(out, locs=False)
    assert "%m, %l, %acc = stream j {" in text
    # Both sums share the factor, letter by letter, and read the guarded reference of the program.
    assert len(re.findall(r"repair acc \* exp\(old\(%u_1\) - %g\) :", text)) == 2
    assert text.count("where(") == 2


@pytest.mark.parametrize("dtype", ["bool", "int8"])
def test_what_is_counted_is_finite(dtype):
    """A mask that multiplies the weights is 0 or 1: nothing of it is infinite at the identity."""

    @tc.spec
    def program(
        q: tc.Tensor["i d:2"],
        k: tc.Tensor["j d:2"],
        v: tc.Tensor["j e"],
        m: tc.Tensor["i j", dtype],
    ):
        return tc.dot(tc.softmax(tc.dot(q, k, over="d"), over="j") * m, v, over="j")

    func = PassManager("simplify,fuse").run(program.trace("float32")).func
    out, remarks = online(func)
    assert count(out, "stream") == 1 and not remarks


def test_guard_is_put_on_rows():
    """A program with no guard gets one on the reference, and none on scores."""
    out, _ = online(ONE_PASS["by hand"])
    guards = [op for op in out.walk() if op.name == "map" and "where" in str(op.expr)]
    assert [g.result.type.names for g in guards] == [("i",)]


def test_restores_nan_of_a_masked_row():
    """m + log(sum exp(x - m)) is NaN where m is -inf, and stays so; over nothing it is -inf."""
    out, _ = online(ONE_PASS["lse by hand"])
    lse, acc = interpret(out, inputs("masked", 5, 9), chunk=4, exact=True)
    assert np.isnan(lse[0]) and np.isnan(acc[0]).all() and np.isfinite(lse[1:]).all()
    lse, acc = interpret(out, inputs("masked", 5, 0), chunk=4, exact=True, extents={"D": 3})
    assert (lse == -np.inf).all() and (acc == 0).all()


@pytest.mark.parametrize(
    ("name", "marked"),
    [
        ("guarded", 1),
        ("by hand", 1),
        ("max of exp", 0),
        ("guard on each score", 0),
        ("masked after", 0),
        ("probabilities written out", 0),
        ("two softmaxes", 2),
    ],
)
def test_max_may_drop_nan(name, marked):
    """Only where each output that depends on it gets NaN by a sum as well."""
    out, _ = online(ALL[name])
    assert sum(op.attrs.get("nan") == "elsewhere" for op in out.walk()) == marked


def test_max_that_is_an_output_keeps_nan():
    out, _ = online(program(MAX, pair("exp(%x - %m)"), DIVIDE, outputs=["%z", "%m"]))
    assert not any(op.attrs.get("nan") for op in out.walk())


def test_idempotent():
    for func in (ONE_PASS["sink"], REFUSED["entropy"][0]):
        once, _ = online(func)
        assert print_ir(online(once)[0]) == print_ir(once)


def test_partly_joined():
    """A state with no repair goes to a second pass; its companions stay in the first."""
    func = program(
        MAX,
        GUARD,
        pair("exp(%x - %g)"),
        state("%h", "exp(%x - %g) * (%x - %g)"),
        DIVIDE,
        outputs=["%z", "%h"],
    )
    out, remarks = online(func)
    streams = [op for op in out.walk() if op.name == "stream"]
    assert [len(s.results) for s in streams] == [3, 1]
    assert [r.loc.line for r in remarks] == [8]


def test_maximum_over_more_than_the_sum():
    """Where the maximum is taken over more, a sum may be 0 though the maximum is finite."""
    func = parse_ir("""func @f(%x: f32[i:M, j:N, k:K], %v: f32[j, e:E]) {
  %o = kernel over i {
    %m = stream j {
      %r = reduce max %x over j, k : f32[i:M]
      %u = update max %r : f32[i]
      yield %u
    }
    %l = stream j {
      %p = map exp(%x - %m) : f32[i, j:N, k:K]
      %r_1 = reduce sum %p over j : f32[i, k]
      %u_1 = update sum %r_1 : f32[i, k]
      yield %u_1
    }
    %a = stream j {
      %p_1 = map exp(%x - %m) / %l : f32[i, j:N, k:K]
      %r_2 = contract %p_1, %v over j : f32[i, k, e:E]
      %u_2 = update sum %r_2 : f32[i, k, e]
      yield %u_2
    }
    yield %a
  }
  return %o
}
""")
    out, _ = online(func)
    assert not any(op.attrs.get("nan") for op in out.walk()), "NaN reaches one of the sums only"
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(2, 7, 3)), rng.normal(size=(7, 4))
    x[0, :4, 1] = -np.inf
    x[1, :3] -= 2000
    x[1, :, 2] -= 1500
    for chunk in (1, 3):
        got = interpret(out, [x, v], chunk=chunk, exact=True)
        want = interpret(func, [x, v], chunk=chunk, exact=True)
        np.testing.assert_allclose(got[0], want[0], atol=1e-12)

"""Repairs: what is derived, for which reducer, and which obligation a refusal names."""

import subprocess
import sys

import numpy as np
import pytest

from tilecc.analysis.monotone import inverse, monotone
from tilecc.analysis.problem import Problem, Repair, holds_at_samples
from tilecc.analysis.repair import Refusal, derive
from tilecc.analysis.signs import (
    ANY,
    FINITE,
    NAN,
    NEG_INF,
    POS,
    POS_INF,
    ZERO,
    SignEnv,
    of_number,
    signs,
)
from tilecc.analysis.symbolic import from_sympy, to_sympy
from tilecc.analysis.zero import is_zero
from tilecc.ir.expr import FUNCTIONS, Acc, Arg, Const, Env, Old, call, evaluate

X, R, S = Arg(0), Arg(1), Arg(2)


def e(fn, *args):
    return call(fn, *(Const(a) if isinstance(a, float) else a for a in args))


def problem(kind, f, roles="xu", positive=""):
    return Problem(kind, f, tuple(roles), tuple(str(k) in positive for k in range(len(roles))))


DIFFERENCE = e("sub", X, R)
EXP = e("exp", DIFFERENCE)
FACTOR = e("exp", e("sub", Old(1), R))

DERIVED = [
    ("sum", EXP, "xu", "", e("mul", Acc(), FACTOR)),
    ("sum", e("exp2", DIFFERENCE), "xu", "", e("mul", Acc(), e("exp2", e("sub", Old(1), R)))),
    ("sum", e("mul", EXP, S), "xux", "", e("mul", Acc(), FACTOR)),
    ("sum", e("where", S, EXP, 0.0), "xux", "", e("mul", Acc(), FACTOR)),
    ("sum", e("div", X, R), "xu", "1", e("mul", Acc(), e("div", Old(1), R))),
    ("sum", e("div", EXP, S), "xuu", "2", e("mul", Acc(), e("div", e("mul", FACTOR, Old(2)), S))),
    ("max", EXP, "xu", "", e("mul", Acc(), FACTOR)),
    ("max", DIFFERENCE, "xu", "", e("add", Acc(), e("sub", Old(1), R))),
    ("min", e("mul", X, R), "xu", "1", e("mul", Acc(), e("div", R, Old(1)))),
    ("prod", e("exp", e("mul", X, R)), "xu", "", e("pow", Acc(), e("div", R, Old(1)))),
    ("sum", e("sub", e("add", X, R), R), "xu", "", Acc()),
]


@pytest.mark.parametrize("case", DERIVED, ids=str)
def test_derived(case):
    kind, f, roles, positive, want = case
    found = derive(problem(kind, f, roles, positive))
    assert isinstance(found, Repair) and found.expr == want


@pytest.mark.parametrize("case", DERIVED, ids=str)
def test_identity_and_commutation(case):
    """R(f(x, r), r, r') = f(x, r') and R(a + b) = R(a) + R(b) in numbers, + being the reducer."""
    kind, f, roles, positive, _ = case
    repair = derive(problem(kind, f, roles, positive)).expr
    rng = np.random.default_rng(5)
    reduce = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[kind]
    x = rng.uniform(-1, 1, 9)
    rows = np.empty((2, 9))
    rows[:] = rng.uniform(0.5, 2, (2, 1))
    old = [x, rows[0], rows[0] * 1.5]
    new = [x, rows[1], rows[1] * 0.7]
    if roles == "xux":
        old[2] = new[2] = rng.uniform(-1, 1, 9) > 0 if f.fn == "where" else rng.uniform(-1, 1, 9)
    before = evaluate(f, Env(arg=old.__getitem__))
    after = evaluate(f, Env(arg=new.__getitem__))
    was, now = ([v[0] for v in values] for values in (old, new))
    total = evaluate(
        repair, Env(arg=now.__getitem__, old=was.__getitem__, acc=lambda: reduce(before))
    )
    np.testing.assert_allclose(total, reduce(after), rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "f", "message"),
    [
        ("sum", e("pow", DIFFERENCE, 2.0), "is not a function of f(x, r), r, r' alone"),
        ("sum", e("maximum", DIFFERENCE, 0.0), "f(x, r') / f(x, r)"),
        ("sum", e("mul", EXP, DIFFERENCE), "depends on x"),
        ("sum", DIFFERENCE, "repair does not commute with sum"),
        ("sum", e("log", e("add", 1.0, EXP)), "not linearly"),
        ("max", e("div", X, R), "repair does not commute with max"),
        ("prod", DIFFERENCE, "only powers commute with prod"),
        ("sum", e("where", e("gt", X, R), X, 0.0), "a condition on x depends on r"),
    ],
    ids=str,
)
def test_refused(kind, f, message):
    found = derive(problem(kind, f))
    assert isinstance(found, Refusal) and message in found.obligation


def test_general_inverse():
    """log(1 + exp(x - r)) has a repair for max: back through the log, and forth again."""
    f = e("log", e("add", 1.0, EXP))
    repair = derive(problem("max", f))
    assert repair.form == "map"
    x = np.linspace(-2, 2, 7)
    acc = np.log1p(np.exp(x - 0.3)).max()
    new = evaluate(
        repair.expr, Env(arg=[None, 0.9].__getitem__, old=[None, 0.3].__getitem__, acc=lambda: acc)
    )
    np.testing.assert_allclose(new, np.log1p(np.exp(x - 0.9)).max())


def test_samples_refute_a_wrong_repair():
    wrong = Repair("scale", e("exp", e("sub", R, Old(1))))
    p = problem("sum", EXP)
    assert not holds_at_samples(p, [EXP], wrong)
    assert holds_at_samples(p, [EXP], derive(p))


def test_exponent():
    assert is_zero(e("sub", derive(problem("sum", EXP)).exponent, e("sub", Old(1), R)))
    assert derive(problem("sum", e("div", X, R), positive="1")).exponent is None


def test_import_without_sympy():
    code = (
        "import sys, tilecc.passes.online_softmax\nassert not {'sympy', 'tvm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_log2_of_e_is_recognised():
    """exp2(x * log2(e)) and exp(x) are the same over the reals, also with a scale in it."""
    for scale in (1.0, 0.125, 0.1, 128**-0.5, -0.3):
        c = scale * 1.4426950408889634
        assert is_zero(e("sub", e("exp2", e("mul", X, c)), e("exp", e("mul", X, scale))))
    assert not is_zero(e("sub", e("exp2", e("mul", X, 1.4427)), e("exp", X)))


@pytest.mark.parametrize("fn", ["exp", "exp2", "sqrt", "log", "tanh", "abs", "neg"])
def test_sympy_round_trip(fn):
    f = e(fn, e("sub", X, e("mul", R, 0.3)))
    back = from_sympy(to_sympy(f, (False, False)))
    at = Env(arg=[2.0, 0.7].__getitem__)
    np.testing.assert_allclose(evaluate(back, at), evaluate(f, at))


SAMPLES = {
    NEG_INF: [-np.inf],
    2: [-2.5, -1.0],
    ZERO: [0.0],
    POS: [1.0, 2.5],
    POS_INF: [np.inf],
    NAN: [np.nan],
}
UNARY = [f.name for f in FUNCTIONS.values() if f.arity == 1 and f.kind in ("arith", "float")]
BINARY = [
    f.name
    for f in FUNCTIONS.values()
    if f.arity == 2 and f.kind in ("arith", "float", "bool") and f.name not in ("and", "or", "xor")
]


@pytest.mark.parametrize("fn", UNARY + BINARY)
def test_signs_cover_numpy(fn):
    """What numpy computes is among the classes that are predicted."""
    arity = FUNCTIONS[fn].arity
    with np.errstate(all="ignore"):
        for a, xs in SAMPLES.items():
            for b, ys in SAMPLES.items() if arity == 2 else ((0, [0.0]),):
                said = signs(e(fn, *(X, R)[:arity]), SignEnv({0: a, 1: b}))
                for x in xs:
                    for y in ys:
                        got = FUNCTIONS[fn].numpy(*(np.float64(x), np.float64(y))[:arity])
                        got = bool(got) if FUNCTIONS[fn].kind == "bool" else float(got)
                        assert of_number(got) & said, (fn, x, y, got)


def test_signs_at_the_identity():
    masked = e("exp2", e("sub", e("mul", X, 0.18), R))
    assert signs(masked, SignEnv({0: NEG_INF, 1: FINITE})) == ZERO
    assert signs(masked, SignEnv({0: NEG_INF, 1: NEG_INF})) == NAN
    assert signs(e("mul", Acc(), FACTOR), SignEnv({1: FINITE}, {1: FINITE}, ZERO)) & NAN
    guard = e("where", e("eq", R, float("-inf")), 0.0, R)
    assert signs(guard, SignEnv({1: NEG_INF})) == ZERO
    assert signs(guard, SignEnv({1: FINITE})) == FINITE
    assert signs(e("mul", X, R), SignEnv({0: NAN, 1: ANY})) == NAN


def test_monotone():
    assert monotone(e("exp", e("sub", X, R)), R) == -1
    assert monotone(e("maximum", e("mul", X, 2.0), R), X) == 1
    assert monotone(e("mul", X, R), X) is None
    assert monotone(e("mul", X, R), X, {1}) == 1
    assert monotone(e("sub", X, X), X) is None
    assert monotone(R, X) == 0


def test_inverse():
    f = e("div", e("sub", R, e("exp", e("mul", X, 3.0))), S)
    y = inverse(f, 0)
    t = evaluate(f, Env(arg=[0.4, 1.1, 0.7].__getitem__))
    assert np.isclose(evaluate(y, Env(arg=[None, 1.1, 0.7].__getitem__, acc=lambda: t)), 0.4)
    assert inverse(e("tanh", X), 0) is None and inverse(e("mul", X, X), 0) is None

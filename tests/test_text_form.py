"""The text form: what the printer writes the parser reads back, and bad text is a clear error."""

import math
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import compiled

from tilecc.errors import IRError, Loc
from tilecc.ir.core import Block, Builder, Func, TensorType, Value, axis
from tilecc.ir.dtypes import DTYPES, F32, I64
from tilecc.ir.expr import (
    FUNCTIONS,
    Acc,
    Arg,
    Call,
    Cast,
    Const,
    Extent,
    Index,
    Old,
    call,
    shift_args,
    walk,
)
from tilecc.ir.parser import parse_ir
from tilecc.ir.printer import print_expr, print_ir, print_type
from tilecc.ir.verifier import verify

EXAMPLES = ["causal", "gqa", "padding_mask", "sink", "softcap", "with_lse"]


def stages():
    return [(n, s) for n in EXAMPLES for s in compiled(n).stages]


def round_trip(func):
    """Parse what is printed; check that it prints the same again, with and without lines."""
    text = print_ir(func)
    back = parse_ir(text)
    assert print_ir(back) == text
    assert print_ir(back, locs=False) == print_ir(func, locs=False)
    return back


# Whole programs


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_stage_of_an_example_round_trips(name):
    levels = set()
    for stage in compiled(name).stages:
        back = round_trip(stage.func)
        verify(back)
        levels.add(back.level)
        assert back.level == stage.func.level
        assert [op.loc for op in back.walk()] == [op.loc for op in stage.func.walk()]
        assert [op.name for op in back.walk()] == [op.name for op in stage.func.walk()]
        for a, b in zip(back.walk(), stage.func.walk(), strict=True):
            assert [v.type for v in a.results] == [v.type for v in b.results]
    assert levels == {"graph", "loop", "tile"}


# Every operation in every form that the printer can write, at least once.
TILE = """\
func @all(%x: f32[i:N, j:(2 * N + 1)], %n: i64, %t: i32[i]) {
  %o = alloc : f32[i, j]
  kernel grid(%i: ceildiv(N, 4), %b: %n) tile(i=4, j=8) {
    %x_1 = load %x[%i * 4 :+ i, 0 :+ j] pad i, j : sram f32[i:4, j:8]
    %t_1 = load %t[%i * 4 :+ i] pad i : i32[i]
    %g = load %x[%t_1, index(j)] pad j : reg f32[i, j]
    %a = map 0.0 : reg f32[i, j]
    %z = map %n + 1 : i64
    %c, %d = for %k in 0 .. %z carry(%p = %a, %q = %x_1) {
      %s = contract %p, %q over j acc %t_1 : reg f32[i]
      %r, %u = if (%k < 1) & (%n == 2) {
        yield %p, %q
      } else {
        %w = map %q * 2.0 : reg f32[i, j]
        yield %p, %w
      }
      yield %r, %u
    }
    for %k_1 in %z .. %n {
      yield
    }
    store %c, %o[%i * 4 :+ i, 0 :+ j] clip i, j
    store %d, %o[%i * 4 :+ i, %n]
  }
  return %o
}
"""
LOOP = """\
func @all(%x: bf16[b:2, i:N, j:N], %f: bool) {
  %o, %e = kernel over b, i {
    %m, %p = stream j where (index(j) <= index(i)) | %f {
      %r = reduce max[nan=elsewhere] %x over j : f32[b, i]
      %m_1 = update max %r : f32[b, i]
      %s = map exp(cast(%x, f32) - %m_1) : f32[b, i, j]
      %t = reduce sum %s over j : f32[b, i]
      %l = update sum %t repair acc * exp(old(%m_1) - %m_1) : f32[b, i]
      yield %l, %s
    }
    yield %m, %p
  }
  kernel {
    yield
  }
  return %o, %e
}
"""
GRAPH = """\
func @all(%x: f32[h:H, i:N], %k: f32[g:8, i], %t: i64[h], %a: f64) {
  %y = at %k[g = %t, i = index(i) + 1] : f32[h, i]  # a.py:3
  %s = softmax %x over i : f32[h, i]  # a.py:4
  %l = logsumexp %x over h, i : f32
  %r = reduce prod %s over h : f32[i]
  %c = contract %x, %y, %s over h, i : f32
  %m = map %a * where(index(h) % 2 == 0, %r, -inf) : f64[h, i]
  return %m, %l, %c
}
"""


@pytest.mark.parametrize("text", [TILE, LOOP, GRAPH], ids=["tile", "loop", "graph"])
def test_every_form_of_every_operation(text):
    assert print_ir(parse_ir(text)) == text


def test_function_without_parameters_and_results():
    text = "func @empty() {\n  return\n}\n"
    assert print_ir(parse_ir(text)) == text


def test_if_without_results_needs_no_yield():
    text = "func @f() {\n  kernel grid() {\n    if N < 1 {\n    } else {\n    }\n  }\n  return\n}\n"
    assert print_ir(parse_ir(text)) == text


def test_layout_and_comments_do_not_matter():
    plain = "func @f(%x: f32[i:N]) {\n  %y = map %x * 2.0 : f32[i]\n  return %y\n}\n"
    loose = (
        "# a comment, with a %value and a }\n\n"
        "func @f(\n  %x :f32[ i :N ] # the input\n)\n{ %y=map\n %x*2.0:f32[i]   return %y }\n# end"
    )
    assert print_ir(parse_ir(loose)) == plain
    assert print_ir(parse_ir(plain.replace("\n", "\r\n"))) == plain


# Expressions


def with_expr(e, operands=3):
    """A function that is one map."""
    values = [Value(TensorType(F32), f"x{k}") for k in range(operands)]
    block = Block()
    b = Builder(block)
    b.op("map", values, [TensorType(F32, (axis("i", "N"),))], names=["y"], expr=e)
    b.op("return", [block.ops[0].result])
    return Func("f", values, block)


def renumbered(e):
    """Operands numbered in order of appearance, as the parser does."""
    seen = list(dict.fromkeys(n.k for n in walk(e) if isinstance(n, Arg | Old)))
    return shift_args(e, {k: Arg(seen.index(k)) for k in seen})


def check_expr(e):
    back = parse_ir(print_ir(with_expr(e))).body.ops[0].expr
    assert back == renumbered(e), print_expr(e)


floats = st.floats() | st.sampled_from([1e-05, 1e16, -0.0, math.inf, -math.inf, math.nan, 5e-324])
leaves = st.one_of(
    st.booleans().map(Const),
    st.integers().map(Const),
    floats.map(Const),
    st.integers(0, 2).map(Arg),
    st.integers(0, 2).map(Old),
    st.sampled_from([Index("i"), Index("where"), Extent("N"), Extent("max"), Acc()]),
)


def calls(children):
    def application(name):
        return st.tuples(*[children] * FUNCTIONS[name].arity).map(lambda args: Call(name, args))

    casts = st.builds(Cast, children, st.sampled_from(list(DTYPES.values())))
    return st.sampled_from(sorted(FUNCTIONS)).flatmap(application) | casts


@settings(max_examples=400, deadline=None)
@given(st.recursive(leaves, calls, max_leaves=12))
def test_expressions_round_trip(e):
    check_expr(e)


X, Y, Z = Arg(0), Arg(1), Arg(2)


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (Const(-3), "-3"),
        (Const(-0.0), "-0.0"),
        (Const(1e-05), "1e-05"),
        (Const(-1e300), "-1e+300"),
        (Const(-math.inf), "-inf"),
        (Const(math.nan), "nan"),
        (Const(True), "true"),
        (call("neg", Const(3)), "-(3)"),
        (call("neg", Const(-3)), "-(-3)"),
        (call("neg", call("neg", X)), "--%0"),
        (call("neg", call("not", X)), "-~%0"),
        (call("not", call("eq", X, Y)), "~(%0 == %1)"),
        (call("sub", X, Const(-1)), "%0 - -1"),
        (call("sub", X, call("sub", Y, Z)), "%0 - (%1 - %2)"),
        (call("sub", call("sub", X, Y), Z), "%0 - %1 - %2"),
        (call("mul", call("neg", X), Y), "-%0 * %1"),
        (call("neg", call("mul", X, Y)), "-(%0 * %1)"),
        (call("div", X, call("mul", Y, Z)), "%0 / (%1 * %2)"),
        (call("lt", call("lt", X, Y), Z), "(%0 < %1) < %2"),
        (call("or", call("and", X, Y), Z), "%0 & %1 | %2"),
        (call("and", call("or", X, Y), Z), "(%0 | %1) & %2"),
        (call("and", call("le", X, Y), Z), "(%0 <= %1) & %2"),
        (call("xor", X, call("and", Y, Z)), "%0 ^ %1 & %2"),
        (call("mod", call("floordiv", X, Y), Z), "%0 // %1 % %2"),
        (Cast(call("add", X, Y), DTYPES["bf16"]), "cast(%0 + %1, bf16)"),
    ],
)
def test_expressions_in_text(e, text):
    assert print_expr(e) == text
    check_expr(e)


def test_constants_keep_their_kind():
    for value in (1, 1.0, True):
        back = parse_ir(print_ir(with_expr(Const(value), 0))).body.ops[0].expr
        assert back == Const(value) and type(back.value) is type(value)


def test_constants_of_numpy_print_as_numbers():
    import numpy as np

    assert print_expr(Const(np.float64(0.5))) == "0.5"


# Names, extents, lines


def test_names_that_collide_are_told_apart():
    params = [Value(TensorType(I64), n) for n in ["m", "m", "m_1", "", "", "a b", "a.b", "q_1"]]
    block = Block()
    Builder(block).op("return", list(reversed(params)))
    func = Func("f", params, block)
    text = print_ir(func)
    names = re.findall(r"(%\w+): i64", text)
    assert len(set(names)) == len(params)
    assert names[:2] == ["%m", "%m_1"] and names[-1] == "%q_1"
    back = round_trip(func)
    assert back.returns == list(reversed(back.params))


def test_extents_are_printed_where_their_meaning_changes():
    text = (
        "func @f(%x: f32[i:N, j:8], %y: f32[j, i:4], %z: f32[i, j:(N // 2)], %w: f32[j:8, i]) {\n"
        "  return\n}\n"
    )
    func = parse_ir(text)
    assert [p.type.axis("i").static for p in func.params] == [None, 4, 4, 4]
    assert func.params[2].type.axis("j").extent == call("floordiv", Extent("N"), Const(2))
    assert print_ir(func) == text
    assert print_type(func.params[1].type) == "f32[j:8, i:4]"


@pytest.mark.parametrize("file", ["a.py", "my specs/a file.py", "a#b.py", "c:/x.py", "x # y:3.py"])
def test_lines_of_the_source_survive(file):
    func = parse_ir("func @f(%x: f32) {\n  %y = map %x : f32\n  return %y\n}\n")
    func.loc = Loc(file, 1)
    for n, op in enumerate(func.walk(), 7):
        op.loc = Loc(file, n)
    back = round_trip(func)
    assert back.loc == Loc(file, 1)
    assert [op.loc for op in back.walk()] == [Loc(file, 7), Loc(file, 8)]
    assert all(op.loc is None for op in parse_ir(print_ir(func, locs=False)).walk())


def test_a_bound_right_after_a_number():
    text = "func @f() {\nkernel grid() {\nfor %i in 0..5 {\nyield\n}\n}\nreturn\n}"
    (loop, *_) = parse_ir(text).body.ops[0].body.ops
    assert (loop.attrs["lo"], loop.attrs["hi"]) == (Const(0), Const(5))


# Errors


def bad(line):
    """A program whose third line is `line`."""
    return f"func @f(%x: f32[i:N, j:8], %n: i64) {{\n  %y = map %x : f32[i, j]\n  {line}\n}}\n"


DEEP = "(" * 100_000
ERRORS = [
    ("%z = map %x ? 2 : f32", 3, "unexpected character '?'"),
    ("%z = map (%x : f32", 3, "expected ')', found ':'"),
    ("%z map %x : f32", 3, "expected '=', found 'map'"),
    ("%z = softmax %x over 3 : f32", 3, "expected an axis, found '3'"),
    ("%z = contract %x over : f32", 3, "expected an axis, found ':'"),
    ("%z = reduce max x over i : f32", 3, "expected a value such as %x, found 'x'"),
    ("%z, 3 = map %x : f32", 3, "map has 1 results, not 2"),
    ("%z = map %w : f32", 3, "%w is not defined here"),
    ("%y = map %x : f32", 3, "%y is defined twice"),
    ("%z = map %x : f31", 3, "unknown element type 'f31'; known are"),
    ("%z = map %x : ", 4, "expected an element type, found '}'"),
    ("%z = map %x : f32[k]", 3, "axis k has no extent yet: write k:EXTENT at its first mention"),
    ("%z = map * 2 : f32", 3, "expected an expression, found '*'"),
    ("%z = map sine(%x) : f32", 3, "unknown function 'sine'"),
    ("%z = map exp(%x, 2) : f32", 3, "exp takes 1 arguments, not 2"),
    ("%z = map where() : f32", 3, "where takes 3 arguments, not 0"),
    ("%z = map cast(%x, 3) : f32", 3, "expected an element type, found '3'"),
    ("%z = map old(3) : f32", 3, "expected a value such as %x, found '3'"),
    ("%z = conv %x : f32", 3, "unknown operation 'conv'"),
    ("%z = lex %x : f32", 3, "unknown operation 'lex'"),
    ("%z = 3", 3, "expected an operation, found '3'"),
    ("map %x : f32", 3, "map has 1 results, not 0"),
    ("%z = return %x", 3, "return has 0 results, not 1"),
    ("%z = reduce mean %x over i : f32", 3, "unknown reducer 'mean'; known are sum, max"),
    ("%z = reduce 3 %x over i : f32", 3, "expected a reducer, found '3'"),
    ("kernel grid(%i: N) tile(i=inf) {\n }", 3, "the tile of i must be a whole number, not 'inf'"),
    ("kernel grid(%i: N) tile(i=2.5) {\n }", 3, "the tile of i must be a whole number, not '2.5'"),
    ("kernel grid(i: N) {\n }", 3, "expected a value such as %x, found 'i'"),
    ("kernel over i {\n }", 4, "this region must end in yield"),
    ("%z = stream j {\n }", 4, "this region must end in yield"),
    ("if %n < 1 {\n }", 5, "expected 'else', found '}'"),
    ("for %n in 0 .. 1 {\n }", 3, "%n is defined twice"),
    ("for %k in 0 .. 1 carry(%k = %n) {\n }", 3, "%k is defined twice"),
    (f"%z = map {DEEP}", 3, "nested too deeply"),
    (f"%z = map {'9' * 5000} : i64", 3, "a number of 5000 digits"),
    ("}\n}", 4, "expected the end of the text, found '}'"),
]


@pytest.mark.parametrize(("line", "number", "message"), ERRORS, ids=[e[2] for e in ERRORS])
def test_errors_name_the_line(line, number, message):
    with pytest.raises(IRError) as info:
        parse_ir(bad(line), "file.tcir")
    (found,) = info.value.diagnostics
    assert message in found.message
    assert found.loc == Loc("file.tcir", number)
    if not line.startswith("%z = map ("):
        assert bad(line).splitlines()[number - 1].strip() in found.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 'func', found 'the end of the text'"),
        ("\n\n# nothing", "expected 'func', found 'the end of the text'"),
        ("func f", "expected a name such as @attention, found 'f'"),
        ("func @f(%x: f32", "expected ')', found 'the end of the text'"),
        ("func @f(x: f32)", "expected a value such as %x, found 'x'"),
        ("func @f() {", "expected an operation, found 'the end of the text'"),
        ("func @f(%x: f32, %x: f32) {}", "%x is defined twice"),
    ],
)
def test_errors_outside_of_the_body(text, message):
    with pytest.raises(IRError) as info:
        parse_ir(text)
    assert info.value.diagnostics[0].message == message
    assert str(info.value).startswith("<ir>:")


def test_what_a_region_defines_ends_with_it():
    text = LOOP.replace("yield %m, %p", "yield %m, %s")
    with pytest.raises(IRError, match="%s is not defined here"):
        parse_ir(text)


def parses_or_fails(text):
    try:
        func = parse_ir(text)
    except IRError as e:
        assert all(d.message and d.loc for d in e.diagnostics), text
        return False
    # What parses is told apart by the verifier, which may not crash either.
    try:
        verify(func)
    except IRError:
        return False
    return True


TOKENS = re.compile(r"[%@]?\w+|:\+|\.\.|[^\s\w]")
EXTRA = ["yield", "map", "%x", "0", "1e", ":", "{", "}", "(", "inf", "-", "i", "f32", "[", ","]


def mutated(text, rng):
    """`text` with a few tokens dropped, doubled, swapped or replaced."""
    tokens = [m.span() for m in TOKENS.finditer(text)]
    for start, end in sorted(rng.sample(tokens, rng.randint(1, 3)), reverse=True):
        other = rng.choice([text[slice(*rng.choice(tokens))], rng.choice(EXTRA)])
        new = rng.choice(["", f"{text[start:end]} {text[start:end]}", other])
        text = text[:start] + new + text[end:]
    return text


def test_text_cut_anywhere_is_an_error_and_nothing_else():
    rng = random.Random(1)
    texts = [GRAPH, LOOP, TILE, *(s.text() for _, s in stages())]
    for text in texts:
        end = text.rindex("}")
        for at in rng.sample(range(end + 1), min(end, 25)):
            assert not parses_or_fails(text[:at]), text[:at]


def test_mutated_text_is_right_or_an_error():
    rng = random.Random(2)
    texts = [GRAPH, LOOP, TILE, *(s.text(locs=False) for _, s in stages())]
    outcomes = [parses_or_fails(mutated(t, rng)) for t in texts for _ in range(20)]
    assert 0 < sum(outcomes) < len(outcomes)


def test_random_characters_are_an_error():
    rng = random.Random(3)
    alphabet = "funcm ap%@(){}[]:=,+-*/.#x0123456789\n\t\"'\\?é²٣"
    for _ in range(300):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 60)))
        assert not parses_or_fails(f"func @f(%x: f32[i:N]) {{\n%y = map {text}")

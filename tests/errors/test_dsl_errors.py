"""Wrong programs: each message once, at the user's line, with what to write instead."""

import re
import textwrap

import numpy as np
import pytest

import tilecc as tc
from tilecc.dsl import load_spec
from tilecc.errors import SpecError

HEAD = """
import math
import numpy as np
import tilecc as tc
def softmax(): pass
Q, K, J = tc.Tensor["b h i:N d"], tc.Tensor["b h j:N d"], tc.Tensor["j:N", "int32"]
"""


def program(tmp_path, text):
    """A file with the program; lines that end in `#!` are where errors are expected."""
    text = HEAD + textwrap.dedent(text)
    file = tmp_path / "prog.py"
    file.write_text(text)
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.rstrip().endswith("#!")]
    return str(file), lines


def check(tmp_path, text, *expected):
    """The program is refused with one diagnostic a marked line, in order, having these texts."""
    file, lines = program(tmp_path, text)
    with pytest.raises(SpecError) as e:
        load_spec(file).trace()
    found = e.value.diagnostics
    assert [d.loc.line for d in found] == lines, e.value
    assert all(d.loc.file == file for d in found)
    assert len(found) == len(expected), e.value
    for d, pattern in zip(found, expected, strict=True):
        assert re.search(pattern, f"{d.message} | {d.hint}"), f"{pattern!r} not in:\n{d}"


BODY = """@tc.spec
def prog(q: Q, k: K, w: tc.Scalar('int64'), m: tc.Tensor['j:N', 'bool'], n: J):
"""

# A line of a spec's body, and the message with its hint.
LINES = [
    ('tc.dot(q, k, over="x")', "dot over 'x', an axis that no operand has.*b, h, i, d, j"),
    ("tc.dot(q, k, 'd')", "over= is given by name.*over='d'"),
    ("tc.dot(q, k)", "dot needs over=.*write over="),
    ('tc.dot(q, k, k, over="d")', "dot takes two tensors.*contract two"),
    ("tc.sum(q, over='j')", "sum over 'j', an axis that no operand has.*b, h, i, d"),
    ("q.max()", "max needs over="),
    ("tc.max(q, k)", "reduces one tensor.*tc.maximum"),
    ("tc.softmax(w, over='i')", "softmax over 'i'.*none"),
    ("tc.softmax(tc.index('i'), over='i')", "softmax works on floats.*tc.cast"),
    ("tc.index('x')", "no argument has an axis 'x'.*b, h, i, d, j"),
    ("tc.index('N')", "N is the extent of axis i.*tc.index"),
    ("tc.extent(3)", "no argument has an axis 3"),
    ("tc.axis('i', 4)", "there is an axis 'i' already.*another name"),
    ("tc.axis('N', 4)", "N is the name of an extent.*tc.axis"),
    ("tc.axis('over', 4)", "'over' is a word of the IR"),
    ("tc.axis('a b', 4)", "not a name that an axis can have"),
    ("tc.axis('t', w)", "not made of extents and whole numbers.*bound in a mask"),
    ("tc.axis('t', tc.index('i'))", "not made of extents"),
    ("tc.axis('t', 2.5)", "not made of extents and whole numbers"),
    ("q @ k", "@ does not say.*tc.dot"),
    ("tc.where(q, k, 0)", "wants a predicate.*x != 0"),
    ("q & (k > 0)", "& works on predicates.*in parentheses"),
    ("~w", "~ works on predicates"),
    ("q // 2", "// works on integers.*tc.floor"),
    ("tc.index('i') % 2.5", "% works on integers"),
    ("w // 0", "// by zero"),
    ("tc.index('i') ** w", "an integer to an integer's power"),
    ("w << 2", r"shifts.*x \* 2\*\*n"),
    ("q[0]", "not indexed by position.*x.at"),
    ("q.cast('float33')", "unknown dtype 'float33'"),
    ("np.exp(q)", "numpy's exp.*tc.exp"),
    ("np.where(q > 0, q, k)", "numpy's where.*tc.where"),
    ("np.matmul(q, k)", "numpy's matmul.*tc.dot"),
    ("np.ones(3) * q", "does not close over arrays.*declare an argument"),
    ("q + [1, 2]", "does not close over arrays"),
    ("q + 'a'", "'a' .str. is no operand"),
    ("q + 2**64", "18446744073709551616 does not fit 64 bits"),
    ("n == 2**40", "1099511627776 does not fit i32.*tc.cast"),
    ("tc.where(m, n, -(2**31) - 1)", "-2147483649 does not fit i32"),
    ("tc.dot(q, k, over=-1)", "dot over -1: axes have names.*b, h, i, d"),
    ("tc.sum(q, over='D')", 'D is the extent of d: write over="d"'),
    ("np.einsum('bhid,bhjd->bhij', q, k)", "numpy's einsum.*tc.dot"),
    ("np.tril(q)", "numpy's tril.*tc.where.*tc.index"),
    ("type(q).__torch_function__(softmax, (), (q,))", "torch's softmax.*tc.softmax"),
    ("q.at(j=0)", "no axis 'j'.*b, h, i, d"),
    ("q.at(i=w / 2)", "not an integer.*//"),
    ("q.at(i=-1)", "does not wrap.*tc.extent"),
    ("q.at()", "at needs coordinates"),
    ("tc.softmax(q, over='d').at(d=0)", "reduced by softmax.*apply at to the tensors"),
    ("tc.dot(q, k, over='d').at(i=tc.index('d'))", "contract .line.* reduces 'd'.*rename"),
]


@pytest.mark.parametrize(("line", "pattern"), LINES, ids=[line for line, _ in LINES])
def test_one_error_and_tracing_goes_on(tmp_path, line, pattern):
    text = f"{BODY}    y = {line}  #!\n    y = tc.exp(y + q)\n    return tc.dot(y, k, over='d')\n"
    check(tmp_path, text, pattern)


# Lines that end the trace at once.
FATAL = [
    ("if q > 0: pass", "a Python `if`.*tc.where"),
    ("while w > 0: pass", "a Python `while`.*reduction"),
    ("y = m and m", "`and`.*&"),
    ("y = m or m", r"`or`.*\|"),
    ("y = not m", "`not`.*~"),
    ("y = 0 <= tc.index('i') < 3", "a chain of comparisons.*&"),
    ("y = max(q, k)", r"Python's max\(\).*tc.maximum"),
    ("y = [q][m]", "no number while"),
    ("y = sum(q)", "cannot be iterated.*x.sum"),
    ("a, b = q", "cannot be iterated"),
    ("y = len(q)", "no len.*tc.extent"),
    ("y = float(q)", "no number while.*tc.cast"),
    ("y = math.exp(q)", "no number while.*tc.exp"),
    ("y = range(w)", "no number while"),
    ("y = q.shape", "no attribute 'shape'.*tc.extent"),
    ("y = q.exp()", r"no attribute 'exp'.*tc.exp\(x\)"),
    ("y = np.asarray(q)", "cannot become an array"),
    ("y = 3 in q", "`in` has no meaning"),
    ("y = range(tc.extent('i'))", "not looped over"),
    ("y = q.size(-1)", "no attribute 'size'.*tc.extent"),
    ("y = k.mT", "no attribute 'mT'.*axes have names"),
    ("y = q.masked_fill(q > 0, 1)", "no attribute 'masked_fill'.*tc.where"),
    ("y = q.to('float16')", "no attribute 'to'.*tc.cast"),
    ("y = q.unsqueeze(0)", "broadcast by axis name"),
    ("print(f'{q:.2f}')", "no number to print"),
    ("y = tc.softmax(q, dim=-1)", "keyword argument 'dim'.*over="),
    ("y = tc.max(q, over='i', keepdims=True)", "'keepdims'.*broadcast by axis name"),
    ("y = tc.where(q > 0)", r"missing 2.*tc.where\(condition, a, b\)"),
    ("y = tc.sofmax(q, over='d')", "no attribute 'sofmax'.*tc.softmax"),
    ("y = tc.relu(q)", "no attribute 'relu'.*tc.maximum"),
    ("y = tc.arange(4)", "no attribute 'arange'.*tc.index"),
    ("y = {}['a']", "KeyError: 'a'"),
    ("y = undefined + 1", "NameError: name 'undefined' is not defined"),
]


@pytest.mark.parametrize(("line", "pattern"), FATAL, ids=[line for line, _ in FATAL])
def test_errors_that_end_the_trace(tmp_path, line, pattern):
    text = f"{BODY}    x = q @ k  #!\n    {line}  #!\n    return q\n"
    check(tmp_path, text, "tc.dot", pattern)


def test_a_spec_that_calls_itself(tmp_path):
    text = "@tc.spec\ndef prog(q: Q):\n    return prog(q)  #!\n"
    check(tmp_path, text, "RecursionError.*calls itself")


def test_in_place_change(tmp_path):
    text = f"{BODY}    q[0] = 1  #!\n    return tc.dot(q, k, over='d')\n"
    check(tmp_path, text, "in place.*tc.where")


# Argument lists (one argument a line), with the message about each.
ARGUMENTS = [
    (["x"], "no annotation"),
    (["x: tc.Tensor"], "does not say which axes"),
    (["x: float"], "not a tensor's annotation.*tc.Scalar"),
    (["x: np.ndarray"], "not a tensor's annotation"),
    (["x: 'i j:N'"], "only a string.*tc.Tensor"),
    (["x: tc.Tensor[3]"], "not a string of axes"),
    (["x: tc.Tensor['i, j']"], "'i,' is not a name.*separated by spaces"),
    (["x: tc.Tensor['i: N']"], "neither a number nor a name"),
    (["x: tc.Tensor['i:N+1']"], "neither a number nor a name"),
    (["x: tc.Tensor['2d']"], "not a name"),
    (["x: tc.Tensor['i j i']"], "axis 'i' occurs twice"),
    (["x: tc.Tensor['acc']"], "a word of the IR"),
    (["x: tc.Tensor['I']"], "small letters"),
    (["x: tc.Tensor['i:j j']"], "an axis and also the extent.*capitals"),
    (["x: tc.Tensor['i', 'floaty']"], "unknown dtype 'floaty'"),
    (["x: tc.Scalar('complex64')"], "unknown dtype"),
    (["x: tc.Tensor['i'] = 3"], "default value.*write 3 in the body"),
    (["*x: tc.Tensor['i']"], "fixed list"),
    (["x: 'tc.Tensor[axes]'"], "does not evaluate: name 'axes'"),
]


@pytest.mark.parametrize(("arguments", "pattern"), ARGUMENTS, ids=[a[0] for a, _ in ARGUMENTS])
def test_argument(tmp_path, arguments, pattern):
    args = "".join(f"    {a}{'' if a.startswith('*') else ','}  #!\n" for a in arguments)
    # An axis that the broken annotation may have had is no further error.
    other = "0" if "i:j" in args else "tc.index('q')"
    check(tmp_path, f"@tc.spec\ndef prog(\n{args}):\n    return tc.exp(x) + {other}\n", pattern)


@pytest.mark.parametrize(
    ("argument", "pattern"),
    [
        ("self", "no method.*a function of its own"),
        ("out: tc.Tensor['i']", "out= of its own.*another name"),
        ("threads: tc.Tensor['i']", "threads= of its own"),
    ],
)
def test_names_that_an_argument_cannot_have(tmp_path, argument, pattern):
    name = argument.partition(":")[0]
    text = f"@tc.spec\ndef prog(\n    {argument},  #!\n    x: tc.Tensor['i'],\n):\n"
    text += f"    return {name} + x\n"
    check(tmp_path, text, pattern)


def test_extents_disagree(tmp_path):
    text = """
        @tc.spec
        def prog(
            q: tc.Tensor["i:N d"],
            k: tc.Tensor["j:N d:E"],  #!
        ):
            return tc.dot(q, k, over="d")
        """
    check(tmp_path, text, "'d' has extent E in argument 'k' but D in 'q'.*write 'd:D'")


RETURNS = [
    ("", "pass", "never computed: the spec returns None.*return"),
    ("", "return 3.0", "never computed: the spec returns 3.0"),
    ("", "return q, None", "output 2 of 2 is never computed"),
    ("", "return ()", "returns no tensor"),
    ("-> tc.Tensor['i b h']", "return q", 'has axes "b h i d", not "i b h"'),
    ("-> tuple[tc.Tensor, tc.Tensor]", "return q", "returns 1 tensors, and its annotation 2"),
    ("-> tc.Tensor['z']", "return q", "no argument has an axis 'z'"),
    ("-> tc.Tensor['b h i:M d']", "return q", "extent N, not M"),
    ("-> tc.Tensor['b h i d', 'f99']", "return q", "unknown dtype"),
]


@pytest.mark.parametrize(("annotation", "end", "pattern"), RETURNS)
def test_results(tmp_path, annotation, end, pattern):
    at_def = end == "pass" or re.search("z|:M|f99", annotation)
    here, there = ("  #!", "") if at_def else ("", "  #!")
    check(tmp_path, f"@tc.spec\ndef prog(q: Q) {annotation}:{here}\n    {end}{there}\n", pattern)


def test_unused_argument(tmp_path):
    text = """
        @tc.spec
        def prog(
            q: Q,
            k: K,  #!
            _only_axes: tc.Tensor["z"],
        ):
            y = q * k
            return tc.exp(q) + tc.index("z")
        """
    check(tmp_path, text, "no output depends on argument 'k'.*_k")


def test_all_errors_at_once_without_followers(tmp_path):
    text = """
        @tc.spec
        def prog(
            q: Q,
            k: "oops",  #!
            v: tc.Tensor["b h j:M e"],
            w: tc.Tensor["b h j:N e"],  #!
        ):
            s = tc.dot(q, k, over="d")
            s = s + tc.sum(q, over="zz")  #!
            s = np.tanh(q) + s @ v  #!
            p = tc.softmax(s, over="j")
            return tc.dot(p, v, over="nothing"), tc.where(q, q, q)  #!
        """
    file, lines = program(tmp_path, text)
    with pytest.raises(SpecError) as e:
        load_spec(file).trace()
    found = sorted({d.loc.line for d in e.value.diagnostics})
    assert found == lines, e.value
    for line in lines:
        assert f"{file}:{line}: " in str(e.value)


def test_a_tensor_of_another_spec():
    kept = []

    @tc.spec
    def one(x: tc.Tensor["i"]):
        kept.append(x)
        return tc.exp(x)

    @tc.spec
    def two(x: tc.Tensor["i"]):
        return x + kept[0]

    one.trace()
    with pytest.raises(SpecError, match="of another spec"):
        two.trace()
    with pytest.raises(SpecError, match="no spec is being traced"):
        kept[0] + 1
    with pytest.raises(SpecError, match="no spec is being traced"):
        tc.index("i")


def test_spec_is_not_called_on_data():
    @tc.spec
    def f(x: tc.Tensor["i"]):
        return tc.exp(x)

    with pytest.raises(SpecError, match=r"tc\.compile"):
        f(np.ones(3))
    with pytest.raises(SpecError, match="is not a name"):
        tc.spec(lambda x: x)
    with pytest.raises(SpecError, match="3 is not a function"):
        tc.spec(3)

    async def later(x: tc.Tensor["i"]):
        return x

    def one_by_one(x: tc.Tensor["i"]):
        yield x

    with pytest.raises(SpecError, match="later is asynchronous"):
        tc.spec(later)
    with pytest.raises(SpecError, match="one_by_one yields"):
        tc.spec(one_by_one)
    with pytest.raises(SpecError, match="float's type, not i32"):
        f.trace("int32")
    with pytest.raises(SpecError, match="unknown dtype 'floaty'"):
        f.trace("floaty")


FILES = [
    ("x = 1\n", r"f\.py:1: there is no spec in it"),
    ("def f(:\n", r"f\.py:1: syntax error"),
    ("\n\n1 / 0\n", r"f\.py:3: ZeroDivisionError: division by zero"),
    ("import sys\nsys.exit(2)\n", r"f\.py:2: SystemExit"),
    ("import nowhere_to_be_found\n", r"f\.py:1: ModuleNotFoundError"),
]


@pytest.mark.parametrize(("text", "pattern"), FILES)
def test_files(tmp_path, text, pattern):
    (tmp_path / "f.py").write_text(text)
    with pytest.raises(SpecError, match=pattern):
        load_spec(f"{tmp_path}/f.py")


def test_files_that_do_not_say_which_spec(tmp_path):
    one = "@tc.spec\ndef {0}(x: tc.Tensor['i']):\n    return x + 1\n"
    (tmp_path / "f.py").write_text("import tilecc as tc\n" + one.format("a") + one.format("b"))
    with pytest.raises(SpecError, match=r"several specs.*\n.*a, b"):
        load_spec(f"{tmp_path}/f.py")
    with pytest.raises(SpecError, match="no file"):
        load_spec(f"{tmp_path}/missing.py")

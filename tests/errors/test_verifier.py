"""Every message of the verifier, once: it names the rule, the line, and shows the operation."""

import dataclasses
import re

import pytest

from tilecc.errors import IRError, Loc
from tilecc.ir.core import Block, Builder, Func, Op, TensorType, Value, axis
from tilecc.ir.dtypes import DTYPES, F32, I64
from tilecc.ir.expr import Arg, Const, Old
from tilecc.ir.parser import parse_ir
from tilecc.ir.verifier import verify

GRAPH = """
func @f(%q: f32[b:B, i:N, d:D], %k: f32[b, j:M, d], %t: i64[j]) {
  %s = contract %q, %k over d : f32[b, i, j]
  %x = map where(index(j) <= index(i), %s, -inf) : f32[b, i, j]
  %p = softmax %x over j : f32[b, i, j]
  %l = logsumexp %x over j : f32[b, i]
  %r = reduce max %s over j : f32[b, i]
  %a = at %q[i = %t] : f32[b, j, d]
  return %p, %l, %r, %a
}
"""

LOOP = """
func @f(%q: f32[i:N, d:D], %k: f32[j:M, d]) {
  %o, %y = kernel over i {
    %a, %b, %c = stream j where index(j) <= index(i) {
      %s = contract %q, %k over d : f32[i, j]
      %r = reduce max %s over j : f32[i]
      %m = update max %r : f32[i]
      %p = map exp(%s - %m) : f32[i, j]
      %r_1 = reduce sum %p over j : f32[i]
      %l = update sum %r_1 repair acc * exp(old(%m) - %m) : f32[i]
      yield %m, %l, %s
    }
    %z = map %a + log(%b) : f32[i]
    yield %z, %c
  }
  return %o, %y
}
"""

TILE = """
func @f(%x: f32[i:N, d:4], %t: i64[i], %n: i64) {
  %O = alloc : f32[i, d]
  kernel grid(%a: ceildiv(N, 8)) {
    %y = load %x[%a * 8 :+ i, 0 :+ d] pad i : sram f32[i:8, d:4]
    %u = map 0.0 : reg f32[i:8, d:4]
    %z = for %c in 0 .. %n carry(%e = %u) {
      %h = map %e + %y : reg f32[i:8, d:4]
      yield %h
    }
    %w = if %a < %n {
      yield %z
    } else {
      yield %u
    }
    store %w, %O[%a * 8 :+ i, 0 :+ d] clip i
  }
  return %O
}
"""


@pytest.mark.parametrize("text", [GRAPH, LOOP, TILE])
def test_right_programs_pass(text):
    verify(parse_ir(text))


def refused(text, *messages):
    """The messages of `text`, all of which are wanted and no other."""
    with pytest.raises(IRError) as e:
        verify(parse_ir(text))
    found = [d.message for d in e.value.diagnostics]
    assert len(found) == len(messages), found
    for message, got in zip(messages, found, strict=True):
        assert re.search(message, got), (message, got)


GRAPH_ERRORS = [
    # contract, reduce and composites
    (
        "over d : f32[b, i, j]",
        "over d : f64[b, i, j]",
        "contract: the result is f64, but must be f32",
    ),
    ("over d : f32[b, i, j]", "over d : f32[b, i]", r"contract: the result has axes \[b, i\]"),
    (
        "%a = at %q[i = %t] : f32[b, j, d]",
        "%a = contract %t, %t over j in tf32 : i64",
        "contract: factors are rounded to tf32 that are f32, and these are not",
    ),
    ("%k over d :", "%k over d in fp8 :", "contract: attribute factors must be tf32"),
    ("%k over d :", "%k over d, z :", "contract: axis z is in no operand"),
    ("%k over d :", "%k over d, d :", "contract: attribute over must be one or more different"),
    ("max %s over j : f32[b, i]", "max %s over j : f32[b, i, j]", "reduce: the result has axes"),
    ("max %s over j : f32[b, i]", "max %s over j : i64[b, i]", "reduce: the result is i64"),
    ("max %s over j : f32[b, i]", "max %s over e : f32[b, i]", "reduce: axis e is in no operand"),
    ("%x over j : f32[b, i, j]", "%x over j : f32[b, i]", "softmax: the result has axes"),
    ("%x over j : f32[b, i]\n", "%x over j : f32[b, i, j]\n", "logsumexp: the result has axes"),
    ("softmax %x over j", "softmax %x over z", "softmax: axis z is in no operand"),
    # map and its expression
    ("-inf) : f32[b", "-inf) : i64[b", "map: the result is i64, but the expression gives f32"),
    ("index(j) <= ", "index(z) <= ", r"map: the expression reads index\(z\), but z is no axis"),
    ("index(j) <= ", "Q <= ", "map: the expression reads extent Q, which is in no parameter"),
    ("index(j) <= ", "acc <= ", "map: the expression reads acc or old"),
    # at
    ("%q[i = %t]", "%q[i = 0.5]", "at: the coordinate of i must be int, not float|f32"),
    ("at %q[i = %t] : f32[b, j, d]", "at %t[j = %t] : i64[j]", "at: a coordinate reads the tensor"),
    (": f32[b, j, d]", ": f64[b, j, d]", "at: the result is f64, but %q is f32"),
    (": f32[b, j, d]", ": f32[j, d]", "at: the result has no axis b, but %q has"),
    (": f32[b, j, d]", ": f32[b, d]", "at: the coordinate of i reads %t, whose axis j it does not"),
]


@pytest.mark.parametrize(("old", "new", "message"), GRAPH_ERRORS)
def test_graph(old, new, message):
    assert old in GRAPH
    head = GRAPH.replace(old, new).split("  return")[0]
    with pytest.raises(IRError) as e:
        verify(parse_ir(f"{head}  return\n}}\n"))
    assert re.search(message, e.value.diagnostics[0].message)


def test_graph_with_more_than_one_finding():
    head, _, _ = GRAPH.partition("  %p = softmax")
    head = head + "  return %x\n}\n"
    map_type = "-inf) : f32[b, i, j]"
    refused(head.replace(map_type, "-inf) : f32[b, i, j:Q]"), "%x: extent Q is in no parameter")
    refused(
        head.replace(map_type, "-inf) : f32[b, i, j:N]"),
        "map: axis j has different extents in %s and %x",
    )
    refused(
        head.replace(map_type, "-inf) : f32[b, j]"),
        r"map: the expression reads index\(i\), but i is no axis",
        "map: the expression reads %s, whose axis i it does not have",
    )
    refused(
        GRAPH.replace("%q[i = %t]", "%q[z = %t]"),
        "at: %q has no axis z",
        "at: the result has no axis i, but %q has",
    )


def test_extents_of_operands_disagree():
    refused(
        "func @f(%a: f32[i:N, d:D], %b: f32[j:M, d:E]) {\n"
        "  %c = contract %a, %b over d : f32[i, j]\n  return %c\n}",
        "axis d has different extents in %a and %b",
    )


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("%x == 4294967296", "4294967296 does not fit i32"),
        ("where(%x > 0, %x, -2147483648)", None),
        ("where(%x > 0, -2147483649, %x)", "-2147483649 does not fit i32"),
        ("%x + 2147483647", None),
        ("cast(%x, i64) + 4294967296 > 0", None),
        ("%y > 255", None),
        ("%y > 256", "256 does not fit u8"),
        ("%y + %x > 256", None),
    ],
)
def test_literals_fit_the_integers_that_they_meet(expression, message):
    text = f"""
func @f(%x: i32[i:N], %y: u8[i]) {{
  %z = map cast({expression}, i64) : i64[i]
  return %z
}}
"""
    if message is None:
        verify(parse_ir(text))
        return
    with pytest.raises(IRError, match=message):
        verify(parse_ir(text))


def test_literals_take_the_type_that_holds_them():
    for literal, t, right in [("1", "f64", True), ("-inf", "f16", True), ("1.0", "i64", False)]:
        text = f"func @f(%a: f32[i:N]) {{\n  %c = map {literal} : {t}[i]\n  return %c\n}}"
        if right:
            verify(parse_ir(text))
        else:
            refused(text, "the result is i64, but the expression gives f32")


LOOP_ERRORS = [
    ("%s over j : f32[i]", "%s over i : f32[j]", "reduce: axis i is a parallel axis of the kernel"),
    ("stream j where", "stream i where", "stream: axis i is parallel or streamed already"),
    ("stream j where", "stream z where", "stream: no value in it has axis z"),
    ("where index(j) <= index(i) {", "where index(j) {", "stream: the predicate must be bool"),
    ("where index(j) <= index(i) {", "where Q > 0 {", "stream: the predicate reads extent Q"),
    ("update max %r : f32[i]", "update max %r : f64[i]", "update: the result must have the type"),
    (
        "%m = update max %r : f32[i]",
        "%m = update max %s : f32[i, j]",
        "not have the streamed axis j",
    ),
    ("old(%m)", "old(%r)", r"update: old\(%r\) is no state of this stream"),
    ("repair acc * exp(old(%m) - %m)", "repair index(i)", "the repair gives i64, but the state is"),
    ("repair acc * exp(old(%m) - %m)", "repair acc * %s", "the repair reads %s, whose axis j"),
    ("yield %m, %l, %s", "yield %m, %r, %s", "stream: yields %r, which is no state of this stream"),
    ("map exp(%s - %m)", "softmax %s over j", "softmax: may not stand in loop IR, only in graph"),
    ("map %a + log(%b)", "update sum %a", "update: may only stand directly in a stream"),
    ("%z = map", "%z = alloc : f32[i]\n    %z_1 = map", "alloc: may not stand in loop IR|tile"),
]


@pytest.mark.parametrize(("old", "new", "message"), LOOP_ERRORS)
def test_loop(old, new, message):
    assert old in LOOP
    with pytest.raises(IRError, match=message):
        verify(parse_ir(LOOP.replace(old, new)))


def test_loop_reads_of_pieces():
    text = LOOP.replace("%p = map exp(%s - %m)", "%p = at %s[j = 0]")
    with pytest.raises(IRError, match="at: reads other places on axis j of %s, which is computed"):
        verify(parse_ir(text))
    text = LOOP.replace(
        "%r = reduce max %s", "%u = at %k[j = M - 1 - index(j)] : f32[j, d]\n%r = reduce max %s"
    )
    verify(parse_ir(text))


TILE_ERRORS = [
    ("f32[i:8, d:4]\n    %u", "f32[i:N, d:4]\n    %u", "load: axis i of the tile %y has no static"),
    (
        "load %x[%a * 8 :+ i, 0 :+ d]",
        "load %x[%a * 8 :+ i]",
        "load: has 1 coordinates, but %x has 2",
    ),
    (
        "load %x[%a * 8 :+ i, 0 :+ d]",
        "load %x[%a * 8 :+ i, 0]",
        "load: axis d of the tile is in no",
    ),
    ("%x[%a * 8 :+ i, 0 :+ d]", "%x[%a * 8 :+ i, 0 :+ i]", "i must be an axis of the tile and the"),
    (
        "%x[%a * 8 :+ i, 0 :+ d]",
        "%x[%a / 8 :+ i, 0 :+ d]",
        "load: a coordinate must be int, not f32",
    ),
    ("pad i : sram f32", "pad j : sram f32", "load: pad names j, which is no axis of the tile"),
    ("pad i : sram f32", "pad i : sram f64", "load: %x is f32, but the tile %y is f64"),
    ("clip i", "clip j", "store: clip names j, which is no axis of the tile"),
    ("store %w, %O", "store %w, %x", "store: %x is a parameter, which may not be written"),
    ("store %w, %O", "store %w, %z", "store: %z is no tensor in memory"),
    ("in 0 .. %n", "in 0.5 .. %n", "for: the lower bound must be int, not f32"),
    ("in 0 .. %n", "in 0 .. %n * 0.5", "for: the upper bound must be int, not f32"),
    ("in 0 .. %n", "in 0 .. %t", "for: the upper bound reads %t, whose axis i it does not have"),
    ("if %a < %n", "if %n", "if: the condition must be bool, not i64"),
    ("yield %u", "yield %y", "if: region 2 yields %y of another type than the result"),
    ("yield %u", "yield", "if: region 2 yields 0 values, but there are 1 results"),
    ("      yield %h\n", "", "for: the region must end in yield"),
    ("ceildiv(N, 8)", "N / 8", "kernel: a grid size must be int, not f32"),
    (
        "  kernel",
        "  %q = map %x : f32[i, d:4]\n  kernel",
        "map: a tile may only be computed inside",
    ),
    ("  kernel", "  %q = load %x[0, 0] : f32\n  kernel", "load: may only stand inside a kernel"),
    ("    %u", "    %v = alloc : f32\n    %u", "alloc: may only stand in the function's body"),
    (
        "    %u",
        "    kernel over i {\n yield }\n    %u",
        "kernel: may only stand in the function's body",
    ),
    ("  return", "  kernel over i {\n yield }\n  return", "kernel: a kernel of tile IR has a grid"),
    ("    %u", "    return %O\n    %u", "return: must be the last operation of its block"),
    ("yield %h", "return %h", "return: may only end the function's body"),
]


@pytest.mark.parametrize(("old", "new", "message"), TILE_ERRORS)
def test_tile(old, new, message):
    assert old in TILE
    with pytest.raises(IRError, match=message):
        verify(parse_ir(TILE.replace(old, new, 1)))


def test_contract_with_acc():
    text = """
    func @f(%x: f32[i:4, d:4]) {
      kernel grid(%a: 1) {
        %y = load %x[0 :+ i, 0 :+ d] : sram f32[i:4, d:4]
        %u = map 0.0 : reg f32[ACC]
        %z = contract %y, %y over d acc %u : reg f32[i]
      }
      return
    }"""
    verify(parse_ir(text.replace("ACC", "i:4")))
    refused(text.replace("ACC", "i:4, d:4"), r"acc has axes \[i, d\]", "acc must have its axes in")


# What text cannot say: the parser refuses it first, or infers it.


def function(*ops, params=(), end=True):
    block = Block(ops=list(ops))
    if end:
        Builder(block).op("return", [])
    return Func("f", list(params), block, loc=Loc("spec.py", 1))


def vector(name="x", dtype=F32):
    return Value(TensorType(dtype, (axis("i", "N"),)), name)


def broken(func, message):
    with pytest.raises(IRError, match=message) as e:
        verify(func)
    return str(e.value)


def unary(x, **changes):
    op = Op("map", [x], [x.type], {"expr": Arg(0)}, loc=Loc("spec.py", 5), names=["y"])
    for name, value in changes.items():
        setattr(op, name, value)
    return op


def test_visibility():
    x = vector()
    a = unary(x)
    b = unary(a.result)
    text = broken(function(b, a, params=[x]), "%y is used before it is defined")
    assert text.startswith("spec.py:5: map: %y is used") and "in: %y" in text
    broken(function(a, a, params=[x]), "%y is defined twice")
    inside = Op("kernel", [], [], {"over": ()}, [Block(ops=[a, Op("yield")])])
    broken(function(inside, b, params=[x]), "%y is not visible here")
    broken(function(params=[x, x]), "func @f: parameter %x is defined twice")


def test_function():
    broken(function(end=False), "spec.py:1: func @f: the body must end in return")
    x = Value(TensorType(F32, (axis("i", "N"), axis("i", "N"))), "x")
    broken(function(params=[x]), r"parameter %x: an axis is named twice in \[i, i\]")


def test_attributes_and_operands():
    x = vector()

    def check(op, message):
        broken(function(op, params=[x]), message)

    check(unary(x, attrs={}), "map: attribute expr is missing")
    check(unary(x, attrs={"expr": 3}), "map: attribute expr must be an expression, not 3")
    check(unary(x, attrs={"expr": Arg(1)}), "the expression reads operand 1, but there are 1")
    check(unary(x, attrs={"expr": Old(0)}), "the expression reads acc or old")
    unread = Op("map", [x], [TensorType(F32)], {"expr": Const(0.0)})
    check(unread, "map: the result has no axis i, but an operand has")
    check(Op("frobnicate", [x]), "unknown operation 'frobnicate'")
    t = TensorType(F32)
    check(Op("reduce", [x], [t], {"kind": "mean", "over": ("i",)}), "kind must be one of sum, max")
    check(
        Op("reduce", [x, x], [t], {"kind": "sum", "over": ("i",)}),
        "reduce: has 2 operands, wanted 1\n",
    )
    check(Op("contract", [], [t], {"over": ("i",)}), "contract: has 0 operands, wanted 1 or more")
    check(
        Op("contract", [x], [t], {"over": ("i",), "acc": True}), "has 1 operands, wanted 2 or more"
    )
    check(Op("contract", [x], [t], {"over": ("i",), "acc": 1}), "acc must be a bool, not 1")
    check(Op("at", [x], [t], {"coords": ("i",)}), r"coords must be a tuple of \(axis, expression\)")
    check(Op("map", [x], [x.type] * 2, {"expr": Arg(0)}), "map: has 2 results, wanted 1")
    check(Op("map", [x], [x.type], {"expr": Arg(0)}, [Block()]), "has 1 regions, wanted 0")


def test_regions():
    x = vector()
    n = Value(TensorType(I64), "n")
    store = Op("alloc", [], [x.type])  # makes the function tile IR

    def check(op, message):
        kernel = Op("kernel", [], [], {"grid": ()}, [Block(ops=[op])])
        broken(function(store, kernel, params=[x, n]), message)

    bounds = {"lo": Const(0), "hi": Const(1)}
    body = Block(ops=[Op("yield")])
    check(Op("for", [], [], bounds | {"n_carry": 0}, [body]), "the region must have 1 arguments")
    check(Op("for", [], [], bounds | {"n_carry": 1}, [body]), "0 operands, but carries 1 values")
    check(Op("for", [], [], bounds | {"n_carry": "1"}, [body]), "n_carry must be a number, not '1'")
    body = Block([Value(TensorType(I64))], [Op("yield")])
    check(Op("for", [n], [], bounds | {"n_carry": 1}, [body]), "must have the types of the carried")
    tile = {"grid": (), "tile": (("i", "8"),)}
    broken(function(store, Op("kernel", [], [], tile, [Block()])), "tile must be a tuple of")
    two = {"attrs": {"coords": (1,)}}
    check(Op("load", [x], [TensorType(F32)], **two), "coords must be a tuple of ranges and expr")
    kernel = Op("kernel", [], [n.type], {"grid": (Const(1),)}, [Block([Value(n.type)])])
    broken(function(store, kernel, params=[n]), "a kernel with a grid has no results")
    kernel = Op("kernel", [], [], {"grid": (Const(1),)}, [Block([vector()])])
    broken(function(store, kernel, params=[x]), "the region must have 1 arguments")
    inner = Op("map", [n], [n.type], {"expr": Arg(0)})
    tile = dataclasses.replace(x.type, axes=(axis("i", 4),), space="reg", dtype=DTYPES["f32"])
    made = Op("map", [], [tile], {"expr": Const(0.0)})
    kernel = Op("kernel", [], [], {"grid": ()}, [Block(ops=[inner, made])])
    verify(function(store, kernel, params=[x, n]))


def test_returned_tiles():
    text = TILE.replace("return %O", "%r = map %n + 1 : i64\n  return %r")
    with pytest.raises(IRError, match="return: %r is no tensor in memory"):
        verify(parse_ir(text))


def test_all_findings_come_together():
    text = GRAPH.replace("max %s over j", "max %s over z").replace(
        "softmax %x over j", "softmax %x over z"
    )
    with pytest.raises(IRError) as e:
        verify(parse_ir(text.replace("%k over d : f32", "%k over d : f64")))
    assert len(e.value.diagnostics) >= 3

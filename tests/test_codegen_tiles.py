"""Tile IR as people may write it: code generation wants no shape that the passes happen to give."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernels import Built, arrays

HEAD = "func @f(%x: f32[i:N, d:D], %y: f32[j:M, d], %t: i32[j:M], %n: i64) {\n"


def program(body: str, results: str, d: int = 5) -> str:
    """A function of one kernel: `results` are the types of its outputs %o0, %o1, ..."""
    types = results.split("; ")
    allocs = "\n".join(f"  %o{n} = alloc : {t}" for n, t in enumerate(types))
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    outs = ", ".join(f"%o{n}" for n in range(len(types)))
    head = f"{HEAD}{allocs}\n  kernel grid(%a: ceildiv(N, 16)) {{\n"
    text = f"{head}{lines}\n  }}\n  return {outs}\n}}\n"
    return re.sub(r"\bD\b", str(d), text)


X = "%u = load %x[%a * 16 :+ i, 0 :+ d] pad i : sram f32[i:16, d:D]\n"
Y = "%w = load %y[0 :+ j, 0 :+ d] pad j : sram f32[j:24, d:D]\n"
S = "%s = contract %u, %w over d : reg f32[i:16, j:24]\n"
OUT = "store {v}, %o{n}[%a * 16 :+ i{more}] clip i\n"
ROW, TILE = "f32[i:N]", "f32[i:N, j:24]"


def out(v: str, n: int = 0, more: str = "") -> str:
    return OUT.format(v=v, n=n, more=more)


LOOP = (
    "%z = map 0.0 : reg f32[i:16]\n"
    "%one = map 1.0 : reg f32[i:16]\n"
    "{results} = for %k in 0 .. ceildiv(M, 8) carry({carry}) {{\n"
    "  %w = load %y[%k * 8 :+ j, 0 :+ d] pad j : sram f32[j:8, d:D]\n"
    "  %s = contract %u, %w over d : reg f32[i:16, j:8]\n"
    "  %r = reduce sum %s over j : reg f32[i:16]\n"
    "{body}"
    "}}\n"
)


def loop(results: str, carry: str, body: str) -> str:
    return X + LOOP.format(results=results, carry=carry, body=body)


CASES = {
    "a tile loaded twice": (
        X + "%u2 = load %x[%a * 16 :+ i, 0 :+ d] pad i : sram f32[i:16, d:D]\n"
        "%m = map %u * %u2 - %u : reg f32[i:16, d:D]\n%r = reduce sum %m over d : reg f32[i:16]\n"
        + out("%r"),
        ROW,
    ),
    "a contraction with itself": (
        X + "%r = contract %u, %u over d : reg f32[i:16]\n" + out("%r"),
        ROW,
    ),
    "one factor": (X + "%r = contract %u over d : reg f32[i:16]\n" + out("%r"), ROW),
    "one factor, rows summed": (
        X + "%r = contract %u over i : reg f32[d:D]\nstore %r, %o0[%a, 0 :+ d]\n",
        "f32[a:(ceildiv(N, 16)), d:D]",
    ),
    "three factors": (
        X + Y + "%v = map index(d) * 0.5 : reg f32[d:D]\n"
        "%s = contract %u, %w, %v over d : reg f32[i:16, j:24]\n" + out("%s", more=", 0 :+ j"),
        TILE,
    ),
    "summed over two axes": (
        X + Y + S + "%q = contract %s, %w over j, d : reg f32[i:16]\n" + out("%q"),
        ROW,
    ),
    "summed over two axes of both": (
        X + Y + S + "%q = contract %s, %s over i, j : f32\nstore %q, %o0[%a]\n",
        "f32[a:(ceildiv(N, 16))]",
    ),
    "transposed result": (
        X + Y + "%s = contract %w, %u over d : reg f32[j:24, i:16]\n"
        "%e = map exp2(%s) : reg f32[j:24, i:16]\n" + out("%e", more=", 0 :+ j"),
        TILE,
    ),
    "a value and what is made of it": (
        X + Y + S + "%e = map exp2(%s) : reg f32[i:16, j:24]\n"
        "%m = reduce max %s over j : reg f32[i:16]\n"
        "%q = map %e + %m : reg f32[i:16, j:24]\n"
        + out("%q", 0, ", 0 :+ j")
        + out("%s", 1, ", 0 :+ j")
        + out("%m", 2)
        + out("%e", 3, ", 0 :+ j"),
        f"{TILE}; {TILE}; {ROW}; {TILE}",
    ),
    "reduced over two axes": (
        X + Y + S + "%m = reduce max %s over i, j : f32\n"
        "%q = map %s - %m : reg f32[i:16, j:24]\n" + out("%q", more=", 0 :+ j"),
        TILE,
    ),
    "reduced one axis after another": (
        X + Y + S + "%m = reduce max %s over i : reg f32[j:24]\n%c = reduce min %m over j : f32\n"
        "%p = reduce prod %m over j : f32\n"
        "store %m, %o0[%a, 0 :+ j]\nstore %c, %o1[%a]\nstore %p, %o2[%a]\n",
        "f32[a:(ceildiv(N, 16)), j:24]; f32[a]; f32[a]",
    ),
    "reductions in the rows of their source": (
        X + Y + S + "%m = reduce max %s over j : reg f32[i:16]\n"
        "%p = map exp2(%s - %m) : reg f32[i:16, j:24]\n%l = reduce sum %p over j : reg f32[i:16]\n"
        "%q = map %p / %l : reg f32[i:16, j:24]\n"
        "%c = contract %q, %w over j : reg f32[i:16, d:D]\n" + out("%c", more=", 0 :+ d"),
        "f32[i:N, d:D]",
    ),
    "accumulated into what no loop carries": (
        X + Y + S + "%q = map %u * 2.0 : reg f32[i:16, d:D]\n"
        "%c = contract %s, %w over j acc %q : reg f32[i:16, d:D]\n"
        + out("%c", 0, ", 0 :+ d")
        + out("%q", 1, ", 0 :+ d"),
        "f32[i:N, d:D]; f32[i:N, d:D]",
    ),
    "accumulated into a factor": (
        X + Y + S + "%c = contract %s, %s over j : reg f32[i:16]\n"
        "%e = contract %s, %w over j acc %u : reg f32[i:16, d:D]\n"
        "%g = contract %e, %w over d acc %s : reg f32[i:16, j:24]\n"
        + out("%c", 0)
        + out("%e", 1, ", 0 :+ d")
        + out("%g", 2, ", 0 :+ j"),
        f"{ROW}; f32[i:N, d:D]; {TILE}",
    ),
    "a chain of contractions": (
        X + Y + S + "%b = contract %s, %s over i : reg f32[j:24]\n"
        "%c = contract %b, %s over j : reg f32[i:16]\n" + out("%c"),
        ROW,
    ),
    "rows of different tiles": (
        X + "%v = load %x[0 :+ k, 0 :+ d] pad k : sram f32[k:40, d:D]\n"
        "%s = contract %u, %v over d : reg f32[i:16, k:40]\n"
        "%m = reduce max %s over k : reg f32[i:16]\n"
        "%h = reduce max %s over i : reg f32[k:40]\n"
        "%e = map %s * %h - %m : reg f32[i:16, k:40]\n" + out("%e", more=", 0 :+ k"),
        "f32[i:N, k:40]",
    ),
    "a sign flipped": (
        X + Y + S + "%q = map -%s : reg f32[i:16, j:24]\n" + out("%q", more=", 0 :+ j"),
        TILE,
    ),
    "integers": (
        "%v = load %t[0 :+ j] pad j : sram i32[j:24]\n%q = map %v * 3 - index(j) : reg i64[j:24]\n"
        "%mx = reduce max %q over j : i64\n%mn = reduce min %q over j : i64\n"
        "%p = reduce prod %q over j : i64\n%b = map %mx > %n : bool\n"
        "%c = map cast(%q, u8) : reg u8[j:24]\n"
        "store %mx, %o0[%a]\nstore %mn, %o1[%a]\nstore %p, %o2[%a]\nstore %b, %o3[%a]\n"
        "store %c, %o4[%a, 0 :+ j]\n",
        "i64[a:(ceildiv(N, 16))]; i64[a]; i64[a]; bool[a]; u8[a, j:24]",
    ),
    "a truth value used far away": (
        X + Y + S + "%b = map %s > 0.0 : reg bool[i:16, j:24]\n"
        "%m = reduce max %s over j : reg f32[i:16]\n%g = map %m > 1.0 : reg bool[i:16]\n"
        "%q = map where(%b, %m, where(%g, 1.0, 2.0)) : reg f32[i:16, j:24]\n"
        + out("%q", 0, ", 0 :+ j")
        + out("%b", 1, ", 0 :+ j")
        + out("%g", 2),
        f"{TILE}; bool[i:N, j:24]; bool[i:N]",
    ),
    "a reduction of truth values": (
        X + Y + S + "%b = map where(%s > 0.0, 1, 0) : reg i64[i:16, j:24]\n"
        "%c = reduce sum %b over j : reg i64[i:16]\n" + out("%c"),
        "i64[i:N]",
    ),
    "a gather through a loaded table": (
        "%v = load %t[0 :+ j] pad j : sram i32[j:24]\n"
        "%g = load %y[%v, 0 :+ d] : sram f32[j:24, d:D]\n"
        + X
        + "%s = contract %u, %g over d : reg f32[i:16, j:24]\n"
        + out("%s", more=", 0 :+ j"),
        TILE,
    ),
    "a gather along the lanes": (
        X + "%g = load %x[%a * 16 :+ i, (index(d) * 7 + 1) % D] pad i : sram f32[i:16, d:D]\n"
        "%q = map %u - %g : reg f32[i:16, d:D]\n" + out("%q", more=", 0 :+ d"),
        "f32[i:N, d:D]",
    ),
    "a transposed load": (
        "%v = load %x[%a * 16 :+ i, 0 :+ d] pad i : sram f32[d:D, i:16]\n"
        "%m = map %v + index(i) : reg f32[d:D, i:16]\n%r = reduce sum %m over d : reg f32[i:16]\n"
        + out("%r", 0)
        + out("%m", 1, ", 0 :+ d"),
        f"{ROW}; f32[i:N, d:D]",
    ),
    "a load that starts before the tensor": (
        "%v = load %x[%a * 16 - 5 :+ i, 0 :+ d] pad i : sram f32[i:16, d:D]\n"
        "%r = reduce sum %v over d : reg f32[i:16]\n" + out("%r"),
        ROW,
    ),
    "summed over an axis that starts before the tensor": (
        "%v = load %y[%a * 16 - 5 :+ j, 0 :+ d] pad j : sram f32[j:24, d:D]\n"
        "%r = contract %v, %v over j : reg f32[d:D]\nstore %r, %o0[%a, 0 :+ d]\n",
        "f32[a:(ceildiv(N, 16)), d:D]",
    ),
    "summed where both factors end": (
        "%v = load %y[%a * 16 :+ j, 0 :+ d] pad j : sram f32[j:24, d:D]\n"
        "%w = load %y[%a * 5 + 1 :+ j, 0 :+ d] pad j : sram f32[j:24, d:D]\n"
        "%r = contract %v, %w over j : reg f32[d:D]\nstore %r, %o0[%a, 0 :+ d]\n",
        "f32[a:(ceildiv(N, 16)), d:D]",
    ),
    "the numbers that are wanted last": (
        X + "%q = map index(i) * 100 + index(d) + %n : reg i64[i:16, d:D]\n"
        "%z = map %n * 2 + %a : i64\n%f = map %z * 0.5 : f32\n"
        "%r = map %u * %f + %q : reg f32[i:16, d:D]\n"
        + out("%r", 0, ", 0 :+ d")
        + out("%q", 1, ", 0 :+ d")
        + "store %f, %o2[%a]\nstore %z, %o3[%a]\n",
        "f32[i:N, d:D]; i64[i:N, d:D]; f32[a:(ceildiv(N, 16))]; i64[a]",
    ),
    "one loop": (
        loop("%l", "%c = %z", "  %c1 = map %c * 0.5 + %r : reg f32[i:16]\n  yield %c1\n")
        + out("%l"),
        ROW,
    ),
    "carried values that swap": (
        loop(
            "%p, %q",
            "%c = %z, %d = %one",
            "  %c1 = map %c + %r : reg f32[i:16]\n  yield %d, %c1\n",
        )
        + out("%p", 0)
        + out("%q", 1),
        f"{ROW}; {ROW}",
    ),
    "carried values that swap unchanged": (
        loop("%p, %q", "%c = %z, %d = %one", "  yield %d, %c\n") + out("%p", 0) + out("%q", 1),
        f"{ROW}; {ROW}",
    ),
    "three that rotate": (
        loop(
            "%p, %q, %v",
            "%c = %z, %d = %one, %e = %one",
            "  %c1 = map %c + %d - %r : reg f32[i:16]\n  yield %e, %c1, %d\n",
        )
        + out("%p", 0)
        + out("%q", 1)
        + out("%v", 2),
        f"{ROW}; {ROW}; {ROW}",
    ),
    "one start for two, used after": (
        loop(
            "%p, %q",
            "%c = %one, %d = %one",
            "  %c1 = map %c + %r : reg f32[i:16]\n  %d1 = map %d - %c : reg f32[i:16]\n"
            "  yield %c1, %d1\n",
        )
        + "%v = map %p - %q * %one : reg f32[i:16]\n"
        + out("%v", 0)
        + out("%one", 1),
        f"{ROW}; {ROW}",
    ),
    "the same value yielded twice": (
        loop(
            "%p, %q",
            "%c = %z, %d = %one",
            "  %c1 = map %c * 0.25 + %r + %d * 0.5 : reg f32[i:16]\n  yield %c1, %c1\n",
        )
        + out("%p", 0)
        + out("%q", 1),
        f"{ROW}; {ROW}",
    ),
    "the old value is read after the new one": (
        loop(
            "%p, %q",
            "%c = %z, %d = %one",
            "  %c1 = map %c + %r : reg f32[i:16]\n  %m = reduce max %c1 over i : f32\n"
            "  %d1 = map %c * 0.5 + %m : reg f32[i:16]\n  yield %c1, %d1\n",
        )
        + out("%p", 0)
        + out("%q", 1),
        f"{ROW}; {ROW}",
    ),
    "yielded unchanged, a value from outside, a load": (
        loop(
            "%p, %q, %v",
            "%c = %z, %d = %one, %e = %z",
            "  %g = load %x[%a * 16 :+ i, 0] pad i : reg f32[i:16]\n  yield %c, %one, %g\n",
        )
        + out("%p", 0)
        + out("%q", 1)
        + out("%v", 2),
        f"{ROW}; {ROW}; {ROW}",
    ),
    "numbers carried": (
        X + "%z = map 0 : i64\n%f = map 1.5 : f32\n"
        "%p, %q = for %k in 1 .. 5 carry(%c = %z, %d = %f) {\n"
        "  %c1 = map %c + %k * %n : i64\n  %d1 = map %d * 0.5 + %c : f32\n  yield %c1, %d1\n}\n"
        "%r = map %u * %q + %p : reg f32[i:16, d:D]\n" + out("%r", more=", 0 :+ d"),
        "f32[i:N, d:D]",
    ),
    "bounds from carried and computed numbers": (
        X + "%z = map 2 : i64\n%zero = map 0.0 : reg f32[i:16]\n"
        "%c, %r = for %k in %z .. %z + %n carry(%c0 = %z, %r0 = %zero) {\n"
        "  %c1 = map %c0 + 1 : i64\n"
        "  %r2 = for %h in 0 .. %c0 carry(%r1 = %r0) {\n"
        "    %r3 = map %r1 + %h * %k : reg f32[i:16]\n    yield %r3\n  }\n"
        "  yield %c1, %r2\n}\n" + out("%r"),
        ROW,
    ),
    "two loops, the second from the first": (
        loop("%l", "%c = %z", "  %c1 = map maximum(%c, %r) : reg f32[i:16]\n  yield %c1\n")
        + "%g = for %k2 in 0 .. ceildiv(M, 8) carry(%c2 = %l) {\n"
        "  %w2 = load %y[%k2 * 8 :+ j, 0 :+ d] pad j : sram f32[j:8, d:D]\n"
        "  %s2 = contract %u, %w2 over d : reg f32[i:16, j:8]\n"
        "  %e2 = map %s2 - %l : reg f32[i:16, j:8]\n"
        "  %r2 = reduce sum %e2 over j : reg f32[i:16]\n"
        "  %c3 = map %c2 + %r2 : reg f32[i:16]\n  yield %c3\n}\n" + out("%g", 0) + out("%l", 1),
        f"{ROW}; {ROW}",
    ),
    "a loop that never runs": (
        X + "%o = map 3.0 : reg f32[i:16]\n%r = for %k in 5 .. %n carry(%c = %o) {\n"
        "  %c1 = map %c + 1.0 : reg f32[i:16]\n  yield %c1\n}\n" + out("%r"),
        ROW,
    ),
    "branches": (
        loop(
            "%l",
            "%c = %z",
            "  %c2 = if %k % 2 == 0 {\n"
            "    %c1 = map %c + %r : reg f32[i:16]\n"
            "    %c3 = if %k > %n {\n      %c4 = map -%c1 : reg f32[i:16]\n      yield %c4\n"
            "    } else {\n      yield %c1\n    }\n"
            "    yield %c3\n"
            "  } else {\n    yield %c\n  }\n  yield %c2\n",
        )
        + out("%l"),
        ROW,
    ),
    "branches that swap": (
        loop(
            "%p, %q",
            "%c = %z, %d = %one",
            "  %e, %g = if %k % 2 == 0 {\n"
            "    %c1 = map %c + %r : reg f32[i:16]\n    yield %d, %c1\n"
            "  } else {\n    yield %c, %d\n  }\n  yield %e, %g\n",
        )
        + out("%p", 0)
        + out("%q", 1),
        f"{ROW}; {ROW}",
    ),
    "stores in branches and loops": (
        X + "for %k in 0 .. 3 {\n  if %k == %a {\n"
        "    store %u, %o0[%a * 16 :+ i, 0 :+ d] clip i\n    yield\n  } else {\n    yield\n  }\n}\n"
        "if %a > 2 {\n"
        "  store %u, %o0[%a * 16 :+ i, 0 :+ d] clip i\n  yield\n} else {\n  yield\n}\n",
        "f32[i:N, d:D]",
    ),
    "a matrix carried and read whole": (
        X + "%o = map index(i) * 0.125 + index(d) : reg f32[i:16, d:D]\n"
        "%r = for %k in 0 .. 3 carry(%c = %o) {\n"
        "  %g = contract %c, %u over d : reg f32[i:16]\n"
        "  %c1 = map %c * 0.5 + %g * 0.0625 : reg f32[i:16, d:D]\n"
        "  %m = reduce max %c over i : reg f32[d:D]\n"
        "  %c2 = map %c1 - %m : reg f32[i:16, d:D]\n  yield %c2\n}\n" + out("%r", more=", 0 :+ d"),
        "f32[i:N, d:D]",
    ),
    "a carried value and its transposed product": (
        X + "%o = map 0.0 : reg f32[d:D, e:D]\n"
        "%v = load %x[%a * 16 :+ i, 0 :+ e] pad i : sram f32[i:16, e:D]\n"
        "%r = for %k in 0 .. 2 carry(%c = %o) {\n"
        "  %c1 = contract %u, %v over i acc %c : reg f32[d:D, e:D]\n  yield %c1\n}\n"
        "store %r, %o0[%a, 0 :+ d, 0 :+ e]\n",
        "f32[a:(ceildiv(N, 16)), d:D, e:D]",
    ),
    "a store that starts before the tensor": (
        X + "store %u, %o0[%a * 16 - 3 :+ i, 0 :+ d] clip i\n"
        "%v = load %x[%a * 16 + 13 :+ i, 0 :+ d] pad i : sram f32[i:16, d:D]\n"
        "store %v, %o0[%a * 16 + 13 :+ i, 0 :+ d] clip i\n",
        "f32[i:N, d:D]",
    ),
    "a scatter": (
        X + "store %u, %o0[%a, 15 - index(i), (index(d) * 3 + 1) % D]\n",
        "f32[a:(ceildiv(N, 16)), i:16, d:D]",
    ),
    "an extent of a tensor that is not read": (
        "%q = map index(i) * M : reg i64[i:16]\n" + out("%q"),
        "i64[i:N]",
    ),
    "loads of rank zero and one": (
        "%v = load %x[%a * 16, 2] : f32\n%w = load %x[%a * 16, 0 :+ d] : sram f32[d:D]\n"
        "%b = load %t[%n] : i32\n%m = map %w * %v + %b : reg f32[d:D]\n"
        "%s = reduce sum %m over d : f32\nstore %m, %o0[%a, 0 :+ d]\nstore %s, %o1[%a]\n",
        "f32[a:(ceildiv(N, 16)), d:D]; f32[a]",
    ),
}


@pytest.mark.parametrize("d", [5, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_tile_ir(case: str, d: int) -> None:
    body, results = CASES[case]
    built = Built(program(body, results, d))
    for n, m in ((33, 24), (16, 30), (40, 24)):
        ins = arrays(built.source, {"N": n, "M": m, "D": d}, n, n=np.asarray(3))
        ins[2] = np.random.default_rng(n).integers(0, m, m).astype("i4")
        if "table" in case and n == 33:
            ins[2][:] = ins[2][::-1] // 2
        for how in ("end", "start", "padded"):
            built.check(ins, how=how, tolerance=1e-4)

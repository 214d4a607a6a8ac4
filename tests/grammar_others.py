"""Programs that are not attention: rows, products, tables, distances."""

from __future__ import annotations

from grammar import Program, Writer


def row_norm(w: Writer) -> Program:
    """Normalised rows: mean and variance, mean square, or the largest."""
    w.tags.add("rows")
    x = w.arg("x", w.pick("i:N d", "b i:N d", "i:N d:6"), "scores")
    n, over = 'tc.maximum(tc.extent("d"), 1)', 'over="d"'
    kind = w.pick("layer", "rms", "max", "softmax", "lse")
    if kind == "layer":
        mean = w.let("mean", f"tc.sum({x}, {over}) / {n}")
        c = w.let("c", f"{x} - {mean}")
        var = w.let("var", f"tc.sum({c} * {c}, {over}) / {n}")
        y = w.let("y", f"{c} * tc.rsqrt({var} + 0.01)")
    elif kind == "rms":
        y = w.let("y", f"{x} * tc.rsqrt(tc.sum({x} * {x}, {over}) / {n} + 0.01)")
    elif kind == "max":
        y = w.let("y", f"{x} / (tc.max(tc.abs({x}), {over}) + 1.0)")
    elif kind == "softmax":
        y = w.let("y", f"tc.softmax({x}, {over})")
    else:
        y = w.let("y", f"{x} - tc.logsumexp({x}, {over})")
    if w.chance(50):
        g = w.arg("g", "d")
        y = w.let("y", f"{y} * {g} + 0.5")
    return w.program(y, order=w.pick("", "d i") if "b" not in w.inputs["x"].annotation else "")


def reductions(w: Writer) -> Program:
    """Several reductions of one tensor."""
    w.tags.add("rows")
    x = w.arg("x", w.pick("i:N j:M", "b i:N j:M", "i:N j:5"))
    outputs = []
    for _ in range(w.pick(1, 2, 3)):
        kind = w.pick("sum", "max", "min", "prod", "logsumexp")
        over = w.pick("j", "j", "i", "i j")
        e = w.pick(x, f"{x} * {x} * 0.5", f"tc.abs({x})", f"tc.exp(0.3 * {x})")
        outputs.append(w.let("r", f'tc.{kind}({e}, over="{over}")'))
    return w.program(*outputs)


def product(w: Writer) -> Program:
    """A matrix product with an epilogue."""
    w.tags.add("product")
    d = w.pick("d", "d:4")
    x, y = w.arg("x", f"i:N {d}"), w.arg("y", w.pick(f"j:M {d}", f"{d} j:M"))
    o = w.let("o", f'tc.dot({x}, {y}, over="d")')
    kind = w.pick("plain", "bias", "relu", "norm", "sum", "square")
    if kind == "bias":
        b = w.arg("b", "j:M")
        o = w.let("o", f"tc.tanh({o} + {b})")
    elif kind == "relu":
        o = w.let("o", f"tc.maximum({o}, 0.0) + {w.arg('r', 'i:N j:M')}")
    elif kind == "norm":
        o = w.let("o", f'{o} * tc.rsqrt(tc.sum({x} * {x}, over="d") + 0.1)')
    elif kind == "sum":
        o = w.let("o", f'tc.sum({o} * {o}, over="j")')
    elif kind == "square":
        return w.program(o, w.let("n", f'tc.max(tc.abs({o}), over="i")'))
    return w.program(o)


def chain(w: Writer) -> Program:
    """Two products, with a map between them: a feed-forward layer."""
    w.tags.add("product")
    x = w.arg("x", "i:N d")
    up, down = w.arg("up", "d j:M"), w.arg("down", "j:M e")
    h = w.let("h", f'tc.dot({x}, {up}, over="d")')
    act = w.pick(
        f"tc.maximum({h}, 0.0)", f"{h} * tc.sigmoid({h})", f"tc.exp2(tc.minimum({h}, 4.0))"
    )
    if w.chance(30):
        g = w.let("g", f'tc.dot({x}, {w.arg("gate", "d j:M")}, over="d")')
        act = f"{act} * {g}"
    h = w.let("h", act)
    if w.chance(25):
        h = w.let("h", f'{h} / (tc.sum(tc.abs({h}), over="j") + 1.0)')
    return w.program(w.let("o", f'tc.dot({h}, {down}, over="j")'))


def elementwise(w: Writer) -> Program:
    """No reduction at all."""
    w.tags.add("elementwise")
    x, y = w.arg("x", "i:N j:M"), w.arg("y", w.pick("j:M", "i:N", "j:M i:N"))
    e = f"{x} + {y}"
    for _ in range(w.pick(1, 2, 4)):
        e = w.let(
            "z",
            w.pick(
                f"tc.sin({e})",
                f'tc.where(tc.index("i") > tc.index("j"), {e}, {x})',
                f"tc.log(tc.abs({e}) + 1.0)",
                f"{e} * {y} - {x}",
                f"tc.floor({e}) / 3.0",
                f"tc.pow(tc.abs({e}) + 0.1, 1.5)",
                f'{e} + tc.cast(tc.index("i") % 5, "float32")',
                f"tc.sqrt(tc.abs({e}) + 0.1)",
                f'tc.cast(tc.cast({e}, "float16"), "float32")',
            ),
        )
    return w.program(e, order=w.pick("", "j i", "i j"))


def table(w: Writer) -> Program:
    """Rows of a table by number, then a reduction or a loss."""
    w.tags.add("table")
    ids = w.arg("ids", "i:N", "rows", w.pick("int32", "int64"))
    rows = w.arg("rows", "v d")
    x = w.let("x", f"{rows}.at(v={ids})")
    kind = w.pick("rows", "norm", "score", "cross entropy")
    if kind == "norm":
        x = w.let("x", f'tc.sum({x} * {x}, over="d")')
    elif kind == "score":
        y = w.arg("y", "j:M d")
        x = w.let("x", f'tc.max(tc.dot({x}, {y}, over="d"), over="j")')
    elif kind == "cross entropy":
        h = w.arg("h", "i:N d")
        s = w.let("s", f'tc.dot({h}, {rows}, over="d")')
        own = w.let("own", f'tc.sum(tc.where(tc.index("v") == {ids}, {s}, 0.0), over="v")')
        x = w.let("loss", f'tc.logsumexp({s}, over="v") - {own}')
        return w.program(x)
    return w.program(x)


def distances(w: Writer) -> Program:
    """Nearest points and kernels of distances: a map over both sets of points, then reductions."""
    w.tags.add("distances")
    x, y = w.arg("x", "i:N d:3"), w.arg("y", "j:M d:3")
    e = f"{x} - {y}"
    far = w.let("far", w.pick(f'tc.sum(({e}) * ({e}), over="d")', f'tc.max(tc.abs({e}), over="d")'))
    kind = w.pick("nearest", "density", "weighted", "both")
    if kind == "nearest":
        return w.program(w.let("r", f'tc.min({far}, over="j")'))
    if kind == "density":
        return w.program(w.let("r", f'tc.logsumexp(-0.5 * {far}, over="j")'))
    if kind == "both":
        return w.program(
            w.let("r", f'tc.min({far}, over="j")'), w.let("r", f'tc.min({far}, over="i")')
        )
    f = w.arg("f", "j:M e:2")
    return w.program(w.let("o", f'tc.dot(tc.exp(-{far}), {f}, over="j")'))


def first_largest(w: Writer) -> Program:
    """Integers through reductions: where the largest of a row is, how many are positive."""
    w.tags.add("rows")
    x = w.arg("x", "i:N j:M")
    m = w.let("m", f'tc.max({x}, over="j")')
    place = w.let("k", f'tc.max(tc.where({x} == {m}, tc.index("j"), -1), over="j")')
    if w.chance(50):
        return w.program(place)
    return w.program(m, place, w.let("n", f'tc.sum({x} > 0.0, over="j")'))


def loss(w: Writer) -> Program:
    """Everything reduced to one number, or to one a batch."""
    w.tags.add("rows")
    x, y = w.arg("x", "b i:N"), w.arg("y", "b i:N")
    d = w.let("d", f"{x} - {y}")
    over = w.pick("i", "b i")
    return w.program(w.let("r", f'tc.sum({d} * {d}, over="{over}")'))


OTHERS = (
    *(row_norm, reductions, product, chain, elementwise, table, distances, first_largest, loss),
)

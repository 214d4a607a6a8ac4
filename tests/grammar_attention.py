"""Programs that weigh values by scores: maps, masks, normalisers and outputs in any combination."""

from __future__ import annotations

from dataclasses import dataclass, field

from grammar import Program, Writer


@dataclass
class Scene:
    """The axes of an attention: rows are kept, columns reduced."""

    w: Writer
    lead: list[str]
    row: str
    col: str
    row_extent: str
    col_extent: str
    inner: str = "d"
    width: str = "e"
    extras: list[str] = field(default_factory=list)  # further outputs

    @property
    def rows(self) -> str:
        return f"{self.row}:{self.row_extent}"

    @property
    def cols(self) -> str:
        return f"{self.col}:{self.col_extent}"

    def axes(self, *last: str) -> str:
        return " ".join([*self.lead, *last])

    def some(self, *last: str) -> str:
        """`last` with some of the leading axes."""
        return " ".join([*(a for a in self.lead if self.w.chance(50)), *last])


def attention(w: Writer) -> Program:
    """A program of this kind."""
    c = _scene(w)
    q, k, v = _operands(c)
    s = _scores(c, q, k)
    for _ in range(w.pick(0, 1, 1, 2, 3)):
        s = _map(c, s)
    mask = _mask(c) if w.chance(65) else ""
    if mask:
        w.tags.add("mask")
        if w.chance(30):
            mask = w.let("live", mask)
    name = w.pick(*WEIGHTS)
    w.tags |= {"attention", name}
    o = NORMALISERS[name](c, s, mask, v)
    if w.chance(25) and name != "reduced":
        o = _after(c, o)
    outputs = [o, *c.extras]
    if len(outputs) > 1 and w.chance(25):
        outputs.reverse()
    return w.program(*outputs)


def _scene(w: Writer) -> Scene:
    lead = w.pick([], ["h"], ["b"], ["b", "h"], ["b", "h"])
    row, col = w.pick(("i", "j"), ("i", "j"), ("j", "i"), ("x", "y"))
    same = w.chance(50)
    static = w.pick("", "", "", ":4", ":3", ":8")
    c = Scene(w, lead, row, col, "N", "N" if same else "M")
    if static:
        c.inner, c.width = f"d{static}", f"e{static}"
    return c


def _operands(c: Scene) -> tuple[str, str, str]:
    """Queries, keys and values as expressions over arguments."""
    w = c.w
    if w.chance(6) and c.row_extent == c.col_extent:
        w.tags.add("self")  # one tensor for queries and keys
        x = w.arg("x", c.axes(c.rows, c.inner), "scores")
        v = w.arg("v", c.axes(c.cols, c.width))
        return x, w.let("k", f'{x}.at({c.row}=tc.index("{c.col}"))'), v
    order = [*c.lead, c.rows, c.inner]
    if w.chance(10):
        order = [c.rows, *c.lead, c.inner]
    q = w.arg("q", " ".join(order), "scores")
    if "h" in c.lead and w.chance(30):
        w.tags.add("grouped")
        lead = ["hk:G" if a == "h" else a for a in c.lead]
        k = w.arg("k", " ".join([*lead, c.cols, c.inner]), "scores")
        v = w.arg("v", " ".join([*lead, c.cols, c.width]))
        g = w.let("g", 'tc.index("h") // (tc.extent("h") // tc.extent("hk"))')
        return q, f"{k}.at(hk={g})", f"{v}.at(hk={g})"
    if w.chance(8):
        w.tags.add("paged")
        k = w.arg("k", f"p s {c.inner}", "scores")
        table = w.arg("pages", f"{c.col}:{c.col_extent}", "bits", "int32")
        v = w.arg("v", c.axes(c.cols, c.width))
        return q, f'{k}.at(p={table}, s=tc.index("{c.col}") % tc.extent("s"))', v
    k = w.arg("k", c.axes(c.cols, c.inner) if w.chance(80) else c.some(c.cols, c.inner), "scores")
    if w.chance(8):
        c.width = c.inner
        return q, k, k  # values are the keys
    return q, k, w.arg("v", c.axes(c.cols, c.width) if w.chance(80) else c.some(c.cols, c.width))


def _scores(c: Scene, q: str, k: str) -> str:
    w, d = c.w, c.inner[0]
    kind = w.pick(*["dot"] * 8, "swapped", "two", "shifted", "distance", "rounded")
    if kind == "swapped":
        return w.let("s", f'tc.dot({k}, {q}, over="{d}")')
    if kind == "shifted":
        u = w.arg("u", c.inner)
        return w.let("s", f'tc.dot({q} + {u}, {k}, over="{d}")')
    if kind == "distance" and w.chance(50):
        return w.let("s", f'-tc.sum(tc.abs({q} - {k}), over="{d}")')
    if kind == "rounded":
        scaled = w.let("q", f'tc.cast({q} * 0.25, "bfloat16")')
        return w.let("s", f'tc.dot({scaled}, {k}, over="{d}")')
    s = w.let("s", f'tc.dot({q}, {k}, over="{d}")')
    if kind == "two":
        w.tags.add("two contractions")
        q2 = w.arg("qr", c.axes(c.rows, "f"))
        k2 = w.arg("kr", c.some(c.cols, "f"))
        s = w.let("s", f'{s} + tc.dot({q2}, {k2}, over="f")')
    return s


def _map(c: Scene, s: str) -> str:
    w = c.w
    i, j = f'tc.index("{c.row}")', f'tc.index("{c.col}")'
    kind = w.pick(*MAPS)
    if kind == "scale":
        by = w.pick(
            "0.125", "0.3", f'tc.rsqrt(tc.extent("{c.inner[0]}"))', "2", "-1.5", "scalar", "tensor"
        )
        if by == "scalar":
            by = w.scalar("scale", "positive", "float32")
        elif by == "tensor":
            by = w.arg("t", c.some(c.rows), "positive", "float32")
        e = w.pick(f"{s} * {by}", f"{by} * {s}") if "tc" in by or w.chance(70) else f"{s} / {by}"
    elif kind == "cap":
        cap = w.pick("20.0", "5.0", "scalar")
        cap = w.scalar("cap", "positive", "float32") if cap == "scalar" else cap
        e = f"{cap} * tc.tanh({s} / {cap})"
    elif kind == "alibi":
        slope = w.arg("slope", "h", "positive", "float32") if "h" in c.lead else "0.25"
        e = w.pick(f"{s} + {slope} * ({j} - {i})", f"{s} - {slope} * tc.abs({i} - {j})")
    elif kind == "bias":
        axes = w.pick(c.axes(c.rows, c.cols), c.some(c.cols), c.some(c.rows), f"{c.rows} {c.cols}")
        fill = w.pick("normal", "normal", "infinities")
        e = f"{s} + {w.arg('bias', axes, fill, w.pick(None, 'float32'))}"
    elif kind == "relative":
        table = w.arg("table", "r", "normal")
        far = f'tc.minimum(tc.abs({i} - {j}), tc.extent("r") - 1)'
        e = f"{s} + {table}.at(r={far})"
        w.tags.add("relative")
    else:
        e = {
            "square": f"{s} * {s} * 0.1",
            "abs": f"-tc.abs({s})",
            "relu": f"tc.maximum({s}, 0.0)",
            "clip": f"tc.minimum(tc.maximum({s}, -3.0), 3.0)",
            "decay": f"{s} * tc.exp(-0.1 * tc.abs({i} - {j}))",
            "parity": f"{s} + tc.where(({i} + {j}) % 2 == 0, 0.5, -0.5)",
            "half": f'tc.cast({s}, "float16")',
        }[kind]
    return w.let("s", e)


MAPS = (
    *("scale", "scale", "scale", "cap", "cap", "alibi", "alibi", "bias", "bias", "bias"),
    *("relative", "square", "abs", "relu", "clip", "decay", "parity"),
)


def _mask(c: Scene, depth: int = 0) -> str:
    """A predicate over the row and the column."""
    w = c.w
    if depth < 2 and w.chance(35):
        a, b = _mask(c, depth + 1), _mask(c, depth + 1)
        return w.pick(f"({a}) & ({b})", f"({a}) & ({b})", f"({a}) | ({b})", f"({a}) ^ ({b})")
    if depth < 2 and w.chance(8):
        return f"~({_mask(c, depth + 1)})"
    return _data_mask(c) if w.chance(30) else _affine_mask(c)


def _affine_mask(c: Scene) -> str:
    w = c.w
    w.tags.add("affine mask")
    i, j = f'tc.index("{c.row}")', f'tc.index("{c.col}")'
    n, m = f'tc.extent("{c.row}")', f'tc.extent("{c.col}")'
    k = w.pick("0", "1", "2", "5", "-2", "scalar")
    k = w.scalar("k", "lengths", w.pick("int64", "int32")) if k == "scalar" else k
    return w.pick(
        *(f"{j} <= {i}", f"{i} >= {j}", f"~({j} > {i})", f"{i} - {j} >= 0", f"{j} < {i} + 1"),
        *(f"{j} < {i}", f"{j} >= {i}", f"{j} <= {i} + {k}", f"{j} <= {i} + ({m} - {n})"),
        *(f"({i} - {j} >= 0) & ({i} - {j} < {k})", f"tc.abs({i} - {j}) <= {k}", f"{j} < {k}"),
        *(f"{j} >= {k}", f"{i} < {k}", f"{j} < {m} - {k}", f"{i} - {j} != {k}"),
        *(f"{i} // 4 == {j} // 4", f"{j} % 3 == 0", f"{i} // 3 >= {j} // 2", f"2 * {j} <= {i}"),
        *(f"{i} + {j} < {k} + 5", f"{i} == {j}"),
    )


def _data_mask(c: Scene) -> str:
    w = c.w
    w.tags.add("data mask")
    j, dtype = f'tc.index("{c.col}")', w.pick("int32", "int64")
    kind = w.pick("pad", "pad", "keep", "lengths", "documents", "pairs", "positions")
    if kind == "pad":
        return f"{w.arg('pad', c.some(c.cols), 'bits', dtype)} != 0"
    if kind == "keep":
        return w.arg("keep", c.some(c.cols), "some", "bool")
    if kind == "lengths" and c.lead:
        return f"{j} < {w.arg('length', c.lead[0], 'lengths', dtype)}"
    if kind == "pairs":
        return w.arg("pair", c.some(c.rows, c.cols), "some", "bool")
    if kind == "positions":
        return f"{w.arg('at_row', c.rows, 'small', dtype)} >= {w.arg('at_col', c.cols, 'small')}"
    a = w.arg("doc_row", c.some(c.rows), "ids", "int32")
    return f"{a} == {w.arg('doc_col', c.some(c.cols), 'ids', 'int32')}"


def _hidden(c: Scene, s: str, mask: str) -> str:
    """Scores that are -inf where the mask is off."""
    if not mask:
        return s
    forms = (f"tc.where({mask}, {s}, -tc.inf)",) * 4
    other = (f"tc.where(~({mask}), -tc.inf, {s})", f"{s} + tc.where({mask}, 0.0, -tc.inf)")
    return c.w.let("s", c.w.pick(*forms, *other))


def _zeroed(c: Scene, p: str, mask: str) -> str:
    """Weights that are 0 where the mask is off."""
    return c.w.let("p", f"tc.where({mask}, {p}, 0.0)") if mask else p


def _weighted(c: Scene, p: str, v: str) -> str:
    """What the weights are for."""
    w, col = c.w, c.col
    o = w.let("o", w.pick(f'tc.dot({p}, {v}, over="{col}")', f'tc.dot({v}, {p}, over="{col}")'))
    if w.chance(8):
        v2 = w.arg("v2", c.axes(c.cols, c.width))
        c.extras.append(w.let("o", f'tc.dot({p}, {v2}, over="{col}")'))
    if w.chance(5):
        u = w.arg("u", c.some(c.cols))
        c.extras.append(w.let("z", f'tc.sum({p} * {u}, over="{col}")'))
    return o


def _extra(c: Scene, percent: int, expr: str) -> None:
    if c.w.chance(percent):
        c.extras.append(c.w.let("extra", expr))


def _softmax(c: Scene, s: str, mask: str, v: str) -> str:
    s = _hidden(c, s, mask)
    p = c.w.let("p", f'tc.softmax({s}, over="{c.col}")')
    _extra(c, 25, f'tc.logsumexp({s}, over="{c.col}")')
    _extra(c, 10, f'tc.max({s}, over="{c.col}")')
    if c.w.chance(5):
        c.extras.append(p)
    return _weighted(c, p, v)


def _by_hand(c: Scene, s: str, mask: str, v: str) -> str:
    w, over = c.w, f'over="{c.col}"'
    s = _hidden(c, s, mask)
    m = w.let("m", f"tc.max({s}, {over})")
    if w.chance(50):
        m = w.let("m", f"tc.where({m} == -tc.inf, 0.0, {m})")
    log2e = "1.4426950408889634"
    p = w.let(
        "p",
        w.pick(
            *(f"tc.exp({s} - {m})",) * 3,
            f"tc.exp2(({s} - {m}) * {log2e})",
            f"tc.exp2({s} * {log2e} - {m} * {log2e})",
            f"tc.pow(2.0, {s} - {m})",
            f"1.0 / tc.exp({m} - {s})",
        ),
    )
    total = f"tc.sum({p}, {over})"
    style = w.pick("after", "after", "before", "late")
    if style == "before":
        return _weighted(c, w.let("p", f"{p} / {total}"), v)
    if style == "late":
        o = _weighted(c, p, v)
        return w.let("o", f"{o} / {total}")
    l = w.let("l", total)
    _extra(c, 20, w.pick(f"{m} + tc.log({l})", l))
    return w.let("o", f"{_weighted(c, p, v)} / {l}")


def _naive(c: Scene, s: str, mask: str, v: str) -> str:
    """Exponentials that no maximum keeps small."""
    w = c.w
    p = w.let("p", f"tc.exp(tc.minimum({_hidden(c, s, mask)}, 20.0))")
    l = w.let("l", f'tc.sum({p}, over="{c.col}")')
    return w.let("o", f"{_weighted(c, p, v)} / ({l} + 1.0)")


def _sink(c: Scene, s: str, mask: str, v: str) -> str:
    w, over = c.w, f'over="{c.col}"'
    s = _hidden(c, s, mask)
    logit = w.pick("0.0", "1.5", "tensor")
    if logit == "tensor":
        logit = w.arg("sink", "h" if "h" in c.lead else c.rows, "normal", "float32")
    m = w.let("m", f"tc.maximum(tc.max({s}, {over}), {logit})")
    p = w.let("p", f"tc.exp({s} - {m})")
    l = w.let("l", f"tc.sum({p}, {over}) + tc.exp({logit} - {m})")
    _extra(c, 25, f"{m} + tc.log({l})")
    return w.let("o", f"{_weighted(c, p, v)} / {l}")


def _pointwise(c: Scene, s: str, mask: str, v: str) -> str:
    w = c.w
    e = w.pick(
        f"tc.sigmoid({s})",
        f"tc.sigmoid({s} - 1.0)",
        f"tc.maximum({s}, 0.0)",
        f"tc.maximum({s}, 0.0) * tc.maximum({s}, 0.0)",
        s,
        f"tc.tanh({s})",
        f'tc.maximum({s}, 0.0) / tc.maximum(tc.extent("{c.col}"), 1)',
    )
    p = w.let("p", e) if e != s else s
    p = _zeroed(c, p, mask)
    if w.chance(20):
        c.extras.append(w.let("z", f'tc.sum({p}, over="{c.col}")'))
    return _weighted(c, p, v)


def _divided(c: Scene, s: str, mask: str, v: str) -> str:
    """Normalised by a sum that is no exponential's."""
    w, over = c.w, f'over="{c.col}"'
    s = _zeroed(c, s, mask)
    l = w.pick(
        f"tc.sum(tc.abs({s}), {over}) + 0.1",
        f"tc.maximum(tc.sum(tc.abs({s}), {over}), 1.0)",
        f"tc.sqrt(tc.sum({s} * {s}, {over}) + 0.01)",
        f"tc.max(tc.abs({s}), {over}) + 0.5",
        f"tc.sum(tc.maximum({s}, 0.0), {over}) + 1",
    )
    l = w.let("l", l)
    _extra(c, 20, l)
    if w.chance(50):
        return _weighted(c, w.let("p", f"{s} / {l}"), v)
    return w.let("o", f"{_weighted(c, s, v)} / {l}")


def _several_passes(c: Scene, s: str, mask: str, v: str) -> str:
    """Dependences that have a repair, and some that have none."""
    w, over = c.w, f'over="{c.col}"'
    n = f'tc.maximum(tc.extent("{c.col}"), 1)'
    s = _zeroed(c, s, mask)
    kind = w.pick("least", "range", "mean", "variance", "layer", "gate", "tanh", "second", "twice")
    if kind in ("least", "range"):
        low = w.let("low", f"tc.min({s}, {over})")
        p = w.let("p", f"{s} - {low}")
        if kind == "range":
            p = w.let("p", f"{p} / (tc.max({s}, {over}) - {low} + 1.0)")
    elif kind in ("mean", "variance", "layer"):
        mean = w.let("mean", f"tc.sum({s}, {over}) / {n}")
        p = w.let("p", f"{s} - {mean}")
        if kind != "mean":
            var = w.let("var", f"tc.sum({p} * {p}, {over}) / {n}")
            c.extras.append(var)
            if kind == "layer":
                p = w.let("p", f"{p} * tc.rsqrt({var} + 0.01)")
    elif kind == "gate":
        m = w.let("m", f"tc.max({s}, {over})")
        p = w.let("p", f"tc.where({s} > {m} * 0.5, {s}, 0.0)")
    elif kind == "tanh":
        m = w.let("m", f"tc.sum({s}, {over})")
        p = w.let("p", f"tc.tanh({s} - {m})")
    elif kind == "second":
        m = w.let("m", f"tc.max({s}, {over})")
        p = w.let("p", f"tc.sigmoid({s} - {m})")
    else:
        p = w.let("p", f"tc.softmax(tc.softmax({s}, {over}) * 3.0, {over})")
    return _weighted(c, p, v)


def _reduced(c: Scene, s: str, mask: str, v: str) -> str:
    """No values: reductions of the scores."""
    w, over = c.w, f'over="{c.col}"'
    kinds = ["max", "lse", "lse", "sum", "min", "prod", "entropy", "energy", "count"]
    kind = w.pick(*kinds)
    if kind in ("max", "lse"):
        s = _hidden(c, s, mask)
        if kind == "max":
            return w.let("m", f"tc.max({s}, {over})")
        _extra(c, 20, f"tc.max({s}, {over})")
        return w.let("lse", f"tc.logsumexp({s}, {over})")
    if kind in ("entropy", "energy"):
        hidden = _hidden(c, s, mask)
        p = w.let("p", f"tc.softmax({hidden}, {over})")
        if kind == "energy":
            return w.let("z", f"tc.sum({p} * {_zeroed(c, s, mask)}, {over})")
        return w.let("z", f"-tc.sum(tc.where({p} > 0.0, {p} * tc.log({p}), 0.0), {over})")
    s = _zeroed(c, s, mask)
    if kind == "prod":
        return w.let("z", f"tc.prod(1.0 + 0.1 * tc.tanh({s}), {over})")
    if kind == "count":
        _extra(c, 50, f"tc.sum({s}, {over})")
        return w.let("n", f"tc.sum({s} > 0.5, {over})")
    return w.let("z", f"tc.{kind}({s}, {over})")


def _two_maps(c: Scene, s: str, mask: str, v: str) -> str:
    """The difference of two softmaxes (differential attention)."""
    w, over = c.w, f'over="{c.col}"'
    q2 = w.arg("q2", c.axes(c.rows, c.inner), "scores")
    k2 = w.arg("k2", c.axes(c.cols, c.inner), "scores")
    s2 = w.let("s", f'tc.dot({q2}, {k2}, over="{c.inner[0]}") * 0.3')
    a = w.let("p", f"tc.softmax({_hidden(c, s, mask)}, {over})")
    b = w.let("p", f"tc.softmax({_hidden(c, s2, mask)}, {over})")
    if w.chance(50):
        return _weighted(c, w.let("p", f"{a} - 0.4 * {b}"), v)
    return w.let("o", f"{_weighted(c, a, v)} - 0.4 * {_weighted(c, b, v)}")


NORMALISERS = {
    "softmax": _softmax,
    "by hand": _by_hand,
    "naive": _naive,
    "sink": _sink,
    "pointwise": _pointwise,
    "divided": _divided,
    "several passes": _several_passes,
    "reduced": _reduced,
    "two maps": _two_maps,
}
# As often as they stand here.
WEIGHTS = (
    *("softmax", "pointwise", "by hand", "divided", "sink", "several passes", "reduced"),
    *("softmax", "two maps", "by hand", "naive", "divided", "pointwise", "several passes"),
)
EXPONENTIAL = {"softmax", "by hand", "sink", "two maps", "naive"}


def _after(c: Scene, o: str) -> str:
    w, width = c.w, c.width
    gate = w.arg("gate", c.axes(c.rows, width))
    kind = w.pick("gate", "residual", "relu", "projection", "norm", "half")
    if kind == "projection":
        wo = w.arg("wo", f"{width} z:5")
        return w.let("o", f'tc.dot({o}, {wo}, over="{width[0]}")')
    if kind == "norm":
        square = w.let("n", f'tc.sum({o} * {o}, over="{width[0]}")')
        return w.let("o", f"{o} * tc.rsqrt({square} + 0.01)")
    return w.let(
        "o",
        {
            "gate": f"{o} * tc.sigmoid({gate})",
            "residual": f"{o} + {gate}",
            "relu": f"tc.maximum({o}, 0.0)",
            "half": f'tc.cast({o}, "float16")',
        }[kind],
    )

"""Capped scores (Gemma 2): c tanh(s / c)."""

import tilecc as tc


@tc.spec
def softcap(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    cap: tc.Scalar("float32"),
):
    """softmax(cap tanh(q k^T / (cap sqrt(d))) where j <= i) v."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = cap * tc.tanh(s / cap)
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

"""Causal attention (GPT): a query sees the keys up to its own position."""

import tilecc as tc


@tc.spec
def causal(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
):
    """softmax(q k^T / sqrt(d) where j <= i) v."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

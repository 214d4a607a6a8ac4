"""Causal attention of the last Nq queries to Nk keys (chunked prefill, decoding)."""

import tilecc as tc


@tc.spec
def bottom_right(
    q: tc.Tensor["b h i:Nq d"],
    k: tc.Tensor["b h j:Nk d"],
    v: tc.Tensor["b h j:Nk e:D"],
):
    """softmax(q k^T / sqrt(d) where j <= i + Nk - Nq) v."""
    past = tc.extent("j") - tc.extent("i")
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i") + past, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

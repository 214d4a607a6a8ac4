"""Dilated causal attention (Longformer, LongNet): every `r`-th key, back from the query."""

import tilecc as tc


@tc.spec
def dilated(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    r: tc.Scalar("int64"),
):
    """softmax(q k^T / sqrt(d) where (i - j) % r = 0 and j <= i) v."""
    distance = tc.index("i") - tc.index("j")
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where((distance >= 0) & (distance % r == 0), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

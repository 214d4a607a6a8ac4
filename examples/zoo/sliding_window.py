"""Sliding-window attention (Mistral, Gemma): a query sees the last `w` keys."""

import tilecc as tc


@tc.spec
def sliding_window(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    w: tc.Scalar("int64"),
):
    """softmax(q k^T / sqrt(d) where 0 <= i - j < w) v."""
    distance = tc.index("i") - tc.index("j")
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where((distance >= 0) & (distance < w), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

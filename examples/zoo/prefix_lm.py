"""Prefix-LM (T5, vision-language models): the first `p` keys are seen by all."""

import tilecc as tc


@tc.spec
def prefix_lm(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    p: tc.Scalar("int64"),
):
    """softmax(q k^T / sqrt(d) where j < p or j <= i) v."""
    i, j = tc.index("i"), tc.index("j")
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where((j < p) | (j <= i), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

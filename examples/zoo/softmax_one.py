"""Softmax-1 (quiet attention): with 1 in the denominator a row may attend to nothing."""

import tilecc as tc


@tc.spec
def softmax_one(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
):
    """exp(s) v / (1 + sum_j exp(s)), shifted by max(s, 0) so that nothing overflows."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    m = tc.maximum(tc.max(s, over="j"), 0.0)
    p = tc.exp(s - m)
    return tc.dot(p, v, over="j") / (tc.sum(p, over="j") + tc.exp(-m))

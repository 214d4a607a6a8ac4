"""A learned sink for every head (gpt-oss): one more logit in the denominator, with no value."""

import tilecc as tc


@tc.spec
def sink(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    logit: tc.Tensor["h", "float32"],
):
    """exp(s) v / (exp(logit_h) + sum_j exp(s)), shifted by the larger of both maxima."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    m = tc.maximum(tc.max(s, over="j"), logit)
    p = tc.exp(s - m)
    return tc.dot(p, v, over="j") / (tc.sum(p, over="j") + tc.exp(logit - m))

"""Causal attention that also returns the log-sum-exp of its scores, by which parts are merged."""

import tilecc as tc


@tc.spec
def with_lse(
    q: tc.Tensor["b h i:N d"], k: tc.Tensor["b h j:N d"], v: tc.Tensor["b h j:N e:D"]
) -> tuple[tc.Tensor, tc.Tensor["b h i", "float32"]]:
    """softmax(s) v and log sum_j exp(s), with s = q k^T / sqrt(d) where j <= i."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j"), tc.logsumexp(s, over="j")

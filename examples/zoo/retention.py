"""Retention (Sun et al. 2023): weights decay with the distance by gamma_h = 1 - 2^(-5 - h)."""

import tilecc as tc


@tc.spec
def retention(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
):
    """s = gamma_h^(i - j) q k^T / sqrt(d) where j <= i; s v / max(|sum s|, 1)."""
    i, j = tc.index("i"), tc.index("j")
    gamma = tc.log2(1 - tc.exp2(-5.0 - tc.index("h")))
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d")) * tc.exp2(gamma * (i - j))
    s = tc.where(j <= i, s, 0.0)
    return tc.dot(s, v, over="j") / tc.maximum(tc.abs(tc.sum(s, over="j")), 1.0)

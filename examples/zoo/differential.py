"""Differential attention (Ye et al. 2024): the difference of two softmaxes over the same values."""

import tilecc as tc


@tc.spec
def differential(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    q2: tc.Tensor["b h i:N d"],
    k2: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e"],
    lam: tc.Tensor["h", "float32"],
):
    """(softmax(q k^T / sqrt(d)) - lam_h softmax(q2 k2^T / sqrt(d))) v, both where j <= i."""
    seen = tc.index("j") <= tc.index("i")
    scale = tc.rsqrt(tc.extent("d"))
    p = tc.softmax(tc.where(seen, tc.dot(q, k, over="d") * scale, -tc.inf), over="j")
    p2 = tc.softmax(tc.where(seen, tc.dot(q2, k2, over="d") * scale, -tc.inf), over="j")
    return tc.dot(p - lam * p2, v, over="j")

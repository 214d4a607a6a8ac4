"""ALiBi (Press et al. 2022) with its slopes computed: head h loses 2^(-8 (h + 1) / H) a key."""

import tilecc as tc


@tc.spec
def alibi(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
):
    """softmax(q k^T / sqrt(d) + slope_h (j - i) where j <= i) v."""
    i, j = tc.index("i"), tc.index("j")
    slope = tc.exp2(-8.0 * (tc.index("h") + 1) / tc.extent("h"))
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d")) + slope * (j - i)
    s = tc.where(j <= i, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

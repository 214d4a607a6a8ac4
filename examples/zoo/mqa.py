"""Multi-query attention (Shazeer 2019): all query heads read the one head of keys and values."""

import tilecc as tc


@tc.spec
def mqa(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b j:N d"],
    v: tc.Tensor["b j:N e:D"],
):
    """softmax(q k^T / sqrt(d) where j <= i) v, with no head axis in k and v."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

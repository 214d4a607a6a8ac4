"""Grouped-query attention (Llama): H / G query heads read one head of keys and values."""

import tilecc as tc


@tc.spec
def gqa(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b g j:N d"],
    v: tc.Tensor["b g j:N e:D"],
):
    """softmax(q k_g^T / sqrt(d) where j <= i) v_g with g = h // (H / G)."""
    g = tc.index("h") // (tc.extent("h") // tc.extent("g"))
    s = tc.dot(q, k.at(g=g), over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v.at(g=g), over="j")

"""Grouped-query attention (Ainslie et al. 2023): several query heads read one head of keys."""

import tilecc as tc


@tc.spec
def gqa(q: tc.Tensor["b h i:N d"], k: tc.Tensor["b hk:G j:N d"], v: tc.Tensor["b hk:G j:N e:D"]):
    """softmax(q k_g^T / sqrt(d) where j <= i) v_g with g = h // (H / G)."""
    group = tc.index("h") // (tc.extent("h") // tc.extent("hk"))
    s = tc.dot(q, k.at(hk=group), over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v.at(hk=group), over="j")

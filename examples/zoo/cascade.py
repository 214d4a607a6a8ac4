"""Cascade attention: a prefix that all sequences share and each one's own keys, merged by lse."""

import tilecc as tc


@tc.spec
def cascade(
    q: tc.Tensor["b h i:Nq d"],
    k: tc.Tensor["h j:Np d"],
    v: tc.Tensor["h j:Np e:D"],
    k2: tc.Tensor["b h t:Nk d"],
    v2: tc.Tensor["b h t:Nk e:D"],
):
    """softmax(q [k k2]^T / sqrt(d)) [v v2]: each part weighted by its share of the sum."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s2 = tc.dot(q, k2, over="d") * tc.rsqrt(tc.extent("d"))
    o = tc.dot(tc.softmax(s, over="j"), v, over="j")
    o2 = tc.dot(tc.softmax(s2, over="t"), v2, over="t")
    share = tc.sigmoid(tc.logsumexp(s, over="j") - tc.logsumexp(s2, over="t"))
    return share * o + (1 - share) * o2

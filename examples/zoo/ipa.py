"""Invariant point attention (AlphaFold 2): scores and values are vectors and points in space."""

import tilecc as tc


@tc.spec
def ipa(
    q: tc.Tensor["h i:N d"],
    k: tc.Tensor["h j:N d"],
    v: tc.Tensor["h j:N e:D"],
    tq: tc.Tensor["h i:N p:4 x:3"],
    tk: tc.Tensor["h j:N p:4 x:3"],
    tv: tc.Tensor["h j:N u:8 x:3"],
    pair: tc.Tensor["h i:N j:N"],
    gamma: tc.Tensor["h", "float32"],
):
    """P = softmax(q k^T / sqrt(d) - gamma_h sum |tq - tk|^2 + pair); P v and P tv."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = s - gamma * tc.sum((tq - tk) ** 2, over="p x") + pair
    p = tc.softmax(s, over="j")
    return tc.dot(p, v, over="j"), tc.dot(p, tv, over="j")

"""Attention (Vaswani et al. 2017): softmax(q k^T / sqrt(d)) v."""

import tilecc as tc


@tc.spec
def attention(q: tc.Tensor["b h i:N d"], k: tc.Tensor["b h j:N d"], v: tc.Tensor["b h j:N e:D"]):
    """softmax(q k^T / sqrt(d)) v."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

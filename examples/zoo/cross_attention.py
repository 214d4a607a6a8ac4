"""Cross attention (encoder-decoder): queries and keys are of different sequences."""

import tilecc as tc


@tc.spec
def cross_attention(
    q: tc.Tensor["b h i:Nq d"],
    k: tc.Tensor["b h j:Nk d"],
    v: tc.Tensor["b h j:Nk e:D"],
):
    """softmax(q k^T / sqrt(d)) v over Nk keys for Nq queries."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

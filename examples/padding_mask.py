"""Attention over padded sequences: keys whose mask is 0 are not there."""

import tilecc as tc


@tc.spec
def padding_mask(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    mask: tc.Tensor["b j:N", "int32"],
):
    """softmax(q k^T / sqrt(d) where mask_j != 0) v."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(mask != 0, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

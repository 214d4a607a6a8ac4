"""An arbitrary mask for each pair."""

import tilecc as tc


@tc.spec
def boolean_mask(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    mask: tc.Tensor["b i:N j:N", "bool"],
):
    """softmax(q k^T / sqrt(d) where mask[i, j]) v."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(mask, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

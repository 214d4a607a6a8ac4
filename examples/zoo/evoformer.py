"""Evoformer's row attention (AlphaFold 2): a bias for each pair of residues, and a mask."""

import tilecc as tc


@tc.spec
def evoformer(
    q: tc.Tensor["s h i:N d"],
    k: tc.Tensor["s h j:N d"],
    v: tc.Tensor["s h j:N e:D"],
    pair: tc.Tensor["h i:N j:N"],
    mask: tc.Tensor["s j:N", "int32"],
):
    """softmax(q k^T / sqrt(d) + pair[h, i, j] where mask_j) v, for each of S sequences."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d")) + pair
    s = tc.where(mask != 0, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

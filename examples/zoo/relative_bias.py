"""Learned bias by clipped distance (Shaw et al. 2018; Swin): a table of 2 R + 1 entries a head."""

import tilecc as tc


@tc.spec
def relative_bias(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    bias: tc.Tensor["h r", "float32"],
):
    """softmax(q k^T / sqrt(d) + bias[h, clip(i - j, -R, R) + R]) v, with an odd extent of r."""
    most = (tc.extent("r") - 1) // 2
    distance = tc.maximum(tc.minimum(tc.index("i") - tc.index("j"), most), -most)
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d")) + bias.at(r=distance + most)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

"""Rotary positions (Su et al. 2021) in the half layout (Llama): d pairs with d + D/2."""

import math

import tilecc as tc


def rotated(x, axis):
    """`x` turned in the planes (d, d + D/2) by its position times 10000^(-2d/D)."""
    half = tc.extent("d") // 2
    d = tc.index("d")
    angle = tc.index(axis) * tc.exp2((d % half) * (-2 * math.log2(1e4)) / tc.extent("d"))
    other = x.at(d=(d + half) % tc.extent("d"))
    return x * tc.cos(angle) + tc.where(d < half, -other, other) * tc.sin(angle)


@tc.spec
def rope_half(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
):
    """softmax((R_i q).(R_j k) / sqrt(d) where j <= i) v."""
    s = tc.dot(rotated(q, "i"), rotated(k, "j"), over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

"""Rotary positions (Su et al. 2021) interleaved (GPT-J): 2m pairs with 2m + 1."""

import math

import tilecc as tc


def rotated(x, axis):
    """`x` turned in the planes (2m, 2m + 1) by its position times 10000^(-2m/D)."""
    d = tc.index("d")
    angle = tc.index(axis) * tc.exp2((d // 2) * (-2 * math.log2(1e4)) / tc.extent("d"))
    other = x.at(d=d + 1 - 2 * (d % 2))
    return x * tc.cos(angle) + tc.where(d % 2 == 0, -other, other) * tc.sin(angle)


@tc.spec
def rope_interleaved(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
):
    """softmax((R_i q).(R_j k) / sqrt(d) where j <= i) v."""
    s = tc.dot(rotated(q, "i"), rotated(k, "j"), over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

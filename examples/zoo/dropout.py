"""Dropout on the weights of attention: each pair is kept with probability 3/4, by a seed."""

import tilecc as tc

KEEP = 0.75


@tc.spec
def dropout(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:M d"],
    v: tc.Tensor["b h j:M e:D"],
    seed: tc.Scalar("int64"),
):
    """softmax(q k^T / sqrt(d)) where bits for (b, h, i, j) are below 3/4 of 2^32, over 3/4."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    p = tc.softmax(s, over="j")
    kept = tc.random_bits(seed, over="b h i j") < int(KEEP * 2**32)
    return tc.dot(tc.where(kept, p, 0.0), v, over="j") * (1.0 / KEEP)

"""ReLU attention (Wortsman et al. 2023): max(s, 0) divided by the number of keys."""

import tilecc as tc


@tc.spec
def relu(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
):
    """max(q k^T / sqrt(d), 0) v / N."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.maximum(s, 0.0), v, over="j") / tc.extent("j")

"""Sigmoid attention (Ramapuram et al. 2024): every weight by itself, with no normaliser."""

import tilecc as tc


@tc.spec
def sigmoid(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    bias: tc.Scalar("float32"),
):
    """sigmoid(q k^T / sqrt(d) + bias) v."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.sigmoid(s + bias), v, over="j")

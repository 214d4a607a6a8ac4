"""Triangle attention around the starting node (AlphaFold 2), gated."""

import tilecc as tc


@tc.spec
def triangle(
    q: tc.Tensor["n:N h i:N d"],
    k: tc.Tensor["n:N h j:N d"],
    v: tc.Tensor["n:N h j:N e:D"],
    pair: tc.Tensor["h i:N j:N"],
    gate: tc.Tensor["n:N h i:N e:D"],
):
    """sigmoid(gate) * softmax(q k^T / sqrt(d) + pair[h, i, j]) v, for each row n of the pairs."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d")) + pair
    return tc.sigmoid(gate) * tc.dot(tc.softmax(s, over="j"), v, over="j")

"""Causal linear attention (Performer), in the quadratic form that streams over keys."""

import tilecc as tc


@tc.spec
def linear_causal(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
):
    """phi(q).phi(k) where j <= i, times v, divided by its sum; phi(x) = elu(x) + 1."""

    def phi(x):
        return tc.where(x > 0, x + 1, tc.exp(tc.minimum(x, 0)))

    s = tc.where(tc.index("j") <= tc.index("i"), tc.dot(phi(q), phi(k), over="d"), 0.0)
    return tc.dot(s, v, over="j") / tc.sum(s, over="j")

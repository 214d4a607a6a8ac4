"""ALiBi (Press et al. 2022): causal attention with a penalty that grows with the distance."""

import tilecc as tc


@tc.spec
def alibi(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    slope: tc.Tensor["h", "float32"],
):
    """softmax(q k^T / sqrt(d) + slope_h (j - i) where j <= i) v."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = s + slope * (tc.index("j") - tc.index("i"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

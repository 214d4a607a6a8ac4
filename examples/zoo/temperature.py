"""Cosine attention with a temperature for each head (ViT-22B, Swin v2)."""

import tilecc as tc


@tc.spec
def temperature(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    tau: tc.Tensor["h", "float32"],
):
    """softmax(tau_h (q / |q|).(k / |k|)) v."""

    def unit(x):
        return x * tc.rsqrt(tc.sum(x * x, over="d") + 1e-12)

    s = tc.dot(unit(q), unit(k), over="d") * tau
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

"""Talking-heads attention (Shazeer et al. 2020): scores are mixed across heads before softmax."""

import tilecc as tc


@tc.spec
def talking_heads(
    q: tc.Tensor["b g i:N d"],
    k: tc.Tensor["b g j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    mix: tc.Tensor["g h"],
) -> tc.Tensor["b h i e"]:
    """softmax(sum_g mix[g, h] q_g k_g^T / sqrt(d)) v_h."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.dot(tc.cast(s, "float32"), mix, over="g")
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

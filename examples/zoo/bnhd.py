"""Heads behind positions in memory (b n h d), as linear layers leave them; no transposition."""

import tilecc as tc


@tc.spec
def bnhd(
    q: tc.Tensor["b i:N h d"],
    k: tc.Tensor["b j:N h d"],
    v: tc.Tensor["b j:N h e:D"],
) -> tc.Tensor["b i h e"]:
    """softmax(q k^T / sqrt(d) where j <= i) v, in and out as b n h d."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

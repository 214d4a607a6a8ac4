"""Tree attention (speculative decoding): a draft token sees the context and its ancestors."""

import tilecc as tc


@tc.spec
def tree(
    q: tc.Tensor["b h i:T d"],
    k: tc.Tensor["b h j:Nk d"],
    v: tc.Tensor["b h j:Nk e:D"],
    anc: tc.Tensor["b i:T t:T", "int8"],
):
    """softmax(q k^T / sqrt(d) where j < Nk - T or anc[i, j - (Nk - T)]) v; T draft tokens last."""
    past = tc.extent("j") - tc.extent("i")
    draft = anc.at(t=tc.maximum(tc.index("j") - past, 0)) != 0
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where((tc.index("j") < past) | draft, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

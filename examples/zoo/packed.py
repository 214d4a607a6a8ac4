"""Sequences of different lengths packed end to end, told apart by cumulative offsets."""

import tilecc as tc


@tc.spec
def packed(
    q: tc.Tensor["i:Tq h d"],
    k: tc.Tensor["j:Tk h d"],
    v: tc.Tensor["j:Tk h e:D"],
    cu_q: tc.Tensor["s", "int32"],
    cu_k: tc.Tensor["s", "int32"],
    seq: tc.Tensor["i:Tq", "int32"],
) -> tc.Tensor["i h e"]:
    """Causal attention in sequence seq_i, from query cu_q[seq_i] and key cu_k[seq_i] on."""
    i = tc.index("i") - cu_q.at(s=seq + 1)  # counted from the ends of the sequences
    j = tc.index("j") - cu_k.at(s=seq + 1)
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where((tc.index("j") >= cu_k.at(s=seq)) & (j <= i), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

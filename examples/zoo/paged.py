"""A paged cache (vLLM): key j of sequence b is in slot j % S of page table[b, j // S]."""

import tilecc as tc


@tc.spec
def paged(
    q: tc.Tensor["b h i:Nq d"],
    k: tc.Tensor["page:P slot:S g d"],
    v: tc.Tensor["page:P slot:S g e:D"],
    table: tc.Tensor["b n", "int32"],
    length: tc.Tensor["b", "int32"],
):
    """softmax(q k^T / sqrt(d) where j <= i + length_b - Nq) v, with keys and values in pages."""
    size = tc.extent("slot")
    j = tc.axis("j", tc.extent("n") * size)
    place = {
        "page": table.at(n=j // size),
        "slot": j % size,
        "g": tc.index("h") // (tc.extent("h") // tc.extent("g")),
    }
    s = tc.dot(q, k.at(**place), over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(j <= tc.index("i") + (length - tc.extent("i")), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v.at(**place), over="j")

"""A cache with a length for each sequence, to which Nq tokens have just been appended."""

import tilecc as tc


@tc.spec
def cache(
    q: tc.Tensor["b h i:Nq d"],
    k: tc.Tensor["b h j:Nk d"],
    v: tc.Tensor["b h j:Nk e:D"],
    length: tc.Tensor["b", "int32"],
):
    """softmax(q k^T / sqrt(d) where j <= i + length_b - Nq) v; the cache has room for Nk keys."""
    past = length - tc.extent("i")
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i") + past, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

"""Documents packed into one sequence (pretraining), by an id for each position."""

import tilecc as tc


@tc.spec
def documents(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    row: tc.Tensor["b i:N", "int32"],
    doc: tc.Tensor["b j:N", "int32"],
):
    """softmax(q k^T / sqrt(d) where row_i = doc_j and j <= i) v; both are the sequence's ids."""
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where((row == doc) & (tc.index("j") <= tc.index("i")), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

"""Longformer's window and global tokens, which see all and are seen by all."""

import tilecc as tc


@tc.spec
def global_window(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    w: tc.Scalar("int64"),
    row: tc.Tensor["b i:N", "int32"],
    col: tc.Tensor["b j:N", "int32"],
):
    """softmax(q k^T / sqrt(d) where |i - j| <= w or row_i or col_j) v; both flag global tokens."""
    near = tc.abs(tc.index("i") - tc.index("j")) <= w
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(near | (row != 0) | (col != 0), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

"""Neighbourhood attention (Hassani et al. 2023): a box of (2 r + 1)^2 pixels, kept in the image."""

import tilecc as tc


@tc.spec
def natten(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    width: tc.Scalar("int64"),
    r: tc.Scalar("int64"),
):
    """softmax(q k^T / sqrt(d) where pixel j is in pixel i's box) v, for an image `width` wide."""
    y, x = tc.index("i") // width, tc.index("i") % width
    height = tc.extent("i") // width
    top = tc.maximum(tc.minimum(y, height - 1 - r), r)  # of the box's centre: it is moved inside
    left = tc.maximum(tc.minimum(x, width - 1 - r), r)
    dy, dx = tc.index("j") // width - top, tc.index("j") % width - left
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where((tc.abs(dy) <= r) & (tc.abs(dx) <= r), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

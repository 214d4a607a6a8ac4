"""Block diffusion (Arriola et al. 2025): noisy tokens, then clean ones, in blocks of `size`."""

import tilecc as tc


@tc.spec
def block_diffusion(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    size: tc.Scalar("int64"),
):
    """softmax(q k^T / sqrt(d) where the rules allow it) v: N / 2 noisy tokens, then N / 2 clean."""
    half = tc.extent("i") // 2
    i, j = tc.index("i"), tc.index("j")
    row, col = i % half // size, j % half // size  # blocks
    same = ((i < half) & (j < half)) | ((i >= half) & (j >= half))  # both noisy, or both clean
    own = (row == col) & same
    past = (j >= half) & (col < row)  # clean tokens of earlier blocks
    s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(own | past, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

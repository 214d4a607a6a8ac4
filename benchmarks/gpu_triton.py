"""Attention in one pass over the keys, in Triton: a peer of the kernels that tilecc generates."""

import triton
import triton.language as tl


@triton.jit
def attention(
    q, k, v, o, qh, qn, kh, kn, vh, vn, oh, on, n, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One block of ROWS queries of a head; `scale` includes log2(e); strides are in elements."""
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = tile * ROWS + tl.arange(0, ROWS)
    e, keys = tl.arange(0, D), tl.arange(0, KEYS)
    row = tl.load(q + head * qh + i[:, None] * qn + e[None, :], mask=i[:, None] < n, other=0.0)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    last = tl.minimum((tile + 1) * ROWS, n) if CAUSAL else n
    for start in range(0, last, KEYS):
        j = start + keys
        there = j < n
        kt = tl.load(k + head * kh + j[None, :] * kn + e[:, None], mask=there[None, :], other=0.0)
        s = tl.dot(row, kt) * scale
        seen = there[None, :]
        if CAUSAL:
            seen = seen & (j[None, :] <= i[:, None])
        s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        fix = tl.exp2(m - new)
        total = total * fix + tl.sum(p, 1)
        vt = tl.load(v + head * vh + j[:, None] * vn + e[None, :], mask=there[:, None], other=0.0)
        acc = tl.dot(p.to(vt.dtype), vt, acc * fix[:, None])
        m = new
    out = acc / total[:, None]
    tl.store(
        o + head * oh + i[:, None] * on + e[None, :],
        out.to(o.dtype.element_ty),
        mask=i[:, None] < n,
    )

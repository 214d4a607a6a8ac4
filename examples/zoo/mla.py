"""Multi-head latent attention (DeepSeek), absorbed: a latent of 512 is all heads' key and value."""

import tilecc as tc


@tc.spec
def mla(
    q: tc.Tensor["b h i:Nq c"],
    q_rope: tc.Tensor["b h i:Nq r"],
    latent: tc.Tensor["b j:Nk c"],
    k_rope: tc.Tensor["b j:Nk r"],
    scale: tc.Scalar("float32"),
):
    """softmax(scale (q.latent over 512 + q_rope.k_rope over 64) where j <= i + Nk - Nq) latent."""
    s = (tc.dot(q, latent, over="c") + tc.dot(q_rope, k_rope, over="r")) * scale
    past = tc.extent("j") - tc.extent("i")
    s = tc.where(tc.index("j") <= tc.index("i") + past, s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), latent, over="j")

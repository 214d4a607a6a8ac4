"""QK-norm (Qwen3): queries and keys scaled to a root mean square of 1, then by learned gains."""

import tilecc as tc


@tc.spec
def qk_norm(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    gq: tc.Tensor["d"],
    gk: tc.Tensor["d"],
):
    """softmax(norm(q) gq . norm(k) gk / sqrt(d) where j <= i) v."""

    def norm(x):
        return x * tc.rsqrt(tc.sum(x * x, over="d") / tc.extent("d") + 1e-6)

    s = tc.dot(norm(q) * gq, norm(k) * gk, over="d") * tc.rsqrt(tc.extent("d"))
    s = tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

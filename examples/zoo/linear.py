"""Linear attention, normalised (Katharopoulos et al. 2020): phi(x) = elu(x) + 1."""

import tilecc as tc


@tc.spec
def linear(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
):
    """phi(q) (sum_j phi(k) v) / (phi(q) . sum_j phi(k))."""

    def phi(x):
        return tc.where(x > 0, x + 1, tc.exp(tc.minimum(x, 0)))

    kv = tc.dot(phi(k), v, over="j")
    total = tc.dot(phi(q), tc.sum(phi(k), over="j"), over="d")
    return tc.dot(phi(q), kv, over="d") / total

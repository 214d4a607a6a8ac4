"""Not attention: log sum_j exp(x_i . w_j), the normaliser of a classifier with many classes."""

import tilecc as tc


@tc.spec
def logsumexp_of_product(x: tc.Tensor["i:N d"], w: tc.Tensor["j:V d"]):
    """log sum_j exp(x w^T)."""
    return tc.logsumexp(tc.dot(x, w, over="d"), over="j")

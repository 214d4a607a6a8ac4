"""Not attention: a linear map of rows that are scaled to a mean square of 1 (RMSNorm, then W)."""

import tilecc as tc


@tc.spec
def normalised_linear(x: tc.Tensor["i:N d"], w: tc.Tensor["e d"]):
    """(x / sqrt(mean_d(x^2) + 1e-6)) w^T."""
    scale = tc.rsqrt(tc.sum(x * x, over="d") / tc.extent("d") + 1e-6)
    return tc.dot(x, w, over="d") * scale

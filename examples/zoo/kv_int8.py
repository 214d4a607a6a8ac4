"""Keys and values stored as int8 with a scale for each, dequantised on load."""

import tilecc as tc


@tc.spec
def kv_int8(
    q: tc.Tensor["b h i:Nq d"],
    k: tc.Tensor["b h j:Nk d", "int8"],
    v: tc.Tensor["b h j:Nk e:D", "int8"],
    k_scale: tc.Tensor["b h j:Nk", "float32"],
    v_scale: tc.Tensor["b h j:Nk", "float32"],
):
    """softmax(q (k_scale_j k)^T / sqrt(d)) (v_scale_j v)."""
    s = tc.dot(q, k * k_scale, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v * v_scale, over="j")

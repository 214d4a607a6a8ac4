"""Keys and values stored as fp8 (e4m3) with a scale for each head, dequantised on load."""

import tilecc as tc


@tc.spec
def kv_fp8(
    q: tc.Tensor["b h i:Nq d"],
    k: tc.Tensor["b h j:Nk d", "float8_e4m3fn"],
    v: tc.Tensor["b h j:Nk e:D", "float8_e4m3fn"],
    k_scale: tc.Tensor["h", "float32"],
    v_scale: tc.Tensor["h", "float32"],
):
    """softmax(q (k_scale_h k)^T / sqrt(d)) (v_scale_h v)."""
    s = tc.dot(q, k * k_scale, over="d") * tc.rsqrt(tc.extent("d"))
    return tc.dot(tc.softmax(s, over="j"), v * v_scale, over="j")

"""T5's relative bias (Raffel et al. 2020), bidirectional; the bucket of a distance is computed."""

import tilecc as tc


@tc.spec
def t5_bias(
    q: tc.Tensor["b h i:N d"],
    k: tc.Tensor["b h j:N d"],
    v: tc.Tensor["b h j:N e:D"],
    bias: tc.Tensor["h r", "float32"],
):
    """softmax(q k^T + bias[h, bucket(j - i)]) v, in buckets that grow up to a distance of 128."""
    half = tc.extent("r") // 2  # as many buckets before the query as after it
    exact = half // 2  # distances below have a bucket each
    distance = tc.abs(tc.index("j") - tc.index("i"))
    steps = tc.log(tc.maximum(distance, 1) / exact) / tc.log(128 / exact) * (half - exact)
    far = tc.minimum(exact + tc.cast(steps, "int64"), half - 1)
    bucket = tc.where(distance < exact, distance, far)
    bucket = bucket + tc.where(tc.index("j") > tc.index("i"), half, 0)
    s = tc.dot(q, k, over="d") + bias.at(r=bucket)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")

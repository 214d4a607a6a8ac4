"""What lies behind padding may be memory that nobody wrote: NaN there reaches no output."""

import ml_dtypes
import numpy as np
import pytest

import tilecc as tc
from tilecc.ir.interp import interpret
from tilecc.ir.printer import print_ir
from tilecc.pipeline import PassManager

LENGTHS = [1, 63, 64, 65, 130]
B, H, D = 2, 2, 16
BITS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}

Q = tc.Tensor["b h i:N d:16"]
K = tc.Tensor["b h j:M d:16"]
V = tc.Tensor["b h j:M e:16"]


def attend(q, k, v, live):
    s = tc.where(live, tc.dot(q, k, over="d"), -tc.inf)
    return tc.dot(tc.softmax(s, over="j"), v, over="j")


@tc.spec
def by_mask(q: Q, k: K, v: V, mask: tc.Tensor["b j:M", "int32"]):
    return attend(q, k, v, mask != 0)


@tc.spec
def by_flag(q: Q, k: K, v: V, mask: tc.Tensor["b j:M", "bool"]):
    return attend(q, k, v, mask)


@tc.spec
def by_scalar(q: Q, k: K, v: V, n: tc.Scalar("int64")):
    return attend(q, k, v, tc.index("j") < n)


@tc.spec
def by_length(q: Q, k: K, v: V, lengths: tc.Tensor["b", "int32"]):
    return attend(q, k, v, tc.index("j") < lengths)


@tc.spec
def by_length_and_causal(q: Q, k: K, v: V, lengths: tc.Tensor["b", "int32"]):
    """Aligned at the ends, as in decoding with a cache."""
    live = tc.index("j") <= tc.index("i") + (tc.extent("j") - tc.extent("i"))
    return attend(q, k, v, (tc.index("j") < lengths) & live)


@tc.spec
def sigmoid_by_mask(q: Q, k: K, v: V, mask: tc.Tensor["b j:M", "int32"]):
    """No softmax: the weights themselves are masked."""
    p = tc.where(mask != 0, tc.sigmoid(tc.dot(q, k, over="d")), 0.0)
    return tc.dot(p, v, over="j")


SPECS = [by_mask, by_flag, by_scalar, by_length, by_length_and_causal, sigmoid_by_mask]
KERNELS = {}


def case(spec, length, size, dtype="float32", poison=np.nan, n=3):
    """Inputs of which the last `size - length` positions of K and V are clean, and poisoned."""
    rng = np.random.default_rng(length)
    short = max(1, length // 2)
    lengths = np.array([length, short])[:B]
    if spec is by_scalar:
        lengths[:] = length
    dead = np.arange(size) >= lengths[:, None]
    as_type = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    q = rng.standard_normal((B, H, n, D)).astype(as_type)
    k, v = (rng.standard_normal((B, H, size, D)).astype(as_type) for _ in range(2))
    last = {
        by_scalar: length,
        by_length: lengths.astype("i4"),
        by_length_and_causal: lengths.astype("i4"),
        by_flag: ~dead,
    }.get(spec, (~dead).astype("i4"))
    bad_k, bad_v = k.copy(), v.copy()
    for x in (bad_k, bad_v):
        x[np.broadcast_to(dead[:, None, :, None], x.shape)] = poison
    return [q, k, v, last], [q, bad_k, bad_v, last], ~dead


def reference(spec, q, k, v, live):
    """In float64, over the live positions alone."""
    q, k, v = (x.astype("f8") for x in (q, k, v))
    s = np.einsum("bhid,bhjd->bhij", q, k)
    live = np.broadcast_to(live[:, None, None, :], s.shape)
    if spec is by_length_and_causal:
        i, j = np.ogrid[: s.shape[2], : s.shape[3]]
        live = live & (j <= i + s.shape[3] - s.shape[2])
    if spec is sigmoid_by_mask:
        p = np.where(live, 1 / (1 + np.exp(-s)), 0)
    else:
        with np.errstate(all="ignore"):
            e = np.where(live, np.exp(s - np.max(np.where(live, s, -1e30), -1, keepdims=True)), 0)
            total = e.sum(-1, keepdims=True)
        p = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return np.einsum("bhij,bhje->bhie", p, v)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_every_stage_from_mask_tiles_on_reads_zero_behind_padding(spec):
    source = spec.trace("float32")
    run = PassManager("simplify,fuse,online-softmax,mask-tiles,exponents,tile{i=2,j=4}").run(source)
    for name in ("mask-tiles", "tile"):
        func = run.stage(name).func
        for size, length in [(1, 1), (4, 3), (8, 4), (9, 5), (9, 9)]:
            for poison in BITS.values():
                clean, bad, live = case(spec, length, size, poison=poison, n=3 if size > 2 else 1)
                (got,) = interpret(func, bad, exact=True, chunk=4)
                want = reference(spec, *clean[:3], live)
                np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9, err_msg=name)


def test_the_guard_is_written_as_the_user_wrote_the_mask():
    run = PassManager("simplify,fuse,online-softmax,mask-tiles").run(by_mask.trace("float32"))
    assert "map where(%mask != 0, %v, 0.0) : f32[b, h, j, e]" in print_ir(run.func, locs=False)


def kernel(spec, dtype, tile):
    key = spec.name, dtype, tile
    if key not in KERNELS:
        KERNELS[key] = tc.compile(spec, target="cpu", dtype=dtype, tile=tile)
    return KERNELS[key]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("spec", "tile"),
    [*((s, 64) for s in SPECS), (by_mask, None), (by_length, None)],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_compiled_kernels_read_zero_behind_padding(spec, dtype, tile):
    run = kernel(spec, dtype, tile)
    for length in LENGTHS:
        for size in (length, 200):
            n = min(3, size)
            clean, bad, live = case(spec, length, size, dtype, n=n)
            got = np.asarray(run(*bad)).astype("f8")
            want = reference(spec, *clean[:3], live)
            # bf16 rounds the weights and the result.
            tolerance = 2e-2 if dtype == "bfloat16" else 2e-5
            assert np.isfinite(got).all(), (length, size)
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("poison", ["inf", "-inf"])
@pytest.mark.parametrize("spec", [by_mask, by_length], ids=lambda s: s.name)
def test_infinities_behind_padding(spec, poison):
    run = kernel(spec, "float32", 64)
    for length in (1, 65):
        clean, bad, live = case(spec, length, 100, poison=BITS[poison])
        want = reference(spec, *clean[:3], live)
        np.testing.assert_allclose(run(*bad), want, rtol=2e-5, atol=2e-5)


def test_nan_before_the_padding_is_seen():
    """The guard hides what is masked, and nothing else."""
    q, k, v, mask = case(by_mask, 65, 100)[0]
    v[0, 0, 64, 0] = np.nan
    out = np.asarray(kernel(by_mask, "float32", 64)(q, k, v, mask))
    assert np.isnan(out[0, 0, :, 0]).all()
    assert np.isfinite(out[1]).all() and np.isfinite(out[0, 0, :, 1:]).all()

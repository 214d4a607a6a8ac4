"""The zoo in float64 numpy, each row written from its formula and not from its spec.

A reference takes the spec's arguments by name (floats in float64) and returns a tuple of outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from references import Array, lower_triangle, rows_and_columns, scores, softmax

from tilecc.ir.philox import philox

Outputs = tuple[Array, ...]
FORMULAS: dict[str, Callable[..., Outputs]] = {}


def formula(f: Callable[..., Outputs]) -> Callable[..., Outputs]:
    FORMULAS[f.__name__] = f
    return f


def masked(seen: Callable[[Array, Array], Array]) -> Callable[[Array], Array]:
    """Scores with -inf where `seen(i, j)` does not hold, asked pair by pair."""

    def apply(s: Array) -> Array:
        keep = np.zeros(s.shape[-2:], bool)
        for i in range(s.shape[-2]):
            for j in range(s.shape[-1]):
                keep[i, j] = seen(i, j)
        return np.where(keep, s, -np.inf)

    return apply


def attend(s: Array, v: Array) -> Outputs:
    return (softmax(s) @ v,)


# Masks


@formula
def causal(q: Array, k: Array, v: Array) -> Outputs:
    return attend(lower_triangle(scores(q, k)), v)


@formula
def bottom_right(q: Array, k: Array, v: Array) -> Outputs:
    """The last query sees all keys, the one before it one less, and so on."""
    nq, nk = q.shape[-2], k.shape[-2]
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for i in range(nq):
        n = nk - (nq - 1 - i)
        if n > 0:
            out[..., i : i + 1, :] = softmax(scores(q[..., [i], :], k[..., :n, :])) @ v[..., :n, :]
    return (out,)


@formula
def sliding_window(q: Array, k: Array, v: Array, w: int) -> Outputs:
    return attend(masked(lambda i, j: i - w < j <= i)(scores(q, k)), v)


@formula
def prefix_lm(q: Array, k: Array, v: Array, p: int) -> Outputs:
    return attend(masked(lambda i, j: j < p or j <= i)(scores(q, k)), v)


@formula
def dilated(q: Array, k: Array, v: Array, r: int) -> Outputs:
    return attend(masked(lambda i, j: j in range(i, -1, -r))(scores(q, k)), v)


@formula
def documents(q: Array, k: Array, v: Array, row: Array, doc: Array) -> Outputs:
    """Each document by itself."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for b, ids in enumerate(doc):
        for n in set(ids.tolist()):
            at = np.flatnonzero(ids == n)
            out[b][:, at] = causal(q[b][:, at], k[b][:, at], v[b][:, at])[0]
    return (out,)


@formula
def global_window(q: Array, k: Array, v: Array, w: int, row: Array, col: Array) -> Outputs:
    s = scores(q, k)
    for b in range(len(s)):
        s[b] = masked(lambda i, j, b=b: abs(i - j) <= w or row[b, i] or col[b, j])(s[b])
    return attend(s, v)


@formula
def natten(q: Array, k: Array, v: Array, width: int, r: int) -> Outputs:
    """Each pixel with the box of 2 r + 1 pixels that is nearest to it in its image."""
    n = q.shape[-2]
    height = n // width
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for i in range(n):
        y, x = divmod(i, width)
        top = min(max(y - r, 0), max(height - 2 * r - 1, 0))
        left = min(max(x - r, 0), max(width - 2 * r - 1, 0))
        ys, xs = range(top, top + 2 * r + 1), range(left, left + 2 * r + 1)
        at = [a * width + b for a in ys for b in xs]
        out[..., i : i + 1, :] = softmax(scores(q[..., [i], :], k[..., at, :])) @ v[..., at, :]
    return (out,)


@formula
def block_diffusion(q: Array, k: Array, v: Array, size: int) -> Outputs:
    """Of the training mask in figure 3: block diagonal, offset block causal, block causal."""
    n = q.shape[-2] // 2

    def seen(i: int, j: int) -> bool:
        row, col = (i % n) // size, (j % n) // size
        if i < n and j < n:
            return row == col
        if i < n:
            return row > col
        return j >= n and row >= col

    return attend(masked(seen)(scores(q, k)), v)


@formula
def tree(q: Array, k: Array, v: Array, anc: Array) -> Outputs:
    t, past = q.shape[-2], k.shape[-2] - q.shape[-2]
    seen = np.concatenate([np.ones((len(anc), t, past), bool), anc != 0], -1)
    return attend(np.where(seen[:, None], scores(q, k), -np.inf), v)


@formula
def boolean_mask(q: Array, k: Array, v: Array, mask: Array) -> Outputs:
    return attend(np.where(mask[:, None], scores(q, k), -np.inf), v)


# Biases and scores


@formula
def alibi(q: Array, k: Array, v: Array) -> Outputs:
    """Slopes are a geometric sequence that starts at its ratio, 2^(-8 / H)."""
    s = scores(q, k)
    i, j = rows_and_columns(s)
    ratio = 2.0 ** (-8.0 / q.shape[1])
    slope = np.cumprod(np.full(q.shape[1], ratio))
    return attend(lower_triangle(s - slope[:, None, None] * (i - j)), v)


@formula
def relative_bias(q: Array, k: Array, v: Array, bias: Array) -> Outputs:
    s = scores(q, k)
    i, j = rows_and_columns(s)
    most = bias.shape[1] // 2
    return attend(s + bias[:, np.clip(i - j, -most, most) + most], v)


@formula
def t5_bias(q: Array, k: Array, v: Array, bias: Array) -> Outputs:
    """As the reference implementation has it, with max_distance = 128."""
    s = q @ np.swapaxes(k, -1, -2)
    i, j = rows_and_columns(s)
    relative, buckets = j - i, bias.shape[1] // 2
    ret = (relative > 0) * buckets
    n = np.abs(relative)
    exact = buckets // 2
    ratio = np.log(np.maximum(n, 1) / exact) / np.log(128 / exact)
    # A step that is whole in exact arithmetic (n = 8 * 2^k) is so in f32 and f64 only by luck.
    large = np.minimum(exact + np.floor(ratio * (buckets - exact) + 1e-9).astype(int), buckets - 1)
    return attend(s + bias[:, ret + np.where(n < exact, n, large)], v)


@formula
def softcap(q: Array, k: Array, v: Array, cap: float) -> Outputs:
    return attend(lower_triangle(cap * np.tanh(scores(q, k) / cap)), v)


@formula
def talking_heads(q: Array, k: Array, v: Array, mix: Array) -> Outputs:
    return attend(np.einsum("bgij,gh->bhij", scores(q, k), mix), v)


def turned(x: Array, first: Array, second: Array) -> Array:
    """Pairs (x[first_m], x[second_m]) as complex numbers times e^(i pos 10000^(-m / (D/2)))."""
    half = x.shape[-1] // 2
    pace = 1e4 ** (-np.arange(half) / max(half, 1))
    turn = np.exp(1j * np.arange(x.shape[-2])[:, None] * pace)
    z = (x[..., first] + 1j * x[..., second]) * turn
    out = np.zeros_like(x)
    out[..., first], out[..., second] = z.real, z.imag
    return out


@formula
def rope_half(q: Array, k: Array, v: Array) -> Outputs:
    half = np.arange(q.shape[-1] // 2)
    return causal(*(turned(x, half, half + len(half)) for x in (q, k)), v)


@formula
def rope_interleaved(q: Array, k: Array, v: Array) -> Outputs:
    even = np.arange(q.shape[-1] // 2) * 2
    return causal(*(turned(x, even, even + 1) for x in (q, k)), v)


@formula
def qk_norm(q: Array, k: Array, v: Array, gq: Array, gk: Array) -> Outputs:
    q, k = (x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) for x in (q, k))
    return causal(q * gq, k * gk, v)


@formula
def temperature(q: Array, k: Array, v: Array, tau: Array) -> Outputs:
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-12) for x in (q, k))
    return attend(tau[:, None, None] * (q @ np.swapaxes(k, -1, -2)), v)


# Heads


@formula
def gqa(q: Array, k: Array, v: Array) -> Outputs:
    group = q.shape[1] // k.shape[1]
    return causal(q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1))


@formula
def mqa(q: Array, k: Array, v: Array) -> Outputs:
    return causal(q, k[:, None], v[:, None])


@formula
def cross_attention(q: Array, k: Array, v: Array) -> Outputs:
    return attend(scores(q, k), v)


@formula
def mla(q: Array, q_rope: Array, latent: Array, k_rope: Array, scale: float) -> Outputs:
    """Attention with keys [latent, k_rope] of 576 for all heads, and the latent as values."""
    q, k = np.concatenate([q, q_rope], -1), np.concatenate([latent, k_rope], -1)
    width = np.sqrt(q.shape[-1])
    return bottom_right(q * scale * width, k[:, None], latent[:, None])


# Other normalisers


@formula
def sink(q: Array, k: Array, v: Array, logit: Array) -> Outputs:
    s = lower_triangle(scores(q, k))
    column = np.broadcast_to(logit[:, None, None], (*s.shape[:-1], 1))
    return (softmax(np.concatenate([s, column], -1))[..., :-1] @ v,)


@formula
def softmax_one(q: Array, k: Array, v: Array) -> Outputs:
    e = np.exp(scores(q, k))
    return (e / (1 + e.sum(-1, keepdims=True)) @ v,)


@formula
def sigmoid(q: Array, k: Array, v: Array, bias: float) -> Outputs:
    return (1 / (1 + np.exp(-scores(q, k) - bias)) @ v,)


@formula
def relu(q: Array, k: Array, v: Array) -> Outputs:
    s = scores(q, k)
    return (np.where(s > 0, s, 0.0) @ v / k.shape[-2],)


@formula
def differential(q: Array, k: Array, q2: Array, k2: Array, v: Array, lam: Array) -> Outputs:
    return (causal(q, k, v)[0] - lam[:, None, None] * causal(q2, k2, v)[0],)


def phi(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1


@formula
def linear(q: Array, k: Array, v: Array) -> Outputs:
    w = phi(q) @ np.swapaxes(phi(k), -1, -2)
    return (w @ v / w.sum(-1, keepdims=True),)


@formula
def linear_causal(q: Array, k: Array, v: Array) -> Outputs:
    w = np.tril(phi(q) @ np.swapaxes(phi(k), -1, -2))
    return (w @ v / w.sum(-1, keepdims=True),)


@formula
def retention(q: Array, k: Array, v: Array) -> Outputs:
    """D_ij = gamma^(i - j) below the diagonal, equation 5 and the normalisation after it."""
    s = scores(q, k)
    i, j = rows_and_columns(s)
    gamma = 1 - 2.0 ** (-5 - np.arange(q.shape[1]))
    s = np.tril(s * gamma[:, None, None] ** np.abs(i - j))
    return (s / np.maximum(np.abs(s.sum(-1, keepdims=True)), 1) @ v,)


# Structures


@formula
def evoformer(q: Array, k: Array, v: Array, pair: Array, mask: Array) -> Outputs:
    s = np.where(mask[:, None, None] != 0, scores(q, k) + pair, -np.inf)
    return attend(s, v)


@formula
def triangle(q: Array, k: Array, v: Array, pair: Array, gate: Array) -> Outputs:
    return (attend(scores(q, k) + pair, v)[0] / (1 + np.exp(-gate)),)


@formula
def ipa(
    q: Array, k: Array, v: Array, tq: Array, tk: Array, tv: Array, pair: Array, gamma: Array
) -> Outputs:
    s = scores(q, k) + pair
    for h, i, j in np.ndindex(s.shape):
        s[h, i, j] -= gamma[h] * ((tq[h, i] - tk[h, j]) ** 2).sum()
    p = softmax(s)
    return p @ v, np.einsum("hij,hjux->hiux", p, tv)


# Memory


@formula
def packed(q: Array, k: Array, v: Array, cu_q: Array, cu_k: Array, seq: Array) -> Outputs:
    """Each sequence by itself."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for n in range(len(cu_q) - 1):
        rows, columns = slice(*cu_q[n : n + 2]), slice(*cu_k[n : n + 2])
        part = [x.swapaxes(0, 1) for x in (q[rows], k[columns], v[columns])]
        out[rows] = bottom_right(*part)[0].swapaxes(0, 1)
    return (out,)


@formula
def paged(q: Array, k: Array, v: Array, table: Array, length: Array) -> Outputs:
    """Each sequence's keys collected from its pages."""
    k, v = (x[table].reshape(len(table), -1, *x.shape[2:]).swapaxes(1, 2) for x in (k, v))
    return cache(q, *(np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v)), length)


@formula
def cache(q: Array, k: Array, v: Array, length: Array) -> Outputs:
    """Each sequence by itself, without what its cache does not hold yet."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for b, n in enumerate(length):
        out[b] = bottom_right(q[b], k[b][:, :n], v[b][:, :n])[0]
    return (out,)


@formula
def kv_int8(q: Array, k: Array, v: Array, k_scale: Array, v_scale: Array) -> Outputs:
    return cross_attention(q, k * k_scale[..., None], v * v_scale[..., None])


@formula
def kv_fp8(q: Array, k: Array, v: Array, k_scale: Array, v_scale: Array) -> Outputs:
    return cross_attention(q, k * k_scale[:, None, None], v * v_scale[:, None, None])


@formula
def bnhd(q: Array, k: Array, v: Array) -> Outputs:
    (o,) = causal(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)))
    return (o.transpose(0, 2, 1, 3),)


@formula
def cascade(q: Array, k: Array, v: Array, k2: Array, v2: Array) -> Outputs:
    """One attention over the keys of both parts."""
    k, v = (np.broadcast_to(x, (len(q), *x.shape)) for x in (k, v))
    return cross_attention(q, np.concatenate([k, k2], -2), np.concatenate([v, v2], -2))


@formula
def dropout(q: Array, k: Array, v: Array, seed: int) -> Outputs:
    """Philox (checked against its authors' vectors in test_random.py) decides on each pair."""
    p = softmax(scores(q, k))
    kept = philox(seed, *np.indices(p.shape)) / 2**32 < 0.75
    return (np.where(kept, p, 0.0) @ v / 0.75,)

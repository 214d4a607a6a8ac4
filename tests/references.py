"""The examples in float64 numpy, each written from its formula and not from its spec.

A reference takes the spec's arguments by name (floats in float64) and returns a tuple of outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def softmax(s: Array) -> Array:
    """Over the last axis; 0 where a row is all -inf."""
    if s.shape[-1] == 0:
        return s
    top = s.max(-1, keepdims=True)
    p = np.where(np.isneginf(s), 0.0, np.exp(s - np.where(np.isneginf(top), 0.0, top)))
    total = p.sum(-1, keepdims=True)
    return p / np.where(total == 0, 1.0, total)


def log_sum_exp(s: Array) -> Array:
    """Over the last axis; -inf where a row is all -inf."""
    top = s.max(-1, initial=-np.inf)
    shift = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        return shift + np.log(np.exp(s - shift[..., None]).sum(-1))


def scores(q: Array, k: Array) -> Array:
    """q k^T / sqrt(d)."""
    return np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1])


def rows_and_columns(s: Array) -> tuple[Array, Array]:
    """i and j for the last two axes."""
    i, j = np.indices(s.shape[-2:])
    return i, j


def lower_triangle(s: Array) -> Array:
    """Scores with -inf above the diagonal."""
    i, j = rows_and_columns(s)
    return np.where(j > i, -np.inf, s)


def attention(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    return (softmax(scores(q, k)) @ v,)


def causal(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    return (softmax(lower_triangle(scores(q, k))) @ v,)


def alibi(q: Array, k: Array, v: Array, slope: Array) -> tuple[Array, ...]:
    s = scores(q, k)
    i, j = rows_and_columns(s)
    return (softmax(lower_triangle(s - slope[:, None, None] * (i - j))) @ v,)


def gqa(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    group = q.shape[1] // k.shape[1]
    return causal(q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1))


def padding_mask(q: Array, k: Array, v: Array, mask: Array) -> tuple[Array, ...]:
    """Each sequence by itself, without its padding."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for b, keep in enumerate(mask != 0):
        out[b] = attention(q[b], k[b][:, keep], v[b][:, keep])[0] if keep.any() else 0.0
    return (out,)


def sigmoid_attention(q: Array, k: Array, v: Array, bias: float) -> tuple[Array, ...]:
    z = scores(q, k) + bias
    small = np.exp(-np.abs(z))
    return (np.where(z >= 0, 1.0, small) / (1.0 + small) @ v,)


def with_column(s: Array, logit: Array | float) -> Array:
    """Scores with one more column."""
    column = np.broadcast_to(np.asarray(logit, dtype=float), s.shape[:-1])
    return np.concatenate([s, column[..., None]], axis=-1)


def sink(q: Array, k: Array, v: Array, logit: Array) -> tuple[Array, ...]:
    s = with_column(lower_triangle(scores(q, k)), logit[:, None])
    return (softmax(s)[..., :-1] @ v,)


def softmax_one(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    """A sink whose logit is 0."""
    return (softmax(with_column(scores(q, k), 0.0))[..., :-1] @ v,)


def sliding_window(q: Array, k: Array, v: Array, w: int) -> tuple[Array, ...]:
    """Row by row over the keys that it sees."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for i in range(q.shape[-2]):
        first = max(i - w + 1, 0)
        if first <= i:
            p = softmax(scores(q[..., i : i + 1, :], k[..., first : i + 1, :]))
            out[..., i, :] = (p @ v[..., first : i + 1, :])[..., 0, :]
    return (out,)


def softcap(q: Array, k: Array, v: Array, cap: float) -> tuple[Array, ...]:
    return (softmax(lower_triangle(cap * np.tanh(scores(q, k) / cap))) @ v,)


def with_lse(q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    s = lower_triangle(scores(q, k))
    return softmax(s) @ v, log_sum_exp(s)


def logsumexp_of_product(x: Array, w: Array) -> tuple[Array, ...]:
    return (log_sum_exp(x @ w.T),)


def normalised_linear(x: Array, w: Array) -> tuple[Array, ...]:
    root = np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return ((x / root) @ w.T,)


REFERENCES: dict[str, Callable[..., tuple[Array, ...]]] = {
    "alibi": alibi,
    "attention": attention,
    "causal": causal,
    "cross_attention": attention,
    "gqa": gqa,
    "logsumexp_of_product": logsumexp_of_product,
    "minilm": padding_mask,
    "normalised_linear": normalised_linear,
    "padding_mask": padding_mask,
    "sigmoid_attention": sigmoid_attention,
    "sink": sink,
    "sliding_window": sliding_window,
    "softcap": softcap,
    "softmax_one": softmax_one,
    "with_lse": with_lse,
}

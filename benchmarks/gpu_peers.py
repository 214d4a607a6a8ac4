"""Attention on a GPU by others. Each takes q, k, v (batch, heads, tokens, d) and gives a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


class Unavailable(Exception):
    """A peer that is not on this machine, or does not do this."""


Call = Callable[[], Any]


def _backend(name: str) -> Callable[[Any, Any, Any, bool], Call]:
    """One of torch's own kernels, and no other in its place."""

    def make(q: Any, k: Any, v: Any, causal: bool) -> Call:
        try:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            backend = getattr(SDPBackend, name)
        except (ImportError, AttributeError) as e:
            raise Unavailable(f"this torch has no {name}") from e

        def call() -> Any:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=causal)

        return call

    return make


def flex(q: Any, k: Any, v: Any, causal: bool) -> Call:
    """torch.nn.attention.flex_attention, compiled, with a block mask."""
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError as e:
        raise Unavailable("this torch has no flex_attention") from e
    compiled = torch.compile(flex_attention)
    mask = None
    if causal:
        n = q.shape[2]
        mask = create_block_mask(lambda b, h, i, j: j <= i, None, None, n, n, device="cuda")
    return lambda: compiled(q, k, v, block_mask=mask)


def triton(q: Any, k: Any, v: Any, causal: bool) -> Call:
    """A one-pass kernel in Triton, written for this comparison."""
    try:
        import triton as library
        from gpu_triton import attention
    except ImportError as e:
        raise Unavailable(f"no Triton: {e}") from e
    b, h, n, d = q.shape
    rows = 128
    grid = (library.cdiv(n, rows), b * h)

    def call() -> Any:
        o = torch.empty_like(q)
        strides = (q.stride(1), q.stride(2), k.stride(1), k.stride(2))
        attention[grid](
            *(q, k, v, o),
            *strides,
            *(v.stride(1), v.stride(2), o.stride(1), o.stride(2)),
            n,
            1.4426950408889634 / d**0.5,
            CAUSAL=causal,
            D=d,
            ROWS=rows,
            KEYS=64,
            num_warps=4 if d == 64 else 8,
            num_stages=2,
        )
        return o

    if b != 1:
        raise Unavailable("it is written for one sequence")
    return call


PEERS: dict[str, Callable[[Any, Any, Any, bool], Call]] = {
    "torch flash": _backend("FLASH_ATTENTION"),
    "torch cuDNN": _backend("CUDNN_ATTENTION"),
    "flex_attention": flex,
    "Triton": triton,
}

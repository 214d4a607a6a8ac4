"""What tilecc is compared with. Each peer takes a case and gives a function, or says why not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torch._dynamo
from cases import Array, Case
from onnx import TensorProto, helper
from torch.nn.attention import flex_attention as flex
from torch.nn.functional import scaled_dot_product_attention
from zoo_cases import ZooCase, one_batch


class Unavailable(Exception):
    """A peer that does not do a case, with the reason; without one it was not meant to."""


@dataclass(frozen=True)
class Peer:
    """A peer that is ready to run; `array` turns its output to numpy's, with heads before rows."""

    name: str
    run: Callable[[], Any]
    array: Callable[[Any], Array]
    setup_seconds: float


def tensor(x: Array) -> torch.Tensor:
    """An array as a torch tensor, on the same memory."""
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def _array(x: torch.Tensor) -> Array:
    return x.detach().float().numpy()


def sdpa(case: Case, q: Array, k: Array, v: Array, threads: int) -> Callable[[], Any]:
    """torch.nn.functional.scaled_dot_product_attention."""
    if case.cap is not None or case.window is not None:
        raise Unavailable("it has no score maps, and a window only as an N x N mask")
    tq, tk, tv = tensor(q), tensor(k), tensor(v)
    grouped = case.heads != case.kv_heads
    return lambda: scaled_dot_product_attention(
        tq, tk, tv, is_causal=case.causal and case.rows > 1, enable_gqa=grouped
    )


def products(case: Case, q: Array, k: Array, v: Array, threads: int) -> Callable[[], Any]:
    """Batched products and a softmax by hand, the rows of a group of heads together."""
    if not case.decode:
        raise Unavailable
    tk, tv = tensor(k), tensor(v)
    tq = tensor(q).reshape(case.batch, case.kv_heads, -1, case.d) * case.d**-0.5
    return lambda: torch.softmax(tq @ tk.transpose(-1, -2), -1) @ tv


def compiled_flex(case: Case, q: Array, k: Array, v: Array, threads: int) -> Callable[[], Any]:
    """torch.nn.attention.flex_attention, compiled; it needs a C++ compiler."""
    tq, tk, tv = tensor(q), tensor(k), tensor(v)
    if case.decode:
        raise Unavailable

    def capped(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return case.cap * torch.tanh(s / case.cap)

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j <= i) & (i - j < case.window) if case.window is not None else j <= i

    block_mask = None
    if case.causal:
        block_mask = flex.create_block_mask(seen, None, None, case.n, case.n, device="cpu")
    score_mod = capped if case.cap is not None else None
    # Each case is compiled afresh: after some recompilations torch would run it uncompiled, which
    # is ten times slower and holds N x N numbers.
    torch._dynamo.reset()
    function = torch.compile(flex.flex_attention, dynamic=False, fullgraph=True)
    return lambda: function(tq, tk, tv, score_mod=score_mod, block_mask=block_mask)


def flex_of(case: ZooCase, known: Mapping[str, Any], threads: int) -> Callable[[], Any]:
    """A row of the zoo in compiled flex_attention, run once; its mask's blocks are made before.

    `known`: its arguments, and what its mask reads beside them.
    """
    torch.set_num_threads(threads)
    a = one_batch(known, tensor)
    q, k, v = (tensor(case.heads_first(known[x])) for x in "qkv")

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        return case.mask(torch, a, h, i, j)

    def scored(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return case.score(torch, a, s, h, i, j)

    block_mask = None
    if case.mask is not None:
        block_mask = flex.create_block_mask(seen, None, None, q.shape[2], k.shape[2], device="cpu")
    torch._dynamo.reset()
    function = torch.compile(flex.flex_attention, dynamic=False, fullgraph=True)
    options = {
        "score_mod": scored if case.score is not None else None,
        "block_mask": block_mask,
        "scale": case.scale,
        "enable_gqa": q.shape[1] != k.shape[1],
    }
    run = torch.inference_mode()(lambda: function(q, k, v, **options))
    run()
    return run


def onnx_attention(case: Case, q: Array, k: Array, v: Array, threads: int) -> Callable[[], Any]:
    """onnxruntime's MultiHeadAttention, on its own layout: rows before heads."""
    if case.dtype != "float32":
        raise Unavailable(f"it has no {case.dtype} on CPUs")
    if case.decode or case.cap is not None or case.window is not None:
        raise Unavailable("it has neither grouped heads nor score maps nor windows")
    session = _session(case, threads)
    hidden = (case.batch, case.n, case.heads * case.d)
    feeds = {
        name: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(hidden)
        for name, x in zip("qkv", (q, k, v), strict=True)
    }
    return lambda: session.run(None, feeds)[0]


def _session(case: Case, threads: int) -> onnxruntime.InferenceSession:
    attributes = {"num_heads": case.heads, "unidirectional": int(case.causal)}
    node = helper.make_node(
        "MultiHeadAttention", list("qkv"), ["o"], domain="com.microsoft", **attributes
    )
    shape = [case.batch, case.n, case.heads * case.d]
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "qkvo"}
    graph = helper.make_graph([node], "attention", [values[n] for n in "qkv"], [values["o"]])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # else its memory stays with it, and cannot be measured
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


torch._dynamo.config.fail_on_recompile_limit_hit = True

PEERS: dict[str, Callable[[Case, Array, Array, Array, int], Callable[[], Any]]] = {
    "torch SDPA": sdpa,
    "torch grouped products": products,
    "onnxruntime MHA": onnx_attention,
    "compiled flex_attention": compiled_flex,
}


def prepare(name: str, case: Case, q: Array, k: Array, v: Array, threads: int) -> Peer:
    """A peer ready to run, called once.

    Raises:
        Unavailable: it does not do this, or not here.
    """
    start = time.perf_counter()
    torch.set_num_threads(threads)
    with torch.inference_mode():
        function = PEERS[name](case, q, k, v, threads)
    run = torch.inference_mode()(function)
    try:
        run()
    except Exception as e:  # a compiler that is missing, a backend that gives up
        first = str(e).strip().splitlines()[0][:160] if str(e).strip() else ""
        raise Unavailable(f"{type(e).__name__}: {first}") from e
    array = _from_rows(case) if name == "onnxruntime MHA" else _array
    return Peer(name, run, array, time.perf_counter() - start)


def _from_rows(case: Case) -> Callable[[Array], Array]:
    def array(x: Array) -> Array:
        return x.reshape(case.batch, case.n, case.heads, case.d).transpose(0, 2, 1, 3)

    return array

"""What people write who come from other array libraries, and what a spec says instead."""

from __future__ import annotations

import difflib
import inspect
import re
from types import ModuleType

_NAMED = "axes have names, so nothing needs to be transposed"
_AT = 'write x.at(axis=expression), for example x.at(n=tc.index("j") // 16)'
_EXTENT = 'write tc.extent("i") for the extent of axis i'
_CAST = 'write tc.cast(x, "float16")'
_MEAN = 'write x.sum(over="j") / tc.extent("j")'
_SELECT = "write tc.where(condition, a, b)"
_DOT = 'write tc.dot(a, b, over="d")'
_BROADCAST = "operands broadcast by axis name, so no axis needs to be added, removed or repeated"
_MASK = 'write the condition: tc.where(tc.index("j") <= tc.index("i"), s, -tc.inf)'
_INDEX = 'write tc.index("j") for the positions along axis j'

# Attributes and functions that arrays have elsewhere.
INSTEAD = {
    "shape": _EXTENT,
    "size": _EXTENT,
    "ndim": "a spec's tensors have the axes of their annotation",
    "T": f"{_NAMED}; a return annotation fixes an order",
    **dict.fromkeys(
        ["mT", "H", "transpose", "permute", "swapaxes", "movedim", "contiguous"], _NAMED
    ),
    **dict.fromkeys(["reshape", "view", "flatten", "gather", "take", "index_select", "roll"], _AT),
    **dict.fromkeys(
        ["unsqueeze", "squeeze", "expand", "repeat", "tile", "broadcast_to"], _BROADCAST
    ),
    **dict.fromkeys(["half", "float", "double", "bfloat16", "to", "type", "int", "long"], _CAST),
    **dict.fromkeys(["mean", "average"], _MEAN),
    **dict.fromkeys(["matmul", "bmm", "mm", "einsum", "tensordot", "inner", "vdot"], _DOT),
    **dict.fromkeys(["masked_fill", "masked_fill_", "select", "if_then_else"], _SELECT),
    **dict.fromkeys(["tril", "triu"], _MASK),
    **dict.fromkeys(["arange", "iota"], _INDEX),
    **dict.fromkeys(["amax", "amin"], 'write x.max(over="j") or x.min(over="j")'),
    **dict.fromkeys(["clip", "clamp"], "write tc.minimum(tc.maximum(x, low), high)"),
    "relu": "write tc.maximum(x, 0)",
    "silu": "write x * tc.sigmoid(x)",
    "erf": "there is no erf; GELU by its tanh form is written with tc.tanh",
    "gelu": "write its tanh form with tc.tanh",
    "square": "write x * x",
    "zeros": "write the number itself: operands broadcast",
    "ones": "write the number itself: operands broadcast",
    "item": "a traced value has no number yet",
    "tolist": "a traced value has no number yet",
}
# Arguments of functions that are called otherwise elsewhere.
_KEYWORDS = {
    **dict.fromkeys(["dim", "axis", "axes", "dims"], 'axes have names: write over="j"'),
    **dict.fromkeys(
        ["keepdim", "keepdims"], "leave it out: operands broadcast by axis name, so no axis is kept"
    ),
    "dtype": 'write tc.cast(x, "float32")',
}


def instead_of(name: str) -> str:
    """What to write for an attribute or function `name` that there is not; "" if nobody knows."""
    from tilecc import dsl  # an import cycle otherwise

    if name in INSTEAD:
        return INSTEAD[name]
    near = difflib.get_close_matches(name, dsl.__all__, n=1, cutoff=0.75)
    return f"did you mean tc.{near[0]}?" if near else ""


def hint_for(e: BaseException) -> str:
    """What to write instead of what raised `e` in a spec; "" if there is nothing to say."""
    from tilecc import dsl  # an import cycle otherwise

    if isinstance(e, RecursionError):
        return "a spec that calls itself has no end; a chain that long is written as a loop"
    if (
        isinstance(e, AttributeError)
        and isinstance(e.obj, ModuleType)
        and e.obj.__name__ == "tilecc"
    ):
        return instead_of(e.name or "")
    if not isinstance(e, TypeError):
        return ""
    called = re.match(r"(\w+)\(\)", str(e))
    if called is None or called[1] not in dsl.__all__:
        return ""
    name = called[1]
    keyword = re.search(r"unexpected keyword argument '(\w+)'", str(e))
    if keyword and keyword[1] in _KEYWORDS:
        return _KEYWORDS[keyword[1]]
    arguments = inspect.signature(getattr(dsl, name)).parameters
    return f"it is called as tc.{name}({', '.join(map(_shown, arguments.values()))})"


def _shown(p: inspect.Parameter) -> str:
    """An argument as it is written in a call."""
    if p.name == "over":
        return 'over="j"'
    stars = "*" * (p.kind is p.VAR_POSITIONAL) + "**" * (p.kind is p.VAR_KEYWORD)
    return f"{stars}{p.name}"

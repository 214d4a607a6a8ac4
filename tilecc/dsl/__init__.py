"""The language that specs are written in: a Python function over tensors with named axes."""

from tilecc.dsl.annotations import Argument, Result, Scalar, Signature
from tilecc.dsl.elementwise import (
    abs,
    cast,
    cos,
    exp,
    exp2,
    floor,
    inf,
    log,
    log2,
    maximum,
    minimum,
    pow,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    tanh,
    where,
)
from tilecc.dsl.indexing import at, axis, extent, index
from tilecc.dsl.load import load_spec
from tilecc.dsl.random import random_bits, random_uniform
from tilecc.dsl.reductions import dot, logsumexp, max, min, prod, softmax, sum
from tilecc.dsl.specification import Spec, spec
from tilecc.dsl.tensor import Tensor

__all__ = [
    "Argument",
    "Result",
    "Scalar",
    "Signature",
    "Spec",
    "Tensor",
    "abs",
    "at",
    "axis",
    "cast",
    "cos",
    "dot",
    "exp",
    "exp2",
    "extent",
    "floor",
    "index",
    "inf",
    "load_spec",
    "log",
    "log2",
    "logsumexp",
    "max",
    "maximum",
    "min",
    "minimum",
    "pow",
    "prod",
    "random_bits",
    "random_uniform",
    "rsqrt",
    "sigmoid",
    "sin",
    "softmax",
    "spec",
    "sqrt",
    "sum",
    "tanh",
    "where",
]

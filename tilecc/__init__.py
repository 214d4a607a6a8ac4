"""tilecc: a tiling compiler for attention, written as a small graph of tensor operations.

    import tilecc as tc

    @tc.spec
    def attention(
        q: tc.Tensor["b h i:N d"], k: tc.Tensor["b h j:N d"], v: tc.Tensor["b h j:N e:D"]
    ):
        s = tc.dot(q, k, over="d") * tc.rsqrt(tc.extent("d"))
        return tc.dot(tc.softmax(s, over="j"), v, over="j")

    kernel = tc.compile(attention, target="cpu", dtype="float32")
    o = kernel(q, k, v)

Everything here is loaded when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tilecc.api import compile as compile
    from tilecc.dsl import Scalar as Scalar
    from tilecc.dsl import Spec as Spec
    from tilecc.dsl import Tensor as Tensor
    from tilecc.dsl import abs as abs
    from tilecc.dsl import at as at
    from tilecc.dsl import axis as axis
    from tilecc.dsl import cast as cast
    from tilecc.dsl import cos as cos
    from tilecc.dsl import dot as dot
    from tilecc.dsl import exp as exp
    from tilecc.dsl import exp2 as exp2
    from tilecc.dsl import extent as extent
    from tilecc.dsl import floor as floor
    from tilecc.dsl import index as index
    from tilecc.dsl import inf as inf
    from tilecc.dsl import log as log
    from tilecc.dsl import log2 as log2
    from tilecc.dsl import logsumexp as logsumexp
    from tilecc.dsl import max as max
    from tilecc.dsl import maximum as maximum
    from tilecc.dsl import min as min
    from tilecc.dsl import minimum as minimum
    from tilecc.dsl import pow as pow
    from tilecc.dsl import prod as prod
    from tilecc.dsl import random_bits as random_bits
    from tilecc.dsl import random_uniform as random_uniform
    from tilecc.dsl import rsqrt as rsqrt
    from tilecc.dsl import sigmoid as sigmoid
    from tilecc.dsl import sin as sin
    from tilecc.dsl import softmax as softmax
    from tilecc.dsl import spec as spec
    from tilecc.dsl import sqrt as sqrt
    from tilecc.dsl import sum as sum
    from tilecc.dsl import tanh as tanh
    from tilecc.dsl import where as where
    from tilecc.emulation.run import emulate as emulate
    from tilecc.errors import ArgumentError as ArgumentError
    from tilecc.errors import CompileError as CompileError
    from tilecc.errors import IRError as IRError
    from tilecc.errors import LoadError as LoadError
    from tilecc.errors import SpecError as SpecError
    from tilecc.errors import TileccError as TileccError
    from tilecc.kernel import Kernel as Kernel
    from tilecc.partial import merge as merge
    from tilecc.pipeline import PipelineError as PipelineError
    from tilecc.saved.load import LoadedKernel as LoadedKernel
    from tilecc.saved.load import load as load
    from tilecc.target import Target as Target
    from tilecc.target import TargetError as TargetError
    from tilecc.tuning.api import tune as tune

# Where each public name comes from.
_MODULES = {
    "tilecc.api": "compile",
    "tilecc.dsl": (
        "Scalar Spec Tensor abs at axis cast cos dot exp exp2 extent floor index inf log log2 "
        "logsumexp max maximum min minimum pow prod random_bits random_uniform rsqrt sigmoid sin "
        "softmax spec sqrt sum tanh where"
    ),
    "tilecc.emulation.run": "emulate",
    "tilecc.errors": "ArgumentError CompileError IRError LoadError SpecError TileccError",
    "tilecc.kernel": "Kernel",
    "tilecc.partial": "merge",
    "tilecc.pipeline": "PipelineError",
    "tilecc.saved.load": "LoadedKernel load",
    "tilecc.target": "Target TargetError",
    "tilecc.tuning.api": "tune",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tilecc' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])

"""A second meaning of the DSL: the names of `tilecc` on labelled numpy arrays, all in float64.

It runs the source of a spec directly, so it shares nothing with the tracer, the IR and interp. With
a `Rounding`, the result of every inexact operation is rounded at random as its type would round it
(Monte Carlo arithmetic): how far outputs then move is how well conditioned the program is, and what
a kernel that computes in that type may be off by.
"""

from __future__ import annotations

import builtins
import math
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "bool": "bool"}
NUMPY = {"f64": "f8", "f32": "f4", "f16": "f2", "bf16": ml_dtypes.bfloat16}
UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
# Elementary functions are good to a few units.
ELEMENTARY_UNITS = 4


@dataclass
class Rounding:
    """Random rounding; without a generator there is none. `only`: to this type, whatever it is."""

    rng: np.random.Generator | None = None
    only: str = ""

    def relative(self, x: np.ndarray, dtype: str, units: float = 1) -> np.ndarray:
        """`x` rounded to `dtype`, up or down by chance."""
        return x if self.rng is None else self.absolute(x, np.abs(x), dtype, units)

    def absolute(self, x: np.ndarray, of: np.ndarray, dtype: str, units: float = 1) -> np.ndarray:
        """`x` off by a unit of the magnitude `of`, as the result of a sum is."""
        if self.rng is None or dtype not in UNIT:
            return x
        dtype = self.only or dtype
        with np.errstate(all="ignore"):
            off = np.where(np.isfinite(of), of, 0) * (UNIT[dtype] * units)
            x = x + off * self.rng.choice([-1.0, 1.0], np.shape(x))
            return np.asarray(x).astype(NUMPY[dtype]).astype("f8")


def kind_of(data: np.ndarray) -> str:
    return {"b": "bool", "i": "int", "f": "float"}[data.dtype.kind]


@dataclass(eq=False)
class Array:
    """Numbers with named axes. `stored`: it is an argument as it came."""

    dsl: Dsl
    names: tuple[str, ...]
    data: np.ndarray
    dtype: str  # f64, f32, f16, bf16, int, bool
    stored: bool = False

    def over(self, names: tuple[str, ...]) -> np.ndarray:
        """The data with axes `names`, of length 1 where it has none."""
        have = [n for n in names if n in self.names]
        data = self.data.transpose([self.names.index(n) for n in have])
        return data.reshape([data.shape[have.index(n)] if n in have else 1 for n in names])

    def at(self, /, **coords: Any) -> Array:
        return self.dsl.at(self, **coords)

    def __invert__(self) -> Array:
        return Array(self.dsl, self.names, ~self.data, "bool")

    def __neg__(self) -> Array:
        return self.dsl.apply("exact", np.negative, self)

    sum = lambda self, over: self.dsl.sum(self, over)  # noqa: E731
    max = lambda self, over: self.dsl.max(self, over)  # noqa: E731
    cast = lambda self, to: self.dsl.cast(self, to)  # noqa: E731


def _operators() -> None:
    table: dict[str, tuple[str, Any]] = {
        "add": ("sum", np.add),
        "sub": ("sum", np.subtract),
        "mul": ("round", np.multiply),
        "truediv": ("float", np.true_divide),
        "floordiv": ("exact", np.floor_divide),
        "mod": ("exact", np.mod),
        "pow": ("float", np.power),
        "and": ("predicate", np.logical_and),
        "or": ("predicate", np.logical_or),
        "xor": ("predicate", np.logical_xor),
        "lt": ("predicate", np.less),
        "le": ("predicate", np.less_equal),
        "gt": ("predicate", np.greater),
        "ge": ("predicate", np.greater_equal),
        "eq": ("predicate", np.equal),
        "ne": ("predicate", np.not_equal),
    }
    for name, (how, fn) in table.items():

        def left(self: Array, other: Any, how: str = how, fn: Any = fn) -> Array:
            return self.dsl.apply(how, fn, self, other)

        def right(self: Array, other: Any, how: str = how, fn: Any = fn) -> Array:
            return self.dsl.apply(how, fn, other, self)

        setattr(Array, f"__{name}__", left)
        setattr(Array, f"__r{name}__", right)


_operators()


class _Annotation:
    def __class_getitem__(cls, item: Any) -> Any:
        axes, dtype = item if isinstance(item, tuple) else (item, None)
        return axes.split(), dtype


@dataclass
class Dsl:
    """What `tc` is in the source of a spec."""

    default: str
    inputs: dict[str, Any]
    rounding: Rounding = field(default_factory=Rounding)
    extents: dict[str, int] = field(default_factory=dict)  # by axis
    empty_rows: bool = False  # whether a reduction met a row of -inf alone
    largest_logit: float = 1.0  # of what maxima are taken of
    function: Any = None

    inf = math.inf
    Tensor = _Annotation

    @staticmethod
    def Scalar(dtype: str) -> Any:
        return [], dtype

    def spec(self, fn: Any) -> Any:
        self.function = fn
        return fn

    def run(self) -> list[Array]:
        """The outputs of the function that was decorated, on the inputs."""
        annotations = dict(self.function.__annotations__)
        returns = annotations.pop("return", None)
        args = [self.argument(name, *a) for name, a in annotations.items()]
        with np.errstate(all="ignore"):
            outputs = self.function(*args)
            outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
            return [self.result(x, returns) for x in outputs]

    def argument(self, name: str, axes: list[str], dtype: str | None) -> Array:
        data = np.asarray(self.inputs[name])
        names = tuple(a.split(":")[0] for a in axes)
        for n, size in zip(names, data.shape, strict=True):
            assert self.extents.setdefault(n, size) == size
        short = SHORT.get(dtype or self.default, "int")
        to = "?" if short == "bool" else "i8" if short == "int" else "f8"
        return Array(self, names, data.astype(to), short, stored=True)

    def result(self, x: Array, returns: Any) -> Array:
        if x.dtype in UNIT:
            data = self.rounding.relative(x.data, SHORT[self.default])
            x = Array(self, x.names, data, x.dtype)
        if returns is not None:
            order = tuple(a.split(":")[0] for a in returns[0])
            x = Array(self, order, x.over(order), x.dtype)
        return x

    # Elementwise.

    def value(self, x: Any) -> Array:
        if isinstance(x, Array):
            return x
        kind = "bool" if isinstance(x, bool) else "int" if isinstance(x, int) else "weak"
        return Array(self, (), np.asarray(x), kind)

    def apply(self, how: str, fn: Any, *args: Any, order: tuple[int, ...] = ()) -> Array:
        arrays = [self.value(a) for a in args]
        ordered = [arrays[k] for k in order] or arrays
        names = tuple(dict.fromkeys(n for a in ordered for n in a.names))
        operands = [a.over(names) for a in arrays]
        if how != "predicate" and fn is not np.where:
            operands = [x.astype("i8") if x.dtype == bool else x for x in operands]
        data = np.asarray(fn(*operands))
        shape = tuple(self.extents[n] for n in names)
        data = np.broadcast_to(data, shape)
        if data.dtype.kind != "f" and how != "float":
            return Array(self, names, data, kind_of(data))
        strong = [a.dtype for a in arrays if a.dtype in UNIT]
        dtype = "f64" if "f64" in strong or (not strong and self.default == "float64") else "f32"
        if how == "sum":
            of = sum(np.abs(np.broadcast_to(x, shape)) for x in operands)
            data = self.rounding.absolute(data, of, dtype)
        elif how in ("round", "float"):
            data = self.rounding.relative(data, dtype, ELEMENTARY_UNITS if how == "float" else 1)
        return Array(self, names, data, dtype)

    def where(self, c: Any, a: Any, b: Any) -> Array:
        return self.apply("exact", np.where, c, a, b, order=(1, 2, 0))

    def cast(self, x: Any, to: str) -> Array:
        x = self.value(x)
        short = SHORT.get(to, "int")
        if short not in UNIT:
            return Array(self, x.names, x.data.astype("?" if short == "bool" else "i8"), short)
        return Array(self, x.names, self.rounding.relative(x.data.astype("f8"), short), short)

    def maximum(self, a: Any, b: Any) -> Array:
        return self.apply("exact", np.maximum, a, b)

    def minimum(self, a: Any, b: Any) -> Array:
        return self.apply("exact", np.minimum, a, b)

    def abs(self, x: Any) -> Array:
        return self.apply("exact", np.abs, x)

    def floor(self, x: Any) -> Array:
        return self.apply("exact", np.floor, x)

    def index(self, axis: str) -> Array:
        return Array(self, (axis,), np.arange(self.extents[axis]), "int")

    def extent(self, axis: str) -> Array:
        return Array(self, (), np.asarray(self.extents[axis]), "int")

    def at(self, x: Array, /, **coords: Any) -> Array:
        places = {n: self.value(c) for n, c in coords.items()}
        names: list[str] = []
        for n in x.names:
            names += [m for m in (places[n].names if n in places else (n,)) if m not in names]
        result = tuple(names)
        index, inside = [], np.asarray(True)
        for n in x.names:
            c = (places[n] if n in places else self.index(n)).over(result)
            size = x.data.shape[x.names.index(n)]
            inside = inside & (c >= 0) & (c < size)
            index.append(np.clip(c, 0, max(size - 1, 0)))
        shape = tuple(self.extents[n] for n in result)
        inside = np.broadcast_to(inside, shape)
        if not x.data.size:
            data = np.zeros(shape, x.data.dtype)
        else:
            picked = np.broadcast_to(x.data[tuple(index)], shape)
            data = np.where(inside, picked, np.zeros((), x.data.dtype))
        return Array(self, result, data, x.dtype, x.stored)

    # Reductions.

    def _split(self, x: Any, over: str) -> tuple[Array, tuple[int, ...], tuple[str, ...]]:
        x = self.value(x)
        if x.dtype == "bool":
            x = Array(self, x.names, x.data.astype("i8"), "int")
        axes = over.split()
        kept = tuple(n for n in x.names if n not in axes)
        return x, tuple(x.names.index(a) for a in axes), kept

    def _accumulator(self, *xs: Array) -> str:
        if all(x.dtype == "int" for x in xs):
            return "int"
        return "f64" if any(x.dtype == "f64" for x in xs) else "f32"

    def sum(self, x: Any, over: str) -> Array:
        x, axes, kept = self._split(x, over)
        data, t = x.data.sum(axes), self._accumulator(x)
        return Array(self, kept, self.rounding.absolute(data, np.abs(x.data).sum(axes), t), t)

    def prod(self, x: Any, over: str) -> Array:
        x, axes, kept = self._split(x, over)
        t, count = self._accumulator(x), math.prod(x.data.shape[a] for a in axes)
        return Array(self, kept, self.rounding.relative(x.data.prod(axes), t, max(count, 1)), t)

    def max(self, x: Any, over: str) -> Array:
        x, axes, kept = self._split(x, over)
        if x.dtype == "int":
            return Array(self, kept, x.data.max(axes, initial=np.iinfo("i8").min), "int")
        data = x.data.max(axes, initial=-np.inf)
        self.note_logits(data, x.data)
        return Array(self, kept, data, self._accumulator(x))

    def min(self, x: Any, over: str) -> Array:
        x, axes, kept = self._split(x, over)
        if x.dtype == "int":
            return Array(self, kept, x.data.min(axes, initial=np.iinfo("i8").max), "int")
        return Array(self, kept, x.data.min(axes, initial=np.inf), self._accumulator(x))

    def note_logits(self, maximum: np.ndarray, x: np.ndarray) -> None:
        self.empty_rows |= bool(x.size and np.any(maximum == -np.inf))
        largest = float(np.max(np.abs(x), where=np.isfinite(x), initial=1.0))
        self.largest_logit = max(self.largest_logit, largest)

    def _exponentials(self, x: Any, over: str) -> tuple[Array, np.ndarray, np.ndarray, Any, Any]:
        """x, its maximum, exp(x - m) and their sum, rounded."""
        x, axes, kept = self._split(x, over)
        t, r = self._accumulator(x), self.rounding
        m = x.data.max(axes, initial=-np.inf, keepdims=True)
        self.note_logits(m, x.data)
        shift = np.where(m == -np.inf, 0.0, m)
        d = r.absolute(x.data - shift, np.abs(x.data) + np.abs(shift), t)
        p = r.relative(np.exp(d), t, ELEMENTARY_UNITS)
        total = r.relative(p.sum(axes, keepdims=True), t)
        return x, m, p, total, (axes, kept, t)

    def softmax(self, x: Any, over: str) -> Array:
        x, _, p, total, (_, _, t) = self._exponentials(x, over)
        quotient = self.rounding.relative(p / total, t)
        return Array(self, x.names, np.where(total == 0, 0.0, quotient), t)

    def logsumexp(self, x: Any, over: str) -> Array:
        _, m, _, total, (axes, kept, t) = self._exponentials(x, over)
        log = np.log(total)
        out = np.where(m == -np.inf, -np.inf, m + log)
        out = self.rounding.absolute(out, np.abs(m) + np.abs(log), t, ELEMENTARY_UNITS)
        return Array(self, kept, out.squeeze(axes), t)

    def dot(self, a: Any, b: Any, over: str) -> Array:
        x, y = (self._split(v, "")[0] for v in (a, b))
        x, y = self._narrowed(x, y), self._narrowed(y, x)
        names = tuple(dict.fromkeys((*x.names, *y.names)))
        axes = over.split()
        kept = tuple(n for n in names if n not in axes)
        reduced = tuple(names.index(a) for a in axes)
        shape = tuple(self.extents[n] for n in names)
        terms = np.broadcast_to(x.over(names) * y.over(names), shape)
        data, t = terms.sum(reduced), self._accumulator(x, y)
        return Array(self, kept, self.rounding.absolute(data, np.abs(terms).sum(reduced), t), t)

    def _narrowed(self, x: Array, other: Array) -> Array:
        """A computed operand is rounded to the other's 16 bits."""
        if x.stored or x.dtype != "f32" or other.dtype not in ("f16", "bf16"):
            return x
        return Array(self, x.names, self.rounding.relative(x.data, other.dtype), other.dtype)


def _elementary() -> None:
    table: dict[str, Any] = {
        "exp": np.exp,
        "exp2": np.exp2,
        "log": np.log,
        "log2": np.log2,
        "sqrt": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "tanh": np.tanh,
        "sigmoid": lambda x: np.where(x < 0, np.exp(x), 1.0) / (1 + np.exp(-np.abs(x))),
        "sin": np.sin,
        "cos": np.cos,
    }
    for name, fn in table.items():

        def method(self: Dsl, x: Any, fn: Any = fn) -> Array:
            return self.apply("float", fn, x)

        setattr(Dsl, name, method)
    Dsl.pow = lambda self, a, b: self.apply("float", np.power, a, b)  # type: ignore[attr-defined]


_elementary()


def evaluate(
    source: str, dtype: str, inputs: dict[str, Any], seed: int | None = None, only: str = ""
) -> tuple[list[Array], Dsl]:
    """The outputs of the spec in `source`; with a seed, rounded at random (to `only`)."""
    rng = None if seed is None else np.random.default_rng(seed)
    dsl = Dsl(dtype, inputs, Rounding(rng, only))
    code = compile(source, "<evaluated>", "exec", dont_inherit=True)
    exec(code, {"tc": dsl, "__builtins__": builtins})
    return dsl.run(), dsl


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """An input in the type that a kernel takes."""
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

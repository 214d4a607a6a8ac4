"""Checking a call's arguments against a signature, and taking the extents from their shapes.

The way of a right call is short; when something is wrong, every argument is looked at and all that
is wrong is reported at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilecc.errors import ArgumentError, Diagnostic
from tilecc.ir.core import Axis, Value
from tilecc.ir.dtypes import DType, dtype
from tilecc.ir.expr import Const, Extent
from tilecc.ir.interp_expr import integer
from tilecc.ir.printer import print_expr
from tilecc.runtime.dlpack import CPU, Array, dlpack_tensor, lend_zeros, numpy_tensor, unit_stride

_LONG = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_REMEMBERED = 256  # shapes whose extents are kept


class Refused(Exception):
    """One thing that is wrong with an argument: a sentence that begins after its name."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


@dataclass
class Held:
    """An argument as a tensor: with its place in memory, and what else it keeps alive."""

    tensor: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    source: Any  # the user's object
    keep: object = None

    def span(self, bytes: int) -> tuple[int, int]:
        """The first address and the one after the last."""
        if 0 in self.shape:
            return 0, 0
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        start: int = self.tensor.data_ptr()
        low = start + bytes * sum(s for s in steps if s < 0)
        return low, start + bytes * (1 + sum(s for s in steps if s > 0))


@dataclass
class Bound:
    """The arguments of one call, in order: tensors, and Python numbers for scalars."""

    values: list[Any]
    held: list[Held | None]
    shapes: tuple[tuple[int, ...], ...]
    extents: dict[str, int] = field(default_factory=dict)


class Binder:
    """What a function takes: its parameters, and the extents that are given beforehand."""

    def __init__(
        self,
        name: str,
        params: Sequence[Value],
        given: Mapping[str, int],
        read: Callable[..., Held] | None = None,
    ) -> None:
        """`read` takes an array, its dtype and its axes' names; without it, as `tensor` does."""
        self.name = name
        self.read = read or tensor
        self.params = list(params)
        self.names = [p.name for p in params]
        self._types = [(p.type.dtype, p.type.names) for p in params]
        self.given = dict(given)
        self._extents: dict[tuple[tuple[int, ...], ...], dict[str, int]] = {}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """Check a call's arguments.

        Raises:
            ArgumentError: with everything that is wrong.
        """
        if kwargs or len(args) != len(self.params):
            args = self._in_order(args, kwargs)
        values: list[Any] = []
        held: list[Held | None] = []
        shapes: list[tuple[int, ...]] = []
        problems: list[Diagnostic] = []
        shapeless: set[Value] = set()
        for p, (t, names), x in zip(self.params, self._types, args, strict=True):
            try:
                if not names:
                    values.append(scalar(x, t))
                    held.append(None)
                    shapes.append(())
                    continue
                h = self.read(x, t, names)
            except Refused as e:
                problems.append(Diagnostic(f"argument {p.name} {e.message}", None, e.hint))
                shapes.append(_shape(x))
                if not hasattr(x, "shape"):
                    shapeless.add(p)
                continue
            values.append(h.tensor)
            held.append(h)
            shapes.append(h.shape)
        key = tuple(shapes)
        if problems:
            raise ArgumentError([*problems, *self._shapes(key, shapeless)[1]])
        extents = self._extents.get(key)
        if extents is None:
            extents, problems = self._shapes(key)
            if problems:
                raise ArgumentError(problems)
            if len(self._extents) >= _REMEMBERED:
                self._extents.clear()
            self._extents[key] = extents
        return Bound(values, held, key, extents)

    def _in_order(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Arguments given by name put in their places."""
        usage = f"{self.name}({', '.join(self.names)})"
        if len(args) > len(self.names):
            n = len(self.names)
            raise ArgumentError(f"{usage} takes {n} arguments, {len(args)} were given")
        found = dict(zip(self.names, args, strict=False))
        twice = [n for n in kwargs if n in found]
        unknown = [n for n in kwargs if n not in self.names]
        missing = [n for n in self.names if n not in found and n not in kwargs]
        problems = [f"argument {n} is given twice" for n in twice]
        problems += [f"there is no argument {n}" for n in unknown]
        problems += [f"argument {n} is missing" for n in missing]
        if problems:
            raise ArgumentError([Diagnostic(f"{usage}: {p}") for p in problems])
        return [*args, *(kwargs[n] for n in self.names[len(args) :])]

    def _shapes(
        self, shapes: Sequence[tuple[int, ...]], shapeless: Collection[Value] = ()
    ) -> tuple[dict[str, int], list[Diagnostic]]:
        """Extents by name from the arguments' shapes, but for those without; what disagrees."""
        bound = dict(self.given)
        origin = {n: f"{n} = {v}, for which the kernel is compiled" for n, v in bound.items()}
        problems: list[Diagnostic] = []
        computed: list[tuple[str, Axis, int]] = []
        for p, shape in zip(self.params, shapes, strict=True):
            if len(shape) != len(p.type.axes):
                if p.type.axes and p not in shapeless:
                    problems.append(_rank(p, shape))
                continue
            for a, n in zip(p.type.axes, shape, strict=True):
                if not isinstance(a.extent, Extent):
                    computed.append((p.name, a, n))
                elif bound.setdefault(a.extent.name, n) != n:
                    other = origin[a.extent.name]
                    problems.append(Diagnostic(_disagrees(p.name, a, n, f"where {other}")))
                origin.setdefault(
                    print_expr(a.extent), f"argument {p.name} has {n} along axis {a.name}"
                )
        for name, a, n in computed:
            try:
                want = integer(a.extent, bound)
            except KeyError:
                continue  # a rank is wrong, which is reported
            if want != n:
                e = "" if isinstance(a.extent, Const) else f" = {print_expr(a.extent)}"
                problems.append(Diagnostic(_disagrees(name, a, n, f"not {want}{e}")))
        return bound, problems


def _disagrees(name: str, a: Axis, n: int, what: str) -> str:
    return f"argument {name} has {n} along axis {a.name}, {what}"


def _rank(p: Value, shape: tuple[int, ...]) -> Diagnostic:
    axes = " ".join(
        a.name if print_expr(a.extent) == a.name.upper() else f"{a.name}:{print_expr(a.extent)}"
        for a in p.type.axes
    )
    return Diagnostic(
        f"argument {p.name} has {len(shape)} axes, shape {shape}, "
        f'where {len(p.type.axes)} are wanted: "{axes}"'
    )


def _shape(x: Any) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in x.shape)
    except (AttributeError, TypeError, ValueError):
        return ()


def scalar(x: Any, t: DType) -> bool | int | float:
    """A number (or an array of one) as a Python number that fits `t`.

    Raises:
        Refused: it does not.
    """
    if not isinstance(x, bool | int | float):
        if _shape(x) != () or not hasattr(x, "item"):
            raise Refused(f"is {_describe(x)}, where a number is wanted ({long_name(t)})")
        x = x.item()
    if t.kind == "float":
        if isinstance(x, bool | int | float):
            return float(x)
    elif t.kind == "bool":
        if isinstance(x, bool):
            return x
    elif isinstance(x, int):
        low, high = np.iinfo(t.numpy).min, np.iinfo(t.numpy).max
        if not low <= x <= high:
            raise Refused(f"is {x}, which is outside of {long_name(t)}: {low} to {high}")
        return int(x)
    raise Refused(f"is {x!r}, where a number of type {long_name(t)} is wanted")


def tensor(x: Any, t: DType, names: Sequence[str], *, writable: bool = False) -> Held:
    """An array, or an object with DLPack, as a tensor of dtype `t`, without a copy.

    Raises:
        Refused: wrong dtype, device or layout.
    """
    if isinstance(x, np.ndarray):
        h = _numpy(x, t, writable)
    else:
        h = foreign(x, t, CPU, dlpack_tensor, _off_cpu)
    if not h.shape or len(h.shape) != len(names):
        return h
    if 0 in h.shape:
        h.keep = lend_zeros(h.tensor, h.shape, t.bytes)
    elif h.strides[-1] != 1:
        last_stride(h, names)
        h.keep = unit_stride(h.tensor, h.shape, h.strides)
    return h


def last_stride(h: Held, names: Sequence[str]) -> None:
    """See that the elements of the last axis are next to each other.

    Raises:
        Refused: they are not.
    """
    if h.strides[-1] != 1 and h.shape[-1] > 1:
        call = "np.ascontiguousarray(...)" if isinstance(h.source, np.ndarray) else ".contiguous()"
        raise Refused(
            f"has stride {h.strides[-1]} along axis {names[-1]}, its last, which must be 1",
            f"pass a copy, made by {call}; strides of the other axes are free",
        )


def _off_cpu(x: Any, kind: int) -> Refused:
    where = getattr(x, "device", f"a device of DLPack type {kind}")
    return Refused(f"is on {where}, and this kernel runs on the CPU", "move it: x.cpu()")


def _numpy(x: Array, t: DType, writable: bool) -> Held:
    if x.dtype is not t.numpy and x.dtype != t.numpy:
        raise _wrong_dtype(_name(x.dtype), t)
    if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
        raise Refused("is a masked array, whose mask would be ignored", "pass its data and a mask")
    flags, size = x.flags, t.bytes
    if writable and not flags.writeable:
        raise Refused("is read-only")
    if not flags.aligned or [s for s in x.strides if s % size]:
        raise Refused(f"is not aligned to its elements of {size} bytes", "pass a copy")
    return Held(numpy_tensor(x, t), x.shape, tuple([s // size for s in x.strides]), x)


def foreign(
    x: Any,
    t: DType,
    device: int,
    read: Callable[[Any], Any],
    elsewhere: Callable[[Any, int], Refused],
) -> Held:
    """An object with `__dlpack__` on a device of DLPack type `device`, as `read` makes a tensor.

    Raises:
        Refused: wrong dtype, device (as `elsewhere` says) or layout.
    """
    if not hasattr(x, "__dlpack__"):
        hint = "pass a numpy array, a torch tensor, or another object with __dlpack__"
        raise Refused(f"is {_describe(x)}, which is not an array", hint)
    if getattr(x, "requires_grad", False) and _gradients_are_on(x):
        hint = "pass x.detach(), or call the kernel under no_grad()"
        raise Refused("requires a gradient, and a kernel gives none", hint)
    try:
        kind = int(x.__dlpack_device__()[0]) if hasattr(x, "__dlpack_device__") else CPU
        if kind != device:
            raise elsewhere(x, kind)
        made = read(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as e:
        raise Refused(f"cannot be read through DLPack: {e}") from e
    found = str(made.dtype)
    try:
        given: DType | None = dtype(found)
    except ValueError:
        given = None
    if given is not t:
        raise _wrong_dtype(given or found, t)
    shape, strides = tuple(map(int, made.shape)), tuple(map(int, made.strides))
    if 0 not in shape and made.data_ptr() % t.bytes:
        raise Refused(f"is not aligned to its elements of {t.bytes} bytes", "pass a copy")
    return Held(made, shape, strides, x)


def _gradients_are_on(x: Any) -> bool:
    """Whether the framework of `x` records operations (exporting a tensor would hide that)."""
    framework = sys.modules.get(type(x).__module__.partition(".")[0])
    enabled = getattr(framework, "is_grad_enabled", None)
    return bool(enabled()) if enabled is not None else True


def _name(t: np.dtype[Any]) -> DType | str:
    try:
        return dtype(t) if t.isnative else f"{t.newbyteorder('=')} in foreign byte order"
    except ValueError:
        return str(t)


def _wrong_dtype(given: DType | str, wanted: DType) -> Refused:
    hint = f"convert it to {long_name(wanted)}"
    if isinstance(given, DType):
        if given.kind == wanted.kind == "float":
            hint += f', or compile with dtype="{long_name(given)}"'
        given = long_name(given)
    return Refused(f"has dtype {given}, where the kernel takes {long_name(wanted)}", hint)


def long_name(t: DType) -> str:
    """The name that users write."""
    return _LONG.get(t.name) or t.numpy.name


def _describe(x: Any) -> str:
    shape = _shape(x)
    kind = type(x).__name__
    return f"an array of shape {shape}" if shape else f"a {kind}"


def array_namespace(x: Any) -> Any:
    """The module that an array belongs to, if that can take a tensor through DLPack."""
    if hasattr(x, "__array_namespace__"):
        found = x.__array_namespace__()
    else:
        found = sys.modules.get(type(x).__module__.partition(".")[0])
    return found if hasattr(found, "from_dlpack") else None

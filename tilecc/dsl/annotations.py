"""Declarations of arguments and results: `tc.Tensor["b h i:N d"]`, `tc.Scalar("int64")`."""

from __future__ import annotations

import builtins
import inspect
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin

from tilecc.dsl.names import RESERVED, axis_name_fault
from tilecc.dsl.source import FunctionSource, Site
from tilecc.dsl.tensor import Tensor
from tilecc.errors import Diagnostic, Loc
from tilecc.ir import dtypes
from tilecc.ir.core import Axis, axis
from tilecc.ir.dtypes import DType
from tilecc.ir.expr import FUNCTIONS, Extent

HINT = (
    'write tc.Tensor["b h i:N d"], tc.Tensor["b j:N", "int32"] or tc.Scalar("float32"): '
    "axes separated by spaces, each a name, with its extent after a colon if that is not the name "
    "in capitals"
)

# Words of a kernel's call that no argument can be passed by.
_CALL_WORDS = frozenset(["out", "threads"])
_SCALARS: dict[object, str] = {
    float: 'write tc.Scalar("float32"), or close over a constant',
    int: 'write tc.Scalar("int64"), or close over a constant',
    bool: 'write tc.Scalar("bool"), or close over a constant',
}
_AXES = re.compile(r"\w+(:\w+)?( +\w+(:\w+)?)+")  # a string such as "b h i:N d"


@dataclass(frozen=True)
class Scalar:
    """The annotation of a number given when the kernel is called: `tc.Scalar("float32")`."""

    dtype: str


@dataclass(frozen=True)
class Argument:
    """A declared argument. `dtype` is None where it follows `dtype=`; a scalar has no axes."""

    name: str
    axes: tuple[Axis, ...]
    dtype: DType | None = None

    @property
    def is_scalar(self) -> bool:
        """Whether a plain number is passed for it."""
        return not self.axes


@dataclass(frozen=True)
class Result:
    """An annotated result: axis names in order, and its dtype (None: follows `dtype=`)."""

    axes: tuple[str, ...]
    dtype: DType | None = None


@dataclass
class Signature:
    """A spec's arguments in order, and its results if they are annotated.

    `axes` are all axes of the program by name. `extents` says for each named extent from which
    argument and which of its axes the number is taken.
    """

    arguments: list[Argument] = field(default_factory=list)
    axes: dict[str, Axis] = field(default_factory=dict)
    extents: dict[str, tuple[str, str]] = field(default_factory=dict)
    results: list[Result | None] | None = None


class _Malformed(Exception):
    """A part of an annotation that cannot be read: the sentence for the user, and what to write."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def read_signature(
    fn: Callable[..., Any], source: FunctionSource
) -> tuple[Signature, set[str], list[Diagnostic]]:
    """The signature, the names of arguments that could not be read, and what is wrong with them."""
    sig, bad, found = Signature(), set[str](), list[Diagnostic]()
    first: dict[str, str] = {}  # axis -> the argument that declared it
    for name, p in inspect.signature(fn).parameters.items():
        loc = source.arguments.get(name, source.definition).loc
        try:
            arg = _argument(fn, p)
        except _Malformed as e:
            found.append(Diagnostic(f"argument '{name}': {e}", loc, e.hint or HINT))
            bad.add(name)
            continue
        sig.arguments.append(arg)
        for a in arg.axes:
            known = sig.axes.setdefault(a.name, a)
            first.setdefault(a.name, name)
            if known != a:
                found.append(_disagreement(a, known, name, first[a.name], loc))
            elif isinstance(a.extent, Extent):
                sig.extents.setdefault(a.extent.name, (name, a.name))
    for extent, (name, owner) in sig.extents.items():
        if extent in sig.axes:
            loc = source.arguments.get(name, source.definition).loc
            message = f"'{extent}' is an axis and also the extent of axis '{owner}' of '{name}'"
            found.append(Diagnostic(message, loc, "give the extent a name in capitals"))
    sig.results = _results(fn, sig, source.definition, found)
    return sig, bad, found


def _disagreement(a: Axis, known: Axis, name: str, other: str, loc: Loc) -> Diagnostic:
    have, want = _show(a), _show(known)
    message = f"axis '{a.name}' has extent {have} in argument '{name}' but {want} in '{other}'"
    hint = f"one axis has one extent: write '{a.name}:{want}' in both, or rename one of the axes"
    return Diagnostic(message, loc, hint)


def _show(a: Axis) -> str:
    e = a.extent
    return e.name if isinstance(e, Extent) else str(a.static)


def _argument(fn: Callable[..., Any], p: inspect.Parameter) -> Argument:
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        message = "a spec has a fixed list of arguments, so * and ** have no meaning"
        raise _Malformed(message, "write each argument with its annotation")
    if p.name == "self":
        raise _Malformed("a spec is no method", "put @tc.spec on a function of its own")
    if p.name in _CALL_WORDS:
        message = f"a call of the kernel has a {p.name}= of its own"
        raise _Malformed(message, "give the argument another name")
    if p.default is not p.empty:
        hint = f"leave it out and write {p.default!r} in the body, or pass the value with each call"
        raise _Malformed("it has a default value, which a kernel's arguments have not", hint)
    if p.annotation is p.empty:
        raise _Malformed("it has no annotation")
    annotation = evaluate(fn, p.annotation)
    if annotation in _SCALARS:
        raise _Malformed(f"{annotation!r} is not a tensor's annotation", _SCALARS[annotation])
    if isinstance(annotation, Scalar):
        return Argument(p.name, (), _dtype(annotation.dtype))
    axes, dtype = _tensor(annotation)
    return Argument(p.name, tuple(axis(n, n.upper() if e is None else e) for n, e in axes), dtype)


def evaluate(fn: Callable[..., Any], annotation: object) -> object:
    """An annotation as an object; with postponed evaluation it is still text."""
    if not isinstance(annotation, str):
        return annotation
    if _AXES.fullmatch(annotation):
        raise _Malformed("its annotation is only a string", f'write tc.Tensor["{annotation}"]')
    fn = inspect.unwrap(fn)
    names = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    cells = {n: c.cell_contents for n, c in names}
    try:
        return eval(annotation, {**vars(builtins), **fn.__globals__, **cells})
    except Exception as e:
        raise _Malformed(f"its annotation {annotation} does not evaluate: {e}") from e


def _tensor(annotation: object) -> tuple[list[tuple[str, int | str | None]], DType | None]:
    """Axes (name, extent if it is written) and dtype of a Tensor annotation."""
    if annotation is Tensor:
        raise _Malformed("tc.Tensor does not say which axes it has")
    if get_origin(annotation) is not Annotated or get_args(annotation)[0] is not Tensor:
        raise _Malformed(f"{annotation!r} is not a tensor's annotation")
    meta = get_args(annotation)[1:]
    if len(meta) == 1 and isinstance(meta[0], Scalar):
        return [], _dtype(meta[0].dtype)
    if not isinstance(meta[0], str) or len(meta) > 2:
        raise _Malformed(f"{list(meta)!r} is not a string of axes and perhaps a dtype")
    if "," in meta[0]:
        spaced = " ".join(meta[0].replace(",", " ").split())
        hint = f'axes are separated by spaces: write tc.Tensor["{spaced}"]'
        raise _Malformed(f"{meta[0].split()[0]!r} is not a name that an axis can have", hint)
    axes = [_axis(token) for token in meta[0].split()]
    names = [n for n, _ in axes]
    for n in names:
        if names.count(n) > 1:
            raise _Malformed(f"axis '{n}' occurs twice in \"{meta[0]}\"")
    return axes, _dtype(meta[1]) if len(meta) == 2 else None


def _axis(token: str) -> tuple[str, int | str | None]:
    """One `name` or `name:extent`."""
    name, colon, extent = token.partition(":")
    if fault := axis_name_fault(name):
        raise _Malformed(fault)
    if not colon:
        if name.upper() == name:
            raise _Malformed(f"axis '{name}' would be its own extent: axes are in small letters")
        return name, None
    if extent.isascii() and extent.isdigit():
        return name, int(extent)
    if not extent.isidentifier() or not extent.isascii():
        raise _Malformed(f"'{extent}' in '{token}' is neither a number nor a name")
    if extent in RESERVED or extent in FUNCTIONS:
        raise _Malformed(f"the extent name '{extent}' is a word of the IR")
    return name, extent


def _dtype(name: Any) -> DType:
    try:
        return dtypes.dtype(name)
    except (ValueError, TypeError) as e:
        raise _Malformed(str(e)) from e


def _results(
    fn: Callable[..., Any], sig: Signature, site: Site, found: list[Diagnostic]
) -> list[Result | None] | None:
    """The annotated results; None where there is no annotation."""
    annotation = inspect.signature(fn).return_annotation
    if annotation is inspect.Signature.empty:
        return None
    try:
        annotation = evaluate(fn, annotation)
        if annotation is Tensor:
            return [None]
        if get_origin(annotation) is tuple:
            parts = get_args(annotation)
            return None if Ellipsis in parts else [_result(p, sig) for p in parts]
        return None if annotation is tuple else [_result(annotation, sig)]
    except _Malformed as e:
        hint = 'write -> tc.Tensor["b h i d", "float32"], or tuple[...] of those'
        found.append(Diagnostic(f"the return annotation: {e}", site.loc, hint))
        return None


def _result(annotation: object, sig: Signature) -> Result | None:
    if isinstance(annotation, types.NoneType) or annotation is types.NoneType:
        raise _Malformed("a spec returns at least one tensor, not None")
    if annotation is Tensor:
        return None
    if isinstance(annotation, Scalar):
        return Result((), _dtype(annotation.dtype))
    axes, dtype = _tensor(annotation)
    for name, extent in axes:
        known = sig.axes.get(name)
        if known is None:
            raise _Malformed(f"no argument has an axis '{name}'")
        # Here a bare name says nothing of its extent: the arguments have said it.
        if extent is not None and known.extent != axis(name, extent).extent:
            raise _Malformed(f"axis '{name}' has extent {_show(known)}, not {extent}")
    return Result(tuple(n for n, _ in axes), dtype)

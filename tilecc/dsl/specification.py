"""`@tc.spec`: a Python function that describes a computation, traced into a graph."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, overload

from tilecc.dsl.annotations import Result, Signature, read_signature
from tilecc.dsl.habits import hint_for
from tilecc.dsl.source import PACKAGE, exception_site, function_source, user_site
from tilecc.dsl.tensor import ACTIVE, Tensor
from tilecc.dsl.trace import Trace
from tilecc.errors import Diagnostic, DiagnosticError, SpecError
from tilecc.ir.core import Func, TensorType, Value
from tilecc.ir.dtypes import F32, DType, dtype
from tilecc.ir.expr import Arg, Cast, Expr

Function = Callable[..., Any]


class Spec:
    """A computation in the DSL. `tc.compile` compiles it; called in another spec it is inlined."""

    def __init__(self, fn: Function, name: str | None = None) -> None:
        if not inspect.isfunction(inspect.unwrap(fn)):
            raise _not_a_spec(f"{fn!r} is not a function")
        if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
            kind = "yields" if inspect.isgeneratorfunction(fn) else "is asynchronous"
            raise _not_a_spec(f"{fn.__name__} {kind}, and a spec returns its tensors")
        self.fn = fn
        self.name: str = name or str(getattr(fn, "__name__", ""))
        functools.update_wrapper(self, fn)
        if not self.name.isidentifier():
            hint = 'put @tc.spec on a def, or write tc.spec(name="...")(function)'
            message = f"{self.name!r} is not a name that a spec can have"
            raise SpecError(Diagnostic(message, user_site().loc, hint))
        self._traced: dict[DType, Func] = {}

    @functools.cached_property
    def signature(self) -> Signature:
        """Arguments, axes and extents.

        Raises:
            SpecError: annotations that cannot be read.
        """
        sig, _, found = read_signature(self.fn, function_source(self.fn))
        if found:
            raise SpecError(found)
        return sig

    def trace(self, dtype: DType | str | Any = F32) -> Func:
        """The graph, in which tensors without an element type of their own have `dtype`.

        Float results are in `dtype` too, unless the return annotation says otherwise. The graph is
        kept: do not edit it.

        Raises:
            SpecError: a wrong program, with all its errors.
        """
        default = _default_dtype(dtype)
        if default not in self._traced:
            self._traced[default] = _Tracing(self, default).run()
        return self._traced[default]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inline this spec into the one being traced."""
        if ACTIVE.get() is None:
            hint = "write kernel = tc.compile(spec, ...) and call the kernel"
            message = f"spec '{self.name}' describes a computation and is not called on data"
            raise SpecError(Diagnostic(message, user_site().loc, hint))
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<spec {self.name}>"


@overload
def spec(fn: Function, *, name: str | None = None) -> Spec: ...
@overload
def spec(fn: None = None, *, name: str | None = None) -> Callable[[Function], Spec]: ...
def spec(
    fn: Function | None = None, *, name: str | None = None
) -> Spec | Callable[[Function], Spec]:
    """Make a spec of a function whose arguments are annotated tensors: `@tc.spec`."""
    if fn is None:
        return lambda f: Spec(f, name)
    return Spec(fn, name)


def _not_a_spec(message: str) -> SpecError:
    return SpecError(Diagnostic(message, user_site().loc, "put @tc.spec on a plain def"))


def _default_dtype(name: Any) -> DType:
    try:
        found = dtype(name)
    except (ValueError, TypeError) as e:
        raise SpecError(Diagnostic(str(e))) from e
    if found.kind != "float":
        hint = 'an integer tensor is declared as such: tc.Tensor["b j:N", "int32"]'
        raise SpecError(Diagnostic(f"dtype= is a float's type, not {found}", None, hint))
    return found


class _Tracing:
    """One run of a spec's function on traced arguments."""

    def __init__(self, spec: Spec, default: DType) -> None:
        self.spec = spec
        self.source = function_source(spec.fn)
        self.end = self.source.returns or self.source.definition
        self.sig, self.bad, found = read_signature(spec.fn, self.source)
        self.trace = Trace(spec.name, default, self.sig.axes, not self.bad)
        self.trace.diagnostics += found

    def run(self) -> Func:
        token = ACTIVE.set(self.trace)
        try:
            params, returned = self.call()
            values = self.results(returned)
            if not self.trace.diagnostics:
                self.prune(params, values)
        finally:
            ACTIVE.reset(token)
        if self.trace.diagnostics:
            raise SpecError(list(dict.fromkeys(self.trace.diagnostics)))
        func = Func(self.spec.name, params, self.trace.block, loc=self.source.definition.loc)
        _verify(func)
        return func

    def call(self) -> tuple[list[Value], Any]:
        """The function on traced arguments; an exception in it becomes a diagnostic."""
        params: dict[str, Value] = {}
        for a in self.sig.arguments:
            type = TensorType(a.dtype or self.trace.default, a.axes)
            params[a.name] = Value(type, a.name)
        args, kwargs = [], {}
        for name, p in inspect.signature(self.spec.fn).parameters.items():
            site = self.source.arguments.get(name, self.source.definition)
            t = self.trace.poison(site) if name in self.bad else self.trace.wrap(params[name], site)
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise SpecError(self.trace.diagnostics)  # there is nothing to pass for them
            if p.kind is p.KEYWORD_ONLY:
                kwargs[name] = t
            else:
                args.append(t)
        try:
            return list(params.values()), self.spec.fn(*args, **kwargs)
        except DiagnosticError:
            raise
        except Exception as e:
            where = exception_site(e) or self.source.definition
            if where.filename.startswith(PACKAGE):
                where = self.source.definition
            self.trace.diagnostics.append(
                Diagnostic(f"{type_name(e)}: {e}", where.loc, hint_for(e))
            )
            raise SpecError(list(dict.fromkeys(self.trace.diagnostics))) from e

    def results(self, returned: Any) -> list[Value]:
        """What the function returned, in the declared or default order and type."""
        outputs = list(returned) if isinstance(returned, tuple | list) else [returned]
        wanted = self.sig.results
        if wanted is not None and len(wanted) != len(outputs):
            message = f"the spec returns {len(outputs)} tensors, and its annotation {len(wanted)}"
            self.trace.error(message, "make them the same", self.end.loc)
            wanted = None
        values: list[Value] = []
        for k, t in enumerate(outputs):
            nth = f"output {k + 1} of {len(outputs)}" if len(outputs) > 1 else "the output"
            if not isinstance(t, Tensor):
                hint = "end the function with `return tensor`, or a tuple of tensors"
                message = f"{nth} is never computed: the spec returns {_describe(t)}"
                self.trace.error(message, hint, self.end.loc)
                continue
            t = self.trace.coerce(t)
            if not t.poisoned:
                values.append(self.result(t, wanted[k] if wanted else None, nth, values))
        if not outputs:
            self.trace.error("the spec returns no tensor", "return one", self.end.loc)
        return values

    def result(self, t: Tensor, wanted: Result | None, nth: str, others: list[Value]) -> Value:
        """One output: cast and reordered if need be, and a value of its own."""
        v = self.trace.value(t)
        target = v.type.dtype
        if wanted and wanted.dtype:
            target = wanted.dtype
        elif target.kind == "float":
            target = self.trace.default
        axes = v.type.axes
        if wanted and set(wanted.axes) != set(v.type.names):
            have, want = " ".join(v.type.names), " ".join(wanted.axes)
            hint = "the annotation fixes the order of the axes; it names each of them once"
            self.trace.error(f'{nth} has axes "{have}", not "{want}"', hint, self.end.loc)
        elif wanted:
            axes = tuple(v.type.axis(n) for n in wanted.axes)
        as_is = target is v.type.dtype and axes == v.type.axes
        if as_is and v.owner is not None and v not in others:
            return v
        e: Expr = Arg(0) if target is v.type.dtype else Cast(Arg(0), target)
        type = TensorType(target, axes)
        return self.trace.emit("map", [v], type, self.end, v.name, expr=e)

    def prune(self, params: list[Value], values: list[Value]) -> None:
        """Close the function, drop what no output needs, and report arguments that none needs."""
        block = self.trace.block
        live = set(values)
        for op in reversed(block.ops):
            if op.result in live:
                live.update(op.operands)
        block.ops = [op for op in block.ops if op.result in live]
        self.trace.emit_return(values, self.end)
        for p in params:
            if p not in live and not p.name.startswith("_"):
                loc = self.source.arguments.get(p.name, self.source.definition).loc
                hint = f"use it, remove it, or name it _{p.name} if only its axes matter"
                self.trace.error(f"no output depends on argument '{p.name}'", hint, loc)


def type_name(e: BaseException) -> str:
    """The name of an exception's class, as Python shows it."""
    return type(e).__name__


def _describe(x: object) -> str:
    return "None" if x is None else f"{x!r} ({type(x).__name__})"


def _verify(func: Func) -> None:
    """The IR's own rules, as a check on the tracer."""
    from tilecc.ir.verifier import verify

    verify(func)

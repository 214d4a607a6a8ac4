"""Pass pipelines: their text form, and the manager that runs one and keeps every stage.

    simplify,fuse,online-softmax,mask-tiles,exponents,tile{i=64,j=64}

A pass's options are its dataclass fields. A value without a name (`tile{64}`) goes to the first
field that holds a single value; in a pass that has a table of pairs, every other `name=value` is
an entry of it.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from typing import Any, get_type_hints

from tilecc.errors import CompileError, Diagnostic, DiagnosticError, IRError
from tilecc.ir.core import Func
from tilecc.passes.base import Pass, Remark, Remarks

# Every pass by name, and where its class is. Modules are imported when a pipeline names them.
PASSES = {
    "simplify": ("tilecc.passes.simplify", "Simplify"),
    "fuse": ("tilecc.passes.fuse", "Fuse"),
    "online-softmax": ("tilecc.passes.online_softmax", "OnlineSoftmax"),
    "mask-tiles": ("tilecc.passes.mask_tiles", "MaskTiles"),
    "exponents": ("tilecc.passes.exponents", "Exponents"),
    "split": ("tilecc.passes.split", "Split"),
    "tensor": ("tilecc.passes.tensor", "Tensor"),
    "tile": ("tilecc.passes.tile", "Tile"),
    "pipeline": ("tilecc.passes.pipeline", "Pipeline"),
}
DEFAULT_PIPELINE = "simplify,fuse,online-softmax,mask-tiles,exponents,tile"

_Pairs = tuple[tuple[str, int], ...]
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


class PipelineError(DiagnosticError, ValueError):
    """A pipeline text that names an unknown pass or option, or is not well formed."""


def pass_class(name: str) -> type[Any]:
    """The class of the pass called `name`.

    Raises:
        PipelineError: there is none; the message lists near matches and all names.
    """
    if name not in PASSES:
        near = difflib.get_close_matches(name.replace("_", "-"), PASSES, n=1)
        guess = f"; did you mean {near[0]}?" if near else ""
        known = f"passes are {', '.join(PASSES)}"
        raise PipelineError(Diagnostic(f"unknown pass {name!r}{guess}", None, known))
    module, attribute = PASSES[name]
    found: type[Any] = getattr(import_module(module), attribute)
    return found


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """The passes that `text` names, in order; none for an empty text.

    Raises:
        PipelineError: unknown pass or option, bad value, unbalanced braces.
    """
    return tuple(_parse_pass(item) for item in _split(text))


def print_pipeline(passes: Iterable[Pass]) -> str:
    """The text of a pipeline, without options at their defaults; `parse_pipeline` reads it."""
    return ",".join(_print_pass(p) for p in passes)


def _split(text: str) -> list[str]:
    """The items between the commas that are outside of braces."""
    if not text.strip():
        return []
    items, depth = [""], 0
    for c in text:
        depth += (c == "{") - (c == "}")
        if depth not in (0, 1):
            break
        if c == "," and depth == 0:
            items.append("")
        else:
            items[-1] += c
    if depth != 0:
        raise PipelineError(f"unbalanced braces in the pipeline {text!r}")
    if not all(item.strip() for item in items):
        raise PipelineError(f"a pass is missing between commas in the pipeline {text!r}")
    return [item.strip() for item in items]


def _parse_pass(item: str) -> Pass:
    name, brace, rest = item.partition("{")
    if brace and not rest.endswith("}"):
        raise PipelineError(f"text after the options of {name.strip()!r}: {item!r}")
    cls = pass_class(name.strip())
    options = _Options(cls)
    for text in filter(None, (o.strip() for o in rest.removesuffix("}").split(","))):
        key, equals, value = text.partition("=")
        options.set(key.strip() if equals else "", (value if equals else key).strip())
    made: Pass = cls(**options.values)
    return made


class _Options:
    """The constructor arguments of a pass, collected option by option."""

    def __init__(self, cls: type[Any]) -> None:
        self.name: str = cls.name
        hints = get_type_hints(cls)
        self.types: dict[str, Any] = {f.name: hints[f.name] for f in fields(cls)}
        self.table = next((n for n, t in self.types.items() if t == _Pairs), None)
        self.values: dict[str, Any] = {}

    @property
    def single(self) -> list[str]:
        """The options that hold one value."""
        return [n for n in self.types if n != self.table]

    def set(self, key: str, value: str) -> None:
        if not key:
            if not self.single:
                raise PipelineError(f"pass {self.name} takes no value without a name ({value!r})")
            key = self.single[0]
        if key in self.single:
            if key in self.values:
                raise PipelineError(f"pass {self.name}: option {key} is given twice")
            self.values[key] = _value(self.name, key, value, self.types[key])
        elif self.table is not None and key.isidentifier():
            pairs = self.values.setdefault(self.table, ())
            if key in dict(pairs):
                raise PipelineError(f"pass {self.name}: {key} is given twice")
            self.values[self.table] = (*pairs, (key, _size(self.name, key, value)))
        else:
            raise PipelineError(
                Diagnostic(f"pass {self.name} has no option {key!r}", None, self._known(key))
            )

    def _known(self, key: str) -> str:
        if not self.single:
            return "it has no options"
        near = difflib.get_close_matches(key, self.single, n=1)
        return f"did you mean {near[0]}?" if near else f"options are {', '.join(self.single)}"


def _value(name: str, key: str, text: str, wanted: Any) -> Any:
    kinds: dict[Any, Callable[[str], Any]] = {bool: lambda t: _BOOLS[t.lower()], str: str}
    try:
        return kinds.get(wanted, int)(text)
    except (KeyError, ValueError):
        what = "true or false" if wanted is bool else "a whole number"
        raise PipelineError(f"pass {name}: option {key} takes {what}, not {text!r}") from None


def _size(name: str, axis: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise PipelineError(f"pass {name}: the size of {axis} is {text!r}, not a positive number")
    return int(text)


def _print_pass(p: Pass) -> str:
    options = []
    for f in fields(p):  # type: ignore[arg-type]
        value = getattr(p, f.name)
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if value == default:
            continue
        if isinstance(value, tuple):
            options += [f"{k}={v}" for k, v in value]
        else:
            options.append(f"{f.name}={str(value).lower() if isinstance(value, bool) else value}")
    return f"{p.name}{{{','.join(options)}}}" if options else p.name


@dataclass(frozen=True)
class Stage:
    """The program after a pass (or as it came), and how long the pass took."""

    name: str
    func: Func
    seconds: float = 0.0

    def text(self, *, locs: bool = True) -> str:
        """The IR as text."""
        from tilecc.ir.printer import print_ir

        return print_ir(self.func, locs=locs)


@dataclass
class Compilation:
    """All stages of a run of a pipeline, and what its passes remarked."""

    stages: list[Stage]
    remarks: list[Remark] = field(default_factory=list)
    details: list[Remark] = field(default_factory=list)

    @property
    def func(self) -> Func:
        """The program after the last stage."""
        return self.stages[-1].func

    @property
    def timings(self) -> dict[str, float]:
        """Seconds for each pass."""
        return {s.name: s.seconds for s in self.stages[1:]}

    def stage(self, name: str) -> Stage:
        """The stage called `name`.

        Raises:
            PipelineError: there is none; the message lists those there are.
        """
        wanted = name.replace("_", "-")
        for s in self.stages:
            if s.name == wanted:
                return s
        known = ", ".join(s.name for s in self.stages)
        raise PipelineError(f"there is no stage {name!r}; stages are {known}")


class PassManager:
    """Runs passes in order; the IR is verified before the first and after each."""

    def __init__(self, passes: Sequence[Pass] | str) -> None:
        self.passes = parse_pipeline(passes) if isinstance(passes, str) else tuple(passes)

    def run(self, func: Func) -> Compilation:
        """Every stage from `func` on; the first is named after its level.

        Raises:
            IRError: `func` or what a pass made of it breaks the IR's rules; the message says which.
            CompileError: a pass cannot do its work.
        """
        _verify(func, "the input is not valid IR")
        log = Remarks()
        stages = [Stage(func.level, func)]
        for p in self.passes:
            log.pass_name = p.name
            start = time.perf_counter()
            func = _apply(p, func, log)
            seconds = time.perf_counter() - start
            _verify(func, f"pass {p.name} made invalid IR")
            stages.append(Stage(_unique(p.name, stages), func, seconds))
        return Compilation(stages, log.items, log.details)


def _apply(p: Pass, func: Func, log: Remarks) -> Func:
    """What a pass makes of `func`; a program too deep for it is refused."""
    try:
        return p.apply(func, log)
    except RecursionError:
        raise too_deep(p.name, func) from None


def too_deep(stage: str, func: Func) -> CompileError:
    """The error of a stage for which the expressions or the graph of `func` are too deep."""
    message = f"{stage}: a value depends on too long a chain of operations"
    hint = "a Python loop puts every turn into the program: take fewer turns, or split it"
    return CompileError(Diagnostic(message, func.loc, hint))


def _unique(name: str, stages: Sequence[Stage]) -> str:
    before = sum(s.name == name or s.name.startswith(f"{name}.") for s in stages)
    return f"{name}.{before + 1}" if before else name


def _verify(func: Func, what: str) -> None:
    from tilecc.ir.verifier import verify

    try:
        verify(func)
    except IRError as e:
        raise IRError([Diagnostic(f"{what}:"), *e.diagnostics]) from e

"""Specs from files: `FILE[:NAME]` on the command line."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

from tilecc.dsl.source import exception_site, shorten
from tilecc.dsl.specification import Spec
from tilecc.errors import Diagnostic, DiagnosticError, Loc, SpecError


def load_spec(where: str) -> Spec:
    """The spec in a Python file, "FILE" or "FILE:NAME".

    Without a name it is the spec named like the file, else the only one in it.

    Raises:
        SpecError: no such file, an error in it, or no such spec.
    """
    filename, name = _split(where)
    if not os.path.isfile(filename):
        raise SpecError(Diagnostic(f"there is no file {filename}", None, "write FILE or FILE:NAME"))
    module = _run(filename)
    found = {n: s for n, s in vars(module).items() if isinstance(s, Spec)}
    own = {n: s for n, s in found.items() if s.fn.__module__ == module.__name__} or found
    stem = os.path.splitext(os.path.basename(filename))[0]
    for wanted in [name] if name else [stem]:
        for n, s in [*own.items(), *found.items()]:
            if wanted in (n, s.name):
                return s
    if not name and len({id(s) for s in own.values()}) == 1:
        return next(iter(own.values()))
    names = ", ".join(own)
    if name:
        message = f"there is no spec '{name}' in it"
    elif own:
        message = f"it has several specs and none is named '{stem}'"
    else:
        message = "there is no spec in it"
    hint = "write @tc.spec over a function"
    if own:
        hint = f"write {filename}:NAME; the specs are {names}"
    raise SpecError(Diagnostic(message, Loc(shorten(filename), 1), hint))


def _split(where: str) -> tuple[str, str]:
    filename, colon, name = where.rpartition(":")
    if colon and name.isidentifier() and not os.path.exists(where):
        return filename, name
    return where, ""


def _run(filename: str) -> ModuleType:
    """The file as a module; it finds its neighbours as a script does."""
    path = os.path.abspath(filename)
    name = "tilecc_spec_" + os.path.splitext(os.path.basename(path))[0]
    loader = importlib.util.spec_from_file_location(name, path)
    if loader is None or loader.loader is None:
        hint = "specs are in files that end in .py"
        raise SpecError(Diagnostic(f"{filename} is not a Python file", None, hint))
    module = importlib.util.module_from_spec(loader)
    sys.modules[name] = module  # dataclasses and pickling look a module up by its name
    sys.path.insert(0, os.path.dirname(path))
    try:
        loader.loader.exec_module(module)
    except DiagnosticError:
        raise
    except SyntaxError as e:
        file, line = e.filename or path, e.lineno or 1
        raise SpecError(Diagnostic(f"syntax error: {e.msg}", Loc(shorten(file), line))) from e
    except (Exception, SystemExit) as e:
        site = exception_site(e, path) or exception_site(e)
        loc = site.loc if site else Loc(shorten(filename), 1)
        raise SpecError(Diagnostic(f"{type(e).__name__}: {e}", loc)) from e
    finally:
        sys.path.remove(os.path.dirname(path))
    return module

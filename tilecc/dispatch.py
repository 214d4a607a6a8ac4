"""One kernel object over several compiled variants: the extents of a call say which one runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilecc.tuning.answers import Answers
    from tilecc.tuning.config import Config

_REMEMBERED = 256  # shapes whose variant is kept


class ByRows:
    """Called as an executable is. Few rows run a variant made for them, built when first needed.

    Args:
        extent: the name of the rows' extent.
        variant: of a number of rows, what the variant for it is made for; None: `general`.
        build: the executable for that.
        general: the executable for any number.
    """

    def __init__(
        self,
        extent: str,
        variant: Callable[[int], int | None],
        build: Callable[[int], Any],
        general: Any,
    ) -> None:
        self.extent, self.variant, self.build, self.general = extent, variant, build, general
        self.variants: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, bound: Any, out: Any, threads: int) -> Any:
        """Run what is made for the call's number of rows."""
        rows = self.variant(bound.extents[self.extent])
        if rows is None:
            return self.general(bound, out, threads)
        executable = self.variants.get(rows)
        if executable is None:
            with self._lock:
                executable = self.variants.get(rows) or self.build(rows)
                self.variants[rows] = executable
        return executable(bound, out, threads)


class Dispatch:
    """Called as an executable is. A variant is built when a call first needs it.

    Args:
        answers: the configuration for each bucket of shapes.
        build: the executable for a configuration; None: for tiles that are predicted, which is what
            runs outside of all buckets.
        first: an executable that there is already, with its configuration.
    """

    def __init__(
        self,
        answers: Answers,
        build: Callable[[Config | None], Any],
        first: tuple[Config | None, Any],
    ) -> None:
        self.answers, self.build = answers, build
        self.variants: dict[Config | None, Any] = dict([first])
        self._by_shape: dict[tuple[tuple[int, ...], ...], Any] = {}
        self._lock = threading.Lock()

    def __call__(self, bound: Any, out: Any, threads: int) -> Any:
        """Run the variant for the call's extents."""
        executable = self._by_shape.get(bound.shapes)
        if executable is None:
            executable = self._find(bound)
        return executable(bound, out, threads)

    def _find(self, bound: Any) -> Any:
        answer = self.answers.select(bound.extents)
        config = answer.config if answer is not None else None
        with self._lock:
            if config not in self.variants:
                self.variants[config] = self.build(config)
            if len(self._by_shape) >= _REMEMBERED:
                self._by_shape.clear()
            self._by_shape[bound.shapes] = self.variants[config]
            return self.variants[config]

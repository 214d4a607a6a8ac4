"""Recursive functions over programs of any depth: results are kept, and Python's stack is not used.

A program may be a chain of hundreds of operations, and Python allows a thousand nested calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """A function that calls itself through this: each key is computed once, however deep.

    A call from within the function for a key that is not known yet abandons the computation; it is
    taken up again, from the beginning, when that key's value is there. So the function must have no
    effects that a second run would repeat.
    """

    def __init__(self, function: Callable[[K], V]) -> None:
        self.function = function
        self.known: dict[K, V] = {}
        self._running = False

    def __call__(self, key: K) -> V:
        """The function's value.

        Raises:
            ValueError: it needs itself.
        """
        if key in self.known:
            return self.known[key]
        if self._running:
            raise _Needed(self, key)
        todo = {key: None}
        self._running = True
        try:
            while todo:
                last = next(reversed(todo))
                try:
                    self.known[last] = self.function(last)
                    del todo[last]
                except _Needed as e:
                    if e.memo is not self:
                        raise
                    if e.key in todo:
                        raise ValueError(f"{e.key!r} depends on itself") from None
                    todo[e.key] = None
        finally:
            self._running = False
        return self.known[key]


class _Needed(Exception):
    """A value that a computation waits for."""

    def __init__(self, memo: Memo[Any, Any], key: Any) -> None:
        self.memo, self.key = memo, key

"""Random numbers that depend on a seed and on where an element is, and on nothing else."""

from __future__ import annotations

from tilecc.dsl.elementwise import cast
from tilecc.dsl.indexing import index
from tilecc.dsl.source import user_site
from tilecc.dsl.tensor import Axes, Operand, Tensor, active

_COUNTERS = 4


def random_bits(seed: Operand, over: Axes) -> Tensor:
    """32 random bits for each position along the axes `over`, as an int64 of 0 to 2**32 - 1.

    Element (i, j) of `tc.random_bits(seed, over="i j")` is the first word of Philox4x32-10 for the
    key `seed` (64 bits) and the counter (i, j, 0, 0): the same on every target and for all tiles,
    and never stored. A threshold of p * 2**32 makes an event of probability p, exactly:

        keep = tc.random_bits(seed, over="b h i j") < 3 * 2**30                 # 3 of 4

    Args:
        seed: an integer, traced or not; different seeds give independent numbers.
        over: up to four axes.
    """
    trace, site = active(), user_site()
    key = trace.coerce(seed)
    names = over.replace(",", " ").split() if isinstance(over, str) else list(over or ())
    if key.poisoned:
        return trace.poison(site)
    if key.dtype.kind != "int" or key.axes:
        hint = 'take it as an argument: seed: tc.Scalar("int64")'
        return trace.error(f"random_bits: the seed is {_described(key)}, not an integer", hint)
    if not 1 <= len(names) <= _COUNTERS or len(set(names)) != len(names):
        given = " ".join(names) or "none"
        hint = 'name one to four different axes: over="b h i j"'
        return trace.error(f"random_bits over {given}", hint)
    counters: list[Operand] = [index(n) for n in names]
    if any(isinstance(c, Tensor) and c.poisoned for c in counters):
        return trace.poison(site)
    counters += [0] * (_COUNTERS - len(counters))
    return trace.apply("philox", key, *counters)


def random_uniform(seed: Operand, over: Axes) -> Tensor:
    """A float32 from [0, 1) for each position along the axes `over`: a multiple of 2**-24.

    It is the upper 24 bits of `random_bits`, so it is exact.
    """
    bits = random_bits(seed, over)
    return cast(bits // 256, "float32") * 2.0**-24


def _described(t: Tensor) -> str:
    return f"a tensor over {', '.join(t.axes)}" if t.axes else str(t.dtype)

"""Traffic and footprint of tile-level programs, as numbers and as formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilecc.cost.count import Counter
from tilecc.cost.footprint import Footprint
from tilecc.cost.io import Io, Part
from tilecc.cost.nest import Access, Kernel
from tilecc.cost.whole import Names
from tilecc.ir.core import Func, Value
from tilecc.ir.expr import Expr


class Formulas:
    """Formulas of the accesses of a program's kernels, each made once, when it is asked for."""

    def __init__(self, names: Mapping[str, Expr]) -> None:
        self.names = names
        self.sums: dict[tuple[int, str], Any] = {}

    def total(self, kernel: Kernel, accesses: Sequence[Access], form: str) -> Any:
        """Elements that the accesses touch; see `io.Part` for the forms."""
        from tilecc.cost.formula import Setting, Sums

        key = id(kernel), form
        if key not in self.sums:
            setting = Setting(self.names, divides=form != "exact", symbolic=form == "tiles")
            self.sums[key] = Sums(kernel, setting)
        return self.sums[key].total(accesses)


def traffic(
    func: Func,
    kernels: Sequence[Kernel],
    counter: Counter | None,
    names: Mapping[str, Expr],
    symbolic: Sequence[Kernel],
) -> Io:
    """What the kernels of `func` read and write; without a counter there are formulas only.

    Formulas are of the `symbolic` kernels: the same, with symbols for what data decides.
    """
    formulas, tensors = Formulas(names), Names(func)
    parts: list[Part] = []
    for k, form_of in zip(kernels, symbolic, strict=True):
        groups: dict[tuple[Value, bool], list[int]] = {}
        for n, a in enumerate(k.accesses):
            groups.setdefault((a.tensor, a.write), []).append(n)
        for (tensor, write), places in groups.items():
            own, same = ([x.accesses[n] for n in places] for x in (k, form_of))
            numbers = sum(counter.elements(own)) if counter is not None else None

            def make(form: str, k: Kernel = form_of, accesses: list[Access] = same) -> Any:
                return formulas.total(k, accesses, form)

            parts.append(Part(tensors.name(tensor), write, tensor.type.dtype, numbers, make))
    return Io(tuple(parts))


def held(
    f: Footprint,
    tile: Mapping[str, int],
    names: Mapping[str, Expr],
    *,
    square: bool = False,
    in_bytes: bool = False,
) -> Any:
    """The footprint as a formula: tile sizes B_i (or one B for all, if `square`), inner extents."""
    import sympy

    from tilecc.cost.symbols import formula, tile_symbol

    one = sympy.Symbol("B", integer=True, positive=True)

    def size(axis: str, n: int) -> Any:
        if axis in tile:
            return one if square else tile_symbol(axis)
        return formula(names[axis]) if axis in names else sympy.Integer(n)

    total = sympy.Integer(0)
    for b in f.largest():
        product = sympy.prod([size(a, n) for a, n in b.axes])
        total += product * (b.bytes_each if in_bytes else 1)
    return sympy.expand(total)

"""Counts that data decides: how often a kernel visits tiles that a map of tiles tells it to.

A kernel that reads a map (passes/tiling/maps.py) has loops and conditions over numbers that another
kernel computed. Where those are known (`Counter` with arrays) they count as they are. Otherwise the
visits are a symbol, `full_tiles` or `partial_tiles`, in place of the loops that they are made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilecc.cost.nest import Guard, Kernel, Loop, Nest, Read, counters
from tilecc.ir.core import Value
from tilecc.ir.expr import Const, Env, Expr, Extent, ceildiv, evaluate, transform, walk
from tilecc.passes.tiling.maps import CODE, FULL, PARTIAL

_NAMES = {
    frozenset([FULL]): "full_tiles",
    frozenset([PARTIAL]): "partial_tiles",
    frozenset([FULL, PARTIAL]): "live_tiles",
}


def is_computed(e: Expr, reads: Mapping[str, Read]) -> bool:
    """Whether `e` depends on what a kernel before this one wrote."""
    return any(isinstance(n, Extent) and _computed(n.name, reads) for n in walk(e))


def _computed(name: str, reads: Mapping[str, Read]) -> bool:
    return name in reads and reads[name].tensor.owner is not None


def _codes(e: Expr, reads: Mapping[str, Read]) -> list[str]:
    """The codes of tiles that `e` reads."""
    found = [n.name for n in walk(e) if isinstance(n, Extent) and _computed(n.name, reads)]
    return [n for n in dict.fromkeys(found) if reads[n].tensor.type.dtype is CODE]


def symbols(kernels: Sequence[Kernel]) -> list[str]:
    """The names of the counts that data decides, in order of first appearance."""
    found = (summed(k, kernels).counts for k in kernels)
    return list(dict.fromkeys(name for names in found for name in names))


def summed(kernel: Kernel, kernels: Sequence[Kernel]) -> Kernel:
    """The kernel with a symbol for each number of visits that data decides.

    A condition on other computed numbers is taken to hold: what is looked at to make a map is
    counted as if every tile had to be.
    """
    if not any(r.tensor.owner is not None for r in kernel.reads.values()):
        return kernel
    maps = _maps(kernels)
    if kernel.counted:
        return kernel
    out = replace(kernel, accesses=[], work=[], counted=True)
    counts: dict[str, None] = {}
    for a in kernel.accesses:
        nest, gone = _summed(a.nest, kernel, maps)
        counts |= dict.fromkeys(_symbols(nest) if gone else ())
        lost = tuple((s.axis, s.size) for s in a.spans if counters(s.base) & gone)
        kept = tuple(s for s in a.spans if not counters(s.base) & gone)
        out.accesses.append(replace(a, nest=nest, spans=kept, whole=(*a.whole, *lost)))
    for w in kernel.work:
        out.work.append(replace(w, nest=_summed(w.nest, kernel, maps)[0]))
    out.counts = tuple(counts)
    return out


def _symbols(nest: Nest) -> list[str]:
    """The counts in a nest that was summed."""
    return [s.counter for s in nest if isinstance(s, Loop) and s.hi == Extent(f"%{s.counter}")]


def _maps(kernels: Sequence[Kernel]) -> dict[Value, str]:
    """What tells the counts of one map from those of another: nothing for the first."""
    found: dict[Value, str] = {}
    for k in kernels:
        for r in k.reads.values():
            if r.tensor.owner is not None and r.tensor.type.dtype is CODE:
                found.setdefault(r.tensor, f"_{len(found) + 1}" if found else "")
    return found


def _summed(nest: Nest, kernel: Kernel, maps: Mapping[Value, str]) -> tuple[Nest, set[str]]:
    """The nest with a loop over visits, and the counters that it replaces."""
    reads = kernel.reads
    guards = [g for g in nest if isinstance(g, Guard) and _codes(g.condition, reads)]
    nest = tuple(s for s in nest if not (isinstance(s, Guard) and _drops(s.condition, reads)))
    if not guards:
        return tuple(_whole(s, kernel) for s in nest), set()
    codes = list(dict.fromkeys(c for g in guards for c in _codes(g.condition, reads)))
    gone = {c for name in codes for e in reads[name].coords for c in counters(e)}
    wanted = frozenset(x for x in (PARTIAL, FULL) if all(_holds(g, codes, x) for g in guards))
    name = _NAMES.get(wanted, "live_tiles") + maps[reads[codes[0]].tensor]
    kept = [s for s in nest if not (isinstance(s, Loop) and s.counter in gone) and s not in guards]
    return (*kept, Loop(name, Const(0), Extent(f"%{name}"))), gone


def _drops(e: Expr, reads: Mapping[str, Read]) -> bool:
    return is_computed(e, reads) and not _codes(e, reads)


def _holds(g: Guard, codes: Sequence[str], code: int) -> bool:
    def f(n: Expr) -> Expr | None:
        return Const(code) if isinstance(n, Extent) and n.name in codes else None

    return bool(evaluate(transform(g.condition, f), Env()))


def _whole(step: Loop | Guard, kernel: Kernel) -> Loop | Guard:
    """A loop between computed bounds as one over the whole axis."""
    if isinstance(step, Guard) or not any(is_computed(e, kernel.reads) for e in (step.lo, step.hi)):
        return step
    axis = kernel.counters().get(step.counter)
    span = next((s for a in kernel.accesses for s in a.spans if s.axis == axis), None)
    if span is None:
        return step
    return Loop(step.counter, Const(0), ceildiv(span.extent, span.size))


def nominal(kernel: Kernel) -> Kernel:
    """The kernel as if every tile were partial, to compare tile sizes with."""
    reads = kernel.reads
    if not any(r.tensor.owner is not None for r in reads.values()):
        return kernel

    def steps(nest: Nest) -> Nest | None:
        out: list[Loop | Guard] = []
        for s in nest:
            if isinstance(s, Guard) and is_computed(s.condition, reads):
                codes = _codes(s.condition, reads)
                if codes and not _holds(s, codes, PARTIAL):
                    return None
            else:
                out.append(_whole(s, kernel))
        return tuple(out)

    accesses = [replace(a, nest=n) for a in kernel.accesses if (n := steps(a.nest)) is not None]
    work = [replace(w, nest=n) for w in kernel.work if (n := steps(w.nest)) is not None]
    return replace(kernel, accesses=accesses, work=work)

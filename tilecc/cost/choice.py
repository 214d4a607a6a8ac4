"""The choice of tile sizes: which fit, and which of those is predicted to be fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilecc.cost.candidates import kernels_of, tiles
from tilecc.cost.footprint import footprint
from tilecc.cost.gpu_time import idle_parts
from tilecc.cost.limits import Need, hard_limits, is_hard, needs
from tilecc.cost.predict import Prediction, Predictor
from tilecc.errors import CompileError, Diagnostic
from tilecc.ir.core import Func
from tilecc.ir.dtypes import DType
from tilecc.passes.base import Remarks
from tilecc.passes.tile import Tile
from tilecc.target import Target

# A tile is not preferred to a smaller one for less than this fraction of the time: predictions are
# no better, and a smaller tile leaves more of the cache and more programs to share out.
MARGIN = 0.045


@dataclass(frozen=True)
class Candidate:
    """Tile sizes that were looked at.

    `needs` and `limit` count numbers or bytes of the memory that they fill most; `reason` says why
    they were refused, or were not the best. `bytes` and `seconds` are predictions for known or
    nominal extents; `seconds` is None for a machine without speeds.
    """

    tile: dict[str, int]
    fits: bool
    needs: int
    limit: int | None
    reason: str
    seconds: float | None
    bytes: int
    runs: bool = True
    """Whether there can be code for it: registers that spill and caches that overflow are slow."""

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return dict(vars(self))


@dataclass(frozen=True)
class Choice:
    """The tile sizes that were chosen, and all candidates. `unit` is what `needs` counts."""

    tile: dict[str, int]
    candidates: tuple[Candidate, ...]
    unit: str


def choose_tile(
    func: Func,
    target: Target,
    extents: Mapping[str, int] | None = None,
    *,
    dtype: DType | None = None,
) -> Choice:
    """The tile sizes for a loop-level program whose inner extents are numbers.

    Args:
        func: the program before `tile`.
        target: the machine.
        extents: extents that are known; nominal ones stand for the others.
        dtype: the type that contractions compute with, if not that of the inputs.

    Raises:
        CompileError: no candidate can run; the message says what each needs. Where none fits, and
            some would only spill registers or overflow a cache, it is the one that needs least.
    """
    found = candidates(func, target, extents, dtype=dtype)
    unit = target.unit
    if not found:
        return Choice({}, (), unit)
    fitting = [c for c in found if c.fits]
    running = [c for c in found if c.runs]
    if fitting:
        best = _best(fitting, target)
    elif running:
        least = min(running, key=lambda c: c.needs)
        best = replace(least, reason=f"chosen, as the one that needs least: {least.reason}")
        found[found.index(least)] = best
    else:
        raise CompileError(_nothing_fits(func, target, found))
    return Choice(best.tile, explained(found, best.tile), unit)


def refuse_what_cannot_run(tiled: Func, target: Target) -> None:
    """Tiles that nothing smaller was found for, or that were given: slow ones run, others do not.

    Args:
        tiled: the program with its tiles.
        target: the machine.

    Raises:
        CompileError: they need more than there is; the message says of what and how much.
    """
    kernels = kernels_of(tiled)
    for need in hard_limits([footprint(k) for k in kernels], target, tiled):
        if not need.fits:
            tile = {a: n for k in kernels for a, n in k.attrs.get("tile", ())}
            sizes = ", ".join(f"{a}={n}" for a, n in tile.items())
            message = f"tile {sizes} does not fit {target.model}: {need}"
            hint = "smaller tiles need less, or smaller inner extents (such as head dimensions)"
            raise CompileError(Diagnostic(message, kernels[0].loc or tiled.loc, hint))


def candidates(
    func: Func,
    target: Target,
    extents: Mapping[str, int] | None = None,
    *,
    dtype: DType | None = None,
) -> list[Candidate]:
    """Every candidate with what it needs; `reason` is set for those that are refused."""
    choices = tiles(func, target)
    if not choices or not choices[0]:
        return []
    # Tiled once, with any sizes: what is held and moved with others follows by proportion.
    reference = max(choices, key=lambda t: sum(t.values()))
    tiled = Tile(tuple(reference.items())).apply(func, Remarks())
    held = [footprint(k) for k in kernels_of(tiled)]
    predictor = Predictor(tiled, target, extents or {}, dtype)
    found = []
    for tile in choices:
        if target.kind == "cuda":
            tiled = Tile(tuple(tile.items())).apply(func, Remarks())
        need = needs(held, target, tile, tiled)
        predicted = predictor.predict(tile, held)
        if target.kind == "cuda" and predicted.seconds is not None:
            alone = idle_parts(kernels_of(tiled), need, target)
            predicted = replace(predicted, seconds=predicted.seconds * alone)
        found.append(_candidate(tile, need, predicted, target))
    return found


def _candidate(
    tile: dict[str, int], need: tuple[Need, ...], p: Prediction, target: Target
) -> Candidate:
    refused = [n for n in need if not n.fits]
    shown = (refused or list(need))[0]
    return Candidate(
        tile,
        not refused,
        shown.needs,
        shown.limit,
        ", ".join(map(str, refused)),
        p.seconds,
        p.bytes,
        not any(is_hard(n, target) for n in refused),
    )


def _best(fitting: list[Candidate], target: Target) -> Candidate:
    """The fastest; of those as fast the smallest, or on a GPU the one that moves least.

    With no speeds: the least traffic. A GPU's blocks share nothing but its bandwidth, and what they
    need most of is bytes for some and registers for others.
    """

    def cost(c: Candidate) -> float:
        return c.seconds if c.seconds is not None else float(c.bytes)

    least = min(map(cost, fitting))
    margin = MARGIN if fitting[0].seconds is not None else 0.0
    near = [c for c in fitting if cost(c) <= least * (1 + margin)]
    if target.kind == "cuda":
        return min(near, key=lambda c: (c.bytes, c.needs / (c.limit or 1), cost(c)))
    return min(near, key=lambda c: (c.needs, cost(c)))


def explained(found: Sequence[Candidate], tile: Mapping[str, int]) -> tuple[Candidate, ...]:
    """The candidates with the reason why each is not `tile`."""
    best = next((c for c in found if all(tile.get(a, 1) == n for a, n in c.tile.items())), None)
    return tuple(c if best is None else _explained(c, best) for c in found)


def _explained(c: Candidate, best: Candidate) -> Candidate:
    if not c.fits:
        return c
    if c is best:
        return replace(c, reason="chosen")
    if c.seconds is None or best.seconds is None:
        return replace(c, reason=f"moves {c.bytes} bytes, the chosen one {best.bytes}")
    if best.seconds * (1 - MARGIN) <= c.seconds <= best.seconds:
        reason = f"predicted to be less than {MARGIN:.0%} faster, and needs more"
        return replace(c, reason=reason)
    return replace(c, reason=f"predicted to take {c.seconds / best.seconds:.2f} times as long")


def _nothing_fits(func: Func, target: Target, found: list[Candidate]) -> Diagnostic:
    rows = "; ".join(
        f"{', '.join(f'{a}={n}' for a, n in c.tile.items())} {c.reason}" for c in found
    )
    loc = next((k.loc for k in kernels_of(func)), func.loc)
    hint = "smaller inner extents (such as head dimensions) need less; tile= gives sizes by hand"
    return Diagnostic(f"no tile fits {target.model}: {rows}", loc, hint)

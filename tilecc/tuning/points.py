"""The points of a program's search space: pruned with reasons, and ranked by predicted time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product

from tilecc.codegen.space import Options, Space, space_for
from tilecc.cost.candidates import Ladder, kernels_of, tiles
from tilecc.cost.choice import MARGIN
from tilecc.cost.footprint import Footprint, footprint
from tilecc.cost.limits import needs
from tilecc.cost.predict import Prediction, Predictor
from tilecc.errors import CompileError
from tilecc.ir.core import Func
from tilecc.passes.base import Remarks
from tilecc.passes.tile import Tile
from tilecc.target import Target
from tilecc.tuning.config import Config


@dataclass(frozen=True)
class Point:
    """A configuration, why it is not tried ("" if it is), and what is predicted of it."""

    config: Config
    refused: str = ""
    seconds: float = math.inf
    """Predicted; infinite where nothing is."""
    features: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    """What the tiled program is like, in numbers: for a model that learns from measurements."""


def points(
    loop: Func,
    target: Target,
    extents: Mapping[str, int],
    scalars: Mapping[str, float] | None = None,
) -> list[Point]:
    """All points for a loop-level program, the fastest by prediction first, the refused ones last.

    `scalars` are run-time numbers (a window) that decide what is computed.

    Where none fits a CPU's cache, the one that needs the least is not refused.

    Raises:
        CompileError: there is nothing to tune for the target.
    """
    space = space_for(target)
    numbers = {f"%{n}": int(v) for n, v in (scalars or {}).items() if float(v).is_integer()}
    extents = {**extents, **numbers}
    found: dict[Config, Point] = {}
    least: tuple[int, Config] | None = None
    for tile in tiles(loop, target, Ladder(space.rows, space.streamed)):
        try:
            tiled = _Tiled(loop, target, extents, tile)
        except CompileError as e:
            config = Config.of(tile)
            found[config] = Point(config, str(e))
            continue
        for options, reason in _options(space, tiled.func, target):
            config = Config.of(tile, options)
            if config not in found:
                found[config] = tiled.point(config, space.complete(options), reason)
        least = min(least or (tiled.needs, Config.of(tile)), (tiled.needs, Config.of(tile)))
    if least and target.kind == "cpu" and all(p.refused for p in found.values()):
        p = found[least[1]]  # a cache that overflows makes it slow, not wrong
        found[p.config] = Point(p.config, "", p.seconds, p.features)
    return _first_choice(
        sorted(found.values(), key=lambda p: (bool(p.refused), p.seconds, p.config))
    )


def _first_choice(ranked: list[Point]) -> list[Point]:
    """The plainest of those that are predicted to be as good as the best, before all others.

    Predictions are no better than MARGIN; a smaller tile leaves more of the cache, and options that
    stand at their defaults have been looked at most.
    """
    if not ranked or ranked[0].refused:
        return ranked
    limit = ranked[0].seconds * (1 + MARGIN)
    near = [p for p in ranked if not p.refused and p.seconds <= limit]
    first = min(near, key=lambda p: (len(p.config.options), p.features["needs"], p.seconds))
    return [first, *(p for p in ranked if p is not first)]


def _options(space: Space, tiled: Func, target: Target) -> Iterator[tuple[Options, str]]:
    """Values that differ for this program, each with the reason why it is refused."""
    defaults = space.complete({})
    seen = set()
    for values in product(*(o.values for o in space.options)):
        full = dict(zip(defaults, values, strict=True))
        matter = space.relevant(tiled, target, full)
        chosen = {n: v for n, v in matter.items() if v != defaults[n]}
        key = tuple(chosen.items())
        if key in seen:
            continue
        seen.add(key)
        reasons = (c.broken(matter, target) for c in space.constraints)
        yield chosen, next(filter(None, reasons), "")


class _Tiled:
    """The program with one set of tile sizes."""

    def __init__(
        self,
        loop: Func,
        target: Target,
        extents: Mapping[str, int],
        tile: Mapping[str, int],
    ) -> None:
        self.tile, self.target = dict(tile), target
        self.func = Tile(tuple(tile.items())).apply(loop, Remarks())
        self.held: list[Footprint] = [footprint(k) for k in kernels_of(self.func)]
        self.predictor = Predictor(self.func, target, extents, None)
        self.need = needs(self.held, target, tile, self.func)
        self.refused = [str(n) for n in self.need if not n.fits]
        self.needs = max((n.needs for n in self.need), default=0)
        self.predict = cache(self._predict)

    def _predict(self, block: tuple[int, int], last_axis: bool) -> Prediction:
        return self.predictor.predict(self.tile, self.held, block, last_axis)

    def point(self, config: Config, options: Options, reason: str) -> Point:
        block = (options.get("mr", 4), options.get("nr", 4))
        predicted = self.predict(block, bool(options.get("lanes", 0)))
        seconds = math.inf if predicted.seconds is None else predicted.seconds
        features = {f"tile_{n}": math.log2(v) for n, v in self.tile.items()}
        features |= {f"option_{n}": math.log2(v + 1) for n, v in options.items()}
        features |= {f"seconds_{n}": math.log(v + 1e-9) for n, v in predicted.terms.items()}
        features["needs"] = math.log2(self.needs + 1)
        features["bytes"] = math.log2(predicted.bytes + 1)
        return Point(config, ", ".join([*self.refused, *filter(None, [reason])]), seconds, features)

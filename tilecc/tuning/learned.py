"""A model that learns from measurements how far predictions are off.

A Gaussian process (scikit-learn) over features of the tiled program, on the logarithm of measured
over predicted time. A process, because trials are tens and not thousands, and because it says how
sure it is: the expected gain of a trial, by which trials are chosen and the search is ended, has a
closed form (Jones, Schonlau, Welch: Efficient Global Optimization, 1998).
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilecc.tuning.points import Point

_LEAST = 4  # measurements before anything can be learned


def available() -> bool:
    """Whether scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


class Learned:
    """The posterior for some points after measurements of others."""

    def __init__(self, points: Sequence[Point], seed: int) -> None:
        self.points = list(points)
        self.index = {p.config: n for n, p in enumerate(self.points)}
        self.seed = seed
        names = sorted({name for p in self.points for name in p.features})
        table = np.array([[p.features.get(n, 0.0) for n in names] for p in self.points])
        table = table.reshape(len(self.points), len(names))
        spread = table.std(axis=0)
        kept = spread > 1e-9
        self.table = (table[:, kept] - table[:, kept].mean(axis=0)) / spread[kept]
        self.prior = np.array([math.log(p.seconds) for p in self.points])

    def gains(self, measured: Mapping[Any, float], count: int) -> list[tuple[Any, float]]:
        """The `count` configurations to measure next, each with its expected gain.

        A gain is the expected fraction of the best time that is saved. Each choice is made as if
        those before it had turned out as expected, so that they are not all alike.

        Args:
            measured: seconds by configuration.
        """
        known = [self.index[c] for c in measured if c in self.index]
        rest = [n for n in range(len(self.points)) if n not in set(known)]
        if not rest:
            return []
        if len(known) < _LEAST:
            order = sorted(rest, key=lambda n: self.prior[n])
            return [(self.points[n].config, 1.0) for n in order[:count]]
        y = np.array([math.log(measured[self.points[n].config]) for n in known]) - self.prior[known]
        process = self._fit(self.table[known], y)
        best = min(measured.values())
        found: list[tuple[Any, float]] = []
        while rest and len(found) < count:
            mean, sigma = process.predict(self.table[rest], return_std=True)
            gain = _expected_gain(mean + self.prior[rest], sigma, math.log(best))
            at = int(np.argmax(gain))
            found.append((self.points[rest[at]].config, float(gain[at])))
            known.append(rest.pop(at))
            y = np.append(y, mean[at])
            if len(found) < count:
                process = self._fit(self.table[known], y, process.kernel_)
        return found

    def expected(self, measured: Mapping[Any, float]) -> dict[Any, float]:
        """Seconds of every point by what has been learned; the predictions before that."""
        known = [self.index[c] for c in measured if c in self.index]
        if len(known) < _LEAST:
            return {p.config: p.seconds for p in self.points}
        y = np.array([math.log(measured[self.points[n].config]) for n in known]) - self.prior[known]
        mean = self._fit(self.table[known], y).predict(self.table)
        return {
            p.config: float(math.exp(m + q))
            for p, m, q in zip(self.points, mean, self.prior, strict=True)
        }

    def _fit(self, x: Any, y: Any, kernel: Any = None) -> Any:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
        from threadpoolctl import threadpool_limits

        start = ConstantKernel(0.05, (1e-4, 10.0)) * Matern(3.0, (0.3, 100.0), nu=1.5)
        start += WhiteKernel(1e-3, (1e-5, 1e-1))
        process = GaussianProcessRegressor(
            kernel if kernel is not None else start,
            optimizer="fmin_l_bfgs_b" if kernel is None else None,
            normalize_y=False,
            random_state=self.seed,
        )
        center = float(np.mean(y))
        # The matrices are small: threads of BLAS would cost more than they do, and the candidates'
        # cores too.
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore", ConvergenceWarning)
            process.fit(x, y - center)
        return _Centred(process, center)


class _Centred:
    """A process on differences from a mean."""

    def __init__(self, process: Any, center: float) -> None:
        self.process, self.center = process, center
        self.kernel_ = process.kernel_

    def predict(self, x: Any, return_std: bool = False) -> Any:
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):
            found = self.process.predict(x, return_std=return_std)
        if return_std:
            return found[0] + self.center, found[1]
        return found + self.center


def _expected_gain(mean: Any, sigma: Any, best: float) -> Any:
    """E max(0, 1 - t / best) for t log-normal: in log space to first order, near the best."""
    sigma = np.maximum(sigma, 1e-9)
    z = (best - mean) / sigma
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in z])
    return (best - mean) * below + sigma * density

"""Laws that a generator draws from, each fitted from data: quantile tables, a rank copula, renewal arrivals.

Every law is a handful of numbers that go to YAML and back. Draws use ``numpy.random.Generator`` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVELS = (*(i / 50 for i in range(50)), 0.99, 0.995, 0.999, 1.0)
"""Probability levels of a quantile table: 2 % steps, finer at the top."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """An empirical distribution: values at :data:`LEVELS`, straight lines between."""

    values: tuple[float, ...]

    @classmethod
    def fit(cls, sample: Floats, digits: int = 1) -> Quantiles:
        """Quantiles of a sample, rounded."""
        return cls(tuple(round(float(v), digits) for v in np.quantile(sample, LEVELS)))

    def at(self, u: Floats) -> Floats:
        """Values at the probabilities ``u`` in [0, 1]."""
        return np.interp(u, LEVELS, self.values)

    @property
    def mean(self) -> float:
        """Mean of the piecewise linear law."""
        values, levels = np.asarray(self.values), np.asarray(LEVELS)
        return float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(levels)))


@dataclass(frozen=True, slots=True)
class Copula:
    """How two ranks go together: counts over a square grid of equal-probability cells, even within a cell."""

    counts: tuple[tuple[int, ...], ...]

    @classmethod
    def fit(cls, first: NDArray[Any], second: NDArray[Any], cells: int = 10) -> Copula:
        """Count pairs by the ranks of both members; ties rank in order of appearance."""
        a, b = (_ranks(x) * cells // x.size for x in (first, second))
        grid = np.zeros((cells, cells), np.int64)
        np.add.at(grid, (a, b), 1)
        return cls(tuple(tuple(int(v) for v in row) for row in grid))

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """``n`` pairs of probabilities in [0, 1]."""
        grid = np.asarray(self.counts, np.float64)
        share = np.cumsum(grid.ravel()) / grid.sum()
        cell = np.minimum(np.searchsorted(share, rng.random(n), side="right"), share.size - 1)
        row, column = cell // grid.shape[1], cell % grid.shape[1]
        return (row + rng.random(n)) / grid.shape[0], (column + rng.random(n)) / grid.shape[1]


def _ranks(values: NDArray[Any]) -> NDArray[np.int64]:
    ranks = np.empty(values.size, np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(values.size)
    return ranks


@dataclass(frozen=True, slots=True)
class Renewal:
    """Independent gaps with mean ``mean_s``: ``poisson`` (shape 1), ``gamma`` or ``weibull`` of that shape."""

    family: str
    mean_s: float
    shape: float

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """``n`` gaps in seconds."""
        if self.family == "weibull":
            return rng.weibull(self.shape, n) * (self.mean_s / _gamma(1 + 1 / self.shape))
        return rng.gamma(self.shape, self.mean_s / self.shape, n)

    def log_likelihood(self, gaps: Floats) -> float:
        """Mean log density of gaps above 0, in nats a gap."""
        from scipy import special

        k = self.shape
        if self.family == "weibull":
            scale = self.mean_s / _gamma(1 + 1 / k)
            z = gaps / scale
            return float(np.mean(np.log(k / scale) + (k - 1) * np.log(z) - z**k))
        scale = self.mean_s / k
        return float(np.mean((k - 1) * np.log(gaps) - gaps / scale) - special.gammaln(k) - k * np.log(scale))


FAMILIES = ("poisson", "gamma", "weibull")


def fit_renewal(family: str, gaps: Floats) -> Renewal:
    """Maximum likelihood of one family on gaps above 0."""
    if family == "poisson":
        return Renewal(family, float(gaps.mean()), 1.0)
    from scipy import optimize, special

    logs = np.log(gaps)
    if family == "gamma":
        target = np.log(gaps.mean()) - logs.mean()
        shape = optimize.brentq(lambda k: np.log(k) - special.digamma(k) - target, 1e-3, 1e3)
        return Renewal(family, float(gaps.mean()), float(shape))

    def slope(k: float) -> float:
        power = gaps**k
        return float(np.sum(power * logs) / np.sum(power) - 1 / k - logs.mean())

    shape = float(optimize.brentq(slope, 1e-2, 1e2))
    scale = float(np.mean(gaps**shape) ** (1 / shape))
    return Renewal(family, scale * _gamma(1 + 1 / shape), shape)


def choose_renewal(fitted_on: Floats, held_out: Floats) -> tuple[Renewal, Mapping[str, float]]:
    """The family that explains held-out gaps best, fitted on the others; and every family's log likelihood.

    Args:
        fitted_on: gaps in seconds.
        held_out: gaps of another stretch. They are scaled to the mean of ``fitted_on``: the families differ in
            shape, and the rate of another stretch is another one.
    """
    fitted_on, held_out = fitted_on[fitted_on > 0], held_out[held_out > 0]
    held_out = held_out * (fitted_on.mean() / held_out.mean())
    laws = {family: fit_renewal(family, fitted_on) for family in FAMILIES}
    scores = {family: law.log_likelihood(held_out) for family, law in laws.items()}
    return laws[max(scores, key=lambda family: scores[family])], scores


def _gamma(x: float) -> float:
    import math

    return math.gamma(x)

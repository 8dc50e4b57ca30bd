"""Laws that a generator draws from, each fitted from data: quantile tables, a rank copula.

Every law is a handful of numbers that go to YAML and back. Draws use ``numpy.random.Generator`` only.
"""

from __future__ import annotations

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

    def given(self, first: Floats, rng: np.random.Generator) -> Floats:
        """One probability of the second member for each probability of the first."""
        grid = np.asarray(self.counts, np.float64)
        share = np.cumsum(grid, axis=1)
        row = np.minimum((first * grid.shape[0]).astype(np.int64), grid.shape[0] - 1)
        # Rows stand one after the other on a line, each with its cumulated shares: one search finds every cell.
        line = (share / share[:, -1:] + np.arange(grid.shape[0])[:, None]).ravel()
        cell = np.searchsorted(line, row + rng.random(first.size), side="right") - row * grid.shape[1]
        return np.asarray((cell.clip(0, grid.shape[1] - 1) + rng.random(first.size)) / grid.shape[1])


def _ranks(values: NDArray[Any]) -> NDArray[np.int64]:
    ranks = np.empty(values.size, np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(values.size)
    return ranks

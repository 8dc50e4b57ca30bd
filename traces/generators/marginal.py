"""One quantity's distribution as a short table of quantiles that keeps exact values which repeat, and both tails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LEVELS = np.array([0.001, 0.005, 0.01, *(i / 50 for i in range(1, 50)), 0.99, 0.995, 0.999, 0.9995])
_ATOM_SHARE = 0.004  # a value with this share of the sample is kept exactly
_MAX_ATOMS = 40
_LEVEL_DIGITS = 5
_MOST = 1e10


@dataclass(frozen=True, slots=True)
class Marginal:
    """Values at probability levels, straight lines between, rounded to ``digits``.

    A value with more than 0.4 % of the sample keeps its share: it holds two levels, half a step below it and half a
    step above, so that every probability between the two rounds to it.

    Attributes:
        levels: ascending probabilities, from 0 to 1.
        values: the values there, ascending.
        digits: decimals of a drawn value (0 for tokens).
    """

    levels: tuple[float, ...]
    values: tuple[float, ...]
    digits: int = 0

    @classmethod
    def fit(cls, sample: NDArray[Any], digits: int = 0) -> Marginal:
        """Fit a sample of at least one finite value."""
        step = 10.0**-digits
        value, count = np.unique(np.round(np.asarray(sample, np.float64), digits), return_counts=True)
        below = np.cumsum(count) / sample.size
        above = np.r_[0.0, below[:-1]]
        at = np.unique(np.searchsorted(below, _LEVELS).clip(max=value.size - 1))
        common = np.flatnonzero(count >= _ATOM_SHARE * sample.size)
        atoms = common[np.argsort(-count[common], kind="stable")][:_MAX_ATOMS]
        lower = np.unique(np.r_[0, atoms])
        upper = np.unique(np.r_[at, atoms, value.size - 1])
        level = np.r_[above[lower], below[upper]]
        edge = np.r_[value[lower] - step / 2, value[upper] + step / 2]
        order = np.lexsort((edge, level))
        return cls(
            tuple(round(float(x), _LEVEL_DIGITS) for x in level[order]),
            tuple(round(float(x), digits + 1) for x in edge[order]),
            digits,
        )

    def at(self, u: Floats) -> Floats:
        """Values at the probabilities ``u`` in [0, 1]."""
        drawn = np.interp(u, self.levels, self.values)
        # The outermost half steps would round outwards.
        inside = drawn.clip(self.values[0] + 10.0**-self.digits / 4, self.values[-1] - 10.0**-self.digits / 4)
        return np.round(inside, self.digits) + 0.0

    def rank(self, value: NDArray[Any]) -> Floats:
        """Probabilities at which values lie: the inverse of :meth:`at`, the middle of the range of a value."""
        half = 10.0**-self.digits / 2
        low, high = (np.interp(value + side, self.values, self.levels) for side in (-half, half))
        return np.asarray((low + high) / 2)

    @property
    def mean(self) -> float:
        """Mean of the law."""
        values, levels = np.asarray(self.values), np.asarray(self.levels)
        return float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(levels)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for YAML."""
        return {"levels": list(self.levels), "values": list(self.values), "digits": self.digits}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Marginal:
        """The law of :meth:`to_dict`; a ValueError says what is wrong with it."""
        levels, values = (tuple(float(x) for x in raw[key]) for key in ("levels", "values"))
        if len(levels) != len(values) or len(levels) < 2 or levels[0] != 0.0 or levels[-1] != 1.0:
            raise ValueError("levels from 0 to 1, and as many values")
        digits = int(raw["digits"])
        fine = np.isfinite([*levels, *values]).all() and np.abs(values).max() <= _MOST and 0 <= digits <= 6
        if not fine or (np.diff(levels) < 0).any() or (np.diff(values) < 0).any():
            raise ValueError("ascending levels and values, no larger than 1e10, and 0 to 6 digits")
        return cls(levels, values, digits)

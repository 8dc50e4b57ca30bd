"""Laws of one gap between arrivals, by maximum likelihood: exponential, Gamma, Weibull."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gaps:
    """Independent gaps with mean ``mean_s``: ``poisson`` (shape 1), ``gamma`` or ``weibull`` of that shape."""

    family: str
    mean_s: float
    shape: float

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """``n`` gaps in seconds."""
        if self.family == "weibull":
            return rng.weibull(self.shape, n) * (self.mean_s / math.gamma(1 + 1 / self.shape))
        return rng.gamma(self.shape, self.mean_s / self.shape, n)

    def log_likelihood(self, gaps: Floats) -> float:
        """Mean log density of gaps above 0, in nats a gap."""
        from scipy import special

        k = self.shape
        if self.family == "weibull":
            scale = self.mean_s / math.gamma(1 + 1 / k)
            z = gaps / scale
            return float(np.mean(np.log(k / scale) + (k - 1) * np.log(z) - z**k))
        scale = self.mean_s / k
        return float(np.mean((k - 1) * np.log(gaps) - gaps / scale) - special.gammaln(k) - k * np.log(scale))


SHAPES = (0.01, 500.0)
GAP_FAMILIES = ("poisson", "gamma", "weibull")


def fit_gaps(family: str, gaps: Floats) -> Gaps:
    """Maximum likelihood of one family on gaps above 0."""
    if family == "poisson":
        return Gaps(family, float(gaps.mean()), 1.0)
    from scipy import special

    logs = np.log(gaps)
    if family == "gamma":
        target = np.log(gaps.mean()) - logs.mean()
        return Gaps(family, float(gaps.mean()), _root(lambda k: float(np.log(k) - special.digamma(k) - target)))

    top = float(gaps.max())

    def slope(k: float) -> float:
        power = (gaps / top) ** k
        return float(1 / k + logs.mean() - np.sum(power * logs) / np.sum(power))

    shape = _root(slope)
    scale = top * float(np.mean((gaps / top) ** shape) ** (1 / shape))
    return Gaps(family, scale * math.gamma(1 + 1 / shape), shape)


def _root(falling: Callable[[float], float]) -> float:
    """Where it crosses 0, in the shapes allowed: gaps all alike have no largest likelihood, nor have endless tails."""
    from scipy import optimize

    low, high = SHAPES
    if falling(low) <= 0:
        return low
    return high if falling(high) >= 0 else float(optimize.brentq(falling, low, high))


def choose_gaps(fitted_on: Floats, held_out: Floats) -> tuple[Gaps, Mapping[str, float]]:
    """The family that explains held-out gaps best, fitted on the others; and every family's log likelihood.

    Args:
        fitted_on: gaps in seconds.
        held_out: gaps of another stretch. They are scaled to the mean of ``fitted_on``: the families differ in
            shape, and the rate of another stretch is another one.
    """
    fitted_on, held_out = fitted_on[fitted_on > 0], held_out[held_out > 0]
    held_out = held_out * (fitted_on.mean() / held_out.mean())
    laws = {family: fit_gaps(family, fitted_on) for family in GAP_FAMILIES}
    scores = {family: law.log_likelihood(held_out) for family, law in laws.items()}
    return laws[max(scores, key=lambda family: scores[family])], scores

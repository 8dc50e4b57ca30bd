"""Renewal arrivals: independent gaps, exponential (Poisson), Gamma or Weibull; stationary from time 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.arrivals.gaps import GAP_FAMILIES, Gaps, fit_gaps
from traces.arrivals.law import Floats, Stationary, gaps_of, only, positive, short


@dataclass(frozen=True, slots=True)
class Renewal(Stationary):
    """Independent gaps of one law.

    The first gap, from time 0, is what is left of a gap under way then, so that the rate holds from the start.

    Attributes:
        family: ``poisson``, ``gamma`` or ``weibull``.
        mean_s: mean gap.
        shape: 1 for ``poisson``; below 1 is burstier.
    """

    family: str
    mean_s: float
    shape: float

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second."""
        return 1.0 / self.mean_s

    @property
    def _gaps(self) -> Gaps:
        return Gaps(self.family, self.mean_s, self.shape)

    def _draw(self, duration_s: float, rng: np.random.Generator) -> Floats:
        gaps = self._gaps
        found = [np.array([left_over(gaps, 1, rng)[0]])]
        at = float(found[0][0])
        while at < duration_s:
            part = at + np.cumsum(gaps.draw(max(16, int(1.1 * (duration_s - at) / self.mean_s)), rng))
            found.append(part)
            at = float(part[-1])
        return np.concatenate(found)

    def log_densities(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        gaps, tail = gaps_of(arrivals_s, duration_s)
        law = self._gaps
        if not gaps.size:
            return np.array([-tail / self.mean_s if self.family == "poisson" else math.log(_never(law, tail))])
        first = log_survival(law, gaps[:1]) - math.log(self.mean_s)
        return np.concatenate([first, log_density(law, gaps[1:]), log_survival(law, np.array([tail]))])

    def residuals(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`; the first gap is left out."""
        gaps, _ = gaps_of(arrivals_s, duration_s)
        return -np.expm1(log_survival(self._gaps, gaps[1:]))

    def to_dict(self) -> dict[str, Any]:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        shape = {} if self.family == "poisson" else {"shape": self.shape}
        return {"family": self.family, "mean_gap_s": self.mean_s, **shape}


def read(raw: Mapping[str, object]) -> Renewal:
    """From plain numbers."""
    family = str(raw["family"])
    only(raw, "mean_gap_s", *(() if family == "poisson" else ("shape",)))
    return Renewal(family, positive("mean_gap_s", raw["mean_gap_s"]), positive("shape", raw.get("shape", 1.0)))


def fit(family: str, arrivals_s: Floats, duration_s: float) -> Renewal:
    """Maximum likelihood on the gaps; Poisson on the count."""
    if family == "poisson":
        return Renewal(family, short(duration_s / max(1, arrivals_s.size)), 1.0)
    law = fit_gaps(family, np.diff(arrivals_s))
    return Renewal(family, short(law.mean_s), short(law.shape))


FAMILIES = GAP_FAMILIES


def log_density(law: Gaps, gaps: Floats) -> Floats:
    """(n,) log density of gaps above 0, nats per second."""
    from scipy import special

    k = law.shape
    if law.family == "weibull":
        scale = law.mean_s / math.gamma(1 + 1 / k)
        z = np.log(gaps / scale)
        return np.asarray(math.log(k / scale) + (k - 1) * z - np.exp(k * z))
    scale = law.mean_s / k
    return np.asarray((k - 1) * np.log(gaps / scale) - gaps / scale - special.gammaln(k) - math.log(scale))


def log_survival(law: Gaps, gaps: Floats) -> Floats:
    """(n,) log probability of a longer gap."""
    from scipy import special

    if law.family == "weibull":
        return np.asarray(-((gaps * math.gamma(1 + 1 / law.shape) / law.mean_s) ** law.shape))
    if law.shape == 1.0:
        return np.asarray(-gaps / law.mean_s)
    return np.asarray(np.log(np.maximum(special.gammaincc(law.shape, gaps * law.shape / law.mean_s), 1e-300)))


def left_over(law: Gaps, n: int, rng: np.random.Generator) -> Floats:
    """(n,) what is left, at a random time, of the gap then under way: an even share of a length-biased gap."""
    if law.family == "weibull":
        scale = law.mean_s / math.gamma(1 + 1 / law.shape)
        biased = scale * rng.gamma(1 + 1 / law.shape, 1.0, n) ** (1 / law.shape)
    else:
        biased = rng.gamma(law.shape + 1, law.mean_s / law.shape, n)
    return np.asarray(biased * rng.random(n))


def _never(law: Gaps, duration_s: float) -> float:
    """Probability that a stationary process has no arrival for so long: the mean gap beyond it over the mean gap."""
    from scipy import integrate

    value = integrate.quad(lambda t: math.exp(log_survival(law, np.array([t]))[0]), 0, duration_s, limit=200)[0]
    return float(max(1.0 - value / law.mean_s, 1e-300))

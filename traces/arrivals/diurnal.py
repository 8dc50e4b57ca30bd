"""A rate with a known period: equal parts of the period, each with a factor; under it any law, in operational time.

One period only: days of a week are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traces.arrivals.law import ArrivalLaw, Floats, numbers, positive, short

DAY_S = 86_400.0
PARTS = 24
FIELDS = ("period_s", "phase_s", "factors")


@dataclass(frozen=True, slots=True)
class Diurnal:
    """Another law's arrivals, with time stretched so that the rate follows a period.

    Attributes:
        steady: law at factor 1, in operational time.
        period_s: the period. It stays as it is when another rate is asked for.
        phase_s: where in the period time 0 lies.
        factors: rate over mean rate, of equal parts of the period; mean 1.
    """

    steady: ArrivalLaw
    period_s: float
    phase_s: float
    factors: tuple[float, ...]

    @property
    def family(self) -> str:
        """``diurnal_`` and the family under it."""
        return f"diurnal_{self.steady.family}"

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second of whole periods."""
        return self.steady.rate_per_s

    def later(self, by_s: float) -> Diurnal:
        """The law from a later time on."""
        return replace(self, phase_s=(self.phase_s + by_s) % self.period_s)

    def operational_s(self, time_s: Floats) -> Floats:
        """Operational time: the integral of the factor from 0."""
        return self._whole(self.phase_s + np.asarray(time_s)) - self._whole(np.array(self.phase_s))

    def _whole(self, clock_s: Floats) -> Floats:
        part_s = self.period_s / len(self.factors)
        cycles = np.floor(clock_s / self.period_s)
        edges = np.arange(len(self.factors) + 1) * part_s
        sums = np.r_[0.0, np.cumsum(self.factors)] * part_s
        return np.asarray(cycles * sums[-1] + np.interp(clock_s - cycles * self.period_s, edges, sums))

    def factor(self, time_s: Floats) -> Floats:
        """Rate over mean rate at each time."""
        part = ((self.phase_s + time_s) % self.period_s) * len(self.factors) / self.period_s
        return np.asarray(self.factors)[np.minimum(part.astype(np.int64), len(self.factors) - 1)]

    def draw(self, duration_s: float, rng: np.random.Generator, *, rate_per_s: float | None = None) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`; the period stays."""
        positive("duration_s", duration_s)
        part_s = self.period_s / len(self.factors)
        clock = np.arange(np.floor(self.phase_s / part_s), np.ceil((self.phase_s + duration_s) / part_s) + 1) * part_s
        edges = np.unique(np.clip(clock - self.phase_s, 0.0, duration_s))
        whole = self.operational_s(edges)
        arrivals = self.steady.draw(float(whole[-1]), rng, rate_per_s=rate_per_s)
        found = np.interp(arrivals, whole, edges)
        return np.asarray(found[found < duration_s])

    def log_densities(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        end = float(self.operational_s(np.array(duration_s)))
        arrivals = np.minimum(self.operational_s(arrivals_s), end)
        parts = self.steady.log_densities(arrivals, end)
        stamps = np.unique(arrivals_s) if parts.size <= len(arrivals_s) else arrivals_s  # batches have one part each
        return np.asarray(parts + np.append(np.log(self.factor(stamps)), 0.0))

    def log_likelihood(self, arrivals_s: Floats, duration_s: float) -> float:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        return float(self.log_densities(arrivals_s, duration_s).sum())

    def residuals(self, arrivals_s: Floats, duration_s: float) -> Floats:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        end = float(self.operational_s(np.array(duration_s)))
        return np.asarray(self.steady.residuals(np.minimum(self.operational_s(arrivals_s), end), end))

    def to_dict(self) -> dict[str, Any]:
        """See :class:`traces.arrivals.law.ArrivalLaw`."""
        own = {"period_s": self.period_s, "phase_s": self.phase_s, "factors": list(self.factors)}
        return {**self.steady.to_dict(), "family": self.family, **own}


def factors_of(arrivals_s: Floats, duration_s: float, period_s: float, parts: int = PARTS) -> tuple[float, ...]:
    """Arrivals of each part of the period over its time, over the mean; no counts at all do not become 0."""
    part_s = period_s / parts
    edges = np.append(np.arange(0.0, duration_s, part_s), duration_s)
    part = np.arange(edges.size - 1) % parts
    time = np.bincount(part, np.diff(edges), parts)
    counts = np.bincount(part, np.histogram(arrivals_s, edges)[0], parts)
    rate = arrivals_s.size / duration_s
    found = (counts + 1.0) / (time * rate + 1.0)
    found = np.maximum(found / found.mean(), 1e-3)
    return tuple(short(v) for v in found / found.mean())


def read(raw: Mapping[str, object], steady: ArrivalLaw) -> Diurnal:
    """From plain numbers."""
    return Diurnal(
        steady,
        positive("period_s", raw["period_s"]),
        positive("phase_s", raw["phase_s"], zero=True),
        numbers("factors", raw["factors"]),
    )

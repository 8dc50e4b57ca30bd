"""Burstiness by time scale: the index of dispersion of a trace, of a law, and of windows drawn from it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from traces.arrivals.law import ArrivalLaw, Floats
from traces.describe import dispersion

REPORTED_S = (1.0, 10.0, 60.0)
_SIMULATED = 300_000  # arrivals drawn to find a law's dispersion


def dispersion_curve(arrivals_s: Floats, duration_s: float, scales_s: Iterable[float]) -> dict[float, float]:
    """Index of dispersion by interval length, of those with eight whole intervals in ``duration_s`` and more.

    Variance over mean of the counts: 1 for Poisson, more for bursts, less for regular arrivals.
    """
    found = {scale: dispersion(arrivals_s, duration_s, scale) for scale in scales_s}
    return {scale: index for scale, index in found.items() if index is not None}


def curve(arrivals_s: Floats, duration_s: float, scales_s: Floats) -> Floats:
    """The same as an array; 1 where there is none."""
    return np.array([dispersion(arrivals_s, duration_s, scale) or 1.0 for scale in scales_s])


def scales_of(n: int, duration_s: float) -> Floats:
    """Interval lengths at which laws are matched: of two arrivals in the mean up to an eighth of the duration."""
    least, most = 2 * duration_s / max(1, n), duration_s / 8
    if most <= least:
        return np.zeros(0)
    reported = [scale for scale in REPORTED_S if 0.5 * least <= scale <= most]
    return np.unique(np.concatenate([np.geomspace(least, most, 9), reported]))


def drawn_curves(
    law: ArrivalLaw,
    scales_s: Floats,
    duration_s: float,
    rng: np.random.Generator,
    windows: int,
    rate_per_s: float | None = None,
) -> Floats:
    """(windows, scales) index of dispersion of drawn windows; NaN in one without arrivals."""
    drawn = (law.draw(duration_s, rng, rate_per_s=rate_per_s) for _ in range(windows))
    return np.array([[dispersion(a, duration_s, scale) or np.nan for scale in scales_s] for a in drawn])


def mean_dispersion(
    law: ArrivalLaw, scales_s: Floats, duration_s: float, rate_per_s: float, rng: np.random.Generator
) -> Floats:
    """Index of dispersion by interval length: the mean over drawn windows of one duration."""
    windows = int(np.clip(_SIMULATED / (rate_per_s * duration_s), 20, 150))
    return np.asarray(np.nanmean(drawn_curves(law, scales_s, duration_s, rng, windows), axis=0))


def log_miss(found: Floats, target: Floats) -> float:
    """Root mean square of the log ratios."""
    return float(np.sqrt(np.mean(np.log(found / target) ** 2))) if found.size else 0.0

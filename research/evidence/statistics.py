"""How sure a figure is. The replicate is a disjoint time window; requests are never treated as independent.

* seeds are nested in windows and averaged first: they add no replicates;
* one figure: an interval of the mean over windows; two policies: of the mean of their *paired* differences over
  the same windows;
* from 8 windows the interval is the wider one of the BCa bootstrap and Student's t at each end. Alone, the
  bootstrap of so few values is too narrow (T. Hesterberg, "What teachers should know about the bootstrap", 2015,
  section 4), and t ignores skew. Below 8 it is Student's t, and the figure is *indicative*;
* several policies against one: Holm (1979). Each comparison's interval has the level that Holm's step gives it, so
  it excludes 0 exactly when Holm rejects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

CONFIDENCE = 0.95
BOOTSTRAP_WINDOWS = 8
"""Fewer windows than this: Student's t alone, marked indicative."""
RESAMPLES = 4999
SEED = 20260601  # of the bootstrap's own draws; the same table twice


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over windows with its interval. ``low``/``high`` are NaN for a single window."""

    value: float
    low: float
    high: float
    windows: int
    indicative: bool
    method: str  # "bootstrap BCa + t" | "t" | "none"


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean paired difference (this minus other) with a Holm-adjusted interval.

    Attributes:
        estimate: value, interval at ``confidence``, number of windows.
        p_value: not adjusted.
        p_holm: adjusted for the comparisons made together.
        confidence: level that Holm's step gave this interval (at least 0.95).
        detectable: least true difference that this comparison would find with 80 % probability.
    """

    estimate: Estimate
    p_value: float
    p_holm: float
    confidence: float
    detectable: float

    @property
    def proven(self) -> bool:
        """The adjusted interval excludes 0."""
        return self.estimate.low > 0 or self.estimate.high < 0


def by_window(windows: Sequence[int], values: Sequence[float | None]) -> dict[int, float]:
    """Average seeds within each window; a window with a value missing is left out.

    Args:
        windows: (n,) window of each run.
        values: (n,) its value, None or NaN where there was nothing to measure.
    """
    groups: dict[int, list[float]] = {}
    for window, value in zip(windows, values, strict=True):
        groups.setdefault(window, []).append(np.nan if value is None else float(value))
    return {w: float(np.mean(v)) for w, v in sorted(groups.items()) if np.isfinite(v).all()}


def interval(values: Sequence[float] | NDArray[np.float64], confidence: float = CONFIDENCE) -> Estimate:
    """Mean of window values with its interval."""
    x = np.asarray(values, np.float64)
    n = x.size
    if n == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), 0, True, "none")
    mean = float(x.mean())
    if n == 1:
        return Estimate(mean, float("nan"), float("nan"), 1, True, "none")
    if np.ptp(x) == 0.0:
        return Estimate(mean, mean, mean, n, n < BOOTSTRAP_WINDOWS, "t")
    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1) * x.std(ddof=1) / np.sqrt(n))
    low, high = mean - half, mean + half
    if n < BOOTSTRAP_WINDOWS:
        return Estimate(mean, low, high, n, True, "t")
    boot_low, boot_high = _bootstrap(x, confidence)
    return Estimate(mean, min(low, boot_low), max(high, boot_high), n, False, "bootstrap BCa + t")


def _bootstrap(x: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    """BCa interval of the mean; percentile where BCa is undefined."""
    for method in ("BCa", "percentile"):
        with np.errstate(all="ignore"):
            result = stats.bootstrap(
                (x,),
                np.mean,
                confidence_level=confidence,
                n_resamples=RESAMPLES,
                method=method,
                rng=np.random.default_rng(SEED),
            ).confidence_interval
        if np.isfinite(result.low) and np.isfinite(result.high):
            return float(result.low), float(result.high)
    return float(x.min()), float(x.max())


def p_value(differences: Sequence[float] | NDArray[np.float64]) -> float:
    """1 - the highest level at which :func:`interval` excludes 0 (1.0 where it never does)."""
    x = np.asarray(differences, np.float64)
    if x.size < 2:
        return 1.0
    if np.ptp(x) == 0.0:
        return 1.0 if x[0] == 0.0 else 0.0

    def includes_zero(alpha: float) -> float:
        estimate = interval(x, 1.0 - alpha)
        return 1.0 if estimate.low <= 0.0 <= estimate.high else -1.0

    t_alone = float(stats.ttest_1samp(x, 0.0).pvalue)
    if x.size < BOOTSTRAP_WINDOWS or includes_zero(min(1.0 - 1e-9, t_alone * (1 + 1e-6) + 1e-12)) < 0:
        return t_alone
    # The bootstrap is the wider one here: find the level at which its interval ends at 0.
    if includes_zero(0.999) > 0:
        return 1.0
    return float(optimize.bisect(includes_zero, t_alone, 0.999, xtol=1e-4))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values, in the order given."""
    m = len(p_values)
    adjusted = [0.0] * m
    running = 0.0
    for rank, index in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (m - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def compare(
    base: Mapping[int, float], others: Mapping[str, Mapping[int, float]], confidence: float = CONFIDENCE
) -> dict[str, Difference]:
    """Every other minus ``base``, paired over the windows that both have, Holm-adjusted together.

    Args:
        base: value by window.
        others: value by window, by policy.
        confidence: of the family.
    """
    paired = {
        name: np.array([values[w] - base[w] for w in sorted(values.keys() & base.keys())])
        for name, values in others.items()
    }
    names = list(paired)
    raw = [p_value(paired[name]) for name in names]
    adjusted = holm(raw)
    alpha, m = 1.0 - confidence, len(names)
    step = alpha / m if m else alpha
    out: dict[str, Difference] = {}
    for rank, i in enumerate(sorted(range(m), key=lambda i: raw[i])):
        # Holm stops at the first comparison that fails; those after it are judged at that same level.
        if all(out[names[j]].p_holm <= alpha for j in range(m) if names[j] in out):
            step = alpha / (m - rank)
        x = paired[names[i]]
        out[names[i]] = Difference(interval(x, 1.0 - step), raw[i], adjusted[i], 1.0 - step, detectable(x, alpha / m))
    return {name: out[name] for name in names}


def detectable(differences: Sequence[float] | NDArray[np.float64], alpha: float = 0.05, power: float = 0.8) -> float:
    """Minimum detectable effect of a paired t-test: least true difference found with probability ``power``."""
    x = np.asarray(differences, np.float64)
    n = x.size
    if n < 2:
        return float("nan")
    quantiles = stats.t.ppf(1.0 - alpha / 2, n - 1) + stats.t.ppf(power, n - 1)
    return float(quantiles * x.std(ddof=1) / np.sqrt(n))

"""How far predictions may be off where nothing was measured: drawn from the errors of other strata.

Runs of one stratum (model, GPU, precision, lengths) share their error, so a stratum counts once. Errors are logarithms
of predicted over measured, of TTFT and TPOT together. For a stratum that is not among them,

* its mean error is drawn from Student's t with ``m - 1`` degrees of freedom around the mean of the ``m`` strata's
  means, scaled by their covariance times ``1 + 1/m`` (the predictive distribution of one more stratum);
* each of its series (one configuration at rising concurrency) takes the residuals of one whole series elsewhere, in the
  order of their users, each stratum being as likely as any other: runs of a series lean the same way too.

Throughput of a closed loop follows from both latencies, so its error is drawn with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from research.validating.parts import CONFIGURATION, STRATUM
from research.validating.scores import column

FEWEST_STRATA = 5
"""Fewer strata than this show no spread: nothing is drawn."""
LATENCIES = ("ttft", "tpot")
SERIES = (*STRATUM, "campaign", "engine_version", *(name for name in CONFIGURATION if name != "users"))
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Doubt:
    """Errors of predictions in some strata, as logarithms of predicted over measured.

    Attributes:
        means: (m, 2) mean error of each stratum in TTFT and TPOT.
        series: (k_i, 2) errors of each series less its stratum's mean, by rising users.
        weights: chance of each series to be drawn: the same for every stratum.
    """

    means: Array
    series: tuple[Array, ...]
    weights: Array

    def record(self) -> dict[str, float]:
        """``strata``, and in TTFT and TPOT ``bias_percent`` and the ``*_sd`` of the logarithms between and within."""
        within = np.sqrt([float(self.weights @ [np.mean(s[:, i] ** 2) for s in self.series]) for i in (0, 1)])
        out: dict[str, float] = {"strata": float(len(self.means))}
        for i, name in enumerate(LATENCIES):
            out[f"{name}_bias_percent"] = 100.0 * float(np.expm1(self.means[:, i].mean()))
            out[f"{name}_between_sd"] = float(self.means[:, i].std(ddof=1))
            out[f"{name}_within_sd"] = float(within[i])
        return out

    def draw(self, runs: Sequence[int], draws: int, rng: np.random.Generator) -> Array:
        """Errors of a stratum that is not among these, shape (draws, runs, 2).

        Args:
            runs: number of runs of each of its series; the errors come in this order, by rising users.
            draws: how many.
            rng: the only source of randomness.
        """
        m = len(self.means)
        spread = np.cov(self.means.T) * (1.0 + 1.0 / m)
        normal = rng.multivariate_normal(np.zeros(2), spread, draws, method="eigh")
        shared = self.means.mean(axis=0) + normal / np.sqrt(rng.chisquare(m - 1, (draws, 1)) / (m - 1))
        own = []
        for n in runs:
            fitted = np.stack([donor[_matched(len(donor), n)] for donor in self.series])
            own.append(fitted[rng.choice(len(self.series), draws, p=self.weights)])
        drawn: Array = shared[:, None, :] + np.concatenate(own, axis=1)
        return drawn


def measured_doubt(frame: pl.DataFrame) -> Doubt | None:
    """Errors of these runs by stratum and series; None for fewer than :data:`FEWEST_STRATA` strata."""
    errors = frame.filter(pl.col("predicted_tpot_s").is_not_null() & pl.col("predicted_ttft_s").is_not_null())
    errors = errors.with_columns(
        (pl.col(column("predicted", name)) / pl.col(column("measured", name))).log().alias(f"error_{name}")
        for name in LATENCIES
    )
    names = [f"error_{name}" for name in LATENCIES]
    means, series, weights = [], [], []
    for _, stratum in errors.sort(*STRATUM, "run").group_by(*STRATUM, maintain_order=True):
        mean = stratum.select(names).to_numpy().mean(axis=0)
        own = [g.select(names).to_numpy() - mean for g in in_series(stratum)]
        means.append(mean)
        series += own
        weights += [1.0 / len(own)] * len(own)
    if len(means) < FEWEST_STRATA:
        return None
    return Doubt(np.array(means), tuple(series), np.array(weights) / len(means))


def in_series(frame: pl.DataFrame) -> list[pl.DataFrame]:
    """Runs of one configuration, version and campaign at a time, by rising users."""
    return [group.sort("users", maintain_order=True) for _, group in frame.group_by(*SERIES, maintain_order=True)]


def _matched(donors: int, runs: int) -> NDArray[np.int64]:
    """Which of a donor's runs lends its residual to each of ``runs``: by their place between fewest and most users."""
    return np.rint(np.linspace(0, donors - 1, runs) if runs > 1 else [(donors - 1) / 2]).astype(np.int64)

"""The figures that docs/traces/arrivals.md states, from the public traces: fitted on train, chosen on validation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from traces.arrivals import ArrivalFit, dispersion_curve, fit_arrivals
from traces.arrivals.dispersion import drawn_curves
from traces.catalog import load_trace, zones

SCALES_S = (1.0, 10.0, 60.0)


def fitted(
    data: Path, name: str, families: Sequence[str], *, starts: bool = False, resolution_s: float | None = None
) -> tuple[ArrivalFit, np.ndarray[tuple[int], np.dtype[np.float64]], float]:
    """A fit, and the arrivals it was fitted on. The families are those that come near, and what the docs name."""
    trace = load_trace(name, data_dir=data)
    parts = zones(trace)
    # Starts are of the whole trace: in a zone, what is left of a session that began before it is none.
    frame = trace.frame.filter(pl.col("turn") == 1) if starts else trace.frame
    whole = np.sort(frame["arrival_s"].to_numpy())
    spans = [parts[zone].duration_s for zone in ("train", "validation")]
    arrivals = [whole[whole < spans[0]], whole[(whole >= spans[0]) & (whole < sum(spans))] - spans[0]]
    fit = fit_arrivals(arrivals[0], spans[0], arrivals[1], spans[1], families=families, resolution_s=resolution_s)
    return fit, arrivals[0], spans[0]


def off(fit: ArrivalFit, arrivals: np.ndarray[tuple[int], np.dtype[np.float64]], span: float) -> list[float]:
    """Mean index of dispersion of drawn windows over that of the window fitted on, minus 1, at 1, 10, 60 s."""
    own = dispersion_curve(arrivals, span, SCALES_S)
    drawn = drawn_curves(fit.law, np.array(SCALES_S), span, np.random.default_rng(9), 200)
    return [float(mean / own[scale] - 1) for mean, scale in zip(np.nanmean(drawn, axis=0), SCALES_S, strict=True)]


def test_azure_conversation_swings_slowly(public_data: Path) -> None:
    families = ("poisson", "gamma", "multiscale", "regimes2", "swung_regimes1", "swung_regimes2")
    fit, arrivals, span = fitted(public_data, "azure_conv", families)
    assert fit.law.family == "swung_regimes2"
    assert fit.adequate
    assert [round(fit.scores[name], 3) for name in ("poisson", "gamma", "multiscale")] == [0.743, 0.748, 0.758]
    assert fit.scores["swung_regimes2"] == pytest.approx(0.767, abs=0.001)
    assert max(map(abs, off(fit, arrivals, span))) < 0.15
    assert fit.tests["gaps_ks"] < 0.09
    assert fit.tests["gaps_ks_same_rate"] < 0.04
    assert fit.tests["ks"] < 0.035
    assert fit.tests["poisson_ks"] == pytest.approx(0.069, abs=0.001)


def test_azure_code_rejects_poisson_by_orders_of_magnitude(public_data: Path) -> None:
    families = ("poisson", "weibull", "on_off", "mmpp4", "regimes6", "slowed_regimes6")
    fit, arrivals, span = fitted(public_data, "azure_code", families)
    assert fit.law.family == "slowed_regimes6"
    assert fit.adequate
    assert "Poisson 0.2413, 10^15" in fit.verdict
    assert [round(fit.scores[name], 2) for name in ("weibull", "on_off", "mmpp4", "regimes6")] == [
        1.74,
        1.25,
        1.89,
        2.38,
    ]
    assert fit.scores[fit.law.family] > fit.scores["regimes6"] - 0.015
    assert max(map(abs, off(fit, arrivals, span))) < 0.15
    assert fit.tests["gaps_ks"] < 0.13
    assert fit.tests["ks"] < 0.045
    assert fit.tests["poisson_ks"] == pytest.approx(0.499, abs=0.001)


def test_none_of_the_plain_families_fits_azure_code(public_data: Path) -> None:
    fit, arrivals, span = fitted(public_data, "azure_code", ("poisson", "gamma", "weibull", "on_off", "mmpp3", "mmpp4"))
    assert not fit.adequate
    assert fit.verdict.startswith("none fits: mmpp4")
    assert abs(off(fit, arrivals, span)[2]) > 0.3


def test_mooncake_session_starts_are_near_poisson_but_swing(public_data: Path) -> None:
    families = ("poisson", "on_off", "mmpp3", "mmpp4", "multiscale")
    fit, arrivals, span = fitted(public_data, "mooncake_conversation", families, starts=True, resolution_s=3.0)
    assert fit.law.family == "multiscale"
    assert fit.adequate
    assert fit.scores["multiscale"] - fit.scores["poisson"] < 0.002
    assert "hardly less likely" in fit.verdict
    assert max(map(abs, off(fit, arrivals, span))) < 0.15
    assert fit.tests["gaps_ks"] < 0.06

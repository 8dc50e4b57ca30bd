from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from traces import TraceError
from traces.arrivals import ArrivalLaw, fit_arrivals, stamp_step_s
from traces.arrivals import stretches as cleaning
from traces.arrivals.batched import Batched
from traces.arrivals.diurnal import Diurnal
from traces.arrivals.modulated import Modulated
from traces.arrivals.regimes import Regimes
from traces.arrivals.renewal import Renewal
from traces.arrivals.swings import Multiscale, Swing
from traces.arrivals.swung import Swung

Floats = NDArray[np.float64]
ON_OFF = Modulated((0.2, 12.0), ((0.0, 0.05), (0.15, 0.0)))
PLAIN = ("poisson", "gamma", "weibull")


def two(law: ArrivalLaw, duration_s: float, seed: int = 0) -> tuple[Floats, float, Floats, float]:
    """One draw, cut in two halves."""
    arrivals = law.draw(2 * duration_s, np.random.default_rng(seed))
    return (
        arrivals[arrivals < duration_s],
        duration_s,
        arrivals[arrivals >= duration_s] - duration_s,
        duration_s,
    )


@pytest.mark.parametrize(("family", "shape"), [("poisson", 1.0), ("gamma", 0.4), ("weibull", 0.6), ("gamma", 3.0)])
def test_a_renewal_law_is_found_again(family: str, shape: float) -> None:
    fit = fit_arrivals(*two(Renewal(family, 0.2, shape), 1500.0), families=PLAIN)
    assert fit.law.family == family
    assert isinstance(fit.law, Renewal)
    assert fit.law.shape == pytest.approx(shape, rel=0.05)
    assert fit.law.rate_per_s == pytest.approx(5.0, rel=0.05)
    assert fit.adequate
    assert "it fits them" in fit.verdict
    assert set(fit.scores) == set(fit.laws) == set(PLAIN)


def test_on_off_is_found_again_and_poisson_refused() -> None:
    law = ON_OFF
    fit = fit_arrivals(*two(law, 1500.0, 1), families=(*PLAIN, "on_off"))
    assert fit.law.family == "on_off"
    assert isinstance(fit.law, Modulated)
    assert fit.law.rates_per_s == pytest.approx(law.rates_per_s, rel=0.15)
    assert fit.law.switch_per_s[0][1] == pytest.approx(0.05, rel=0.35)
    assert fit.law.switch_per_s[1][0] == pytest.approx(0.15, rel=0.35)
    assert fit.tests["poisson_ks_p"] < 1e-6
    assert "times less likely" in fit.verdict
    alone = fit_arrivals(*two(law, 1500.0, 1), families=PLAIN)
    assert not alone.adequate
    assert alone.verdict.startswith("none fits: ")


def test_three_levels_are_found_again() -> None:
    law = Modulated((1.0, 6.0, 30.0), ((0.0, 0.03, 0.0), (0.04, 0.0, 0.04), (0.0, 0.1, 0.0)))
    fit = fit_arrivals(*two(law, 600.0, 2), families=("poisson", "on_off", "mmpp3"))
    assert fit.law.family == "mmpp3"
    assert isinstance(fit.law, Modulated)
    assert fit.law.rates_per_s == pytest.approx(law.rates_per_s, rel=0.15)


def test_slow_swings_are_found_again() -> None:
    law = Multiscale(6.0, (Swing(0.15, 8.0),))
    fit = fit_arrivals(*two(law, 1000.0, 3), families=(*PLAIN, "multiscale"))
    assert fit.law.family == "multiscale"
    assert isinstance(fit.law, Multiscale)
    assert sum(swing.variance for swing in fit.law.swings) == pytest.approx(0.15, abs=0.05)
    assert fit.scores["multiscale"] > fit.scores["gamma"] + 0.01


def test_regimes_are_found_again() -> None:
    law = Regimes((0.01, 0.5), (0.7, 3.0), ((0.9, 0.1), (0.1, 0.9)), ((0.98, 0.02), (0.02, 0.98)))
    fit = fit_arrivals(*two(law, 700.0, 4), families=(*PLAIN, "on_off", "regimes1", "regimes2"))
    assert fit.law.family == "regimes2"
    assert isinstance(fit.law, Regimes)
    assert sorted(1 - fit.law.moves[i][i] for i in (0, 1)) == pytest.approx([0.02, 0.02], abs=0.01)
    assert fit.scores["regimes2"] > fit.scores["on_off"]


def test_swung_gaps_are_found_again() -> None:
    gaps = Regimes((0.02, 0.3), (2.0, 3.0), ((0.4, 0.6),), ((1.0,),))
    law = Swung(gaps, (Swing(0.15, 20.0),))
    fit = fit_arrivals(*two(law, 900.0, 5), families=(*PLAIN, "multiscale", "regimes1", "swung_regimes1"))
    assert fit.law.family == "swung_regimes1"
    assert isinstance(fit.law, Swung)
    assert sum(swing.variance for swing in fit.law.swings) == pytest.approx(0.15, abs=0.08)


def test_tied_families_are_told_apart_by_dispersion() -> None:
    law = Multiscale(5.0, (Swing(0.03, 40.0),))  # too little to show in the likelihood of single gaps
    fit = fit_arrivals(*two(law, 800.0, 6), families=("poisson", "multiscale"))
    assert fit.law.family == "multiscale"
    assert fit.tests["dispersion_10s_low"] < fit.tests["dispersion_10s"] < fit.tests["dispersion_10s_high"]


def test_batches_at_one_stamp_are_kept() -> None:
    law = Batched(Renewal("poisson", 0.5, 1.0), 0.6, 0.5)
    fit = fit_arrivals(*two(law, 1500.0, 7), families=PLAIN)
    assert isinstance(fit.law, Batched)
    assert fit.law.single_share == pytest.approx(0.6, abs=0.03)
    assert fit.law.more_share == pytest.approx(0.5, abs=0.04)
    assert fit.law.starts.family == "poisson"
    assert "batches" in fit.verdict
    drawn = fit.law.draw(1000.0, np.random.default_rng(0))
    assert (np.diff(drawn) == 0).mean() > 0.3


def test_stamps_a_little_coarse_are_spread_not_taken_for_batches() -> None:
    train, span, held, _ = two(Renewal("gamma", 0.2, 0.5), 1000.0, 8)
    fit = fit_arrivals(np.floor(train * 1000) / 1000, span, np.floor(held * 1000) / 1000, span, families=PLAIN)
    assert fit.law.family == "gamma"
    assert isinstance(fit.law, Renewal)
    assert fit.law.shape == pytest.approx(0.5, abs=0.06)


def test_coarse_stamps_are_scored_by_counts_and_gap_laws_refused() -> None:
    law = Modulated((1.0, 8.0), ((0.0, 0.02), (0.04, 0.0)))
    train, span, held, _ = two(law, 900.0, 9)
    coarse = (3 * np.floor(train / 3), span, 3 * np.floor(held / 3), span)
    assert stamp_step_s(coarse[0]) == 3.0
    fit = fit_arrivals(*coarse)
    assert set(fit.scores) == {"poisson", "on_off", "mmpp3", "mmpp4", "multiscale"}
    assert fit.law.family != "poisson"
    assert fit.scores[fit.law.family] > fit.scores["poisson"] + 0.1
    assert isinstance(fit.laws["on_off"], Modulated)
    assert fit.laws["on_off"].rates_per_s == pytest.approx((1.0, 8.0), rel=0.15)
    assert "by counts in 3 s" in fit.verdict
    assert "dispersion_1s" not in fit.tests  # below the step
    with pytest.raises(TraceError, match="steps of 3 s say nothing about gaps"):
        fit_arrivals(*coarse, families=["gamma"])
    told = fit_arrivals(train, span, held, span, families=["poisson", "on_off"], resolution_s=3.0)
    assert told.scores["on_off"] == pytest.approx(fit.scores["on_off"], abs=0.01)


def test_a_period_is_found_if_told_and_goes_on_in_the_next_stretch() -> None:
    law = Diurnal(Renewal("poisson", 0.25, 1.0), 400.0, 0.0, (0.2, 0.6, 1.6, 1.6))
    data = two(law, 1000.0, 10)  # two periods and a half: the next stretch begins in the middle of one
    fit = fit_arrivals(*data, families=(*PLAIN, "diurnal_poisson"), period_s=400.0)
    assert isinstance(fit.law, Diurnal)
    quarters = np.asarray(fit.law.factors).reshape(4, -1).mean(axis=1)
    assert quarters == pytest.approx(law.factors, abs=0.15)
    assert fit.scores["diurnal_poisson"] > fit.scores["poisson"] + 0.1
    assert fit.tests["ks_p"] > 0.01
    with pytest.raises(TraceError, match="period_s"):
        fit_arrivals(*data, families=["diurnal_poisson"])
    with pytest.raises(TraceError, match="hold once"):
        fit_arrivals(*data, period_s=5000.0)
    assert not any(name.startswith("diurnal") for name in fit_arrivals(*data, families=PLAIN).scores)


def test_a_long_trace_is_cut_and_keeps_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "MOST", 1000)
    law = Diurnal(Renewal("poisson", 0.25, 1.0), 400.0, 0.0, (0.2, 0.6, 1.6, 1.6))
    fit = fit_arrivals(*two(law, 1000.0, 10), families=("poisson", "diurnal_poisson"), period_s=400.0)
    assert fit.law.family == "diurnal_poisson"
    assert fit.tests["ks"] < 0.05
    assert fit.law.rate_per_s == pytest.approx(4.0, rel=0.08)


def test_progress_names_each_family_and_equal_seeds_give_equal_fits() -> None:
    seen: list[str] = []
    data = two(ON_OFF, 60.0, 11)
    fit = fit_arrivals(*data, families=("poisson", "multiscale"), progress=seen.append)
    assert seen == ["poisson", "multiscale"]
    assert fit_arrivals(*data, families=("poisson", "multiscale")) == fit


def test_odd_arrivals_give_a_law_or_an_error_of_ours() -> None:
    rng = np.random.default_rng(13)
    for arrivals in (
        np.arange(40) + rng.random(40) * 1e-5,  # all but regular
        np.cumsum(rng.pareto(0.6, 40) + 1e-7),  # no mean
        1e6 + np.sort(rng.random(40)),  # nothing for days, then everything
        np.sort(rng.random(40) * 4e6),  # a few a day
        np.sort(np.r_[np.zeros(20), rng.random(20)]),  # half at one stamp
    ):
        span = float(arrivals[-1]) + 1e-3
        fit = fit_arrivals(arrivals, span, arrivals, span)
        assert np.isfinite(list(fit.scores.values())).all()
        assert fit.law.rate_per_s == pytest.approx(40 / span, rel=9)


def test_what_cannot_be_fitted_is_refused() -> None:
    train, span, held, _ = two(Renewal("poisson", 0.2, 1.0), 100.0, 12)
    with pytest.raises(TraceError, match="30 arrivals or more"):
        fit_arrivals(train[:5], span, held, span)
    with pytest.raises(TraceError, match="sorted"):
        fit_arrivals(train[::-1], span, held, span)
    with pytest.raises(TraceError, match="did you mean 'weibull'"):
        fit_arrivals(train, span, held, span, families=["weibul"])
    with pytest.raises(TraceError, match="one family"):
        fit_arrivals(train, span, held, span, families=[])
    with pytest.raises(TraceError, match="resolution_s"):
        fit_arrivals(train, span, held, span, resolution_s=0.0)

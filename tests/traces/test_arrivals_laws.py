from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml
from scipy import linalg, stats

from traces import TraceError
from traces.arrivals import ArrivalLaw, law_from_dict
from traces.arrivals.batched import Batched
from traces.arrivals.chain import Chain
from traces.arrivals.dispersion import dispersion_curve, drawn_curves
from traces.arrivals.diurnal import Diurnal
from traces.arrivals.modulated import Modulated, generator
from traces.arrivals.regimes import Regimes
from traces.arrivals.renewal import Renewal
from traces.arrivals.scan import backward, forward
from traces.arrivals.swings import Multiscale, Swing, added, joint
from traces.arrivals.swung import Swung

ON_OFF = Modulated((0.5, 20.0), ((0.0, 0.2), (0.5, 0.0)))
REGIMES = Regimes((0.01, 0.3), (0.5, 4.0), ((0.8, 0.2), (0.1, 0.9)), ((0.97, 0.03), (0.02, 0.98)))
LAWS: dict[str, ArrivalLaw] = {
    law.family: law
    for law in (
        Renewal("poisson", 0.2, 1.0),
        Renewal("gamma", 0.2, 0.5),
        Renewal("weibull", 0.2, 0.6),
        ON_OFF,
        Modulated((1.0, 4.0, 30.0), ((0.0, 0.2, 0.1), (0.3, 0.0, 0.2), (0.5, 0.5, 0.0))),
        Multiscale(5.0, (Swing(0.3, 1.0), Swing(0.2, 20.0))),
        REGIMES,
        Regimes(REGIMES.mean_gaps_s, REGIMES.shapes, REGIMES.mixtures, REGIMES.moves, 2.0),
        Swung(REGIMES, (Swing(0.2, 10.0),)),
        Batched(Renewal("poisson", 0.5, 1.0), 0.7, 0.6),
        Diurnal(Renewal("gamma", 0.2, 0.5), 100.0, 30.0, (0.5, 1.5, 1.7, 0.3)),
    )
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_law_draws_sorted_arrivals_at_its_rate_and_at_another(law: ArrivalLaw) -> None:
    rng = np.random.default_rng(1)
    for rate in (None, 2 * law.rate_per_s):
        draws = [law.draw(200.0, rng, rate_per_s=rate) for _ in range(150)]
        for arrivals in draws:
            assert (np.diff(arrivals) >= 0).all()
            assert arrivals.size == 0 or (arrivals[0] >= 0 and arrivals[-1] < 200)
        counts = np.array([arrivals.size for arrivals in draws]) / 200
        error = counts.std() / np.sqrt(counts.size)
        assert counts.mean() == pytest.approx(rate or law.rate_per_s, abs=3.5 * error)
    same = [law.draw(50.0, np.random.default_rng(3)) for _ in range(2)]
    assert (same[0] == same[1]).all()


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_residuals_of_a_law_on_its_own_draws_are_even(law: ArrivalLaw) -> None:
    arrivals = law.draw(600.0, np.random.default_rng(4))
    residuals = law.residuals(arrivals, 600.0)
    assert stats.kstest(residuals, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(residuals[1:], residuals[:-1])[0, 1]) < 4 / np.sqrt(residuals.size)
    wrong = law_from_dict({"family": "poisson", "mean_gap_s": 2 / law.rate_per_s})
    assert stats.kstest(wrong.residuals(arrivals, 600.0), "uniform").pvalue < 1e-6


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_law_explains_its_own_draws_better_than_others_do(law: ArrivalLaw) -> None:
    arrivals = law.draw(400.0, np.random.default_rng(5))
    own = law.log_likelihood(arrivals, 400.0)
    assert own == pytest.approx(law.log_densities(arrivals, 400.0).sum())
    if law.family.startswith("batched"):
        return  # the others have no density where stamps are equal
    others = [
        other for name, other in LAWS.items() if name != law.family and not name.startswith(("batched", "slowed"))
    ]
    if law.family.startswith("slowed"):
        others = [other for other in others if not isinstance(other, Regimes)]
    assert own > max(other.log_likelihood(arrivals, 400.0) for other in others)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_law_survives_yaml(law: ArrivalLaw) -> None:
    again = law_from_dict(yaml.safe_load(yaml.safe_dump(law.to_dict())))
    assert again == law
    assert again.family == law.family == law.to_dict()["family"]


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_no_arrival_at_all_has_a_likelihood(law: ArrivalLaw) -> None:
    assert -100 < law.log_likelihood(np.zeros(0), 2.0) < 0


def test_the_poisson_likelihood_is_the_textbook_one() -> None:
    arrivals = np.array([0.5, 1.0, 4.0])
    assert Renewal("poisson", 0.25, 1.0).log_likelihood(arrivals, 10.0) == pytest.approx(3 * np.log(4) - 40)


def test_a_modulated_likelihood_is_the_product_of_matrix_exponentials() -> None:
    arrivals = np.array([0.3, 0.31, 2.0, 2.2, 9.0])
    switch, rates = generator(np.asarray(ON_OFF.switch_per_s)), np.asarray(ON_OFF.rates_per_s)
    state = np.array([0.5, 0.2]) / 0.7
    for gap in np.diff(arrivals, prepend=0.0):
        state = state @ linalg.expm((switch - np.diag(rates)) * gap) @ np.diag(rates)
    last = (state @ linalg.expm((switch - np.diag(rates)) * 3.0)).sum()
    assert ON_OFF.log_likelihood(arrivals, 12.0) == pytest.approx(np.log(last))


def test_expected_times_jumps_and_arrivals_are_slopes_of_the_likelihood() -> None:
    # Fisher's identity: d log L / d log q_ij = jumps_ij - q_ij time_i; of a rate, arrivals_i - rate_i time_i.
    gaps, tail = np.array([0.3, 0.01, 1.7, 0.2, 6.8, 0.02, 0.03]), 1.5
    switch = generator(np.array([[0.0, 0.3, 0.1], [0.2, 0.0, 0.4], [0.5, 0.6, 0.0]]))
    rates = np.array([0.4, 3.0, 25.0])
    start = Chain(switch, rates).start

    def likelihood(q: Any, r: Any) -> float:
        state = start  # held fixed: EM does not use its slope
        for gap in gaps:
            state = state @ linalg.expm((q - np.diag(r)) * gap) * r
        return float(np.log((state @ linalg.expm((q - np.diag(r)) * tail)).sum()))

    found = Chain(switch, rates).expect(gaps, tail)
    assert found.log_likelihood == pytest.approx(likelihood(switch, rates))
    assert found.time_s.sum() == pytest.approx(gaps.sum() + tail)
    assert found.arrivals.sum() == pytest.approx(gaps.size)
    for i in range(3):
        up, down = (np.where(np.arange(3) == i, np.exp(e), 1.0) for e in (1e-5, -1e-5))
        slope = (likelihood(switch, rates * up) - likelihood(switch, rates * down)) / 2e-5
        assert found.arrivals[i] - rates[i] * found.time_s[i] == pytest.approx(slope, abs=1e-5)
        for j in range(3):
            if i != j:
                moved = [switch.copy(), switch.copy()]
                for which, q in zip((1e-5, -1e-5), moved, strict=True):
                    q[i, j] *= np.exp(which)
                slope = (likelihood(generator(moved[0]), rates) - likelihood(generator(moved[1]), rates)) / 2e-5
                assert found.jumps[i, j] - switch[i, j] * found.time_s[i] == pytest.approx(slope, abs=1e-5)


@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_blocked_passes_equal_plain_loops(n: int) -> None:
    rng = np.random.default_rng(n)
    matrices, start, end = rng.random((n, 3, 3)), np.array([0.2, 0.3, 0.5]), np.array([1.0, 2.0, 3.0])
    vectors, logs = forward(matrices, start)
    behind = backward(matrices, end)
    state, total = start, 0.0
    for k in range(n):
        state = state @ matrices[k]
        total += np.log(state.sum())
        state = state / state.sum()
        assert vectors[k] == pytest.approx(state)
        column = end
        for later in matrices[k + 1 :][::-1]:
            column = later @ column
        assert behind[k] == pytest.approx(column / column.sum())
    assert logs.sum() == pytest.approx(total)


def test_special_cases_agree_with_the_plain_laws() -> None:
    arrivals = REGIMES.draw(200.0, np.random.default_rng(6))
    one = Regimes((0.2,), (0.5,), ((1.0,),), ((1.0,),))
    gamma = Renewal("gamma", 0.2, 0.5)
    assert one.log_likelihood(arrivals, 200.0) == pytest.approx(gamma.log_likelihood(arrivals, 200.0))
    still = Swung(REGIMES, (Swing(1e-12, 5.0),))
    assert still.log_likelihood(arrivals, 200.0) == pytest.approx(REGIMES.log_likelihood(arrivals, 200.0), rel=1e-4)
    assert still.rate_per_s == pytest.approx(REGIMES.rate_per_s, rel=1e-5)
    swing = Swing(0.4, 3.0)
    factors, switch = joint([swing])
    same = Modulated(tuple(5.0 * factors), ((0.0, switch[0, 1]), (switch[1, 0], 0.0)))
    assert Multiscale(5.0, (swing,)).log_likelihood(arrivals, 200.0) == pytest.approx(
        same.log_likelihood(arrivals, 200.0)
    )
    flat = Diurnal(gamma, 50.0, 10.0, (1.0, 1.0))
    assert flat.log_likelihood(arrivals, 200.0) == pytest.approx(gamma.log_likelihood(arrivals, 200.0))


@pytest.mark.parametrize("variance", [0.1, 0.9, 3.0])
def test_a_swing_has_mean_1_and_its_variance(variance: float) -> None:
    swing = Swing(variance, 2.0)
    p, (low, high) = swing.high_share, swing.levels
    assert (1 - p) * low + p * high == pytest.approx(1)
    assert p * (1 - p) * (high - low) ** 2 == pytest.approx(variance)
    assert low > 0
    assert sum(swing.leave_per_s) == pytest.approx(1 / swing.memory_s)


def test_the_dispersion_that_swings_add_is_that_of_drawn_windows() -> None:
    law, scales = Multiscale(5.0, (Swing(0.3, 1.0), Swing(0.2, 15.0))), np.array([0.5, 2.0, 10.0])
    drawn = drawn_curves(law, scales, 100.0, np.random.default_rng(7), 300).mean(axis=0)
    assert 1 + added(law.swings, scales, 5.0, 100.0) == pytest.approx(drawn, rel=0.06)


def test_another_rate_stretches_time_so_bursts_keep_their_shape_in_requests() -> None:
    own = ON_OFF.draw(300.0, np.random.default_rng(8))
    fast = ON_OFF.draw(150.0, np.random.default_rng(8), rate_per_s=2 * ON_OFF.rate_per_s)
    assert fast * 2 == pytest.approx(own)
    assert dispersion_curve(own, 300.0, [10])[10] == pytest.approx(dispersion_curve(fast, 150.0, [5])[5])
    assert dispersion_curve(own, 300.0, [60]) == {}  # five intervals say nothing


def test_a_diurnal_law_keeps_its_period_at_another_rate() -> None:
    law = LAWS["diurnal_gamma"]
    assert isinstance(law, Diurnal)
    arrivals = law.draw(20_000.0, np.random.default_rng(9), rate_per_s=20.0)
    counts = np.histogram((arrivals + law.phase_s) % 100.0, 4, (0, 100))[0]
    assert counts / counts.mean() == pytest.approx(law.factors, abs=0.03)
    assert law.later(80.0).phase_s == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("raw", "column"),
    [
        ({}, "family"),
        ({"family": "poison", "mean_gap_s": 1.0}, "family"),
        ({"family": "gamma", "mean_gap_s": 1.0}, "shape"),
        ({"family": "gamma", "mean_gap_s": 1.0, "shape": -1.0}, "shape"),
        ({"family": "poisson", "mean_gap_s": float("nan")}, "mean_gap_s"),
        ({"family": "poisson", "mean_gap_s": "x"}, "mean_gap_s"),
        ({"family": "poisson", "mean_gap_s": 1.0, "shape": 2.0}, "shape"),
        (ON_OFF.to_dict() | {"rates_per_s": [1.0]}, "rates_per_s"),
        (ON_OFF.to_dict() | {"rates_per_s": [0.0, 0.0]}, "rates_per_s"),
        (ON_OFF.to_dict() | {"switch_per_s": [[0.0, 0.0], [1.0, 0.0]]}, r"switch_per_s[0]"),
        (ON_OFF.to_dict() | {"switch_per_s": [[0.0, 1.0]]}, "switch_per_s"),
        (REGIMES.to_dict() | {"mixtures": [[0.5, 0.6], [0.1, 0.9]]}, "mixtures[0]"),
        (REGIMES.to_dict() | {"slowed_by": 0}, "slowed_by"),
        (REGIMES.to_dict() | {"slowed_by": 2.0}, "slowed_by"),
        ({"family": "regimes0"}, "family"),
        (LAWS["multiscale"].to_dict() | {"swing_memories_s": [1.0]}, "swing_memories_s"),
        (LAWS["multiscale"].to_dict() | {"swing_variances": [0.1] * 5}, "swing_variances"),
        (LAWS["batched_poisson"].to_dict() | {"more_share": 1.0}, "more_share"),
        ({"family": "batched_poisson", "mean_gap_s": 1.0, "more_share": 0.5}, "single_share"),
        (LAWS["diurnal_gamma"].to_dict() | {"period_s": 0.0}, "period_s"),
    ],
)
def test_a_bad_law_is_refused_by_field(raw: dict[str, Any], column: str) -> None:
    with pytest.raises(TraceError) as caught:
        law_from_dict(raw)
    assert caught.value.column == column


def test_bad_arrivals_and_durations_are_refused() -> None:
    law = LAWS["gamma"]
    for arrivals in ([1.0, 0.5], [-1.0, 2.0], [0.0, np.nan], [0.5, 11.0]):
        with pytest.raises(TraceError, match="arrivals"):
            law.log_likelihood(np.array(arrivals), 10.0)
    with pytest.raises(TraceError, match="duration_s"):
        law.draw(0.0, np.random.default_rng(0))
    with pytest.raises(TraceError, match="rate_per_s"):
        law.draw(1.0, np.random.default_rng(0), rate_per_s=-1.0)

"""Intervals against scipy and hand values; Holm against the textbook; what a window is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from research.evidence import statistics


def test_seeds_are_averaged_within_their_window_and_add_no_replicates():
    values = statistics.by_window([0, 0, 1, 1], [1.0, 3.0, 10.0, 20.0])
    assert values == {0: 2.0, 1: 15.0}
    assert statistics.interval(list(values.values())).windows == 2


def test_a_window_without_a_value_is_left_out():
    assert statistics.by_window([0, 1, 2], [1.0, None, float("nan")]) == {0: 1.0}


def test_few_windows_give_students_t_and_are_indicative():
    # By hand: mean 2, sd 1, n 3, t(0.975, 2) = 4.302653 -> half width 4.302653 / sqrt(3) = 2.484138.
    estimate = statistics.interval([1.0, 2.0, 3.0])
    assert estimate.indicative
    assert estimate.method == "t"
    assert estimate.value == 2.0
    assert estimate.low == pytest.approx(2.0 - 2.484138, abs=1e-6)
    assert estimate.high == pytest.approx(2.0 + 2.484138, abs=1e-6)


def test_eight_windows_give_the_wider_of_bootstrap_and_t():
    x = np.array([1.0, 1.1, 0.9, 1.05, 1.2, 0.95, 1.0, 4.0])  # one outlier: skewed
    t_low, t_high = stats.t.interval(0.95, 7, loc=x.mean(), scale=stats.sem(x))
    boot = stats.bootstrap(
        (x,), np.mean, method="BCa", n_resamples=statistics.RESAMPLES, rng=np.random.default_rng(statistics.SEED)
    ).confidence_interval
    estimate = statistics.interval(x)
    assert not estimate.indicative
    assert (estimate.low, estimate.high) == (min(t_low, boot.low), max(t_high, boot.high))
    assert boot.high > t_high  # the case in which t alone would be too short above


def test_one_window_has_no_interval_and_none_has_no_value():
    one, none = statistics.interval([5.0]), statistics.interval([])
    assert (one.value, one.windows, one.indicative) == (5.0, 1, True)
    assert math.isnan(one.low)
    assert math.isnan(none.value)


def test_equal_windows_have_an_interval_of_no_width():
    assert statistics.interval([2.0] * 8).low == 2.0 == statistics.interval([2.0] * 8).high


def test_the_same_data_give_the_same_interval_twice():
    x = np.random.default_rng(3).gamma(1.0, 1.0, 12)
    assert statistics.interval(x) == statistics.interval(x)


def test_coverage_is_near_nominal_for_skewed_data():
    rng = np.random.default_rng(0)
    hit = sum((e := statistics.interval(rng.exponential(1.0, 8))).low <= 1.0 <= e.high for _ in range(300))
    assert hit / 300 > 0.88  # BCa alone covers about 0.83 here


def test_p_value_of_few_windows_is_the_paired_t_test():
    a, b = np.array([3.0, 4.0, 5.5, 4.2]), np.array([2.0, 3.5, 5.0, 4.0])
    assert statistics.p_value(a - b) == pytest.approx(stats.ttest_rel(a, b).pvalue)


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.04 times 3, 2, 1, then made monotone: 0.03, 0.04, 0.04.
    assert statistics.holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert statistics.holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert statistics.holm([]) == []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 12), m=st.integers(1, 5))
def test_the_adjusted_interval_excludes_zero_exactly_when_holm_rejects(seed, n, m):
    rng = np.random.default_rng(seed)
    base = {w: float(rng.normal()) for w in range(n)}
    others = {f"p{k}": {w: base[w] + float(rng.normal(0.6 * k, 1.0)) for w in base} for k in range(m)}
    for difference in statistics.compare(base, others).values():
        if abs(difference.p_holm - 0.05) > 1e-3:  # inversion of the bootstrap stops at 1e-4
            assert difference.proven == (difference.p_holm < 0.05)


def test_pairing_removes_what_the_windows_share():
    base = {w: 100.0 * w for w in range(8)}
    better = {w: v + 1.0 + 0.1 * (w % 2) for w, v in base.items()}
    difference = statistics.compare(base, {"better": better})["better"]
    assert difference.proven
    assert difference.estimate.value == pytest.approx(1.05)


def test_only_windows_that_both_have_are_paired():
    difference = statistics.compare({0: 1.0, 1: 2.0, 2: 3.0}, {"x": {1: 3.0, 2: 4.5, 9: 0.0}})["x"]
    assert difference.estimate.windows == 2
    assert difference.estimate.value == pytest.approx(1.25)


def test_more_comparisons_widen_the_interval():
    rng = np.random.default_rng(1)
    base = {w: 0.0 for w in range(8)}
    others = {f"p{k}": {w: float(rng.normal(0.0, 1.0)) for w in base} for k in range(5)}
    alone = statistics.compare(base, {"p0": others["p0"]})["p0"]
    together = statistics.compare(base, others)["p0"]
    assert together.confidence > alone.confidence == pytest.approx(0.95)
    assert together.estimate.low < alone.estimate.low


def test_minimum_detectable_effect_by_hand():
    # sd 1, n 4: (t(0.975, 3) + t(0.8, 3)) / 2 = (3.182446 + 0.978472) / 2.
    x = np.array([-1.0, 1.0, -1.0, 1.0]) * math.sqrt(0.75)
    assert statistics.detectable(x) == pytest.approx((3.182446 + 0.978472) / 2, abs=1e-5)
    assert math.isnan(statistics.detectable([1.0]))

"""Metrics against values counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from research.evidence.metrics import Interval, measure, measured_interval
from tests.research.frames import REFUSED, SERVED, result

ALL = Interval(0.0, 10.0)


def test_the_measured_part_is_the_middle_of_the_window():
    interval = measured_interval(0.0, 200.0, 0.10, 0.05)
    assert (interval.start_s, interval.end_s) == (20.0, 190.0)
    assert measured_interval(50.0, 200.0, 0.10, 0.05) == Interval(70.0, 240.0)
    out = measure(result([{"arrival_s": t} for t in (19.9, 20.0, 100.0, 189.9, 190.0)], span_s=200.0), interval)
    assert out["requests"] == 3
    assert out["goodput_per_s"] == pytest.approx(3 / 170)


def test_goodput_and_attainment_count_every_request_that_arrived():
    out = measure(result([{}, {"slo_met": False, "ttft_s": 2.0}, REFUSED, {}]), ALL)
    assert out["attainment"] == 0.5
    assert out["goodput_per_s"] == pytest.approx(0.2)
    assert out["goodput_per_gpu_per_s"] == pytest.approx(0.2 / 8)
    assert (out["served"], out["rejected"], out["cancelled"]) == (3, 1, 0)
    assert out["ttft_attainment"] == 0.5
    assert out["tpot_attainment"] == 1.0


def test_turns_that_never_arrived_count_where_they_were_cancelled():
    lost = {**REFUSED, "status": "cancelled", "arrival_s": None, "routed_s": None, "finish_s": 5.0, "turn": 2}
    assert measure(result([{}, lost]), ALL)["attainment"] == 0.5
    assert measure(result([{}, lost]), Interval(0.0, 4.0))["attainment"] == 1.0


def test_feasible_requests_are_those_an_idle_cluster_could_serve():
    out = measure(
        result(
            [
                {},
                {"slo_met": False, "ttft_s": 2.0},
                {"slo_met": False, "idle_ttft_s": 0.6},  # too long a prompt for its objective
                {"slo_met": False, "idle_tpot_s": 0.03},
                {"idle_tpot_s": None, "tpot_s": None},  # a single token has no TPOT to miss
            ]
        ),
        ALL,
    )
    assert out["infeasible_share"] == pytest.approx(0.4)
    assert out["feasible_attainment"] == pytest.approx(2 / 3)
    assert out["attainment"] == pytest.approx(2 / 5)


def test_percentiles_are_of_served_requests_and_linear():
    ttft = [0.1, 0.2, 0.3, 0.4, 0.5]
    out = measure(result([*({"ttft_s": t} for t in ttft), REFUSED]), ALL)
    assert out["ttft_mean_s"] == pytest.approx(0.3)
    for label, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert out[f"ttft_{label}_s"] == pytest.approx(np.percentile(ttft, q))


def test_tpot_is_null_where_nothing_has_two_tokens():
    out = measure(result([{"tpot_s": None, "output_tokens": 1}]), ALL)
    assert out["tpot_p99_s"] is None
    assert out["tpot_attainment"] is None


def test_token_gaps_come_from_the_histogram_to_within_a_bin():
    rng = np.random.default_rng(0)
    gaps = list(rng.lognormal(-4.0, 0.5, 5000))
    out = measure(result([{}], gaps_s=gaps), ALL)
    assert out["tbt_samples"] == 5000
    for label, q in (("p50", 50), ("p95", 95), ("p99", 99)):
        assert out[f"tbt_{label}_s"] == pytest.approx(np.percentile(gaps, q), rel=0.035)
    assert measure(result([{}]), ALL)["tbt_p50_s"] is None


def test_caching_moving_and_deflection():
    out = measure(
        result(
            [
                {"cached_tokens": 500, "pulled_bytes": 5e5},
                {"local": True, "prefill_worker": 1, "pulled_bytes": 0.0},  # local on the decode worker: deflected
                {"local": True, "prefill_worker": 2, "decode_worker": 2, "pulled_bytes": 0.0},  # local on a mixed one
                REFUSED,
            ],
            workers=[{}, {"worker": 1, "role": "decode"}, {"worker": 2, "role": "mixed"}],
        ),
        ALL,
    )
    assert out["hit_rate"] == pytest.approx(500 / 3000)
    assert out["kv_moved_bytes"] == 5e5
    assert out["deflected_share"] == pytest.approx(1 / 3)
    assert out["local_share"] == pytest.approx(2 / 3)
    assert out["handover_mean_s"] == pytest.approx(0.1)


def test_utilisation_by_role_is_the_share_of_the_span_in_steps():
    out = measure(result([{}], span_s=10.0), ALL)
    assert out["utilisation_prefill"] == pytest.approx(0.5)
    assert out["utilisation_decode"] == pytest.approx(0.5)
    assert out["utilisation"] == pytest.approx(0.5)


def test_throughput_counts_what_ends_in_the_measured_part():
    out = measure(result([{"finish_s": 1.0}, {"finish_s": 11.0}]), ALL)
    assert out["completed_per_s"] == pytest.approx(0.1)
    assert out["output_tokens_per_s"] == pytest.approx(1.0)
    assert out["prompt_tokens_per_s"] == pytest.approx(100.0)


def test_counts_of_trouble():
    out = measure(result([{"preemptions": 2, "holds": 1}, {"preemptions": 1}]), ALL)
    assert (out["preemptions"], out["holds"]) == (3, 1)


def test_every_value_is_a_plain_float_or_none_and_names_have_units():
    out = measure(result([SERVED, REFUSED], gaps_s=[0.02]), ALL)
    assert all(value is None or type(value) is float for value in out.values())
    assert all(name.endswith("_s") for name in out if name.startswith(("ttft_p", "tpot_p", "tbt_p", "e2e_")))

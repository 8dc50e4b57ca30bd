"""time_slice: placement and shares by hand."""

from __future__ import annotations

import numpy as np
import pytest

from envs.cluster.presets import parse_cluster
from envs.cluster.simulator import simulate
from envs.cluster.slo import TIGHT
from envs.hardware.load import load_handover, load_profile
from policies.contract import LOCAL, SPLIT
from policies.registry import load
from tests.policies.views import ask, make_request, make_worker
from traces import Trace

PROFILE = load_profile("llama-3.1-70b-fp8-h100-tp4")


def split(worker_id, **fields):
    return make_worker(id=worker_id, role=SPLIT, **fields)


def test_routes_to_the_least_loaded_split_worker():
    # 0.05 + 0.1 + 0.0103; 0 + 0.1 + 0.0501; a mixed worker without load is not one of them
    view = [split(0, prefill_tokens=500), split(1, streams=400), make_worker(id=2)]
    assert ask(load("time_slice"), make_request(), view)[1:3] == (LOCAL, 1)
    assert ask(load("time_slice"), make_request(), view[2:])[1:3] == (LOCAL, 2)


def test_a_burst_that_decodes_can_absorb_runs_first():
    # a step of 20 ms of 0.9 * 40 ms: needs 0.556 of the time, 0.889 s of the horizon remain
    streams = {"streams": 100, "min_slo_tpot_s": 0.04}
    policy = load("time_slice", horizon_s=2.0)
    view = [
        split(0, prefill_tokens=8_800, **streams),  # 0.88 s pending: absorbed
        split(1, prefill_tokens=9_000, **streams),  # 0.90 s: by need, 0.45 and 0.556
        split(2, prefill_tokens=19_000),  # nobody decodes: all of the horizon
        split(3, prefill_tokens=1_000, streams=500, min_slo_tpot_s=0.04),  # a step of 60 ms: needs 1.67 and 0.05
        split(4, prefill_tokens=90_000, **streams),  # needs 4.5 and 0.556
        make_worker(id=5),
    ]
    expected = {0: 0.8, 1: 0.45 / (0.45 + 0.02 / 0.036), 2: 0.8, 3: 0.2, 4: 0.8}
    assert policy.adjust(view) == pytest.approx(expected)


def test_overload_starves_neither_phase():
    """Four workers at rates up to twice what they can serve: never far below a fixed half, which suits prefill less."""
    for rate_per_s in (20, 30, 40):
        n = 60 * rate_per_s
        rng = np.random.default_rng(1)
        trace = Trace.build(
            "poisson",
            {
                "arrival_s": np.cumsum(rng.exponential(1 / rate_per_s, n)),
                "prompt_tokens": rng.integers(100, 2500, n),
                "output_tokens": rng.integers(20, 400, n),
            },
        )
        cluster = parse_cluster("split4", profile=PROFILE, handover=load_handover("rdma", gpus=PROFILE.gpus))
        met = {
            period_s: simulate(trace, cluster, load("time_slice"), TIGHT, adjust_period_s=period_s)
            .requests["slo_met"]
            .mean()
            for period_s in (0.0, 1.0)
        }
        assert met[1.0] > met[0.0] - 0.05, (rate_per_s, met)


def test_its_source_hash_covers_the_shares(monkeypatch):
    before = load("time_slice").source_sha256

    def shares(view, params):
        return {}

    monkeypatch.setattr("policies.time_slice.shares", shares)
    assert load("time_slice").source_sha256 != before
    assert load("time_slice", beta=0.5).with_params(horizon_s=3).adjust([]) == {}

"""time_slice: placement and shares by hand."""

from __future__ import annotations

import pytest

from policies.contract import LOCAL, SPLIT
from policies.registry import load
from tests.policies.views import ask, make_request, make_worker


def split(worker_id, **fields):
    return make_worker(id=worker_id, role=SPLIT, **fields)


def test_routes_to_the_least_loaded_split_worker():
    # 0.05 + 0.1 + 0.0103; 0 + 0.1 + 0.0501; a mixed worker without load is not one of them
    view = [split(0, prefill_tokens=500), split(1, streams=400), make_worker(id=2)]
    assert ask(load("time_slice"), make_request(), view)[1:3] == (LOCAL, 1)
    assert ask(load("time_slice"), make_request(), view[2:])[1:3] == (LOCAL, 2)


def test_a_burst_that_decodes_can_absorb_runs_first():
    # a step of 20 ms of 0.9 * 40 ms: spares 0.444, 0.889 s over the horizon
    streams = {"streams": 100, "min_slo_tpot_s": 0.04}
    policy = load("time_slice", horizon_s=2.0)
    view = [
        split(0, prefill_tokens=8_800, **streams),  # 0.88 s pending: absorbed
        split(1, prefill_tokens=9_000, **streams),  # 0.90 s: only what they spare
        split(2, prefill_tokens=19_000),  # nobody decodes: all of the horizon
        split(3, prefill_tokens=1_000, streams=500, min_slo_tpot_s=0.04),  # a step of 60 ms: nothing to spare
        make_worker(id=5),
    ]
    assert policy.adjust(view) == pytest.approx({0: 0.9, 1: 1 - 0.02 / 0.036, 2: 0.9, 3: 0.1})


def test_its_source_hash_covers_the_shares(monkeypatch):
    before = load("time_slice").source_sha256

    def shares(view, params):
        return {}

    monkeypatch.setattr("policies.time_slice.shares", shares)
    assert load("time_slice").source_sha256 != before
    assert load("time_slice", beta=0.5).with_params(horizon_s=3).adjust([]) == {}

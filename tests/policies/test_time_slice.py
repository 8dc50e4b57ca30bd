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


def test_shares_follow_the_queue_within_what_decodes_can_spare():
    policy = load("time_slice", horizon_s=2.0)
    view = [
        split(0, prefill_tokens=10_000),  # need 1.0 / 2
        split(1, prefill_tokens=10_000, streams=100, min_slo_tpot_s=0.04),  # a step of 20 ms of 36: spares 0.444
        split(2, streams=100, min_slo_tpot_s=0.04),  # no queue: the least
        split(3, prefill_tokens=90_000),  # need 4.5: the most
        split(4, prefill_tokens=90_000, streams=500, min_slo_tpot_s=0.04),  # decodes cannot spare any: the least
        make_worker(id=5),
    ]
    assert policy.adjust(view) == pytest.approx({0: 0.5, 1: 1 - 0.02 / 0.036, 2: 0.1, 3: 0.9, 4: 0.1})


def test_its_source_hash_covers_the_shares(monkeypatch):
    before = load("time_slice").source_sha256

    def shares(view, params):
        return {}

    monkeypatch.setattr("policies.time_slice.shares", shares)
    assert load("time_slice").source_sha256 != before
    assert load("time_slice", beta=0.5).with_params(horizon_s=3).adjust([]) == {}

"""The learned rule: features by hand, the shortlist against a search, policy files with one clear error each."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from policies.contract import DECODE, LOCAL, PREFILL, ROUTE
from policies.errors import PolicyError
from policies.features import FEATURES, N_FEATURES, SLOTS, candidate_features, shortlist, slot
from policies.learned import (
    DEFAULT_FILE,
    GUARD_LIKE,
    HIDDEN,
    N_WEIGHTS,
    learned_policy,
    read_policy_file,
    score,
)
from policies.registry import load
from tests.policies.views import ask, d, make_request, p, random_view


def named(request, prefill, decode, local=False, pool_backlog_s=0.0):
    return dict(zip(FEATURES, candidate_features(request, prefill, decode, local, pool_backlog_s), strict=True))


def test_sizes_agree():
    assert len(FEATURES) == N_FEATURES == 16
    assert len(GUARD_LIKE) == N_WEIGHTS == N_FEATURES + HIDDEN + HIDDEN + HIDDEN * N_FEATURES


def test_features_of_a_local_prefill_by_hand():
    # 2048 - 32 = 2016 tokens a step: one step of 10 ms + 32 x 0.1 ms + 1000 x 0.1 ms = 113.2 ms. TTFT objective 0.4 s.
    request = make_request(slo_ttft_s=0.4, slo_tpot_s=0.02, last_decode=5)
    worker = d(5, streams=32, decode_requests=32, decode_tokens=64_000, last_tbt_s=0.03)
    x = named(request, worker, worker, local=True, pool_backlog_s=0.2)
    assert x["ttft"] == pytest.approx(0.1132 / 0.4)
    assert x["log_ttft"] == pytest.approx(math.log1p(0.1132 / 0.4))
    assert x["late"] == 0.0
    assert x["interference"] == pytest.approx(0.1 * 32 / 64 / 0.4)
    assert x["harm"] == pytest.approx(0.1132 * 32 / 64 / 0.4)
    assert x["step"] == pytest.approx((0.01 + 33e-4) / 0.02)
    assert x["slow_step"] == 0.0
    assert x["pool_backlog"] == pytest.approx(0.5)
    assert x["kv"] == pytest.approx(65_000 / 400_000)
    assert (x["local"], x["sticky"], x["last_gap"]) == (1.0, 1.0, 1.5)


def test_features_of_a_handover_by_hand():
    # Prefill: 5000 tokens wait, then 1000, in one step of 8192: 10 + 600 ms. 1000 tokens x 1e5 bytes over 1e10 bytes/s:
    # 10 ms, and 5 ms fixed. Decode step: 10 + 0.1 ms, with a chunk of the 300 tokens that wait there: 30 ms.
    request = make_request(slo_ttft_s=0.5)
    prefill, decode = p(0, prefill_tokens=5000), d(1, prefill_tokens=300, decode_requests=0, transfers=4)
    x = named(request, prefill, decode)
    assert x["ttft"] == pytest.approx((0.61 + 0.015 + 0.0101 + 0.03) / 0.5)
    assert x["late"] == pytest.approx(x["ttft"] - 0.7)
    assert x["prefill_backlog"] == pytest.approx(0.5 / 0.5)
    assert x["decode_backlog"] == pytest.approx(0.03 / 0.5)
    assert x["transfers"] == 0.5
    assert (x["local"], x["interference"], x["harm"], x["last_gap"]) == (0.0, 0.0, 0.0, 0.0)


def test_an_overload_is_capped_but_still_ordered():
    request = make_request(slo_ttft_s=0.25)
    bad, worse = p(0, prefill_tokens=10**6), p(1, prefill_tokens=10**7)
    one, two = named(request, bad, d(2)), named(request, worse, d(2))
    assert one["ttft"] == two["ttft"] == one["late"] == one["prefill_backlog"] == 20.0
    assert one["log_ttft"] < two["log_ttft"]


def test_shortlist_is_the_two_least_of_each_kind():
    rng = np.random.default_rng(5)
    for k in range(300):
        request, workers = random_view(rng, [PREFILL] * 5 + [DECODE] * 5)
        workers = [w._replace(can_prefill=1, can_decode=1) for w in workers]
        n = request.prompt_tokens

        def new(w, n=n):
            return max(1, n - w.cached_tokens)

        def wait(w, n=n):
            own = w.c_tok_s * new(w) + w.c_attn_s * new(w) * (w.cached_tokens + 0.5 * new(w))
            queued = w.c_attn_s * 0.5 * w.prefill_tokens**2 / max(1, w.prefill_requests)
            return w.c_tok_s * w.prefill_tokens + own + queued

        def join(w, n=n):
            share = w.c_seq_s + w.c_kv_s * (w.decode_tokens + n) / (w.streams + 1)
            chunk = w.c_tok_s * min(w.prefill_tokens, w.max_batched_tokens)
            return (w.decode_requests + 1) * share + chunk + new(w) * w.kv_bytes_per_token / w.link_bytes_per_s

        def disturb(w, n=n):
            return w.c_tok_s * (w.prefill_tokens + new(w) * (1 + w.streams / 4))

        found = shortlist(request, workers, k)
        for at, role, key in ((0, PREFILL, wait), (2, DECODE, join), (4, DECODE, disturb)):
            pool = [w for w in workers if w.role == role]
            best = sorted(key(w) for w in pool)[:2]
            assert [key(workers[i]) for i in found[at : at + 2]] == pytest.approx(best)
            assert all(workers[i].role == role for i in found[at : at + 2])


def test_slots_are_pairs_of_different_workers_or_local():
    assert [slot(k, 0, 1, 2, 3, 2, 3) for k in range(SLOTS)] == [(0, 2), (1, 2), (0, 3), (1, 3), (2, 2), (3, 3)]
    assert slot(0, 2, 1, 2, 3, 2, 3) == (-1, -1)
    assert slot(3, 0, -1, 2, 3, 2, 3) == (-1, -1)
    assert slot(5, 0, 1, 2, 3, 2, -1) == (-1, -1)


def test_score_by_hand():
    weights = [0.0] * N_WEIGHTS
    weights[1], weights[16], weights[24] = 2.0, 3.0, 0.5  # w[1], v[0], b[0]
    weights[32 + 2] = -1.0  # u[0][2]
    x = [9.0, 0.25, 0.75] + [0.0] * 13
    assert score(x, weights) == pytest.approx(2.0 * 0.25 + 3.0 * math.tanh(0.5 - 0.75))


def test_one_policy_for_clusters_of_any_size():
    rng = np.random.default_rng(8)
    policy = load("learned")
    for roles in ([PREFILL, DECODE], [PREFILL] * 3 + [DECODE] * 9, [PREFILL] * 20 + [DECODE] * 20):
        request, workers = random_view(rng, roles)
        action = ask(policy, request, [w._replace(can_prefill=1, can_decode=1) for w in workers])
        assert action.kind == ROUTE


def test_a_weight_on_local_decides_where_to_prefill():
    workers = [p(0), p(1), d(2), d(3)]
    for value, expected in ((5.0, False), (-5.0, True)):
        weights = [0.0] * N_WEIGHTS
        weights[FEATURES.index("local")] = value
        action = ask(learned_policy(weights=tuple(weights)), make_request(), workers)
        assert (action.prefill == LOCAL) == expected


def test_the_shipped_policy_says_what_it_was_trained_on():
    found = read_policy_file(DEFAULT_FILE)
    assert DEFAULT_FILE.stat().st_size < 1_000_000
    assert load("learned").params["weights"] == found["weights"]
    training = found["training"]
    assert training["command"].startswith("python -m research.train ")
    assert len(training["trace_sha256"]) == len(training["train_sha256"]) == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "schema = 'other': expected 'pdgym.learned'"),
        ({"version": 2}, "version = 2: expected 1"),
        ({"features": ["ttft"]}, "features = .*train the policy again"),
        ({"hidden": 4}, "hidden = 4: expected 8"),
        ({"weights": [1.0]}, f"expected {N_WEIGHTS} finite numbers, got 1"),
        ({"weights": [math.nan] * N_WEIGHTS}, f"expected {N_WEIGHTS} finite numbers"),
        ({"weights": None}, "got NoneType"),
    ],
)
def test_a_wrong_policy_file_is_one_clear_error(tmp_path, change, message):
    good = json.loads(DEFAULT_FILE.read_text())
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(good | change))
    with pytest.raises(PolicyError, match=message):
        load("learned", path=str(path))


def test_no_file_and_no_json(tmp_path):
    with pytest.raises(PolicyError, match=r"cannot read the policy file: No such file"):
        load("learned", path=tmp_path / "absent.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(PolicyError, match=r"bad\.json: no JSON"):
        load("learned", path=tmp_path / "bad.json")
    with pytest.raises(PolicyError, match="unknown parameter 'wieghts'"):
        load("learned", wieghts=1.0)


def test_interpreted_parameters_may_be_a_tuple_or_an_array():
    rng = np.random.default_rng(3)
    policy = load("learned")
    for k in range(50):
        request, workers = random_view(rng)
        plain = policy.decide(request, workers, SimpleNamespace(**policy.params), SimpleNamespace(), k)
        assert plain == ask(policy, request, workers, seed=k)

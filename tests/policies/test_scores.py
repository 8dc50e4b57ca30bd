"""threshold, least_ttft, guard, multiplicative: decisions worked out by hand.

The easy law of tests.policies.views: a step costs 10 ms, a prefill token 0.1 ms, a stream 0.1 ms; a handover of 1,000
tokens 15 ms.
"""

from __future__ import annotations

from policies.contract import LOCAL, Action
from policies.registry import load
from tests.policies.views import ask, d, make_request, p


def way(action: Action) -> tuple[int, int]:
    return action.prefill, action.decode


def test_threshold_looks_at_the_uncached_length():
    view = [p(0), d(1)]
    at = load("threshold", tokens=600)
    assert way(ask(at, make_request(prompt_tokens=600), view)) == (LOCAL, 1)
    assert way(ask(at, make_request(prompt_tokens=601), view)) == (0, 1)
    assert way(ask(at, make_request(prompt_tokens=5600), [p(0), d(1, cached_tokens=5000)])) == (LOCAL, 1)


def test_threshold_weighs_prefix_against_load():
    view = [p(0), p(1, prefill_tokens=10), d(2), d(3, streams=100, cached_tokens=512)]
    # worker 2: 0.11 + 0.0101; worker 3: 0.0688 + 0.0201
    assert way(ask(load("threshold", tokens=100), make_request(), view)) == (0, 3)
    view[3] = d(3, streams=800, cached_tokens=512)  # 0.1388 + 0.0901
    assert way(ask(load("threshold", tokens=100), make_request(), view)) == (0, 2)


def test_least_ttft_counts_queue_handover_and_step():
    # local 0.02 + 0.1 = 0.12; remote 0.11 + 0.015 + 0.0201 = 0.1451
    view = [p(0), d(1, streams=100)]
    assert way(ask(load("least_ttft"), make_request(), view)) == (LOCAL, 1)
    # 400 streams: local 0.05 + 0.1 = 0.15; remote 0.11 + 0.015 + 0.0501 = 0.1751
    # a local backlog of 1,000 tokens: local 0.05 + 0.2 = 0.25; remote 0.11 + 0.015 + 0.1502 = 0.2752
    # a local backlog of 3,000 tokens: local 3 steps 0.15 + 0.4 = 0.55; remote, its first step has a chunk of 1,648:
    # 0.11 + 0.015 + 0.01 + 0.1648 + 0.0402 = 0.34
    view = [p(0), d(1, streams=400, local_prefills=1, prefill_tokens=3000)]
    assert way(ask(load("least_ttft"), make_request(), view)) == (0, 1)


def test_guard_prices_the_streams_that_a_local_prefill_delays():
    # local 0.12 * (1 + 4 * 100 / 64) = 0.87; remote 0.1451
    view = [p(0), d(1, streams=100)]
    assert way(ask(load("guard", mu=0), make_request(), view)) == (0, 1)
    assert way(ask(load("guard", kappa=0, mu=0), make_request(), view)) == (LOCAL, 1)
    # 7,000 pending tokens: remote 0.01 + 0.8 + 0.0351 = 0.8451; 7,300 take two steps: 0.8851
    assert way(ask(load("guard", mu=0), make_request(), [p(0, prefill_tokens=7000), view[1]])) == (0, 1)
    assert way(ask(load("guard", mu=0), make_request(), [p(0, prefill_tokens=7300), view[1]])) == (LOCAL, 1)
    # ten more requests on their way: remote 0.8861, local 0.12 * (1 + 4 * 110 / 64) = 0.945
    crowded = [p(0, prefill_tokens=7300), d(1, streams=100, decode_requests=110)]
    assert way(ask(load("guard", mu=0), make_request(), crowded)) == (0, 1)


def test_guard_mu_prefers_the_quick_decode_worker():
    # remote to 1: steps of 20.1 ms, 900 tokens cached: its pull is 9 ms shorter; remote to 2: steps of 15.1 ms
    view = [p(0), d(1, streams=100, cached_tokens=900, can_prefill=0), d(2, streams=50, can_prefill=0)]
    # to 1: 0.11 + 0.006 + 0.0201 = 0.1361; to 2: 0.11 + 0.015 + 0.0151 = 0.1401
    assert way(ask(load("guard", mu=0), make_request(), view)) == (0, 1)
    # with mu = 3: 0.1361 + 0.0603 against 0.1401 + 0.0453
    assert way(ask(load("guard", mu=3), make_request(), view)) == (0, 2)


def test_multiplicative_weighs_tokens_by_batch():
    # prefill worker: (1000 + 4000) * (1 + 1) = 10,000; decode worker: 1000 * (9 + 1) = 10,000 - 1 cached
    view = [p(0, prefill_tokens=4000), d(1, streams=9, cached_tokens=1), d(2, streams=20)]
    assert way(ask(load("multiplicative"), make_request(), view)) == (LOCAL, 1)
    view[0] = p(0, prefill_tokens=3999, prefill_requests=1)  # 9,998 < 9,990? no: 1 cached token is worth 10
    assert way(ask(load("multiplicative"), make_request(), view)) == (LOCAL, 1)
    view[0] = p(0, prefill_tokens=3990, prefill_requests=1)  # 9,980
    assert way(ask(load("multiplicative"), make_request(), view)) == (0, 1)

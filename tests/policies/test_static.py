"""random, round_robin, least_loaded, colocated, always_local: decisions worked out by hand."""

from __future__ import annotations

from collections import Counter

from policies.contract import LOCAL, Action
from policies.registry import load
from tests.policies.views import ask, d, make_request, make_worker, memory_namespace, p


def way(action: Action) -> tuple[int, int]:
    return action.prefill, action.decode


def test_random_is_even_and_stays_in_its_pools():
    view = [p(0), p(1), d(2), d(3)]
    seen = Counter(way(ask(load("random"), make_request(id=i), view)) for i in range(2000))
    assert set(seen) == {(0, 2), (0, 3), (1, 2), (1, 3)}
    assert all(400 < count < 600 for count in seen.values())


def test_random_serves_mixed_workers_colocated():
    view = [make_worker(id=i) for i in range(4)]
    seen = {way(ask(load("random"), make_request(id=i), view)) for i in range(100)}
    assert seen == {(LOCAL, i) for i in range(4)}


def test_round_robin_takes_turns_by_id_whatever_the_order():
    policy, view = load("round_robin"), [d(9), p(4), d(2), p(7), d(5)]
    memory = memory_namespace(policy, len(view))
    ways = [way(ask(policy, make_request(id=i), view[i % 5 :] + view[: i % 5], memory)) for i in range(7)]
    assert ways == [(4, 2), (7, 5), (4, 9), (7, 2), (4, 5), (7, 9), (4, 2)]


def test_round_robin_on_mixed_workers_is_colocated():
    policy, view = load("round_robin"), [make_worker(id=i) for i in range(3)]
    memory = memory_namespace(policy, 3)
    assert [way(ask(policy, make_request(id=i), view, memory)) for i in range(4)] == [
        (LOCAL, 0),
        (LOCAL, 1),
        (LOCAL, 2),
        (LOCAL, 0),
    ]


def test_least_loaded_counts_tokens_there_and_requests_here():
    view = [p(0, prefill_tokens=900), p(1, prefill_tokens=800, prefill_requests=5), d(2, streams=5), d(3, streams=4)]
    assert way(ask(load("least_loaded"), make_request(), view)) == (1, 3)


def test_least_loaded_counts_requests_on_their_way():
    view = [p(0), d(2, streams=5), d(3, streams=4, decode_requests=6)]
    assert way(ask(load("least_loaded"), make_request(), view)) == (0, 2)


def test_colocated_uses_every_worker_and_its_cache():
    view = [p(0, streams=10), d(1, streams=5), d(2, streams=40, cached_tokens=900)]
    # 0.01 + 0.1 + 1 ms; 0.01 + 0.1 + 0.5 ms; 0.01 + 0.01 + 4 ms
    assert way(ask(load("colocated"), make_request(), view)) == (LOCAL, 2)
    assert way(ask(load("colocated", by_load=1), make_request(), view)) == (LOCAL, 1)


def test_colocated_counts_a_local_prefill_once():
    # three requests in flight each on worker 0 (one stream, two prefilling) against four on worker 1
    view = [
        make_worker(id=0, streams=1, local_prefills=2, prefill_requests=2, prefill_tokens=9000),
        make_worker(id=1, streams=4),
    ]
    assert way(ask(load("colocated", by_load=1), make_request(), view)) == (LOCAL, 0)


def test_always_local_never_uses_prefill_workers():
    view = [p(0), d(1, streams=50, local_prefills=3, prefill_tokens=9000), d(2, streams=60)]
    assert way(ask(load("always_local"), make_request(), view)) == (LOCAL, 1)


def test_always_local_sticky_follows_the_session():
    view = [p(0), d(1), d(2, streams=60)]
    later = make_request(turn=3, session=5, last_decode=2)
    assert way(ask(load("always_local"), later, view)) == (LOCAL, 1)
    assert way(ask(load("always_local", sticky=1), later, view)) == (LOCAL, 2)
    assert way(ask(load("always_local", sticky=1), later._replace(last_decode=8), view)) == (LOCAL, 1)

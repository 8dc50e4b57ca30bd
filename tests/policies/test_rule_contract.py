"""What holds for every named policy: legal, repeatable, blind to the order of workers, honest about what it reads."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from policies.contract import (
    DECODE,
    HOLD,
    LOCAL,
    MIXED,
    PREFILL,
    REJECT,
    REQUEST_FIELDS,
    ROUTE,
    SPLIT,
    WORKER_FIELDS,
    Action,
)
from policies.registry import load, names
from tests.policies.views import ask, d, make_request, make_worker, memory_namespace, p, param_namespace, random_view

# What a target knows from its configuration: identity, capabilities, capacity and the predictor's law.
CONFIGURED = {
    "id",
    "now_s",
    "arrival_s",
    "prompt_tokens",
    "role",
    "can_prefill",
    "can_decode",
    "max_batched_tokens",
} | {
    *("floor_s", "c0_s", "c_tok_s", "c_attn_s", "c_seq_s", "c_kv_s"),
    *("kv_bytes_per_token", "handover_s", "link_bytes_per_s"),
}
SIGNALS = {name for name, _, _ in (*REQUEST_FIELDS, *WORKER_FIELDS)} - CONFIGURED

VARIANTS = [
    *((name, {}) for name in names()),
    ("always_local", {"sticky": 1}),
    ("colocated", {"by_load": 1}),
    ("deflect", {"printed": 1, "handover_aware": 0, "prefix_aware": 0}),
    ("guard", {"mu": 0}),
    ("ppd", {"balanced": 0, "bypass_tokens": 512}),
]


@pytest.fixture(params=VARIANTS, ids=lambda v: "-".join([v[0], *v[1]]))
def policy(request):
    name, params = request.param
    return load(name, **params)


def assert_legal(action: Action, workers, context=""):
    by_id = {w.id: w for w in workers}
    servable = any(w.can_prefill for w in workers) and any(w.can_decode for w in workers)
    if not servable:
        assert action.kind == REJECT, context
        return
    assert action.kind == ROUTE, context
    assert by_id[action.decode].can_decode, context
    if action.prefill == LOCAL:
        assert by_id[action.decode].can_prefill, context
    else:
        assert action.prefill != action.decode, context
        assert by_id[action.prefill].can_prefill, context
    assert action.local_chunk_tokens >= 0
    assert action.kind != HOLD


def test_legal_on_random_views(policy):
    rng = np.random.default_rng(11)
    for k in range(300):
        request, workers = random_view(rng)
        action = ask(policy, request, workers, seed=k)
        assert_legal(action, workers, (k, action, workers))
        assert 0 <= action.reason < len(policy.spec.reasons)


@pytest.mark.parametrize(
    "workers",
    [[make_worker(id=3, role=role)] for role in (PREFILL, DECODE, MIXED, SPLIT)]
    + [
        [p(0), p(1)],
        [d(0), d(1)],
        [p(0, can_decode=0), d(1, can_prefill=0)],
        [p(0, can_decode=0), p(1, can_decode=0), d(2, can_prefill=0), d(3)],
        [p(0, can_prefill=0), d(1, can_decode=0)],
        [make_worker(id=0, can_decode=0), make_worker(id=1, can_prefill=0)],
        [p(0), d(1, max_batched_tokens=16, streams=200, min_slo_tpot_s=1e-6)],
        [p(0), d(1, floor_s=1.0, streams=1, min_slo_tpot_s=0.01)],
        [p(0), d(1, cached_tokens=1000)],
        [p(0, can_prefill=0), d(1, can_prefill=0)],
        [],
    ],
    ids=str,
)
def test_legal_at_the_edges(policy, workers):
    for prompt in (1, 1000, 10**7):
        assert_legal(ask(policy, make_request(prompt_tokens=prompt, turn=2, last_decode=1), workers), workers)


def test_same_inputs_same_answer_and_inputs_untouched(policy):
    rng = np.random.default_rng(12)
    for k in range(50):
        request, workers = random_view(rng)
        before = copy.deepcopy(workers)
        assert ask(policy, request, workers, seed=k) == ask(policy, request, workers, seed=k)
        assert workers == before or any(np.isnan(w.last_tbt_s) for w in workers)


def test_the_order_of_workers_does_not_matter(policy):
    rng = np.random.default_rng(13)
    for k in range(200):
        request, workers = random_view(rng)
        if k % 3 == 0:  # ties: all workers alike but for their ids
            workers = [workers[0]._replace(id=w.id, role=w.role) for w in workers]
        shuffled = [workers[i] for i in rng.permutation(len(workers))]
        assert ask(policy, request, workers, seed=k) == ask(policy, request, shuffled, seed=k)


class Spy:
    """A record that notes which of its fields are read."""

    def __init__(self, record, seen):
        self._record = record
        self._seen = seen

    def __getattr__(self, name):
        self._seen.add(name)
        return getattr(self._record, name)


@pytest.mark.parametrize("name", names())
def test_declared_needs_are_the_signals_it_reads(name):
    seen: set[str] = set()
    rng = np.random.default_rng(14)
    for policy in [load(n, **v) for n, v in VARIANTS if n == name]:
        for k in range(200):
            request, workers = random_view(rng)
            view = [Spy(w, seen) for w in workers]
            memory = memory_namespace(policy, len(workers))
            policy.decide(Spy(request, seen), view, param_namespace(policy), memory, k)
    declared = {need for need in load(name).spec.needs if need in SIGNALS}
    assert seen - CONFIGURED == declared


@pytest.mark.parametrize("name", names())
def test_local_prefill_and_chunk_are_declared_where_used(name):
    rng = np.random.default_rng(15)
    local = chunk = False
    policy = load(name)
    for k in range(200):
        request, workers = random_view(rng, [PREFILL, PREFILL, DECODE, DECODE])
        action = ask(policy, request, [w._replace(can_prefill=1, can_decode=1) for w in workers], seed=k)
        local = local or action.prefill == LOCAL
        chunk = chunk or action.local_chunk_tokens > 0
    assert local == ("local_prefill" in policy.spec.needs)
    assert chunk == ("chunk" in policy.spec.needs)


def test_ties_are_broken_by_seed_not_by_position():
    chosen = {ask(load("least_loaded"), make_request(), [p(0), p(1), d(2), d(3)], seed=s)[1:3] for s in range(50)}
    assert chosen == {(0, 2), (0, 3), (1, 2), (1, 3)}

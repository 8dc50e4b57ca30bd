"""The linear-time argmin equals a search of every pair."""

from __future__ import annotations

import math

import numpy as np
import pytest

from policies.contract import DECODE, LOCAL, PREFILL
from policies.joint import best_route
from policies.pools import decode_pool, decode_rank, prefill_pool, prefill_rank
from policies.predict import joined_step_s, ttft_local_s, ttft_remote_s
from tests.policies.views import d, make_request, p, random_view


def score_of(view, prompt, p_id, d_id, kappa, mu):
    worker = {w.id: w for w in view}
    spread = mu * joined_step_s(worker[d_id], float(prompt))
    if p_id == LOCAL:
        local_s = ttft_local_s(worker[d_id], prompt)
        return local_s + spread + kappa * local_s * worker[d_id].decode_requests / 64
    return ttft_remote_s(worker[p_id], worker[d_id], prompt) + spread


def least_score(view, prompt, kappa, mu):
    sources = [w for w in view if prefill_rank(w) == prefill_pool(view)]
    scores = [math.inf]
    for dest in (w for w in view if decode_rank(w) == decode_pool(view)):
        if dest.can_prefill:
            scores.append(score_of(view, prompt, LOCAL, dest.id, kappa, mu))
        scores += [score_of(view, prompt, s.id, dest.id, kappa, mu) for s in sources if s.id != dest.id]
    return min(scores)


@pytest.mark.parametrize(("kappa", "mu"), [(0.0, 0.0), (16.0, 3.0)])
@pytest.mark.parametrize("roles", [None, [PREFILL] * 4 + [DECODE] * 4], ids=["any", "4p4d"])
def test_equals_a_search_of_every_pair(kappa, mu, roles):
    rng = np.random.default_rng(4)
    for k in range(300):
        request, view = random_view(rng, roles)
        if k % 2:  # one kind of link: the fast way
            view = [w._replace(link_bytes_per_s=1e10, kv_bytes_per_token=1e5) for w in view]
        p_id, d_id = best_route(request, view, kappa, mu, k)
        least = least_score(view, request.prompt_tokens, kappa, mu)
        if d_id < 0:
            assert least == math.inf
        else:
            assert score_of(view, request.prompt_tokens, p_id, d_id, kappa, mu) == pytest.approx(least, rel=1e-8)


def test_a_slow_link_can_cost_more_than_a_queue():
    # worker 0: done in 0.11 s, handover 0.105 s; worker 1: done in 0.16 s, handover 0.015 s
    view = [p(0, link_bytes_per_s=1e9), p(1, prefill_tokens=500), d(2, can_prefill=0)]
    assert best_route(make_request(), view, 0.0, 0.0, 0) == (1, 2)
    assert best_route(make_request(), [view[0]._replace(link_bytes_per_s=1e10), *view[1:]], 0.0, 0.0, 0) == (0, 2)

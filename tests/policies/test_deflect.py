"""deflect: LargestSafe against its loop as printed, and decisions by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from policies.contract import LOCAL
from policies.deflect import largest_safe, printed_path_s
from policies.predict import chunk_budget
from policies.registry import load
from tests.policies.views import ask, d, make_request, p, random_view


def stepwise(w, remaining, done, limit_s):
    """Algorithm 1, one chunk at a time: (seconds, size class of the last chunk)."""
    total, last = 0.0, 0
    while remaining > 0:
        for size in (2048, 1024, 512, 256, 128):
            cap = min(size, chunk_budget(w))
            chunk = min(cap, remaining)
            step = max(w.floor_s, w.c0_s + w.c_tok_s * chunk) + w.c_attn_s * chunk * (done + chunk / 2)
            step += w.c_seq_s * w.streams + w.c_kv_s * (w.decode_tokens + done)
            if step <= limit_s:
                break
        else:
            return math.inf, 0
        if chunk == cap or last == 0 or cap < last:
            last = cap
        total += step
        done += chunk
        remaining -= chunk
    return total, last


def test_closed_form_equals_the_loop():
    rng = np.random.default_rng(5)
    feasible = sizes = flat = 0
    for _ in range(400):
        request, workers = random_view(rng)
        floor_s = float(rng.choice([0.0, 0.03, 0.08]))  # 0.08: chunks of up to 700 tokens cost the same
        w = workers[0]._replace(floor_s=floor_s, c_attn_s=float(rng.choice([0.0, 2e-9, 2e-8])))
        limit = float(rng.choice([0.03, 0.05, 0.1, 0.25, math.inf]))
        expected = stepwise(w, request.prompt_tokens, w.cached_tokens, limit)
        got = largest_safe(w, request.prompt_tokens, w.cached_tokens, limit)
        assert got[0] == pytest.approx(expected[0], rel=1e-9)
        if expected[0] < math.inf:
            feasible += 1
            sizes += got[1] not in (2048, 0)
            flat += floor_s == 0.08
            assert got[1] <= max(expected[1], 1)
    assert feasible > 100
    assert sizes > 20
    assert flat > 20


def test_chunks_shrink_as_the_context_grows():
    # 10 ms + 0.1 ms a token, attention 1e-8: 512 tokens cost 61.2 ms + 5.12e-6 * (done + 256)
    w = d(0, c_attn_s=1e-8)
    seconds, chunk = largest_safe(w, 4096, 0, 0.07)
    # 512 is safe while done <= 1,461: three chunks (0, 512, 1024), then 256s
    assert chunk == 256
    assert seconds == pytest.approx(3 * 0.01 + 10 * 0.01 + 0.4096 + 1e-8 * 4096**2 / 2)


def test_infeasible_when_even_the_smallest_breaks_the_budget():
    assert largest_safe(d(0), 1000, 0, 0.022) == (math.inf, 0)
    assert largest_safe(d(0, floor_s=0.2), 1000, 0, 0.1) == (math.inf, 0)
    assert largest_safe(d(0), 100, 0, 0.022)[0] == pytest.approx(0.02)


def test_printed_path_takes_the_queue_for_one_prompt():
    w = p(0, prefill_tokens=4096, c_attn_s=1e-8)
    step = 0.01 + 0.8192 + 1e-8 * 8192 * (2048 + 4096)
    assert printed_path_s(w, 1000, 0) == pytest.approx(0.5 * step + 0.01 + 0.1 + 1e-8 * 1000**2 / 2)


def busy(queue, **fields):
    # 100 streams at 50 ms: chunks of 256 cost 10 + 10 + 25.6 = 45.6 ms; 1,000 tokens: 3 of them, then 232: 43.2 ms
    return [p(0, prefill_tokens=queue), d(1, **{"streams": 100, "min_slo_tpot_s": 0.05, **fields})]


def test_deflects_in_safe_chunks_when_the_prefill_path_is_longer():
    # TTFT_d = 3 * 45.6 + 43.2 = 180 ms; remote at queue 0: 0.11 + 0.015 + 0.0201 = 0.1451, times 1.3 = 0.1886
    action = ask(load("deflect"), make_request(), busy(0))
    assert (action.prefill, action.decode, action.local_chunk_tokens) == (LOCAL, 1, 256)
    action = ask(load("deflect", alpha=1.0), make_request(), busy(0))
    assert (action.prefill, action.decode, action.local_chunk_tokens) == (0, 1, 0)
    assert ask(load("deflect", alpha=1.0), make_request(), busy(400)).prefill == LOCAL


def test_as_printed_ignores_the_handover():
    # TTFT_p = 0.11, times 1.3 = 0.143 < 0.18
    printed = load("deflect", printed=1, handover_aware=0, prefix_aware=0)
    assert ask(printed, make_request(), busy(0)).prefill == 0
    assert ask(printed, make_request(), busy(1000)).prefill == LOCAL


def test_only_one_deflected_prefill_a_worker():
    view = [*busy(50_000, local_prefills=1), d(2, streams=120, min_slo_tpot_s=0.05)]
    assert ask(load("deflect"), make_request(), view).decode == 2
    assert ask(load("deflect"), make_request(), view[:2]).prefill == 0


def test_must_meet_the_requests_own_objective():
    assert ask(load("deflect"), make_request(slo_ttft_s=0.17), busy(50_000)).prefill == 0
    assert ask(load("deflect"), make_request(slo_ttft_s=0.19), busy(50_000)).prefill == LOCAL


def test_beta_tightens_the_budget():
    assert ask(load("deflect", beta=0.6), make_request(), busy(50_000)).prefill == 0


def test_prefix_awareness_counts_only_new_tokens():
    # 96 new tokens: one chunk of 29.6 ms + 10 ms; as printed 1,000
    view = busy(0, cached_tokens=904)
    assert ask(load("deflect", alpha=0.5), make_request(), view).prefill == LOCAL
    assert ask(load("deflect", alpha=0.5, prefix_aware=0), make_request(), view).prefill == 0


def test_remote_requests_decode_where_the_step_is_shortest():
    view = [p(0), d(1, streams=90, min_slo_tpot_s=1e-3), d(2, streams=80, min_slo_tpot_s=1e-3)]
    assert ask(load("deflect"), make_request(), view)[1:3] == (0, 2)

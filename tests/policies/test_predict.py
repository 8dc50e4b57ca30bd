"""The shared estimates against hand-computed numbers and against a step-by-step count."""

from __future__ import annotations

import numpy as np
import pytest

from policies import predict
from tests.policies.views import d, make_worker, p


def test_step_is_the_law_with_its_floor():
    w = make_worker(c_attn_s=1e-8, c_kv_s=1e-7)
    assert predict.step_s(w, 100, 5000, 20, 30_000) == pytest.approx(0.01 + 0.01 + 5e-5 + 0.002 + 0.003)
    # the floor bounds the first two terms, the others come on top
    assert predict.step_s(w._replace(floor_s=0.5), 100, 5000, 20, 30_000) == pytest.approx(0.5 + 5e-5 + 0.002 + 0.003)
    assert predict.matrices_s(w._replace(floor_s=0.02), 99) == 0.02
    assert predict.matrices_s(w._replace(floor_s=0.02), 101) == pytest.approx(0.0201)


def test_one_token_is_always_computed():
    assert predict.new_tokens(make_worker(cached_tokens=1000), 1000) == 1
    assert predict.new_tokens(make_worker(cached_tokens=600), 1000) == 400


@pytest.mark.parametrize("chunk", [1, 7, 128, 1000, 2048])
def test_attention_work_does_not_depend_on_the_chunks(chunk):
    w = make_worker(c_attn_s=1e-8)
    cached, new = 512, 1500
    done, total = cached, 0.0
    while done < cached + new:
        size = min(chunk, cached + new - done)
        total += w.c_tok_s * size + w.c_attn_s * size * (done + size / 2)
        done += size
    assert predict.prefill_work_s(w, new, cached) == pytest.approx(total)


def test_prefill_done_counts_the_queue_and_whole_steps():
    assert predict.prefill_done_s(p(0), 1000, 0) == pytest.approx(0.01 + 0.1)
    # 30,000 pending + 1,000 own = 4 steps of at most 8,192
    assert predict.prefill_done_s(p(0, prefill_tokens=30_000), 1000, 0) == pytest.approx(4 * 0.01 + 3.1)


def test_prefill_done_carries_the_decodes_in_mixed_steps():
    # 100 streams leave 1,948 tokens a step: 2 steps of 10 ms + 10 ms for the streams + 10 ms for their KV
    w = d(0, streams=100, decode_tokens=100_000, c_kv_s=1e-7)
    assert predict.prefill_done_s(w, 2000, 0) == pytest.approx(2 * 0.03 + 0.2)
    assert predict.ttft_local_s(w, 2000) == predict.prefill_done_s(w, 2000, 0)


@pytest.mark.parametrize("floor_s", [0.0, 0.05, 0.3])
def test_prefill_done_matches_a_walk_over_the_steps(floor_s):
    rng = np.random.default_rng(3)
    for _ in range(50):
        queued, new, cached = (int(x) for x in rng.integers(1, 9000, 3))
        streams = int(rng.integers(0, 60))
        w = d(0, prefill_tokens=queued, streams=streams, decode_tokens=50 * streams, c_kv_s=1e-6, c_attn_s=1e-9)
        w = w._replace(floor_s=floor_s)
        prompts, elapsed = [[0, queued], [cached, cached + new]], 0.0
        while prompts[1][0] < prompts[1][1]:
            budget, tokens, attention = w.max_batched_tokens - streams, 0, 0.0
            for prompt in prompts:
                size = min(budget, prompt[1] - prompt[0])
                attention += size * (prompt[0] + size / 2)
                prompt[0] += size
                budget -= size
                tokens += size
            elapsed += predict.step_s(w, tokens, attention, streams, w.decode_tokens)
        assert predict.prefill_done_s(w, new, cached) == pytest.approx(elapsed)


def test_the_queue_is_taken_as_equally_long_prompts():
    w = p(0, prefill_tokens=4000, prefill_requests=4, c_attn_s=1e-6)
    assert predict.queued_work_s(w) == pytest.approx(0.4 + 4 * 1e-6 * 1000**2 / 2)


def test_handover_uses_the_slower_link_and_the_sender_bytes():
    fast, slow = p(0, kv_bytes_per_token=2e5), d(1, link_bytes_per_s=1e9, kv_bytes_per_token=7.0)
    assert predict.handover_time_s(fast, slow, 1000.0) == pytest.approx(0.005 + 2e8 / 1e9)


def test_requests_on_their_way_count_with_the_mean_context():
    w = d(0, streams=3, decode_tokens=3000, decode_requests=5, c_kv_s=1e-6)
    # the mean of 1000, 1000, 1000 and this request's 2000 is 1250
    assert predict.joined_kv_tokens(w, 2000.0) == 3000 + 2000 + 2 * 1250
    assert predict.joined_step_s(w, 2000.0) == pytest.approx(0.01 + 6e-4 + 7.5e-3)


def test_first_step_rides_with_a_local_chunk():
    assert predict.first_step_s(d(0, streams=9), 1000.0) == pytest.approx(0.01 + 0.001)
    busy = d(0, streams=9, local_prefills=1, prefill_tokens=5000)  # 2,039 fit; 9 + 1 + this one decode
    assert predict.first_step_s(busy, 1000.0) == pytest.approx(0.01 + 0.2039 + 0.0011)


def test_remote_ttft_pulls_only_what_the_decode_worker_lacks():
    source, dest = p(0), d(1, cached_tokens=600)
    expected = 0.11 + 0.005 + 400 * 1e5 / 1e10 + 0.01 + 1e-4
    assert predict.ttft_remote_s(source, dest, 1000) == pytest.approx(expected)


def test_harm_counts_everybody_interference_the_streams():
    w = d(0, streams=64, decode_requests=70, cached_tokens=500)
    assert predict.interference_s(w, 1000) == pytest.approx(0.05 * 64)
    # of a step of 60 ms, 35 are the floor that it takes anyway
    assert predict.interference_s(w._replace(floor_s=0.035), 1000) == pytest.approx(0.025 * 64)
    assert predict.interference_s(w._replace(floor_s=0.2), 1000) == pytest.approx(0.0, abs=1e-12)
    assert predict.harm_s(w, 0.2) == pytest.approx(0.2 * 70)
